//! A gateway that counts load by the requests that it has sent, for workers
//! that say nothing of theirs.

use crate::{
    gateway::GatewayConfig,
    serving::{Client, STUCK, value},
    support::{CHAT, COMPLETIONS, Fleet, JSON, OVERLOADED, Stub, eventually},
};
use axum::body::Body;
use bytes::Bytes;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use tower_overload::load::ThresholdUpdate;

fn config(thresholds: ThresholdUpdate) -> GatewayConfig {
    GatewayConfig {
        thresholds,
        router_track_load: true,
        ..GatewayConfig::default()
    }
}

/// The other ends of the responses' bodies.
type Output = Arc<Mutex<Vec<UnboundedSender<Result<Bytes, Infallible>>>>>;

/// A worker whose streams are written by the test.
async fn streaming() -> (Stub, Output) {
    let output = Output::default();
    let running = output.clone();
    let stub = Stub::start(move |_| {
        let (frames, body) = unbounded();
        running.lock().unwrap().push(frames);
        Response::new(Body::from_stream(body))
    });
    (stub.await, output)
}

/// Writes to the last one.
fn write(output: &Output, event: &'static str) {
    let output = output.lock().unwrap();
    let frames = output.last().expect("a response is running");
    frames.unbounded_send(Ok(Bytes::from(event))).unwrap();
}

async fn read(response: &mut Response<Incoming>) -> Option<Bytes> {
    let frame = response.body_mut().frame().await?;
    frame.unwrap().into_data().ok()
}

/// A prompt of so many tokens, given as such.
async fn ask(client: &Client, tokens: usize) -> Response<Incoming> {
    let prompt = vec![7; tokens];
    let body = json!({"model": "tiny", "prompt": prompt, "stream": true});
    client.post(COMPLETIONS, &body).await
}

impl Fleet {
    /// Prefill tokens and decode blocks of the worker's only rank.
    async fn counts(&self, id: &str) -> (u64, u64) {
        let worker = self.worker(id).await.unwrap();
        let rank = &worker["ranks"][0];
        let count = |name: &str| rank[name].as_u64().unwrap_or(0);
        (
            count("active_prefill_tokens"),
            count("active_decode_blocks"),
        )
    }

    async fn busy(&self, id: &str) -> bool {
        self.worker(id).await.unwrap()["busy"] == true
    }

    /// What a request gets that comes now.
    async fn refused(&self) -> bool {
        let response = ask(&self.public, 1).await;
        if response.status() == StatusCode::OK {
            return false;
        }
        assert_eq!(response.status().as_u16(), 529);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, OVERLOADED);
        true
    }
}

#[tokio::test]
async fn a_long_prompt_makes_a_worker_without_telemetry_busy_until_the_first_frame() {
    let fleet = Fleet::start(config(ThresholdUpdate::new().active_prefill_tokens(100))).await;
    let (stub, output) = streaming().await;
    fleet.register("a", &stub.url, json!({})).await;
    let short = ask(&fleet.public, 100).await;
    assert_eq!(fleet.counts("a").await, (100, 7));
    assert!(!fleet.busy("a").await, "100 is not above 100");
    drop(short);
    eventually("it is gone", async || fleet.counts("a").await == (0, 0)).await;

    let mut long = ask(&fleet.public, 200).await;
    assert_eq!(long.status(), StatusCode::OK);
    assert_eq!(fleet.counts("a").await, (200, 13));
    assert!(fleet.busy("a").await, "its head is no token");
    assert!(fleet.refused().await);
    assert_eq!(stub.calls(), 2);
    write(&output, "data: {}\n\n");
    read(&mut long).await.unwrap();
    assert_eq!(fleet.counts("a").await, (0, 13));
    assert!(!fleet.busy("a").await);
    output.lock().unwrap().clear();
    assert_eq!(read(&mut long).await, None);
    assert_eq!(fleet.counts("a").await, (0, 0));
    assert!(!fleet.refused().await);
}

#[tokio::test]
async fn the_blocks_of_prompt_and_output_make_a_worker_busy_until_the_end() {
    let (stub, output) = streaming().await;
    let fleet = Fleet::start(GatewayConfig {
        workers: vec![("a".into(), stub.url.parse().unwrap())],
        worker_kv_total_blocks: Some(10),
        router_track_output_blocks: true,
        ..config(ThresholdUpdate::new().active_decode_blocks(0.5))
    })
    .await;
    let mut running = ask(&fleet.public, 5 * 16).await;
    assert_eq!(fleet.counts("a").await, (80, 5));
    assert!(!fleet.busy("a").await, "5 of 10 is not above 0.5");
    write(&output, "data: {}\n\n");
    read(&mut running).await.unwrap();
    assert_eq!(fleet.counts("a").await, (0, 6));
    assert!(fleet.busy("a").await);
    assert!(fleet.refused().await);
    for _ in 0..16 {
        write(&output, "data: {}\n\n");
        read(&mut running).await.unwrap();
    }
    eventually("it is 97 tokens", async || {
        fleet.counts("a").await == (0, 7)
    })
    .await;
    output.lock().unwrap().clear();
    while read(&mut running).await.is_some() {}
    assert_eq!(fleet.counts("a").await, (0, 0));
    assert!(!fleet.refused().await);
}

