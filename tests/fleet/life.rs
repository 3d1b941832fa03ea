//! How workers come, stay and go.

use crate::support::*;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use std::{
    future::pending,
    sync::{Arc, OnceLock},
};
use tower::{service_fn, util::BoxCloneSyncService};
use tower_overload::{
    BoxError,
    busy::Mark,
    fleet::{
        Compose, Connect, Fleet, FleetBuilder, Origin, RefusedKind, Registration, Removed,
        WorkerUpdate,
    },
    load::LoadEvent,
    pool::WorkerPool,
};

fn at(port: u16) -> Registration {
    Registration::at(format!("http://worker:{port}"))
}

fn heard() -> Origin {
    Origin::Reported(secs(10))
}

async fn pass(seconds: u64) {
    tokio::time::sleep(secs(seconds) + std::time::Duration::from_millis(1)).await;
    settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_removed_when_it_was_silent_for_the_whole_ttl() {
    let fleet = fleet();
    tokio::spawn(fleet.expiry());
    fleet.register("permanent", at(1), Origin::Static).unwrap();
    fleet.register("silent", at(2), heard()).unwrap();
    fleet.register("heard", at(3), heard()).unwrap();
    pass(9).await;
    let event = |worker: &str| LoadEvent::new(worker.into(), 0);
    fleet.observe(&[event("heard"), event("nobody")]);
    assert_eq!(ids(&fleet), ["heard", "permanent", "silent"]);
    pass(1).await;
    assert_eq!(ids(&fleet), ["heard", "permanent"]);
    pass(8).await;
    // A registration is heard as well, and does not make it expire.
    fleet.register("permanent", at(1), heard()).unwrap();
    fleet.register("heard", at(3), heard()).unwrap();
    pass(9).await;
    assert_eq!(ids(&fleet), ["heard", "permanent"]);
    pass(1).await;
    assert_eq!(ids(&fleet), ["permanent"]);
    pass(100).await;
    assert_eq!(ids(&fleet), ["permanent"]);
}

#[tokio::test(start_paused = true)]
async fn each_worker_says_for_how_long_it_is_good() {
    let fleet = fleet();
    let expiry = tokio::spawn(fleet.expiry());
    let ttl = |seconds| WorkerUpdate::new().url("http://w").ttl(secs(seconds));
    fleet.put("a", ttl(5)).unwrap();
    fleet.put("b", ttl(60)).unwrap();
    pass(5).await;
    assert_eq!(ids(&fleet), ["b"]);
    // A shorter one is good from now on, also while its end is waited for.
    fleet.put("b", ttl(2)).unwrap();
    pass(2).await;
    assert!(ids(&fleet).is_empty());
    assert_eq!(
        kind(fleet.put("a", ttl(24 * 60 * 60 + 1))),
        Some(RefusedKind::Invalid)
    );
    drop(fleet);
    expiry.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn workers_are_heard_first_when_the_process_was_stopped() {
    let fleet = fleet();
    tokio::spawn(fleet.expiry());
    for (port, id) in (1..).zip(["loaded", "registered", "silent"]) {
        fleet.register(id, at(port), heard()).unwrap();
    }
    settled().await;
    tokio::time::advance(secs(60)).await;
    settled().await;
    assert_eq!(ids(&fleet), ["loaded", "registered", "silent"]);
    fleet.register("registered", at(2), heard()).unwrap();
    pass(2).await;
    fleet.observe(&[LoadEvent::new("loaded".into(), 0)]);
    assert_eq!(ids(&fleet), ["loaded", "registered", "silent"]);
    pass(3).await;
    assert_eq!(ids(&fleet), ["loaded", "registered"]);
    pass(5).await;
    assert_eq!(ids(&fleet), ["loaded"], "as ever");
}

#[tokio::test]
async fn a_discovery_takes_away_only_what_is_its_own() {
    let fleet = fleet();
    let (nats, dns) = (Origin::source("nats"), Origin::source("dns"));
    let known = |id: &str, origins: [&Origin; 2]| {
        for origin in origins {
            fleet.register(id, at(1), origin.clone()).unwrap();
        }
    };
    known("static", [&Origin::Static, &nats]);
    known("operated", [&nats, &heard()]);
    known("adopted", [&heard(), &nats]);
    known("moved", [&nats, &dns]);
    let leaves = |id: &str| fleet.leave(id, &nats);
    assert!(!leaves("static") && !leaves("operated") && !leaves("moved"));
    assert!(!leaves("unknown") && leaves("adopted") && !leaves("adopted"));
    assert!(
        !fleet.leave("static", &heard()),
        "it stays through its own goodbye"
    );
    assert_eq!(ids(&fleet), ["moved", "operated", "static"]);
}

#[tokio::test]
async fn a_static_worker_that_was_removed_is_brought_back_by_an_operator_alone() {
    let fleet = fleet();
    let update = || WorkerUpdate::new().url("http://worker:1");
    fleet.register("a", at(1), Origin::Static).unwrap();
    assert_eq!(fleet.remove("a"), Some(Removed::ForGood));
    assert_eq!(fleet.remove("a"), None);
    let itself = fleet.put("a", update().ttl(secs(9)));
    assert_eq!(kind(itself), Some(RefusedKind::Removed));
    let discovery = fleet.register("a", at(1), Origin::source("nats"));
    assert_eq!(kind(discovery), Some(RefusedKind::Removed));
    assert_eq!(goes_to(&fleet, "tiny").await, None);
    let back = fleet.put("a", update()).unwrap();
    assert_eq!(back.origin, Origin::Static);
    assert!(goes_to(&fleet, "tiny").await.is_some());
    // Another one is removed until it says that it is there.
    fleet.put("b", update().ttl(secs(9))).unwrap();
    assert_eq!(fleet.remove("b"), Some(Removed::UntilItIsBack));
    assert!(fleet.put("b", update().ttl(secs(9))).is_ok());
}

#[tokio::test]
async fn with_another_url_it_is_another_worker() {
    let Setup { fleet, tracker, .. } = setup(|builder| builder.default_model("tiny"));
    fleet.register("a", at(1), heard()).unwrap();
    let Answer::From(before, running) = request(&fleet, "tiny").await else {
        panic!("it is free");
    };
    let model = fleet.model("tiny").unwrap();
    model.set().unreachable(&"a".into());
    assert!(fleet.worker("a").unwrap().has(Mark::Unreachable));
    assert_eq!(tracker.counts("a".into()).prefill_tokens(), TOKENS);

    let moved = fleet.patch("a", WorkerUpdate::new().url("http://worker:2"));
    assert!(moved.unwrap().is_eligible());
    assert_eq!(tracker.counts("a".into()).prefill_tokens(), 0);
    let after = goes_to(&fleet, "tiny").await.expect("it is free");
    assert_ne!(after, before.to_string());
    drop(running);
    assert_eq!(tracker.counts("a".into()).prefill_tokens(), 0);
}

#[tokio::test]
async fn the_same_url_keeps_marks_and_counts() {
    let Setup { fleet, tracker, .. } = setup(|builder| builder.default_model("tiny"));
    fleet.register("a", at(1), heard()).unwrap();
    let Answer::From(_, running) = request(&fleet, "tiny").await else {
        panic!("it is free");
    };
    fleet.model("tiny").unwrap().set().failed(&"a".into());
    let before = fleet.worker("a").unwrap().models[0].states.len();
    fleet
        .register("a", at(1).kv_total_blocks(7), heard())
        .unwrap();
    let view = fleet.worker("a").unwrap();
    assert_eq!(view.kv_total_blocks, Some(7));
    assert_eq!(view.models[0].states.len(), before);
    assert_eq!(tracker.counts("a".into()).prefill_tokens(), TOKENS);
    drop(running);
    assert_eq!(tracker.counts("a".into()).prefill_tokens(), 0);
}

#[tokio::test]
async fn a_worker_and_its_operator_drain_it_apart() {
    let fleet = fleet();
    let itself = |draining| {
        let update = WorkerUpdate::new().url("http://worker:1").ttl(secs(9));
        fleet.put("a", update.draining(draining)).unwrap()
    };
    itself(false);
    assert!(fleet.drain("a", true).unwrap().has(Mark::Draining));
    assert!(
        itself(false).has(Mark::Draining),
        "it does not end what its operator began"
    );
    assert!(!fleet.drain("a", false).unwrap().has(Mark::Draining));
    assert!(itself(true).has(Mark::Draining));
    assert!(fleet.drain("a", false).unwrap().has(Mark::Draining));
    assert!(itself(false).is_eligible());
}

#[tokio::test]
async fn what_is_refused_changes_nothing() {
    let fleet = setup(|builder| builder.default_model("tiny").max_workers(1).max_models(2)).fleet;
    fleet
        .register("a", at(1).kv_total_blocks(5), heard())
        .unwrap();
    let refused = |id, registration| kind(fleet.register(id, registration, heard()));
    assert_eq!(refused("a", at(0)), Some(RefusedKind::Invalid));
    assert_eq!(refused("", at(2)), Some(RefusedKind::Invalid));
    assert_eq!(
        refused("a", at(2).dp_ranks([1, 1])),
        Some(RefusedKind::Invalid)
    );
    let unreachable = Registration::at("http://none");
    assert_eq!(refused("a", unreachable), Some(RefusedKind::Invalid));
    assert_eq!(
        refused("a", at(2).models(["x", "y"])),
        Some(RefusedKind::Full)
    );
    assert_eq!(refused("b", at(2)), Some(RefusedKind::Full));
    let unknown = fleet.patch("b", WorkerUpdate::new().url("http://worker:2"));
    assert_eq!(kind(unknown), Some(RefusedKind::Unknown));

    let view = fleet.worker("a").unwrap();
    assert_eq!(
        (view.url.to_string().as_str(), view.kv_total_blocks),
        ("http://worker:1/", Some(5))
    );
    assert_eq!(ids(&fleet), ["a"]);
    assert_eq!(fleet.models().len(), 1);
}

#[tokio::test]
async fn a_worker_that_comes_back_has_the_requests_that_it_still_has() {
    let Setup { fleet, tracker, .. } = setup(|builder| builder.default_model("tiny"));
    let counted = || tracker.counts("a".into()).prefill_tokens();
    fleet.register("a", at(1), heard()).unwrap();
    let Answer::From(_, running) = request(&fleet, "tiny").await else {
        panic!("it is free");
    };
    fleet.remove("a");
    fleet.register("a", at(1), heard()).unwrap();
    let view = fleet.worker("a").unwrap();
    assert_eq!(view.ranks[0].active_prefill_tokens, Some(TOKENS));
    // It is another one that comes back elsewhere.
    fleet.remove("a");
    fleet.register("a", at(2), heard()).unwrap();
    assert_eq!(counted(), 0);
    drop(running);
    assert_eq!(counted(), 0);
}

#[tokio::test]
async fn a_discovery_that_knows_all_of_its_workers_says_so_in_one_call() {
    let fleet = fleet();
    fleet.register("static", at(9), Origin::Static).unwrap();
    let sync = |ports: &[u16]| {
        let workers = ports.iter().map(|port| (format!("w{port}"), at(*port)));
        let refused = fleet.sync("file", workers);
        refused
            .into_iter()
            .map(|(id, why)| (id.to_string(), why.kind()))
            .collect::<Vec<_>>()
    };
    assert_eq!(sync(&[1, 2]), []);
    assert_eq!(ids(&fleet), ["static", "w1", "w2"]);
    assert_eq!(sync(&[2, 3, 0]), [("w0".into(), RefusedKind::Invalid)]);
    assert_eq!(ids(&fleet), ["static", "w2", "w3"]);
    // What an operator did to one that has not changed stays.
    fleet.drain("w2", true).unwrap();
    let capacity = WorkerUpdate::new().kv_total_blocks(7);
    fleet.patch("w2", capacity).unwrap();
    assert_eq!(sync(&[2]), []);
    let view = fleet.worker("w2").unwrap();
    assert!(view.has(Mark::Draining));
    assert_eq!(view.kv_total_blocks, Some(7));
    assert_eq!(ids(&fleet), ["static", "w2"]);
}

type Deaf = BoxCloneSyncService<Request<()>, Response<Full<Bytes>>, BoxError>;

/// A fleet that is at hand while a worker is connected to.
fn connecting(
    builder: FleetBuilder,
    connect: impl Fn(&Fleet<Deaf, ()>, &Connect<'_>) + Send + Sync + 'static,
) -> Fleet<Deaf, ()> {
    let fleet = Arc::new(OnceLock::new());
    let at_hand = fleet.clone();
    let connect = move |worker: &Connect<'_>| {
        connect(at_hand.get().expect("it is built"), worker);
        let client = service_fn(|_| pending::<Result<_, BoxError>>());
        Ok(BoxCloneSyncService::new(client))
    };
    let compose = |model: Compose<'_, Deaf>| {
        let pool = WorkerPool::<_, Request<()>>::new(model.changes, model.set);
        Ok(((), pool.members()))
    };
    let built = builder.default_model("tiny").build(connect, compose);
    fleet.get_or_init(|| built.unwrap()).clone()
}

#[tokio::test]
async fn those_that_a_discovery_has_found_are_there_before_others_leave() {
    let fleet = connecting(FleetBuilder::new(), |fleet, worker| {
        if &**worker.id == "new" {
            assert!(fleet.knows("old"), "nobody is there for a moment");
        }
    });
    assert!(fleet.sync("dns", [("old", at(1))]).is_empty());
    assert!(fleet.sync("dns", [("new", at(2))]).is_empty());
    assert!(fleet.knows("new") && !fleet.knows("old"));
}

#[tokio::test]
async fn those_that_leave_make_room_for_those_that_a_discovery_has_found() {
    let fleet = connecting(FleetBuilder::new().max_workers(1), |_, _| {});
    assert!(fleet.sync("dns", [("old", at(1))]).is_empty());
    assert!(fleet.sync("dns", [("new", at(2))]).is_empty());
    assert!(fleet.knows("new") && !fleet.knows("old"));
}

#[tokio::test]
async fn workers_that_come_at_once_are_no_more_than_there_may_be() {
    let fleet = connecting(FleetBuilder::new().max_workers(1), |fleet, worker| {
        if &**worker.id == "late" {
            fleet.register("first", at(1), Origin::Static).unwrap();
        }
    });
    let late = fleet.register("late", at(2), Origin::Static);
    assert_eq!(kind(late), Some(RefusedKind::Full));
    assert!(fleet.knows("first") && !fleet.knows("late"));
}

#[tokio::test]
async fn a_worker_that_an_operator_removes_while_it_registers_stays_away() {
    let fleet = connecting(FleetBuilder::new(), |fleet, worker| {
        if worker.url.port_u16() == Some(2) {
            fleet.register("a", at(1), Origin::Static).unwrap();
            assert_eq!(fleet.remove("a"), Some(Removed::ForGood));
        }
    });
    let found = fleet.register("a", at(2), Origin::source("dns"));
    assert_eq!(kind(found), Some(RefusedKind::Removed));
    assert!(!fleet.knows("a"));
}

#[tokio::test]
async fn an_id_that_no_url_can_name_is_refused() {
    let fleet = fleet();
    for id in [".", ".."] {
        let refused = fleet.register(id, at(1), Origin::Static);
        assert_eq!(kind(refused), Some(RefusedKind::Invalid), "{id}");
    }
    for id in ["...", ".a", "%2F", "\0", "a/../b"] {
        fleet.register(id, at(1), Origin::Static).unwrap();
    }
}
