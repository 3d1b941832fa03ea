//! Sick workers, over real sockets: what they cost, and how they come back.

use crate::{
    cli::{Started, start},
    gateway::GatewayConfig,
    process::{Process, example},
    serving::{Client, STUCK, prompt, text},
    support::{COMPLETIONS, Fleet, JSON, Stub, eventually},
};
use http::{Method, StatusCode};
use overload_examples::{
    engine::Timing,
    worker::{Worker, WorkerConfig},
};
use serde_json::{Value, json};
use std::time::Duration;
use tower_overload::load::ThresholdUpdate;

/// A worker as a process, and its URL.
async fn worker_process() -> (Process, String) {
    let mut process = Process::start(example("worker").args(["--listen", "127.0.0.1:0"]));
    let line = process.line().await;
    let url = line.strip_prefix("listening on ").expect(&line).to_owned();
    (process, url)
}

async fn marks(gateway: &Started, id: &str) -> Value {
    let workers = crate::serving::value(gateway.admin.get("/workers").await).await;
    let workers = workers["workers"].as_array().unwrap().clone();
    workers.into_iter().find(|it| it["id"] == id).unwrap()
}

async fn completes(client: &Client) {
    let response = client.post(COMPLETIONS, &prompt(3)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(text(response).await.ends_with("data: [DONE]\n\n"));
}

#[cfg(unix)]
#[tokio::test]
async fn a_stopped_worker_costs_no_request_and_is_back_when_it_goes_on() {
    let (stopped, one) = worker_process().await;
    let (_well, other) = worker_process().await;
    let gateway = start(example("gateway").args([
        &format!("--worker=stopped={one}"),
        &format!("--worker=well={other}"),
        "--no-embedded-workers",
        "--head-timeout-ms=200",
        "--first-frame-timeout-ms=200",
        "--health-path=/health",
        "--health-interval-ms=100",
    ]))
    .await;
    for _ in 0..4 {
        completes(&gateway.public).await;
    }
    stopped.signal("STOP");
    // It is asked until it is known to fail, and each request is served by the
    // other one.
    let mut asked = 0;
    while marks(&gateway, "stopped").await["failing"] == false {
        completes(&gateway.public).await;
        asked += 1;
        assert!(asked < 1_000);
    }
    let state = marks(&gateway, "stopped").await;
    let failing = &state["marks"].as_array().unwrap()[0];
    assert_eq!(failing["mark"], "failing");
    assert!(failing["failures_in_a_row"].as_u64().unwrap() >= 5);
    assert!(failing["ends_in_ms"].as_u64().unwrap() <= 1_000);
    let metrics = text(gateway.admin.get("/metrics").await).await;
    assert!(
        metrics.contains(r#"reason="failing""#) || metrics.contains(r#"mark="failing""#),
        "{metrics}"
    );

    stopped.signal("CONT");
    eventually("it is trusted again", async || {
        completes(&gateway.public).await;
        marks(&gateway, "stopped").await["marks"] == json!([])
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_fails_at_once_gets_no_more_than_its_share() {
    let fails = Stub::answering(500, &[]).await;
    let fleet = Fleet::empty().await;
    let _well = fleet.join("well", None, Timing::INSTANT).await;
    fleet.register("fails", &fails.url, json!({})).await;
    let mut served = 0;
    for _ in 0..200 {
        let response = fleet.public.post(COMPLETIONS, &prompt(3)).await;
        served += usize::from(response.status() == StatusCode::OK);
        let _ = text(response).await;
    }
    assert_eq!(served + fails.calls(), 200);
    assert!(fails.calls() <= 100, "{}", fails.calls());
    assert_eq!(fleet.worker("fails").await.unwrap()["unreachable"], false);
}

#[tokio::test]
async fn a_time_named_by_a_full_worker_does_not_outlast_the_request_that_filled_it() {
    let fleet = Fleet::empty().await;
    let _worker = fleet.join("full", Some((1, 0)), STUCK).await;
    let running = fleet.public.start(9).await;
    let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(refused.status().as_u16(), 529);
    assert_eq!(fleet.worker("full").await.unwrap()["leased"], true);
    drop(running);
    eventually("it takes requests", async || {
        fleet.worker("full").await.unwrap()["leased"] == false
    })
    .await;
    let next = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(next.status(), StatusCode::OK);
}

/// A fleet that nobody has reached for long enough that its mark is of several
/// seconds, and where it is going to listen.
async fn long_gone(config: GatewayConfig) -> (Fleet, std::net::SocketAddr) {
    let fleet = Fleet::start(config).await;
    let address = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    fleet
        .register("gone", &format!("http://{address}"), json!({}))
        .await;
    eventually("its mark is of four seconds", async || {
        let _ = text(fleet.public.post(COMPLETIONS, &prompt(1)).await).await;
        ends_in(&fleet).await > 2_000
    })
    .await;
    (fleet, address)
}

async fn ends_in(fleet: &Fleet) -> u64 {
    let worker = fleet.worker("gone").await.unwrap();
    let marks = worker["marks"].as_array().unwrap();
    let of_first = marks.first().and_then(|mark| mark["ends_in_ms"].as_u64());
    of_first.unwrap_or(0)
}

#[tokio::test]
async fn a_worker_that_registers_again_is_asked_within_a_second() {
    let (fleet, address) = long_gone(GatewayConfig::default()).await;
    let worker = WorkerConfig {
        listen: address,
        id: Some("gone".into()),
        ..crate::serving::config(None, Timing::INSTANT)
    };
    let _worker = Worker::start(worker).await.unwrap();
    let url = format!("http://{address}");
    fleet.register("gone", &url, json!({})).await;
    assert!(ends_in(&fleet).await <= 1_000);
    eventually("it serves", async || {
        let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        response.status() == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn an_answer_to_a_health_check_ends_the_mark_without_any_request() {
    let (fleet, address) = long_gone(GatewayConfig {
        health_path: "/health".parse().ok(),
        health_interval: Duration::from_millis(20),
        registration_ttl: Duration::from_secs(3600),
        ..GatewayConfig::default()
    })
    .await;
    let worker = WorkerConfig {
        listen: address,
        ..crate::serving::config(None, Timing::INSTANT)
    };
    let _worker = Worker::start(worker).await.unwrap();
    eventually("it is eligible", async || {
        fleet.worker("gone").await.unwrap()["eligible"] == true
    })
    .await;
}

#[tokio::test]
async fn a_worker_whose_gauge_is_stuck_is_asked_now_and_then() {
    let fleet = Fleet::start(GatewayConfig {
        thresholds: ThresholdUpdate::new().active_decode_blocks(0.9),
        probe_after: Some(Duration::from_millis(50)),
        registration_ttl: Duration::from_secs(3600),
        ..GatewayConfig::default()
    })
    .await;
    let stub = Stub::answering(200, &[]).await;
    fleet
        .register("stuck", &stub.url, json!({"kv_total_blocks": 100}))
        .await;
    let report = async || {
        let event = json!({"worker": "stuck", "dp_rank": 0, "kv_used_blocks": 99});
        let (method, body) = (Method::POST, event.to_string());
        let sent = fleet.admin.send(method, "/worker_load", JSON, body);
        let response = sent.await.unwrap();
        assert!(response.status().is_success(), "{}", text(response).await);
    };
    report().await;
    let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(refused.status().as_u16(), 529);
    eventually("it is asked", async || {
        report().await;
        let _ = text(fleet.public.post(COMPLETIONS, &prompt(1)).await).await;
        stub.calls() >= 3
    })
    .await;
}