#[tokio::test]
async fn a_client_that_disconnects_takes_its_load_with_it() {
    let fleet = Fleet::start(config(ThresholdUpdate::new().active_prefill_tokens(0))).await;
    let (stub, output) = streaming().await;
    fleet.register("a", &stub.url, json!({})).await;
    for frames in 0..3 {
        let mut response = ask(&fleet.public, 50).await;
        assert_eq!(response.status(), StatusCode::OK);
        for _ in 0..frames {
            write(&output, "data: {}\n\n");
            read(&mut response).await.unwrap();
        }
        let prefill = if frames == 0 { 50 } else { 0 };
        assert_eq!(fleet.counts("a").await, (prefill, 4));
        drop(response);
        eventually("it is gone", async || fleet.counts("a").await == (0, 0)).await;
    }
}

#[tokio::test]
async fn a_refusal_that_is_sent_to_another_worker_leaves_no_load_on_the_first() {
    let fleet = Fleet::start(GatewayConfig {
        lease: Duration::from_secs(3600),
        ..config(ThresholdUpdate::new())
    })
    .await;
    let full = Stub::answering(529, &[]).await;
    let (stub, _output) = streaming().await;
    fleet.register("full", &full.url, json!({})).await;
    fleet.register("free", &stub.url, json!({})).await;
    let mut running = Vec::new();
    while full.calls() == 0 {
        let response = ask(&fleet.public, 10).await;
        assert_eq!(response.status(), StatusCode::OK);
        running.push(response);
        let served = running.len() as u64;
        assert_eq!(fleet.counts("free").await, (10 * served, served));
        assert_eq!(fleet.counts("full").await, (0, 0));
    }
    assert_eq!(full.calls(), 1);
}

#[tokio::test]
async fn of_what_a_worker_reports_only_its_own_blocks_are_taken() {
    let event = json!({"worker": "a", "active_decode_blocks": 99,
        "active_prefill_tokens": 9999, "kv_used_blocks": 7});
    for (tracking, expected) in [
        (true, [json!(4), json!(50), json!(7)]),
        (false, [json!(99), json!(9999), json!(7)]),
    ] {
        let fleet = Fleet::start(GatewayConfig {
            router_track_load: tracking,
            ..GatewayConfig::default()
        })
        .await;
        let (stub, _output) = streaming().await;
        fleet.register("a", &stub.url, json!({})).await;
        let _running = ask(&fleet.public, 50).await;
        let sent = fleet
            .admin
            .send(Method::POST, "/worker_load", JSON, event.to_string());
        let taken = value(sent.await.unwrap()).await;
        assert_eq!(taken, json!({"accepted": 1, "dropped": 0}));
        let rank = fleet.worker("a").await.unwrap()["ranks"][0].clone();
        let names = [
            "active_decode_blocks",
            "active_prefill_tokens",
            "kv_used_blocks",
        ];
        assert_eq!(names.map(|name| rank[name].clone()), expected);
    }
}

#[tokio::test]
async fn of_a_workers_metrics_only_its_own_blocks_are_taken() {
    let worker = crate::serving::worker(None, STUCK).await;
    let fleet = Fleet::start(GatewayConfig {
        workers: vec![("a".into(), worker.url().parse().unwrap())],
        scrape: true,
        scrape_interval: Duration::from_millis(10),
        ..config(ThresholdUpdate::new())
    })
    .await;
    let rank = async || fleet.worker("a").await.unwrap()["ranks"][0].clone();
    eventually("its metrics are read", async || {
        rank().await["kv_used_blocks"] == 0
    })
    .await;
    let known = rank().await;
    assert_eq!(known["active_prefill_tokens"], Value::Null, "{known}");
    let running = fleet.public.start(2).await;
    eventually("they are read again", async || {
        rank().await["kv_used_blocks"] == 1
    })
    .await;
    let known = rank().await;
    assert_eq!(known["active_decode_blocks"], 1, "the prompt's: {known}");
    drop(running);
    eventually("it is gone", async || rank().await["kv_used_blocks"] == 0).await;
    assert_eq!(rank().await["active_decode_blocks"], 0);
}

