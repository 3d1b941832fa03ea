//! A fleet that serves several models.

use crate::{
    serving::{STUCK, config, text},
    support::{COMPLETIONS, Fleet, JSON, OVERLOADED, Stub, UNAVAILABLE},
};
use http::{Method, StatusCode};
use overload_examples::{
    engine::Timing,
    gateway::GatewayConfig,
    worker::{Worker, WorkerConfig},
};
use serde_json::{Value, json};
use std::time::Duration;

fn request(model: &str) -> Value {
    json!({"model": model, "prompt": "a", "max_tokens": 2, "stream": true})
}

impl Fleet {
    async fn status(&self, model: &str) -> (u16, String) {
        let response = self.public.post(COMPLETIONS, &request(model)).await;
        (response.status().as_u16(), text(response).await)
    }
}

async fn serving(model: &str, slots: usize, timing: Timing) -> Worker {
    Worker::start(WorkerConfig {
        model: model.into(),
        ..config(Some((slots, 0)), timing)
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn the_overload_of_one_model_refuses_no_request_of_another() {
    let fleet = Fleet::start(GatewayConfig {
        lease: Duration::from_secs(3600),
        ..GatewayConfig::default()
    })
    .await;
    let full = serving("full", 1, STUCK).await;
    let free = serving("free", 1, Timing::INSTANT).await;
    fleet
        .register("a", full.url(), json!({"models": ["full"]}))
        .await;
    fleet
        .register("b", free.url(), json!({"models": ["free"]}))
        .await;
    let _running = fleet.public.post(COMPLETIONS, &request("full")).await;
    for _ in 0..3 {
        assert_eq!(fleet.status("full").await, (529, OVERLOADED.into()));
        assert_eq!(fleet.status("free").await.0, 200);
        assert_eq!(
            fleet.status("tiny").await,
            (503, UNAVAILABLE.into()),
            "nobody serves it"
        );
        assert_eq!(fleet.status("none").await.0, 404);
    }
    assert_eq!(fleet.worker("b").await.unwrap()["eligible"], true);
    let metrics = fleet.metrics().await;
    for (model, count) in [("full", 3), ("free", 0), ("tiny", 0), ("unknown", 0)] {
        let series = format!(
            "dynamo_frontend_model_rejection_total{{model=\"{model}\",endpoint=\"completions\"}} {count}\n"
        );
        assert!(metrics.contains(&series), "{series}{metrics}");
    }
}

#[tokio::test]
async fn each_models_thresholds_judge_a_worker_that_serves_both() {
    let fleet = Fleet::empty().await;
    let stub = Stub::answering(200, &[]).await;
    let both = json!({"models": ["one", "two"], "kv_total_blocks": 10});
    let worker = fleet.register("a", &stub.url, both.clone()).await;
    assert_eq!(worker["models"], json!(["one", "two"]));
    let post = async |path: &str, body: Value| {
        let sent = fleet.admin.send(Method::POST, path, JSON, body.to_string());
        assert_eq!(sent.await.unwrap().status(), StatusCode::OK);
    };
    post(
        "/busy_threshold",
        json!({"model": "one", "active_decode_blocks_threshold": 0.5}),
    )
    .await;
    post("/worker_load", json!({"worker": "a", "kv_used_blocks": 6})).await;
    assert_eq!(fleet.status("one").await.0, 529);
    assert_eq!(fleet.status("two").await.0, 200);
    let worker = fleet.worker("a").await.unwrap();
    assert_eq!(
        (&worker["busy"], &worker["eligible"]),
        (&json!(true), &json!(false))
    );

    // It serves one of them no more, and then both again.
    fleet
        .register(
            "a",
            &stub.url,
            json!({"models": ["two"], "kv_total_blocks": 10}),
        )
        .await;
    assert_eq!(fleet.status("one").await, (503, UNAVAILABLE.into()));
    assert_eq!(fleet.status("two").await.0, 200);
    assert_eq!(fleet.worker("a").await.unwrap()["eligible"], true);
    fleet.register("a", &stub.url, both).await;
    assert_eq!(fleet.status("one").await.0, 529, "its load stayed");
    assert_eq!(fleet.status("two").await.0, 200);
    let gone = fleet
        .admin
        .send(Method::DELETE, "/workers/a", &[], "")
        .await;
    assert_eq!(gone.unwrap().status(), StatusCode::NO_CONTENT);
    for model in ["one", "two"] {
        assert_eq!(fleet.status(model).await, (503, UNAVAILABLE.into()));
    }
}

#[tokio::test]
async fn the_default_model_is_that_of_registrations_and_requests_that_name_none() {
    let fleet = Fleet::start(GatewayConfig {
        model: "default".into(),
        ..GatewayConfig::default()
    })
    .await;
    let stub = Stub::answering(200, &[]).await;
    let worker = fleet.register("a", &stub.url, json!({})).await;
    assert_eq!(worker["models"], json!(["default"]));
    let response = fleet.public.get("/v1/models").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(fleet.status("default").await.0, 200);
    assert_eq!(fleet.status("tiny").await.0, 404);
    assert_eq!(stub.calls(), 2);
}
