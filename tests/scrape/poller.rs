//! The poller: when it asks, what it bears, and what it says.

use crate::{metrics::recorded, support::*};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use http::Method;
use http_body_util::Empty;
use std::{fmt::Debug, time::Duration};
use tokio::time::{Instant, advance, timeout};
use tower_overload::{
    busy::BusySet,
    load::{ThresholdUpdate, WorkerConfig, WorkerMonitor},
    scrape::{InvalidPoller, PollerBuilder, ScrapeError, UnreadableMetrics, WaitingTokens},
};

const SECOND: Duration = Duration::from_secs(1);

/// The outcome of one scrape of a worker that answers this.
async fn outcome(answer: impl Fn() -> Answer + Send + 'static) -> (ScrapeError, Duration) {
    let worker = Worker::at_once(move |_| answer());
    let mut poller = poller(&worker);
    let start = Instant::now();
    let error = poller.next().await.unwrap().unwrap_err();
    (error, start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_asked_again_an_interval_after_its_answer() {
    let worker = Worker::new(|n| {
        (
            Duration::from_millis(200 * n as u64),
            answer(200, usage(0.5)),
        )
    });
    let mut poller = poller(&worker);
    for _ in 0..4 {
        let report = poller.next().await.unwrap().unwrap();
        assert_eq!(report.ranks()[0].kv_usage, Some(0.5));
    }
    assert_eq!(worker.times(), [0, 1000, 2200, 3600]);
    let log = worker.log.lock().unwrap();
    let (_, request) = &log.calls[0];
    assert_eq!(request.method(), Method::GET);
    assert_eq!(request.uri(), "http://10.0.0.1:8000/metrics");
    assert_eq!(request.headers()["accept"], "text/plain;version=0.0.4");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_slow_is_never_asked_twice_at_once() {
    let worker = Worker::new(|_| (Duration::from_secs(60), answer(200, usage(0.5))));
    let mut poller = poller(&worker);
    let start = Instant::now();
    for _ in 0..3 {
        let error = poller.next().await.unwrap().unwrap_err();
        assert!(matches!(error, ScrapeError::TimedOut(_)), "{error}");
        assert_eq!(worker.running(), 0, "the request is given up");
    }
    assert_eq!(start.elapsed(), 17 * SECOND, "5 s each and 1 s between");
    assert_eq!((worker.calls(), worker.log.lock().unwrap().most), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn many_workers_are_asked_at_times_that_are_spread() {
    let start = Instant::now();
    let mut first = Vec::new();
    for _ in 0..200 {
        let worker = Worker::at_once(|_| answer(200, usage(0.5)));
        let poller = poller_of(PollerBuilder::default(), &worker);
        first.push(tokio::spawn(async move {
            let mut poller = poller;
            poller.next().await;
            let first = start.elapsed();
            poller.next().await;
            (first, start.elapsed() - first)
        }));
    }
    let mut by_quarter = [0; 4];
    let mut between = Vec::new();
    for task in first {
        let (first, next) = task.await.unwrap();
        by_quarter[(first.as_millis() / 250).min(3) as usize] += 1;
        between.push(next);
    }
    // With a chance of 1 in 10^22 for one of them to be empty.
    assert!(by_quarter.iter().all(|n| *n > 0), "{by_quarter:?}");
    // The clock counts whole milliseconds.
    let (least, most) = (between.iter().min().unwrap(), between.iter().max().unwrap());
    assert!(*least >= Duration::from_millis(899), "{least:?}");
    assert!(*most <= Duration::from_millis(1102), "{most:?}");
    assert!(*most - *least > Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_or_does_not_end_is_given_up_in_time() {
    for frames_then_nothing in [vec![], vec![Ok("vllm:num_requests_waiting 1\n")]] {
        let (error, after) = outcome(move || frames(frames_then_nothing.clone(), false)).await;
        assert!(matches!(error, ScrapeError::TimedOut(_)), "{error}");
        assert_eq!(after, 5 * SECOND, "head and body together");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_without_an_end_is_given_up_at_the_limit() {
    for frame in ["x 1\n", ""] {
        let worker = Worker::at_once(move |_| frames(std::iter::repeat(Ok(frame)), true));
        let builder = PollerBuilder::default().jitter(0.0).max_body(10_000);
        let start = Instant::now();
        let error = poller_of(builder, &worker).next().await.unwrap();
        let error = error.unwrap_err();
        assert!(matches!(error, ScrapeError::TooLarge(10_000)), "{error}");
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_of_the_limit_is_read_and_one_byte_more_is_not() {
    let text = usage(0.5);
    for (max, fits) in [(text.len(), true), (text.len() - 1, false)] {
        let text = text.clone();
        let worker = Worker::at_once(move |_| answer(200, text.clone()));
        let builder = PollerBuilder::default().jitter(0.0).max_body(max);
        let result = poller_of(builder, &worker).next().await.unwrap();
        assert_eq!(result.is_ok(), fits);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_answer_is_a_failed_scrape_and_the_next_one_comes() {
    type Case = (fn() -> Answer, &'static str);
    let good = "vllm:num_requests_waiting 1\n";
    let cases: [Case; 10] = [
        (|| answer(404, usage(0.5)), "status"),
        (|| answer(204, ""), "status"),
        (|| answer(302, usage(0.5)), "status"),
        (|| answer(503, usage(0.5)), "status"),
        (|| Err("refused".into()), "request_failed"),
        (
            || frames([Ok("vllm:num_requests_waiting 1\n"), Err("reset")], true),
            "body_failed",
        ),
        (
            || {
                answer(
                    200,
                    "vllm:num_requests_waiting 1\nvllm:num_requests_running 1",
                )
            },
            "unreadable",
        ),
        (|| answer(200, "<html>log in</html>\n"), "unreadable"),
        (|| answer(200, &b"\x1f\x8b\x08\0\n"[..]), "unreadable"),
        (|| answer(200, ""), "unreadable"),
    ];
    for (bad, expected) in cases {
        let worker = Worker::at_once(move |n| match n {
            0 => bad(),
            _ => answer(200, good),
        });
        let mut poller = poller(&worker);
        let error = poller.next().await.unwrap().unwrap_err();
        assert_eq!(error.as_str(), expected, "{error}");
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let inner = matches!(expected, "request_failed" | "body_failed");
        assert_eq!(source.is_some(), inner, "{error}");
        assert!(source.is_none_or(|source| ["refused", "reset"].contains(&&*source)));
        let report = poller.next().await.unwrap().unwrap();
        assert_eq!(report.ranks()[0].waiting, Some(1));
        assert_eq!(worker.times(), [0, 1000]);
    }
    let (error, _) = outcome(|| answer(200, "x 1")).await;
    assert!(matches!(
        error,
        ScrapeError::Unreadable(UnreadableMetrics::Truncated)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_failed_for_good_ends_the_poller() {
    let (client, mut handle) =
        tower_test::mock::pair::<http::Request<Empty<Bytes>>, http::Response<ResponseBody>>();
    handle.send_error("gone");
    let builder = PollerBuilder::default().jitter(0.0);
    let mut poller = Box::pin(builder.build(client, "/metrics".parse().unwrap()).unwrap());
    let error = poller.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ScrapeError::ClientClosed(_)), "{error}");
    assert!(poller.next().await.is_none());
    assert!(poller.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_not_ready_is_given_up_in_time() {
    let (client, mut handle) =
        tower_test::mock::pair::<http::Request<Empty<Bytes>>, http::Response<ResponseBody>>();
    handle.allow(0);
    let builder = PollerBuilder::default().jitter(0.0).timeout(SECOND);
    let mut poller = Box::pin(builder.build(client, "/metrics".parse().unwrap()).unwrap());
    let error = poller.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ScrapeError::TimedOut(_)), "{error}");
    handle.allow(1);
    let serve = async {
        let (_, respond) = handle.next_request().await.unwrap();
        respond.send_response(answer(200, usage(0.5)).unwrap());
    };
    let (report, ()) = tokio::join!(poller.next(), serve);
    assert!(report.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn cancelling_next_loses_nothing_and_dropping_the_poller_ends_its_request() {
    let worker = Worker::new(|_| (Duration::from_millis(500), answer(200, usage(0.5))));
    let mut poller = poller(&worker);
    for _ in 0..4 {
        let some_time = Duration::from_millis(100);
        assert!(timeout(some_time, poller.next()).await.is_err());
    }
    assert!(poller.next().await.unwrap().is_ok());
    assert_eq!(worker.calls(), 1, "it went on where it was");

    assert!(timeout(1100 * SECOND / 1000, poller.next()).await.is_err());
    assert_eq!((worker.calls(), worker.running()), (2, 1));
    drop(poller);
    assert_eq!(worker.running(), 0);
    advance(10 * SECOND).await;
    assert_eq!(worker.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failed_scrape_is_silence_and_the_mark_falls_when_its_evidence_is_stale() {
    let worker = Worker::at_once(|n| match n {
        0 => answer(200, usage(0.9)),
        n if n < 40 => answer(500, usage(0.0)),
        _ => answer(200, usage(0.9)),
    });
    let mut poller = poller(&worker);
    let (monitor, thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
    let above_half = ThresholdUpdate::new().active_decode_blocks(0.5);
    thresholds.update(above_half).unwrap();
    let is_busy = || monitor.snapshot().first().is_some_and(|it| it.is_busy());
    let start = Instant::now();
    for n in 0..41 {
        if let Ok(report) = poller.next().await.unwrap() {
            let config = report.complete_with_ranks(WorkerConfig::new([0]).unwrap());
            monitor.configure_for_all("a", config.clone());
            monitor.observe_all(&report.loads(&"a", &config, WaitingTokens::default()));
        }
        let is_stale = (30..40).contains(&start.elapsed().as_secs());
        assert_eq!(is_busy(), !is_stale, "after scrape {n}");
    }
}

#[test]
fn scrapes_are_counted_by_outcome_and_values_that_cannot_be() {
    recorded(|metrics| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let worker = Worker::at_once(|n| match n {
                0 | 1 => answer(200, usage(2.0)),
                2 => answer(500, ""),
                _ => frames([], false),
            });
            let mut poller = poller(&worker);
            for _ in 0..4 {
                poller.next().await.unwrap().ok();
            }
        });
        let count = |outcome| metrics.value("scrapes_total", &[("outcome", outcome)]);
        assert_eq!(count("ok"), Some(2.0));
        assert_eq!(count("status"), Some(1.0));
        assert_eq!(count("timed_out"), Some(1.0));
        assert_eq!(count("unreadable"), Some(0.0));
        assert_eq!(metrics.value("scrape_values_ignored_total", &[]), Some(2.0));
    });
}

#[test]
fn an_option_out_of_its_range_is_refused_with_what_is_allowed() {
    let day = Duration::from_secs(24 * 60 * 60);
    let build = |builder: PollerBuilder| {
        let worker = Worker::at_once(|_| answer(200, ""));
        let poller = builder.build(worker, "/".parse().unwrap());
        poller.map(drop)
    };
    let default = PollerBuilder::default;
    assert!(build(default().interval(day).timeout(day).jitter(1.0).max_body(1)).is_ok());
    for (builder, expected) in [
        (
            default().interval(Duration::ZERO),
            InvalidPoller::Interval(Duration::ZERO),
        ),
        (
            default().interval(Duration::MAX),
            InvalidPoller::Interval(Duration::MAX),
        ),
        (
            default().timeout(Duration::ZERO),
            InvalidPoller::Timeout(Duration::ZERO),
        ),
        (default().timeout(day * 2), InvalidPoller::Timeout(day * 2)),
        (default().jitter(-0.1), InvalidPoller::Jitter(-0.1)),
        (default().jitter(1.1), InvalidPoller::Jitter(1.1)),
        (default().max_body(0), InvalidPoller::MaxBody),
    ] {
        let error = build(builder).unwrap_err();
        assert_eq!(error, expected);
        assert!(error.to_string().contains("allowed: "), "{error}");
    }
    assert!(build(default().jitter(f64::NAN)).is_err());
}

#[test]
fn a_poller_can_be_sent_to_a_task_and_says_what_it_is() {
    fn is_send<T: Send + Debug>(_: &T) {}
    let worker = Worker::at_once(|_| answer(200, ""));
    let builder = PollerBuilder::default().worker("w7");
    let poller = builder.build(worker, "/metrics".parse().unwrap()).unwrap();
    is_send(&poller);
    assert_eq!(poller.worker(), "w7");
    let text = format!("{poller:?}");
    assert!(text.contains("w7") && text.contains("waiting"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_the_stream_is_polled() {
    let worker = Worker::at_once(|_| answer(200, usage(0.5)));
    let mut poller = poller(&worker);
    advance(10 * SECOND).await;
    assert_eq!(worker.calls(), 0);
    assert!(poller.next().now_or_never().unwrap().unwrap().is_ok());
}
