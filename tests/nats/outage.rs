//! The server is killed, and comes back.

use crate::{
    eventually::eventually,
    support::{LONG, next, registration, with_server},
};
use std::{sync::Arc, time::Duration};
use tower_overload::{
    busy::BusySet,
    load::{LoadEvent, ThresholdUpdate, WorkerMonitor},
    nats::{FleetEvent, FleetSource, LoadSource, NotTold},
};

#[test]
fn after_the_server_was_gone_load_comes_again_and_nobody_was_taken_for_gone() {
    with_server(async |mut server, scrape| {
        let connected = || scrape.value("load_sources_connected", &[]);
        let ttl = Duration::from_millis(200);
        let worker = server.publisher("a", registration().ttl(ttl)).await;
        let mut fleet = server.fleet().await;
        assert_eq!(fleet.joined(1).await, ["a"]);
        assert_eq!(connected(), Some(1.0));

        for outage in 1..=2 {
            server.kill().await;
            eventually("the source tells", async || !fleet.0.is_connected()).await;
            assert_eq!(connected(), Some(0.0));
            let old = 10 * outage;
            let new = old + 10;
            for blocks in old + 1..=new {
                let event = LoadEvent::new((), 0).kv_used_blocks(blocks);
                worker.report(event).unwrap();
            }
            // Longer than a registration lives.
            tokio::time::sleep(2 * ttl).await;
            server.start_again();
            // Neither has it left, nor is anything sent that was replaced.
            loop {
                match next(&mut fleet.0).await {
                    FleetEvent::Load(event) if event.kv_used_blocks == Some(new) => break,
                    FleetEvent::Load(event) if event.kv_used_blocks == Some(old) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert!(fleet.0.is_connected());
            assert_eq!(connected(), Some(1.0));
        }

        drop(worker);
        let gone = fleet.presence().await;
        assert!(matches!(gone, FleetEvent::Left { .. }), "{gone:?}");
    });
}

#[test]
fn without_a_server_a_worker_is_not_held_up_and_what_is_new_then_is_sent_later() {
    with_server(async |mut server, _| {
        server.kill().await;
        let worker = server.publisher("a", registration().ttl(LONG)).await;
        let nobody = server.publisher("b", registration().ttl(LONG)).await;
        for blocks in 0..100_000 {
            worker
                .report(LoadEvent::new((), 0).kv_used_blocks(blocks))
                .unwrap();
            if blocks % 1000 == 0 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(nobody.leave().await, Err(NotTold));
        let client = server.client().await;
        let mut fleet: FleetSource<Arc<str>> = FleetSource::subscribe(&client);
        assert!(!fleet.is_connected());

        server.start_again();
        let joined = next(&mut fleet).await;
        assert!(matches!(joined, FleetEvent::Joined { .. }), "{joined:?}");
        let newest = LoadEvent::new("a".into(), 0).kv_used_blocks(99_999);
        assert_eq!(next(&mut fleet).await, FleetEvent::Load(newest));
    });
}

#[test]
fn while_the_server_is_gone_marks_fall_with_their_evidence() {
    with_server(async |mut server, _| {
        let set = BusySet::new();
        let monitor = WorkerMonitor::builder()
            .stale_after(Duration::from_millis(200))
            .build();
        let thresholds = monitor.add_model("tiny", set.clone()).unwrap();
        thresholds
            .update(ThresholdUpdate::new().active_decode_blocks(0.5))
            .unwrap();
        let id: Arc<str> = "a".into();
        monitor.configure_for_all(id.clone(), registration().config().unwrap());
        let source = LoadSource::<Arc<str>>::subscribe(&server.client().await);
        let driving = tokio::spawn(monitor.drive(source));
        let worker = server.publisher("a", registration().ttl(LONG)).await;
        worker
            .report(LoadEvent::new((), 0).kv_used_blocks(51))
            .unwrap();
        eventually("it is busy", async || set.marks(&id).is_excluded()).await;

        server.kill().await;
        eventually("the mark falls", async || !set.marks(&id).is_excluded()).await;
        server.start_again();
        eventually("it is busy again", async || set.marks(&id).is_excluded()).await;
        driving.abort();
    });
}

#[test]
fn when_everything_here_stood_still_nobody_was_taken_for_gone() {
    with_server(async |server, _| {
        let ttl = Duration::from_millis(300);
        let worker = server.publisher("a", registration().ttl(ttl)).await;
        let mut fleet = server.fleet().await;
        assert_eq!(fleet.joined(1).await, ["a"]);
        // This thread runs all of the tasks.
        std::thread::sleep(Duration::from_secs(1));
        worker
            .report(LoadEvent::new((), 0).kv_used_blocks(1))
            .unwrap();
        let event = next(&mut fleet.0).await;
        assert!(matches!(event, FleetEvent::Load(_)), "{event:?}");
        drop(worker);
        let gone = fleet.presence().await;
        assert!(matches!(gone, FleetEvent::Left { .. }), "{gone:?}");
    });
}
