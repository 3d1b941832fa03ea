use crate::support::*;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::time::Duration;
use tower::Layer;
use tower_overload::{admission::EngineAdmissionLayer, metrics::Prefix};

/// The value of a series, as a scraper reads it.
fn value(scrape: &PrometheusHandle, series: &str) -> f64 {
    let text = scrape.render();
    let mut lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let (_, value) = lines
        .find(|(name, _)| *name == series)
        .expect("the series is there");
    value.parse().unwrap()
}

#[test]
fn the_gauges_are_right_at_each_step_and_zero_at_rest() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let scrape = recorder.handle();
    let layer = EngineAdmissionLayer::new(2, 3).unwrap();
    let engine = Engine::default();
    let mut worker = metrics::with_local_recorder(&recorder, || layer.layer(engine.clone()));
    let mut other = layer.layer(engine.clone());
    let handle = layer.handle().unwrap();
    let gauges = || {
        let [engine, queue] = ["dynamo_engine_request", "dynamo_request_queue"];
        (
            value(&scrape, engine) as usize,
            value(&scrape, queue) as usize,
        )
    };
    assert_eq!(gauges(), (0, 0));

    let mut calls = Vec::new();
    for n in 0..5 {
        let worker = if n % 2 == 0 { &mut worker } else { &mut other };
        calls.push(send(worker, n));
        assert_eq!(gauges(), counts(&handle));
    }
    assert_eq!(gauges(), (2, 3), "every waiting request is counted");
    assert_refused(&mut call(&mut worker, 9));

    // Granted, though not noticed yet.
    drop(calls.remove(0));
    assert_eq!(gauges(), (2, 2));
    handle.set_slots(3).unwrap();
    assert_eq!(gauges(), (3, 1));
    handle.set_slots(1).unwrap();
    assert_eq!(gauges(), (3, 1));
    drop(calls.pop());
    assert_eq!(gauges(), (3, 0));
    drop(calls);
    assert_eq!(gauges(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn refusals_are_counted_by_reason_and_every_wait_is_measured() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let scrape = recorder.handle();
    let layer = EngineAdmissionLayer::new(1, 2)
        .unwrap()
        .with_max_queue_wait(Duration::from_secs(4))
        .with_metrics_prefix(Prefix::new("mine"));
    let mut worker = metrics::with_local_recorder(&recorder, || layer.layer(Engine::default()));

    let running = send(&mut worker, 1);
    let mut granted = send(&mut worker, 2);
    let mut too_long = send(&mut worker, 3);
    assert_refused(&mut call(&mut worker, 4));
    assert_refused(&mut call(&mut worker, 5));
    tokio::time::advance(Duration::from_secs(1)).await;
    drop(running);
    assert!(granted.poll().is_pending());
    tokio::time::advance(Duration::from_secs(3)).await;
    overload(&mut too_long);
    let cancelled = send(&mut worker, 6);
    tokio::time::advance(Duration::from_secs(2)).await;
    drop(cancelled);
    layer.handle().unwrap().close();
    assert_unavailable(&mut call(&mut worker, 7));

    assert_eq!(value(&scrape, "mine_rejection_request_total"), 4.0);
    let by_reason = |reason| {
        let series = format!("mine_rejection_request_by_reason_total{{reason=\"{reason}\"}}");
        value(&scrape, &series)
    };
    assert_eq!(by_reason("worker_at_capacity"), 2.0);
    assert_eq!(by_reason("waited_too_long"), 1.0);
    assert_eq!(by_reason("shutting_down"), 1.0);
    let waits = "mine_request_queue_wait_seconds";
    assert_eq!(value(&scrape, &format!("{waits}_count")), 3.0);
    assert_eq!(value(&scrape, &format!("{waits}_sum")), 1.0 + 4.0 + 2.0);
}
