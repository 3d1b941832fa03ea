//! What clients see while nothing breaks.

use crate::{
    gateway::GatewayConfig,
    serving::{Client, STUCK, config, events, prompt, text, value, worker},
    support::{
        CHAT, COMPLETIONS, Fleet, JSON, MESSAGES, OVERLOADED, Stub, UNAVAILABLE, eventually,
    },
};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::StreamBody;
use hyper::body::Frame;
use overload_examples::{
    client,
    engine::Timing,
    worker::{Worker, WorkerConfig},
};
use serde_json::json;
use std::{convert::Infallible, time::Duration};

#[tokio::test]
async fn answers_and_streams_pass_through() {
    let fleet = Fleet::empty().await;
    let _worker = fleet.join("a", None, Timing::INSTANT).await;
    let request = json!({"model": "tiny", "prompt": "one two", "max_tokens": 3});
    let response = fleet.public.post(COMPLETIONS, &request).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert!(response.headers().contains_key("content-length"));
    let answer = value(response).await;
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["usage"]["completion_tokens"], 3);

    let response = fleet.public.post(COMPLETIONS, &prompt(3)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let stream = text(response).await;
    assert_eq!(events(&stream).last(), Some(&"[DONE]"));

    let models = value(fleet.public.get("/v1/models").await).await;
    assert_eq!(models["data"][0]["id"], "tiny");
}

#[tokio::test]
async fn health_is_good_without_a_worker() {
    let fleet = Fleet::empty().await;
    let health = fleet.public.get("/health").await;
    assert_eq!(health.status(), StatusCode::OK);
    for (method, path, status) in [
        (Method::POST, "/health", 405),
        (Method::GET, "/", 404),
        (Method::GET, "/v2/models", 404),
    ] {
        let response = fleet.public.send(method, path, &[], "").await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{path}");
        let error = &value(response).await["error"];
        assert_eq!(error["type"], "invalid_request_error", "{path}");
    }
}

#[tokio::test]
async fn a_request_for_an_unknown_model_is_a_404_in_the_format_of_its_api() {
    let fleet = Fleet::empty().await;
    let _worker = fleet.join("a", None, Timing::INSTANT).await;
    let request = json!({"model": "huge", "messages": []});
    let response = fleet.public.post(CHAT, &request).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    let error = value(response).await;
    assert_eq!(error["error"]["code"], "model_not_found");
    assert_eq!(error["error"]["param"], "model");

    let anthropic = |path, headers| {
        let body = request.to_string();
        fleet.public.send(Method::POST, path, headers, body)
    };
    for response in [
        anthropic(MESSAGES, &[][..]).await.unwrap(),
        anthropic("/v1/any", &[("anthropic-version", "2023-06-01")])
            .await
            .unwrap(),
    ] {
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        let error = value(response).await;
        assert_eq!(error["type"], "error");
        assert_eq!(error["error"]["type"], "not_found_error");
        assert!(error["error"]["message"].as_str().unwrap().contains("huge"));
    }
}

/// The answer byte for byte, and its headers that matter.
async fn is_answer(response: http::Response<hyper::body::Incoming>, status: u16, body: &str) {
    assert_eq!(response.status().as_u16(), status);
    assert_eq!(response.headers()["content-type"], "application/json");
    let length = response.headers()["content-length"].to_str().unwrap();
    assert_eq!(length, body.len().to_string());
    assert!(!response.headers().contains_key("retry-after"));
    assert_eq!(text(response).await, body);
}

#[tokio::test]
async fn a_known_model_without_workers_is_unavailable() {
    let fleet = Fleet::empty().await;
    for path in [CHAT, COMPLETIONS, "/v1/responses", "/v1/embeddings"] {
        is_answer(fleet.public.post(path, &prompt(1)).await, 503, UNAVAILABLE).await;
    }
    // No model is the default one.
    let stored = fleet.public.get("/v1/responses/resp_1").await;
    is_answer(stored, 503, UNAVAILABLE).await;
    let body = r#"{"type":"error","error":{"type":"api_error","message":"Service temporarily unavailable"}}"#;
    is_answer(fleet.public.post(MESSAGES, &prompt(1)).await, 503, body).await;
}

