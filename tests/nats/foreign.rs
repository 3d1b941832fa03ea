//! What is none of ours, and the load of a Dynamo fleet.

use crate::{
    dynamo::REAL,
    eventually::eventually,
    metrics::Scrape,
    support::{Server, dropped, next, with_server},
};
use async_nats::Client;
use std::sync::Arc;
use tower_overload::{
    busy::BusySet,
    load::{LoadEvent, ThresholdUpdate, WorkerConfig, WorkerMonitor},
    nats::{FleetEvent, FleetSource, LoadSource, SourceBuilder, dynamo},
};

/// Says what is on the list, and waits until each was counted for its reason.
async fn say_bad(client: &Client, scrape: &Scrape, bad: &[(&str, &str, Vec<u8>)]) {
    for (reason, subject, payload) in bad {
        let before = dropped(scrape, reason);
        let said = client.publish((*subject).to_owned(), payload.clone().into());
        said.await.unwrap();
        eventually(&format!("{subject} is {reason}"), async || {
            dropped(scrape, reason) == before + 1.0
        })
        .await;
    }
}

async fn connected(server: &Server) -> (Client, FleetSource<Arc<str>>) {
    let client = server.client().await;
    let ours = |id: &str| (id != "stranger").then(|| id.into());
    let fleet = SourceBuilder::new().fleet(&client, ours).unwrap();
    eventually("it is connected", async || fleet.is_connected()).await;
    (client, fleet)
}

#[test]
fn what_cannot_be_read_is_dropped_and_counted_and_what_comes_after_it_is_read() {
    with_server(async |server, scrape| {
        let (client, mut fleet) = connected(&server).await;
        let load = "tower_overload.v1.load.tiny.a";
        let worker = "tower_overload.v1.worker.tiny.a";
        let long = vec![b' '; 300 * 1024];
        say_bad(
            &client,
            scrape,
            &[
                ("malformed", load, b"".to_vec()),
                ("malformed", load, b"\xff\xfe".to_vec()),
                ("malformed", load, b"[[0,1]]".to_vec()),
                ("malformed", load, br#"{"kv_used_blocks":-1}"#.to_vec()),
                ("malformed", worker, br#"{"url":""}"#.to_vec()),
                (
                    "malformed",
                    worker,
                    br#"{"url":"http://a","dp_ranks":[]}"#.to_vec(),
                ),
                ("malformed", worker, b"[".repeat(100_000)),
                ("oversized", load, long.clone()),
                ("oversized", worker, long),
                (
                    "oversized",
                    load,
                    format!("[{}{{}}]", "{},".repeat(1024)).into(),
                ),
                // In another's name, of another model, of no worker at all.
                (
                    "foreign",
                    load,
                    br#"{"worker":"b","kv_used_blocks":1}"#.to_vec(),
                ),
                (
                    "foreign",
                    worker,
                    br#"{"url":"http://a","models":["big"]}"#.to_vec(),
                ),
                ("foreign", "tower_overload.v1.hello.tiny.a", b"{}".to_vec()),
                ("foreign", "tower_overload.v1.load.tiny.=41", b"{}".to_vec()),
                (
                    "foreign",
                    "tower_overload.v1.load.tiny.stranger",
                    b"{}".to_vec(),
                ),
            ],
        )
        .await;
        client
            .publish(load, r#"{"kv_used_blocks":1}"#.into())
            .await
            .unwrap();
        let event = LoadEvent::new("a".into(), 0).kv_used_blocks(1);
        assert_eq!(next(&mut fleet).await, FleetEvent::Load(event));
    });
}

#[test]
fn a_dynamo_fleet_drives_a_monitor_as_it_is() {
    with_server(async |server, scrape| {
        let load = dynamo::decode(&REAL[0].1).unwrap();
        let id = load.worker_id;
        let set = BusySet::new();
        let (monitor, thresholds) = WorkerMonitor::for_model("tiny", set.clone());
        thresholds
            .update(ThresholdUpdate::new().active_decode_blocks(0.1))
            .unwrap();
        // One block used on each rank is above a tenth of its 9.
        let config = WorkerConfig::new([0, 1]).unwrap().kv_total_blocks(9);
        let name: Arc<str> = "mapped".into();
        monitor.configure_for_all(name.clone(), config);

        let client = server.client().await;
        let source = SourceBuilder::new();
        let ours = move |worker: u64| (worker == id).then(|| "mapped".into());
        let source: LoadSource<Arc<str>> =
            source.dynamo(&client, dynamo::SUBSCRIPTION, ours).unwrap();
        eventually("it is connected", async || source.is_connected()).await;
        let driving = tokio::spawn(monitor.drive(source));

        let subject = "namespace.other.component.x.endpoint.y.kv_metrics";
        let message = |n: usize| REAL[n].1.clone();
        let mut another_topic = message(0);
        let topic = another_topic
            .windows(5)
            .position(|w| w == b"topic")
            .unwrap();
        another_topic[topic + 6] = b'x';
        let mut a_stranger = message(0);
        let worker = a_stranger
            .windows(9)
            .position(|w| w == b"worker_id")
            .unwrap();
        a_stranger[worker + 10] ^= 1;
        say_bad(
            &client,
            scrape,
            &[
                ("malformed", subject, Vec::new()),
                ("malformed", subject, message(0)[..50].to_vec()),
                ("malformed", subject, br#"{"worker_id":1}"#.to_vec()),
                ("oversized", subject, vec![0xc0; 20_000]),
                ("foreign", subject, another_topic),
                ("foreign", subject, a_stranger),
            ],
        )
        .await;

        let mut used = [None; 2];
        for (subject, message) in &*REAL {
            client
                .publish(subject.clone(), message.clone().into())
                .await
                .unwrap();
            let load = dynamo::decode(message).unwrap();
            used[load.dp_rank as usize] = load.kv_used_blocks.or(used[load.dp_rank as usize]);
            client.flush().await.unwrap();
            // The monitor judges as the messages say.
            let busy = used.iter().all(|used| used.is_some_and(|used| used > 0));
            eventually("it has read it", async || {
                let seen = &monitor.snapshot()[0];
                let its = |rank: usize| seen.ranks[rank].kv_used_blocks;
                [its(0), its(1)] == used && set.marks(&name).is_excluded() == busy
            })
            .await;
        }
        let all: Vec<_> = REAL
            .iter()
            .map(|(_, bytes)| dynamo::decode(bytes).unwrap())
            .collect();
        assert!(
            all.iter().any(|load| load.kv_used_blocks > Some(0)),
            "it was busy once"
        );
        driving.abort();
    });
}
