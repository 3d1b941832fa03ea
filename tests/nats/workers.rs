//! Workers come, go, and report their load.

use crate::{
    eventually::eventually,
    support::{Fleet, LONG, next, registration, with_server},
};
use futures::StreamExt;
use std::{sync::Arc, time::Duration};
use tower_overload::{
    busy::BusySet,
    load::{LoadEvent, ThresholdUpdate, WorkerMonitor},
    nats::{FleetEvent, Leaving, LoadSource, Registration, SourceBuilder, Subjects},
};

fn joined(id: &str, registration: Registration) -> FleetEvent<Arc<str>> {
    FleetEvent::Joined {
        worker: id.into(),
        registration,
    }
}

fn left(id: &str, because: Leaving) -> FleetEvent<Arc<str>> {
    FleetEvent::Left {
        worker: id.into(),
        because,
    }
}

#[test]
fn a_gateway_that_comes_late_knows_the_fleet_and_its_load_at_once() {
    with_server(async |server, _| {
        // Their heartbeats are 20 minutes apart: it is because it asks.
        let a = server.publisher("a", registration().ttl(LONG)).await;
        let b = server.publisher("b/ü .*>", registration().ttl(LONG)).await;
        a.report(LoadEvent::new((), 0).kv_used_blocks(7)).unwrap();
        let mut early = server.fleet().await;
        assert_eq!(early.joined(2).await, ["a", "b/ü .*>"]);

        let mut late = server.fleet().await;
        let mut loads = Vec::new();
        let mut workers = Vec::new();
        while workers.len() < 2 || loads.is_empty() {
            match next(&mut late.0).await {
                FleetEvent::Joined {
                    worker,
                    registration: its,
                } => {
                    assert_eq!(its, registration().ttl(LONG));
                    workers.push(worker);
                }
                FleetEvent::Load(event) => {
                    assert!(workers.contains(&event.worker), "load before its worker");
                    loads.push(event);
                }
                other => panic!("{other:?}"),
            }
        }
        let load = LoadEvent::new("a".into(), 0).kv_used_blocks(7);
        assert_eq!(loads[0], load);
        drop((a, b));
    });
}

#[test]
fn a_worker_says_that_it_is_there_three_times_in_its_ttl_unasked() {
    with_server(async |server, _| {
        let ttl = Duration::from_millis(300);
        let _worker = server.publisher("a", registration().ttl(ttl)).await;
        let client = server.client().await;
        let subject = Subjects::default().worker("tiny", "a").unwrap();
        let mut heard = client.subscribe(subject).await.unwrap();
        for _ in 0..4 {
            let json: serde_json::Value =
                serde_json::from_slice(&next(&mut heard).await.payload).unwrap();
            assert_eq!(
                json,
                serde_json::json!({
                    "url": "http://127.0.0.1:1", "dp_ranks": [0], "kv_total_blocks": 100,
                    "draining": false, "models": ["tiny"], "ttl_ms": 300,
                })
            );
        }
    });
}

#[test]
fn a_worker_that_dies_without_goodbye_is_gone_after_its_ttl_and_others_are_not() {
    with_server(async |server, _| {
        let ttl = Duration::from_millis(300);
        let dies = server.publisher("dies", registration().ttl(ttl)).await;
        let _lives = server.publisher("lives", registration().ttl(ttl)).await;
        let mut fleet = server.fleet().await;
        assert_eq!(fleet.joined(2).await, ["dies", "lives"]);
        drop(dies);
        assert_eq!(fleet.presence().await, left("dies", Leaving::Silence));
        // It can come back.
        let _again = server.publisher("dies", registration().ttl(ttl)).await;
        assert_eq!(fleet.joined(1).await, ["dies"]);
    });
}

#[test]
fn a_worker_that_says_goodbye_is_gone_at_once() {
    with_server(async |server, _| {
        let mut fleet = server.fleet().await;
        let worker = server.publisher("a", registration().ttl(LONG)).await;
        assert_eq!(fleet.joined(1).await, ["a"]);
        worker.leave().await.unwrap();
        assert_eq!(fleet.presence().await, left("a", Leaving::Goodbye));
    });
}

#[test]
fn a_worker_that_says_something_else_of_itself_is_told_of_again() {
    with_server(async |server, _| {
        let mut fleet = server.fleet().await;
        let worker = server.publisher("a", registration().ttl(LONG)).await;
        assert_eq!(fleet.joined(1).await, ["a"]);
        let draining = registration().ttl(LONG).draining(true);
        worker.update(draining.clone()).unwrap();
        assert_eq!(fleet.presence().await, joined("a", draining));
        assert!(worker.update(registration().dp_ranks([])).is_err());
        let two_ranks = registration().ttl(LONG).dp_ranks([0, 1]);
        worker.update(two_ranks.clone()).unwrap();
        assert_eq!(fleet.presence().await, joined("a", two_ranks));
    });
}