#[tokio::test]
async fn when_all_workers_are_full_the_answer_is_the_references() {
    let fleet = Fleet::start(GatewayConfig {
        // It outlives the test.
        lease: Duration::from_secs(3600),
        ..GatewayConfig::default()
    })
    .await;
    let _a = fleet.join("a", Some((1, 0)), STUCK).await;
    let _b = fleet.join("b", Some((1, 0)), STUCK).await;
    // The balancer may pick the one that is full; the retry finds the other.
    let _running = [fleet.public.start(2).await, fleet.public.start(2).await];
    let whole = json!({"model": "tiny", "prompt": "a"});
    // Both refuse the first one, and are left alone with the others.
    for path in [COMPLETIONS, CHAT, "/v1/responses"] {
        for request in [&prompt(1), &whole] {
            is_answer(fleet.public.post(path, request).await, 529, OVERLOADED).await;
        }
    }
    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"Service temporarily overloaded"}}"#;
    is_answer(fleet.public.post(MESSAGES, &prompt(1)).await, 529, body).await;
    assert_eq!(fleet.public.get("/health").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused() {
    let stub = Stub::answering(200, &[]).await;
    let fleet = Fleet::start(GatewayConfig {
        max_body_bytes: 1000,
        ..GatewayConfig::default()
    })
    .await;
    fleet.register("a", &stub.url, json!({})).await;
    let send = |path, length: usize| {
        let body = format!("\"{}\"", "x".repeat(length - 2));
        let text = &[("content-type", "application/octet-stream")];
        fleet.public.send(Method::POST, path, text, body)
    };
    assert_eq!(
        send(COMPLETIONS, 1000).await.unwrap().status(),
        StatusCode::OK
    );
    for length in [1001, 8 * 1024 * 1024] {
        let response = send(COMPLETIONS, length).await.unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let error = value(response).await;
        assert!(error["error"]["message"].as_str().unwrap().contains("1000"));
    }
    let response = send(MESSAGES, 1001).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(value(response).await["error"]["type"], "request_too_large");

    // Without a length in the head.
    let pieces =
        (0..20).map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b' '; 100]))));
    let body = StreamBody::new(futures::stream::iter(pieces));
    let request = http::Request::post(format!("{}v1/completions", fleet.gateway.url()));
    let client = client::new(Duration::from_secs(10));
    let response = client.request(request.body(body).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(stub.calls(), 1);
}

#[tokio::test]
async fn a_body_that_is_no_json_object_with_a_model_is_a_400() {
    let stub = Stub::answering(200, &[]).await;
    let fleet = Fleet::empty().await;
    fleet.register("a", &stub.url, json!({})).await;
    for body in [
        "{",
        "[]",
        "7",
        r#"{"model": 7}"#,
        r#"{"model": "tiny"} x"#,
        "\"\u{1}\"",
    ] {
        for (path, is_anthropic) in [(CHAT, false), (MESSAGES, true)] {
            let response = fleet
                .public
                .send(Method::POST, path, JSON, body)
                .await
                .unwrap();
            assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{body}");
            let error = value(response).await;
            assert_eq!(error["type"] == "error", is_anthropic, "{error}");
            assert_eq!(error["error"]["type"], "invalid_request_error", "{body}");
        }
    }
    assert_eq!(stub.calls(), 0);
    // What is said to be something else is not read.
    let text = &[("content-type", "application/octet-stream")];
    let response = fleet
        .public
        .send(Method::POST, "/v1/files", text, "[")
        .await;
    assert_eq!(response.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_worker_that_only_says_it_is_overloaded_by_a_header_is_not_believed() {
    let stub = Stub::answering(503, &[("x-overload-reason", "worker_at_capacity")]).await;
    let fleet = Fleet::empty().await;
    fleet.register("a", &stub.url, json!({})).await;
    let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(response.status().as_u16(), 503);
    assert!(!response.headers().contains_key("x-overload-reason"));
    assert_eq!(text(response).await, "{}", "the worker's own answer");
    assert_eq!(stub.calls(), 1);
    assert_eq!(fleet.worker("a").await.unwrap()["eligible"], true);
}

#[tokio::test]
async fn a_target_that_is_too_long_reaches_and_marks_no_worker() {
    let stub = Stub::answering(200, &[]).await;
    let fleet = Fleet::empty().await;
    let url = format!("{}/{}", stub.url, "base".repeat(400));
    fleet.register("a", &url, json!({})).await;
    for path in [9_000, 64_500] {
        let path = format!("/v1/{}", "x".repeat(path));
        let response = fleet.public.get(&path).await;
        assert_eq!(response.status(), StatusCode::URI_TOO_LONG);
    }
    assert_eq!(fleet.worker("a").await.unwrap()["eligible"], true);
    assert_eq!(stub.calls(), 0);
}

#[tokio::test]
async fn permanent_workers_serve_as_registered_ones_do() {
    let worker = worker(None, Timing::INSTANT).await;
    let fleet = Fleet::start(GatewayConfig {
        workers: vec![("a".into(), worker.url().parse().unwrap())],
        ..GatewayConfig::default()
    })
    .await;
    let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(events(&text(response).await).last(), Some(&"[DONE]"));
}

#[tokio::test]
async fn a_gateway_that_drains_takes_nothing_new_and_ends_with_its_last_stream() {
    let slow = Timing {
        decode_tokens_per_second: 100.0,
        ..Timing::INSTANT
    };
    let fleet = Fleet::start(GatewayConfig {
        embedded_workers: Some(1),
        embedded: WorkerConfig {
            ..config(Some((1, 2)), slow)
        },
        ..GatewayConfig::default()
    })
    .await;
    let ids: Vec<&str> = fleet.gateway.embedded().iter().map(Worker::id).collect();
    assert_eq!(ids, ["worker-0"]);
    let url = format!("http://{}", fleet.gateway.address());
    let running = fleet.public.start(20).await;
    let drained = tokio::spawn(fleet.gateway.drain());
    eventually("nothing new is taken", async || {
        let newcomer = Client::new(url.clone());
        newcomer
            .send(Method::GET, "/health", &[], "")
            .await
            .is_err()
    })
    .await;
    assert_eq!(events(&text(running).await).len(), 22);
    drained.await.unwrap();
}
