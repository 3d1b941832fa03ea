//! Requests that run for longer than a report is good.

use crate::support::{OfRequest, WORKER, client, known, monitor, rank_of, send, tracker};
use std::{pin::pin, time::Duration};
use tokio::time::{advance, sleep, timeout};
use tower_overload::load::{
    WorkerConfig, WorkerMonitor,
    tracker::{Cost, LoadTracker},
};

const COST: Cost = Cost::new(100, 7);

#[tokio::test(start_paused = true)]
async fn a_request_that_runs_for_an_hour_counts_for_an_hour() {
    let monitor = monitor([0]);
    let tracker = tracker(&monitor);
    let (mut client, _served) = client(&tracker.layer(WORKER));
    let request = send(&mut client, COST);
    advance(Duration::from_secs(30)).await;
    assert_eq!(known(&monitor, 0), (0, 0), "nobody has reported it again");

    let fresh = tokio::spawn(tracker.keep_fresh());
    sleep(Duration::from_secs(11)).await;
    for _ in 0..3600 {
        assert_eq!(known(&monitor, 0), (100, 7));
        assert!(monitor.snapshot()[0].is_busy());
        sleep(Duration::from_secs(1)).await;
    }
    drop(request);
    assert_eq!(rank_of(&monitor, 0).active_prefill_tokens, Some(0));
    sleep(Duration::from_secs(31)).await;
    let idle = rank_of(&monitor, 0).active_prefill_tokens;
    assert_eq!(idle, None, "an idle worker is not reported");
    fresh.abort();
}

#[tokio::test(start_paused = true)]
async fn a_reporter_that_is_dropped_and_made_again_misses_nothing() {
    let monitor = monitor([0]);
    let tracker = tracker(&monitor);
    let (mut client, _served) = client(&tracker.layer(WORKER));
    let _request = send(&mut client, COST);
    for _ in 0..10 {
        let stopped = timeout(Duration::from_secs(15), tracker.keep_fresh());
        stopped.await.unwrap_err();
        assert_eq!(known(&monitor, 0), (100, 7));
    }
}

#[tokio::test(start_paused = true)]
async fn every_worker_is_reported_in_time_however_many_there_are() {
    let monitor = WorkerMonitor::new();
    let cost: OfRequest = |request| *request.body();
    let tracker: LoadTracker<u32, _> = LoadTracker::new(monitor.clone(), cost);
    let mut requests = Vec::new();
    for id in 0..1000 {
        monitor.configure_for_all(id, WorkerConfig::new([0]).unwrap());
        let (mut client, _served) = client(&tracker.layer(id));
        requests.push(send(&mut client, COST));
    }
    let mut fresh = pin!(tracker.keep_fresh());
    for _ in 0..10 {
        timeout(Duration::from_secs(29), &mut fresh)
            .await
            .unwrap_err();
        for worker in monitor.snapshot() {
            assert_eq!(worker.ranks[0].active_decode_blocks, Some(7));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_counts_do_not_age_there_is_nothing_to_report_again() {
    for stale_after in [None, Some(Duration::ZERO)] {
        let monitor = WorkerMonitor::builder().stale_after(stale_after).build();
        let cost: OfRequest = |request| *request.body();
        let tracker: LoadTracker<u32, _> = LoadTracker::new(monitor, cost);
        let mut fresh = tokio_test::task::spawn(tracker.keep_fresh());
        assert!(fresh.poll().is_pending());
        sleep(Duration::from_secs(1 << 30)).await;
        assert!(!fresh.is_woken());
    }
    // The longest and the shortest times do not overflow.
    for stale_after in [Duration::MAX, Duration::from_nanos(1)] {
        let monitor = WorkerMonitor::builder().stale_after(stale_after).build();
        let cost: OfRequest = |request| *request.body();
        let tracker: LoadTracker<u32, _> = LoadTracker::new(monitor, cost);
        let ended = timeout(Duration::from_secs(1), tracker.keep_fresh());
        ended.await.unwrap_err();
    }
}
