//! The counts of a worker, read from outside.

use crate::support::{WORKER, client, monitor, send, tracker};
use http_body_util::BodyExt;
use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};
use tokio::time::advance;
use tower_overload::load::{
    LoadEvent, WorkerConfig, WorkerCounts, WorkerLoad, WorkerMonitor, tracker::Cost,
};

fn both(counts: &WorkerCounts) -> (u64, u64) {
    (counts.prefill_tokens(), counts.decode_blocks())
}

#[tokio::test]
async fn a_handle_of_the_tracker_sees_each_request_from_its_dispatch_to_its_end() {
    let monitor = monitor([0, 1]);
    let tracker = tracker(&monitor);
    let counts = tracker.counts(WORKER);
    let (mut client, served) = client(&tracker.layer(WORKER));
    let first = send(&mut client, Cost::new(100, 7));
    let second = send(&mut client, Cost::new(10, 1).on_rank(1));
    assert_eq!(both(&counts), (110, 8), "over all ranks");
    let mut worker = served.recv().unwrap();
    worker.head(200);
    worker.data();
    let mut body = first.await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(both(&counts), (10, 8));
    drop(body);
    drop(second);
    assert_eq!(both(&counts), (0, 0));
}

#[tokio::test]
async fn a_handle_that_was_made_before_the_layer_counts_the_same_worker() {
    let monitor = monitor([0]);
    let tracker = tracker(&monitor);
    let counts = tracker.counts(WORKER);
    let (mut client, _served) = client(&tracker.layer(WORKER));
    let _request = send(&mut client, Cost::new(3, 2));
    assert_eq!(both(&counts), (3, 2));
    tracker.hand_over(&WORKER);
    assert_eq!(both(&counts), (0, 0), "another worker has the id");
}

#[tokio::test(start_paused = true)]
async fn a_handle_of_the_monitor_has_the_last_report_while_it_is_good() {
    let monitor = monitor([0, 1]);
    let early = LoadEvent::new(WORKER, 0).active_prefill_tokens(5);
    monitor.observe(early).unwrap();
    let counts = monitor.counts(WORKER);
    assert_eq!(
        both(&counts),
        (5, 0),
        "what was reported before it was made"
    );
    let event = LoadEvent::new(WORKER, 1).active_decode_blocks(7);
    monitor.observe(event.active_prefill_tokens(1)).unwrap();
    monitor
        .observe(LoadEvent::new(WORKER, 1).kv_used_blocks(9))
        .unwrap();
    assert_eq!(both(&counts), (6, 9), "over all ranks, the larger of two");
    advance(Duration::from_secs(30)).await;
    assert_eq!(both(&counts), (0, 0), "stale");
}

#[tokio::test]
async fn a_handle_of_the_monitor_outlives_the_registration() {
    let monitor = monitor([0]);
    let counts = monitor.counts(WORKER);
    let load = counts
        .by(WorkerCounts::prefill_tokens)
        .and_sent(|request: &u64| *request);
    let known = || WorkerLoad::<u64>::load(&load);
    load.sent(&4);
    let report = |tokens| LoadEvent::new(WORKER, 0).active_prefill_tokens(tokens);
    monitor.observe(report(100)).unwrap();
    load.sent(&4);
    assert_eq!(known(), 104);
    monitor.remove(&WORKER);
    assert_eq!(known(), 0);
    monitor.configure_for_all(WORKER, WorkerConfig::new([0]).unwrap());
    monitor.observe(report(3)).unwrap();
    assert_eq!(known(), 3);
}

/// An id that tells how many of its kind are kept somewhere.
#[derive(Clone)]
struct Id {
    n: u32,
    _kept: Arc<()>,
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.n == other.n
    }
}

impl Eq for Id {}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.n.hash(state);
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.n.fmt(f)
    }
}

#[test]
fn handles_that_are_dropped_are_forgotten_and_those_that_are_read_are_not() {
    let kept = Arc::new(());
    let id = |n| Id {
        n,
        _kept: kept.clone(),
    };
    let monitor = WorkerMonitor::new();
    monitor.configure_for_all(id(0), WorkerConfig::new([0]).unwrap());
    let registered = Arc::strong_count(&kept);
    let read = monitor.counts(id(0));
    for n in 1..10_000 {
        monitor.counts(id(n));
    }
    assert!(Arc::strong_count(&kept) < registered + 100);
    let event = LoadEvent::new(id(0), 0).active_prefill_tokens(2);
    monitor.observe(event).unwrap();
    assert_eq!(read.prefill_tokens(), 2);
}
