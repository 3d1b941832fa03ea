//! Many workers, and readers that are slow.

use crate::{
    eventually::eventually,
    support::{Fleet, LONG, dropped, next, registration, with_server},
};
use std::{collections::HashSet, sync::Arc};
use tower_overload::{
    load::LoadEvent,
    nats::{FleetEvent, LoadSource, SourceBuilder, Subjects},
};

const WORKERS: usize = 10_000;

#[test]
fn ten_thousand_workers_that_report_at_once_are_all_heard() {
    with_server(async |server, scrape| {
        let mut fleet = server.fleet().await;
        eventually("it is connected", async || fleet.0.is_connected()).await;
        let client = server.client().await;
        let subjects = Subjects::default();
        let saying = async {
            for n in 0..WORKERS {
                let id = format!("worker:{n}");
                let json = format!(r#"{{"url":"http://10.0.0.1:{n}","ttl_ms":3600000}}"#);
                let subject = subjects.worker("tiny", &id).unwrap();
                client.publish(subject, json.into()).await.unwrap();
                let json = format!(r#"{{"kv_used_blocks":{n}}}"#);
                let subject = subjects.load("tiny", &id).unwrap();
                client.publish(subject, json.into()).await.unwrap();
            }
            client.flush().await.unwrap();
        };
        saying.await;
        let mut joined = HashSet::new();
        let mut loaded = HashSet::new();
        while loaded.len() < WORKERS {
            match next(&mut fleet.0).await {
                FleetEvent::Joined { worker, .. } => assert!(joined.insert(worker)),
                FleetEvent::Load(event) => {
                    assert!(joined.contains(&event.worker));
                    let n = event.kv_used_blocks.unwrap();
                    assert_eq!(&*event.worker, format!("worker:{n}"));
                    assert!(loaded.insert(event.worker));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(joined.len(), WORKERS);
        for reason in [
            "slow_consumer",
            "client_overrun",
            "malformed",
            "too_many_workers",
        ] {
            assert_eq!(dropped(scrape, reason), 0.0, "{reason}");
        }
    });
}

#[test]
fn a_slow_reader_misses_the_oldest_and_that_is_counted() {
    with_server(async |server, scrape| {
        let client = server.client().await;
        let source = SourceBuilder::new().capacity(100);
        let mut source: LoadSource<Arc<str>> = source.loads(&client, |id| Some(id.into())).unwrap();
        eventually("it is connected", async || source.is_connected()).await;
        let subject = Subjects::default().load("tiny", "a").unwrap();
        for n in 0..10_000 {
            let json = format!(r#"{{"kv_used_blocks":{n}}}"#);
            client.publish(subject.clone(), json.into()).await.unwrap();
        }
        eventually("all others are counted", async || {
            dropped(scrape, "slow_consumer") == 9_900.0
        })
        .await;
        for n in 9_900..10_000 {
            assert_eq!(
                next(&mut source).await,
                LoadEvent::new("a".into(), 0).kv_used_blocks(n)
            );
        }
        client
            .publish(subject, r#"{"kv_used_blocks":1}"#.into())
            .await
            .unwrap();
        assert_eq!(next(&mut source).await.kv_used_blocks, Some(1));
        assert_eq!(dropped(scrape, "slow_consumer"), 9_900.0);
    });
}

#[test]
fn a_worker_too_many_is_counted_and_the_others_stay() {
    with_server(async |server, scrape| {
        let client = server.client().await;
        let source = SourceBuilder::new().max_workers(2);
        let mut fleet = Fleet(source.fleet(&client, |id| Some(id.into())).unwrap());
        let first = server.publisher("1", registration().ttl(LONG)).await;
        assert_eq!(fleet.joined(1).await, ["1"]);
        let _second = server.publisher("2", registration().ttl(LONG)).await;
        assert_eq!(fleet.joined(1).await, ["2"]);
        let third = server.publisher("3", registration().ttl(LONG)).await;
        third
            .report(LoadEvent::new((), 0).kv_used_blocks(1))
            .unwrap();
        // Its load is for the monitor to drop.
        assert!(matches!(next(&mut fleet.0).await, FleetEvent::Load(_)));
        assert_eq!(dropped(scrape, "too_many_workers"), 1.0);
        first.leave().await.unwrap();
        assert!(matches!(fleet.presence().await, FleetEvent::Left { .. }));
        third
            .update(registration().ttl(LONG).draining(true))
            .unwrap();
        assert_eq!(fleet.joined(1).await, ["3"]);
    });
}
