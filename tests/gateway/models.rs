//! A fleet that serves several models.

use crate::{
    gateway::GatewayConfig,
    serving::{STUCK, config, text, value},
    support::{COMPLETIONS, Fleet, JSON, OVERLOADED, Stub, UNAVAILABLE, eventually},
};
use http::{Method, StatusCode};
use overload_examples::{
    engine::Timing,
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
    let response = fleet.public.get("/v1/responses/resp_1").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(fleet.status("default").await.0, 200);
    assert_eq!(fleet.status("tiny").await.0, 404);
    assert_eq!(stub.calls(), 2);
}

#[tokio::test]
async fn models_and_preflights_are_answered_while_everything_is_refused() {
    let fleet = Fleet::start(GatewayConfig {
        lease: Duration::from_secs(3600),
        ..GatewayConfig::default()
    })
    .await;
    let full = Stub::answering(529, &[]).await;
    let models = json!({"models": ["org/big", "full"]});
    fleet.register("a", &full.url, models).await;
    assert_eq!(fleet.status("full").await.0, 529);
    let asked = full.calls();

    let list = value(fleet.public.get("/v1/models").await).await;
    let ids = list["data"].as_array().unwrap().iter();
    let ids: Vec<_> = ids.map(|model| &model["id"]).collect();
    assert_eq!(ids, ["full", "org/big", "tiny"], "the default one as well");
    for path in ["/v1/models/org/big", "/v1/models/org%2Fbig"] {
        let model = value(fleet.public.get(path).await).await;
        assert_eq!(model, list["data"][1], "{path}");
    }
    let send = async |method, path: &str, headers: &[(&str, &str)]| {
        fleet.public.send(method, path, headers, "").await.unwrap()
    };
    let head = send(Method::HEAD, "/v1/models", &[]).await;
    assert_eq!(head.status(), StatusCode::OK);
    let none = send(Method::GET, "/v1/models/none", &[]).await;
    assert_eq!(none.status(), StatusCode::NOT_FOUND);
    assert_eq!(value(none).await["error"]["code"], "model_not_found");
    let version = [("anthropic-version", "2023-06-01")];
    let none = send(Method::GET, "/v1/models/none", &version).await;
    assert_eq!(value(none).await["error"]["type"], "not_found_error");
    let delete = send(Method::DELETE, "/v1/models/full", &[]).await;
    assert_eq!(delete.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(delete.headers()["allow"], "GET, HEAD, OPTIONS");

    let page = ("origin", "https://page.example");
    let preflight = [
        page,
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "authorization,x-stainless-os",
        ),
    ];
    for path in [COMPLETIONS, "/v1/models", "/health"] {
        let answer = send(Method::OPTIONS, path, &preflight).await;
        assert_eq!(answer.status(), StatusCode::NO_CONTENT, "{path}");
        assert_eq!(answer.headers()["access-control-allow-origin"], "*");
        assert_eq!(
            answer.headers()["access-control-allow-headers"],
            "authorization,x-stainless-os"
        );
        assert!(answer.headers().contains_key("access-control-max-age"));
    }
    let answer = send(Method::OPTIONS, "/v1/models", &[]).await;
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    assert_eq!(answer.headers()["allow"], "GET, HEAD, OPTIONS");
    assert!(!answer.headers().contains_key("access-control-allow-origin"));

    let body = request("full").to_string();
    let page = [page];
    let refused = fleet.public.send(Method::POST, COMPLETIONS, &page, body);
    let refused = refused.await.unwrap();
    assert_eq!(refused.status().as_u16(), 529);
    assert_eq!(refused.headers()["access-control-allow-origin"], "*");
    assert_eq!(full.calls(), asked, "none of it reached the worker");
    assert!(!fleet.metrics().await.contains("endpoint=\"models\""));
}

#[tokio::test]
async fn a_pages_right_to_read_a_workers_answer_is_the_workers_to_say() {
    let fleet = Fleet::empty().await;
    let silent = Stub::answering(200, &[]).await;
    let strict = [("access-control-allow-origin", "https://only.example")];
    let strict = Stub::answering(200, Box::leak(Box::new(strict))).await;
    for (id, stub) in [("silent", &silent), ("strict", &strict)] {
        fleet.register(id, &stub.url, json!({"models": [id]})).await;
    }
    let page = [("origin", "https://page.example")];
    for (model, allowed) in [("silent", None), ("strict", Some("https://only.example"))] {
        let body = request(model).to_string();
        let answer = fleet.public.send(Method::POST, COMPLETIONS, &page, body);
        let answer = answer.await.unwrap();
        let value = answer.headers().get("access-control-allow-origin");
        assert_eq!(value.map(|it| it.to_str().unwrap()), allowed, "{model}");
    }
}

#[tokio::test]
async fn what_an_operator_sees_of_an_idle_gateway_is_true() {
    let fleet = Fleet::start(GatewayConfig {
        stale_after: Some(Duration::from_millis(300)),
        lease: Duration::from_millis(300),
        ..GatewayConfig::default()
    })
    .await;
    let stub = Stub::answering(529, &[]).await;
    let counts = async || {
        let models = value(fleet.admin.get("/models").await).await;
        let tiny = &models["models"][0];
        ["alive", "usable", "eligible"].map(|count| tiny[count].as_u64().unwrap())
    };
    let is_eligible = async || fleet.worker("a").await.unwrap()["eligible"] == true;
    assert_eq!(counts().await, [0, 0, 0]);
    let capacity = json!({"kv_total_blocks": 10});
    fleet.register("a", &stub.url, capacity).await;
    eventually("it is there", async || counts().await == [1, 1, 1]).await;

    let post = async |path: &str, body: Value| {
        let sent = fleet.admin.send(Method::POST, path, JSON, body.to_string());
        assert_eq!(sent.await.unwrap().status(), StatusCode::OK);
    };
    let threshold = json!({"model": "tiny", "active_decode_blocks_threshold": 0.5});
    post("/busy_threshold", threshold).await;
    post("/worker_load", json!({"worker": "a", "kv_used_blocks": 9})).await;
    assert!(!is_eligible().await);
    eventually("it is busy", async || counts().await == [1, 1, 0]).await;
    eventually("its report is stale", async || counts().await == [1, 1, 1]).await;
    assert!(is_eligible().await);

    assert_eq!(fleet.status("tiny").await.0, 529);
    eventually("its lease is over", async || counts().await == [1, 1, 1]).await;
    assert!(is_eligible().await);

    let draining = json!({"kv_total_blocks": 10, "draining": true});
    fleet.register("a", &stub.url, draining).await;
    eventually("it drains", async || counts().await == [1, 0, 0]).await;
    let back = json!({"draining": false});
    fleet.register("a", &stub.url, back).await;
    eventually("it is back", async || counts().await == [1, 1, 1]).await;
    let gone = fleet.admin.send(Method::DELETE, "/workers/a", &[], "");
    assert_eq!(gone.await.unwrap().status(), StatusCode::NO_CONTENT);
    eventually("it is gone", async || counts().await == [0, 0, 0]).await;
}
