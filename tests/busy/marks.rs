//! What sets a mark, and that each one ends.

use crate::support::{ALL_BUSY, AT_CAPACITY, Fleet, Got, OK, Script, Worker, got, send};
use http::Request;
use std::time::Duration;
use tokio::time::{Instant, advance, sleep};
use tower::{Service, ServiceExt};
use tower_overload::{
    UnavailableReason,
    busy::{BusySet, Mark},
};

const NONE_REACHABLE: Got = Got::Unavailable(UnavailableReason::NoneReachable);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test(start_paused = true)]
async fn a_refusal_leases_its_worker_and_the_next_request_goes_elsewhere() {
    for script in [Script::Status(529, None), Script::RefuseByError] {
        let (fleet, mut stack) = Fleet::of(&["a", "b"]);
        fleet.worker("a").script(script);
        while fleet.worker("a").calls() == 0 {
            send(&mut stack).await;
        }
        assert!(fleet.set.marks(&"a").has(Mark::Leased));
        let before = fleet.worker("b").calls();
        for _ in 0..20 {
            assert_eq!(send(&mut stack).await, OK);
        }
        assert_eq!(fleet.worker("b").calls(), before + 20);

        fleet.worker("a").script(Script::Serve);
        sleep(ms(1001)).await;
        while fleet.worker("a").calls() == 1 {
            assert_eq!(send(&mut stack).await, OK, "back without any event");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_refusal_of_the_only_worker_is_our_own_error_and_then_a_verdict() {
    let (fleet, mut stack) = Fleet::of(&["a"]);
    fleet.worker("a").script(Script::Status(529, None));
    assert_eq!(send(&mut stack).await, AT_CAPACITY);
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    assert_eq!(fleet.worker("a").calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_completes_ends_the_lease_early() {
    let (fleet, mut stack) = Fleet::of(&["a"]);
    let worker = fleet.worker("a");
    worker.script(Script::Stream);
    let streaming = stack.ready().await.unwrap().call(Request::new(()));
    let streaming = streaming.await.unwrap();
    worker.script(Script::Status(529, None));
    assert_eq!(send(&mut stack).await, AT_CAPACITY);
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    worker.script(Script::Serve);
    drop(streaming);
    assert_eq!(send(&mut stack).await, OK);
}

#[tokio::test(start_paused = true)]
async fn a_time_that_the_worker_named_bounds_the_lease_and_a_completion_ends_it() {
    let (fleet, mut stack) = Fleet::of(&["a"]);
    let worker = fleet.worker("a");
    worker.script(Script::Stream);
    let streaming = stack.ready().await.unwrap().call(Request::new(()));
    let streaming = streaming.await.unwrap();
    worker.script(Script::Status(529, Some(7)));
    assert_eq!(send(&mut stack).await, AT_CAPACITY);
    worker.script(Script::Serve);
    sleep(ms(6_990)).await;
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    sleep(ms(12)).await;
    assert_eq!(send(&mut stack).await, OK);

    worker.script(Script::Status(529, Some(1_000_000)));
    assert_eq!(send(&mut stack).await, AT_CAPACITY);
    worker.script(Script::Serve);
    sleep(ms(29_990)).await;
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    sleep(ms(12)).await;
    assert_eq!(
        send(&mut stack).await,
        OK,
        "no lease is longer than max_lease"
    );

    worker.script(Script::Status(529, Some(7)));
    assert_eq!(send(&mut stack).await, AT_CAPACITY);
    worker.script(Script::Serve);
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    drop(streaming);
    assert_eq!(send(&mut stack).await, OK, "there is room again");
}

#[tokio::test(start_paused = true)]
async fn a_time_named_by_a_worker_that_runs_nothing_of_ours_is_no_longer_than_the_lease() {
    let (fleet, mut stack) = Fleet::of(&["a"]);
    fleet.worker("a").script(Script::Status(529, Some(7)));
    assert_eq!(send(&mut stack).await, AT_CAPACITY);
    fleet.worker("a").script(Script::Serve);
    sleep(ms(990)).await;
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    sleep(ms(12)).await;
    assert_eq!(send(&mut stack).await, OK);
}

#[tokio::test(start_paused = true)]
async fn statuses_that_say_full_are_refusals_and_others_are_not() {
    for refusal in [(429, None), (429, Some(5)), (503, Some(5)), (529, None)] {
        let (fleet, mut stack) = Fleet::of(&["a"]);
        fleet
            .worker("a")
            .script(Script::Status(refusal.0, refusal.1));
        assert_eq!(send(&mut stack).await, AT_CAPACITY, "{refusal:?}");
        assert!(fleet.set.marks(&"a").has(Mark::Leased), "{refusal:?}");
    }
    let (fleet, mut stack) = Fleet::of(&["a"]);
    for status in [200, 400, 404, 408, 422, 499, 500, 502, 504] {
        fleet.worker("a").script(Script::Status(status, Some(5)));
        assert_eq!(send(&mut stack).await, Got::Served(status));
        assert!(!fleet.set.marks(&"a").is_excluded(), "{status}");
    }
    fleet.worker("a").script(Script::Status(503, None));
    assert_eq!(send(&mut stack).await, Got::Served(503));
    assert!(!fleet.set.marks(&"a").has(Mark::Leased));
}

#[tokio::test(start_paused = true)]
async fn a_failed_connection_marks_its_worker_and_the_mark_ends_by_itself() {
    let (fleet, mut stack) = Fleet::of(&["a"]);
    fleet.worker("a").script(Script::FailAfter(ms(0)));
    assert_eq!(send(&mut stack).await, Got::Unreachable);
    assert_eq!(send(&mut stack).await, NONE_REACHABLE);
    fleet.worker("a").script(Script::Serve);
    sleep(ms(1001)).await;
    assert_eq!(send(&mut stack).await, OK);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_fast_gets_one_request_per_cooldown() {
    let (fleet, stack) = Fleet::of(&["dead", "a", "b", "c"]);
    for id in ["a", "b", "c"] {
        fleet.worker(id).script(Script::ServeAfter(ms(50)));
    }
    fleet
        .worker("dead")
        .script(Script::FailAfter(Duration::from_micros(300)));
    let buffered = crate::support::buffered(stack);
    let start = Instant::now();
    let mut sent = 0;
    let mut requests = Vec::new();
    // Open loop, a request each millisecond, while the cooldown doubles: the
    // marks end after 1, 3, 7, 15 and 31 s.
    while start.elapsed() < ms(32_000) {
        let mut buffered = buffered.clone();
        requests.push(tokio::spawn(async move { send(&mut buffered).await }));
        sent += 1;
        sleep(ms(1)).await;
    }
    let mut failed = 0;
    for request in requests {
        match request.await.unwrap() {
            OK => {}
            Got::Unreachable => failed += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(sent > 30_000);
    assert!(
        (1..=6).contains(&failed),
        "{failed} of {sent} went to the dead worker"
    );
    assert_eq!(fleet.worker("dead").calls(), failed);
}

#[tokio::test(start_paused = true)]
async fn while_a_suspect_worker_is_probed_others_wait_for_the_outcome() {
    let (fleet, mut stack) = Fleet::of(&["a"]);
    let worker = fleet.worker("a").clone();
    worker.script(Script::FailAfter(ms(0)));
    assert_eq!(send(&mut stack).await, Got::Unreachable);
    sleep(ms(1001)).await;

    worker.script(Script::ServeAfter(ms(400)));
    let probe = stack.ready().await.unwrap().call(Request::new(()));
    let probe = tokio::spawn(probe);
    let mut waiting = Box::pin(send(&mut stack));
    tokio::select! {
        got = &mut waiting => panic!("the probe is on its way: {got:?}"),
        () = sleep(ms(300)) => {}
    }
    assert_eq!(worker.calls(), 2);
    assert_eq!(got(&probe.await.unwrap()), OK);
    assert_eq!(waiting.await, OK);

    // Given up without an outcome, the next one finds out.
    worker.script(Script::FailAfter(ms(0)));
    assert_eq!(send(&mut stack).await, Got::Unreachable);
    sleep(ms(1001)).await;
    worker.script(Script::Never);
    drop(stack.ready().await.unwrap().call(Request::new(())));
    worker.script(Script::Serve);
    assert_eq!(send(&mut stack).await, OK);
}

#[tokio::test(start_paused = true)]
async fn a_draining_worker_finishes_what_it_has_and_gets_nothing_new() {
    let (fleet, mut stack) = Fleet::of(&["a"]);
    fleet.worker("a").script(Script::Stream);
    let streaming = stack.ready().await.unwrap().call(Request::new(()));
    let streaming = streaming.await.unwrap();
    let drain = fleet.set.drain("a");
    assert_eq!(send(&mut stack).await, NONE_REACHABLE);
    fleet.worker("a").end_streams();
    let body = http_body_util::BodyExt::collect(streaming.into_body()).await;
    assert!(body.is_ok());
    drop(drain);
    fleet.worker("a").script(Script::Serve);
    assert_eq!(send(&mut stack).await, OK);
}

#[tokio::test(start_paused = true)]
async fn marks_end_on_time_while_nothing_is_routed_and_snapshots_show_it() {
    let set = BusySet::<&str>::new();
    let mut busy = set.busy_mark("busy");
    busy.set(Some(Instant::now() + ms(500)));
    set.refused(&"leased", None);
    let _drain = set.drain("draining");
    let mut excluded: Vec<_> = set.snapshot().into_iter().map(|(id, _)| id).collect();
    excluded.sort_unstable();
    assert_eq!(excluded, ["busy", "draining", "leased"]);
    advance(ms(500)).await;
    assert!(!set.marks(&"busy").is_excluded());
    advance(ms(500)).await;
    assert!(!set.marks(&"leased").is_excluded());
    assert_eq!(set.snapshot().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_earlier_end_of_a_mark_wakes_those_who_sleep_until_the_later_one() {
    let (fleet, mut stack) = Fleet::new([Worker::new("a"), Worker::connecting("b")]);
    let mut mark = fleet.set.busy_mark("a");
    let start = Instant::now();
    mark.set(Some(start + ms(2_000)));
    let mut waiting = Box::pin(send(&mut stack));
    tokio::select! {
        _ = &mut waiting => panic!("b may still connect"),
        () = sleep(ms(100)) => {}
    }
    mark.set(Some(start + ms(200)));
    assert_eq!(waiting.await, OK);
    assert!(start.elapsed() < ms(300));
}

#[tokio::test(start_paused = true)]
async fn nothing_late_touches_a_successor_under_the_same_id() {
    let (mut fleet, mut stack) = Fleet::of(&["a"]);
    let old = fleet.worker("a").clone();
    old.script(Script::Status(529, Some(20)));
    assert_eq!(send(&mut stack).await, AT_CAPACITY);
    old.script(Script::FailAfter(ms(100)));

    // Replaced: the lease of the old one is not the new one's.
    fleet.add(Worker::new("a"));
    assert_eq!(send(&mut stack).await, OK);

    // A request of the old worker that fails after the replacement.
    let (mut fleet, mut stack) = Fleet::of(&["a"]);
    fleet.worker("a").script(Script::FailAfter(ms(100)));
    let late = tokio::spawn(stack.ready().await.unwrap().call(Request::new(())));
    fleet.remove("a");
    fleet.add(Worker::new("a"));
    assert_eq!(send(&mut stack).await, OK);
    assert_eq!(got(&late.await.unwrap()), Got::Unreachable);
    assert!(!fleet.set.marks(&"a").is_excluded());
    assert_eq!(send(&mut stack).await, OK);
}

#[tokio::test(start_paused = true)]
async fn marks_that_somebody_owns_survive_a_replacement_and_end_with_their_owner() {
    let (mut fleet, mut stack) = Fleet::of(&["a"]);
    let drain = fleet.set.drain("a");
    let mut busy = fleet.set.busy_mark("a");
    busy.set(None);
    assert_eq!(send(&mut stack).await, NONE_REACHABLE);
    fleet.add(Worker::new("a"));
    assert_eq!(send(&mut stack).await, NONE_REACHABLE);
    drop(drain);
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    drop(busy);
    assert_eq!(send(&mut stack).await, OK);
}

#[tokio::test(start_paused = true)]
async fn what_is_forgotten_is_gone_before_anything_is_routed() {
    let (fleet, mut stack) = Fleet::of(&["a", "b"]);
    for id in ["a", "b"] {
        fleet.worker(id).script(Script::Status(529, Some(20)));
    }
    for _ in ["a", "b"] {
        assert_eq!(send(&mut stack).await, AT_CAPACITY);
    }
    fleet.set.forget(&"a");
    assert!(!fleet.set.marks(&"a").is_excluded());
    assert_eq!((fleet.members.alive(), fleet.members.usable()), (1, 1));
    fleet.set.forget(&"b");
    let no_workers = Got::Unavailable(UnavailableReason::NoWorkers);
    assert_eq!(send(&mut stack).await, no_workers, "until they are back");
}

#[tokio::test(start_paused = true)]
async fn the_gauges_of_an_idle_fleet_come_to_rest() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    let recorder = DebuggingRecorder::new();
    let (fleet, mut stack) = metrics::with_local_recorder(&recorder, || Fleet::of(&["a"]));
    fleet.worker("a").script(Script::Status(529, None));
    assert_eq!(send(&mut stack).await, AT_CAPACITY);
    // A snapshot starts its metrics anew, so this is the change since the last.
    let leased = || {
        let metrics = recorder.snapshotter().snapshot().into_vec();
        let mut leased = metrics.into_iter().filter_map(|(key, _, _, value)| {
            let mut labels = key.key().labels();
            let is_leased = key.key().name() == "dynamo_frontend_excluded_workers"
                && labels.any(|label| label.value() == "leased");
            match value {
                DebugValue::Gauge(gauge) if is_leased => Some(gauge.into_inner()),
                _ => None,
            }
        });
        leased.next()
    };
    assert_eq!(leased(), Some(1.0));
    advance(ms(1000)).await;
    fleet.set.sweep();
    assert_eq!(leased(), Some(-1.0));
    assert!(!fleet.set.marks(&"a").is_excluded());
}
