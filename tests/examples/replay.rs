//! The replayer against a real worker.

use crate::{
    replayer::Replay,
    report::{Objectives, Report},
    support::{Client, STUCK, worker},
};
use overload_examples::{engine::Timing, replay::Arrival};
use std::{future::pending, time::Duration};

async fn replay(url: &str) -> Report {
    let arrival = |ms, prompt_tokens| Arrival {
        at: Duration::from_millis(ms),
        prompt_tokens,
        generated_tokens: 3,
    };
    let replay = Replay {
        arrivals: vec![arrival(0, 1), arrival(0, 5000), arrival(1000, 0)],
        url: url.parse().unwrap(),
        model: "tiny".into(),
        speedup: 1000.0,
        objectives: Objectives {
            first_token: Duration::MAX,
            per_token: Duration::MAX,
        },
    };
    replay.run(pending()).await
}

fn counts(report: &Report) -> [usize; 5] {
    [
        report.offered(),
        report.succeeded(),
        report.good(),
        report.refused(),
        report.failed(),
    ]
}

#[tokio::test]
async fn every_request_of_the_trace_is_answered() {
    let worker = worker(None, Timing::INSTANT).await;
    let report = replay(worker.url()).await;
    assert_eq!(counts(&report), [3, 3, 3, 0, 0], "{report}");
    assert!(report.first_token(99).is_some());
}

#[tokio::test]
async fn a_full_worker_refuses_the_whole_trace() {
    let worker = worker(Some((1, 0)), STUCK).await;
    let _running = Client::new(worker.url()).start(2).await;
    let report = replay(worker.url()).await;
    assert_eq!(counts(&report), [3, 0, 0, 3, 0], "{report}");
}

#[tokio::test]
async fn requests_to_nobody_fail_and_the_table_says_how() {
    let worker = worker(None, Timing::INSTANT).await;
    let url = worker.url().to_owned();
    worker.drain().await;
    let report = replay(&url).await;
    assert_eq!(counts(&report), [3, 0, 0, 0, 3], "{report}");
    assert!(report.to_string().contains("failed: 3 × "), "{report}");
}