#[tokio::test]
async fn a_request_that_runs_on_counts_longer_than_a_report_is_good() {
    let fleet = Fleet::start(GatewayConfig {
        stale_after: Some(Duration::from_millis(300)),
        ..config(ThresholdUpdate::new())
    })
    .await;
    let (stub, _output) = streaming().await;
    fleet.register("a", &stub.url, json!({})).await;
    let running = ask(&fleet.public, 50).await;
    let reports = async || {
        let metrics = fleet.metrics().await;
        let series = "dynamo_frontend_load_events_total ";
        let mut lines = metrics.lines();
        let count = lines.find_map(|line| line.strip_prefix(series));
        count.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    eventually("it is reported again and again", async || {
        reports().await > 10
    })
    .await;
    drop(running);
    eventually("it is gone", async || fleet.counts("a").await == (0, 0)).await;
}

#[tokio::test]
async fn a_worker_that_registers_anew_has_the_requests_that_still_run() {
    let fleet = Fleet::start(config(ThresholdUpdate::new())).await;
    let (stub, _output) = streaming().await;
    fleet.register("a", &stub.url, json!({})).await;
    let running = ask(&fleet.public, 50).await;
    let gone = fleet.admin.send(Method::DELETE, "/workers/a", &[], "");
    assert_eq!(gone.await.unwrap().status(), StatusCode::NO_CONTENT);
    fleet.register("a", &stub.url, json!({})).await;
    assert_eq!(fleet.counts("a").await, (50, 4));
    drop(running);
    eventually("it is gone", async || fleet.counts("a").await == (0, 0)).await;
}

#[tokio::test]
async fn a_worker_at_another_address_does_not_have_the_requests_of_the_one_before() {
    let fleet = Fleet::start(config(ThresholdUpdate::new().active_prefill_tokens(0))).await;
    let (before, _output) = streaming().await;
    let (after, _output) = streaming().await;
    fleet.register("a", &before.url, json!({})).await;
    let running = ask(&fleet.public, 50).await;
    assert_eq!(fleet.counts("a").await, (50, 4));
    fleet.register("a", &after.url, json!({})).await;
    assert_eq!(fleet.counts("a").await, (0, 0));
    assert!(!fleet.busy("a").await);
    let other = ask(&fleet.public, 10).await;
    assert_eq!(after.calls(), 1);
    drop(running);
    drop(other);
    eventually("it is gone", async || fleet.counts("a").await == (0, 0)).await;
}

#[tokio::test]
async fn chinese_code_and_tools_are_as_long_as_they_are() {
    let fleet = Fleet::start(config(ThresholdUpdate::new())).await;
    let (stub, _output) = streaming().await;
    fleet.register("a", &stub.url, json!({})).await;
    let chat = |content: String| json!({"messages": [{"role": "user", "content": content}]});
    let tool = json!({"type": "function", "function": {"name": "f",
        "description": "word ".repeat(4000), "parameters": {}}});
    for (body, least) in [
        (chat("\u{6f22}".repeat(4000)), 2000),
        (chat("a[0]=b;".repeat(4000 / 7)), 1000),
        (json!({"messages": [], "tools": [tool]}), 4000),
    ] {
        let running = fleet.public.post(CHAT, &body).await;
        let (prefill, blocks) = fleet.counts("a").await;
        assert!(prefill >= least && prefill < 10 * least, "{prefill}");
        assert_eq!(blocks, prefill.div_ceil(16));
        drop(running);
        eventually("it is gone", async || fleet.counts("a").await == (0, 0)).await;
    }
}

#[tokio::test]
async fn what_the_gateway_takes_does_not_depend_on_whether_it_counts() {
    let nested = |depth| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"model": "tiny", "prompt": {open}"a"{close}}}"#)
    };
    let (deep, too_deep) = (nested(100), nested(500));
    let bodies = [
        (r#"{"model": "tiny", "prompt": "half \ud800 pair"}"#, 200),
        (r#"{"model": "tiny", "prompt": "a", "prompt": "b"}"#, 200),
        (r#"{"model": "tiny", "messages": 7}"#, 200),
        (r#"{"model": "tiny", "prompt": 1e999}"#, 200),
        (&deep, 200),
        (&too_deep, 400),
        (r#"{"model": 7, "prompt": "a"}"#, 400),
        (r#"{"model": "tiny", "prompt": "a""#, 400),
        (r#"{"model": "huge", "prompt": "a"}"#, 404),
        (r"{}", 200),
        ("", 200),
    ];
    for tracking in [false, true] {
        let fleet = Fleet::start(GatewayConfig {
            router_track_load: tracking,
            ..GatewayConfig::default()
        })
        .await;
        let stub = Stub::answering(200, &[]).await;
        fleet.register("a", &stub.url, json!({})).await;
        for (body, expected) in bodies {
            let sent = fleet.public.send(Method::POST, CHAT, JSON, body.to_owned());
            let response = sent.await.unwrap();
            assert_eq!(response.status().as_u16(), expected, "{body:.80}");
            let _: Value = value(response).await;
            if tracking {
                assert_eq!(fleet.counts("a").await, (0, 0), "{body:.80}");
            }
        }
    }
}