#[test]
fn load_drives_a_monitor() {
    with_server(async |server, scrape| {
        let (monitor, thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
        thresholds
            .update(ThresholdUpdate::new().active_decode_blocks(0.5))
            .unwrap();
        let id: Arc<str> = "a".into();
        monitor.configure_for_all(id, registration().config().unwrap());
        let source = LoadSource::<Arc<str>>::subscribe(&server.client().await);
        let driving = tokio::spawn(monitor.drive(source));
        let is_busy = || monitor.snapshot()[0].is_busy();

        let worker = server.publisher("a", registration().ttl(LONG)).await;
        worker
            .report(LoadEvent::new((), 0).kv_used_blocks(51))
            .unwrap();
        eventually("it is busy", async || is_busy()).await;
        assert_eq!(scrape.value("load_sources_connected", &[]), Some(1.0));
        worker
            .report(LoadEvent::new((), 0).kv_used_blocks(50))
            .unwrap();
        eventually("it is free", async || !is_busy()).await;
        assert!(
            worker.report(LoadEvent::new((), 1)).is_err(),
            "it has one rank"
        );

        driving.abort();
        let _ = driving.await;
        eventually("the source is gone", async || {
            scrape.value("load_sources_connected", &[]) == Some(0.0)
        })
        .await;
    });
}

#[test]
fn what_changes_within_an_instant_is_reported_in_one() {
    with_server(async |server, _| {
        let client = server.client().await;
        let subject = Subjects::default().load("tiny", "a").unwrap();
        let mut heard = client.subscribe(subject).await.unwrap();
        let two_ranks = registration().ttl(LONG).dp_ranks([0, 1]);
        let worker = server.publisher("a", two_ranks).await;
        for n in 0..1000 {
            worker
                .report(LoadEvent::new((), 0).kv_used_blocks(n))
                .unwrap();
            worker
                .report(LoadEvent::new((), 1).active_prefill_tokens(n))
                .unwrap();
        }
        let message = next(&mut heard).await;
        let json: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
        let newest = serde_json::json!([
            {"dp_rank": 0, "kv_used_blocks": 999},
            {"dp_rank": 1, "active_prefill_tokens": 999},
        ]);
        assert_eq!(json, newest);
        // And again, although nothing has changed.
        let again: serde_json::Value =
            serde_json::from_slice(&next(&mut heard).await.payload).unwrap();
        assert_eq!(again, newest);
    });
}

#[test]
fn a_source_of_one_model_hears_of_no_other_and_of_each_worker_once() {
    with_server(async |server, _| {
        let client = server.client().await;
        let source = SourceBuilder::new().model("big/2").model("big/2");
        let of_big = source.fleet(&client, |id| Some(id.into())).unwrap();
        let mut of_big = Fleet(of_big);
        let mut of_all = server.fleet().await;
        let both = Registration::new("http://a", ["tiny", "big/2"]).ttl(LONG);
        let first = server.publisher("1", registration().ttl(LONG)).await;
        let second = server.publisher("2", both.clone()).await;
        let third = server
            .publisher("3", Registration::new("http://a", ["big/2"]).ttl(LONG))
            .await;
        assert_eq!(of_big.joined(2).await, ["2", "3"]);
        assert_eq!(of_all.joined(3).await, ["1", "2", "3"]);
        for (id, worker) in [("1", first), ("2", second), ("3", third)] {
            worker.leave().await.unwrap();
            assert_eq!(of_all.presence().await, left(id, Leaving::Goodbye));
            if id != "1" {
                assert_eq!(of_big.presence().await, left(id, Leaving::Goodbye));
            }
        }
    });
}

#[test]
fn a_source_ends_with_its_client() {
    with_server(async |server, _| {
        let client = server.client().await;
        let mut fleet = Fleet(tower_overload::nats::FleetSource::subscribe(&client));
        let mut loads = LoadSource::<String>::subscribe(&client);
        eventually("it is connected", async || fleet.0.is_connected()).await;
        client.drain().await.unwrap();
        assert_eq!(loads.next().await, None);
        assert_eq!(fleet.0.next().await, None);
        assert!(!fleet.0.is_connected() && !loads.is_connected());
    });
}
