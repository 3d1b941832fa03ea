//! Requests that are not plain JSON: forms, and compressed bodies.

use crate::{
    gateway::GatewayConfig,
    serving::value,
    support::{CHAT, COMPLETIONS, Fleet, JSON, Stub},
};
use axum::{body::Body, extract::Request, response::Response};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use overload_examples::engine::Timing;
use serde_json::{Value, json};
use std::io::Write;

/// A worker that sends back what it got.
async fn echo() -> Stub {
    Stub::with(|request: Request| async {
        let (head, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let mut response = Response::new(Body::from(body));
        for name in ["content-encoding", "content-type"] {
            if let Some(value) = head.headers.get(name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        response
    })
    .await
}

/// A gateway for two models, whose worker answers for one of them.
async fn fleet(config: GatewayConfig) -> (Fleet, Stub) {
    let fleet = Fleet::start(config).await;
    let stub = echo().await;
    let models = json!({"models": ["whisper"]});
    fleet.register("a", &stub.url, models).await;
    (fleet, stub)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("written");
    encoder.finish().expect("a body")
}

async fn answer(
    fleet: &Fleet,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> (StatusCode, http::HeaderMap, Bytes) {
    let sent = fleet.public.send(Method::POST, path, headers, body).await;
    let (head, body) = sent.expect("an answer").into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    (head.status, head.headers, body)
}

#[tokio::test]
async fn a_compressed_request_is_read_and_sent_on_as_it_came() {
    let (fleet, _stub) = fleet(GatewayConfig::default()).await;
    let headers = [JSON, &[("content-encoding", "gzip")]].concat();
    for (model, status) in [("whisper", 200), ("tiny", 503), ("none", 404)] {
        let body = gzip(
            json!({"model": model, "messages": []})
                .to_string()
                .as_bytes(),
        );
        let (got, headers, echoed) = answer(&fleet, CHAT, &headers, body.clone()).await;
        assert_eq!(got.as_u16(), status, "{model}");
        if status == 200 {
            assert_eq!(echoed, body);
            assert_eq!(headers["content-encoding"], "gzip");
        }
    }
}

#[tokio::test]
async fn the_mock_worker_decodes_what_comes_compressed() {
    let fleet = Fleet::empty().await;
    let _worker = fleet.join("a", None, Timing::INSTANT).await;
    let headers = [JSON, &[("content-encoding", "gzip")]].concat();
    let request = json!({"model": "tiny", "prompt": "Hello", "max_tokens": 2});
    let body = gzip(request.to_string().as_bytes());
    let (status, _, body) = answer(&fleet, COMPLETIONS, &headers, body).await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn a_coding_that_is_not_known_is_a_415_that_names_those_that_are() {
    let (fleet, stub) = fleet(GatewayConfig::default()).await;
    let headers = [JSON, &[("content-encoding", "compress")]].concat();
    let (status, headers, body) = answer(&fleet, CHAT, &headers, "x").await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(headers["accept-encoding"], "gzip, deflate, br, zstd");
    let error: Value = serde_json::from_slice(&body).expect("JSON");
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("compress"), "{message}");
    assert_eq!(stub.calls(), 0);
}

#[tokio::test]
async fn a_bomb_is_a_413_and_no_longer_than_other_bodies_may_be() {
    let (fleet, stub) = fleet(GatewayConfig {
        max_body_bytes: 100_000,
        ..GatewayConfig::default()
    })
    .await;
    let headers = [JSON, &[("content-encoding", "gzip")]].concat();
    for (length, status) in [(90_000, 200), (100_001, 413), (30_000_000, 413)] {
        let padding = " ".repeat(length - 19);
        let body = format!("{{\"model\":\"whisper\"{padding}}}");
        let (got, _, answer) = answer(&fleet, CHAT, &headers, gzip(body.as_bytes())).await;
        assert_eq!(got.as_u16(), status, "{length}");
        if status == 413 {
            let message = String::from_utf8_lossy(&answer);
            assert!(message.contains("100000 bytes"), "{message}");
        }
    }
    assert_eq!(stub.calls(), 1);
}

#[tokio::test]
async fn a_form_goes_to_the_model_that_it_names() {
    let (fleet, stub) = fleet(GatewayConfig::default()).await;
    let headers = [("content-type", "multipart/form-data; boundary=x")];
    let form = |model: &str| {
        let recording = "\u{0}\u{1}ID3".repeat(50_000);
        format!(
            "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.mp3\"\r\n\r\n\
             {recording}\r\n\
             --x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--x--\r\n"
        )
    };
    for (model, status) in [("whisper", 200), ("tiny", 503), ("none", 404)] {
        let sent = form(model);
        let path = "/v1/audio/transcriptions";
        let (got, _, echoed) = answer(&fleet, path, &headers, sent.clone()).await;
        assert_eq!(got.as_u16(), status, "{model}");
        assert!(status != 200 || echoed == sent);
    }
    assert_eq!(stub.calls(), 1);
    let (status, _, error) = answer(&fleet, "/v1/audio/translations", &headers, "--x").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(String::from_utf8_lossy(&error).contains("form"));
}

#[tokio::test]
async fn the_name_of_a_model_that_is_not_known_is_not_sent_back_at_length() {
    let fleet = Fleet::empty().await;
    let request = json!({"model": "\u{e9}".repeat(1_000_000)});
    let error = value(fleet.public.post(CHAT, &request).await).await;
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.len() < 1000, "{} bytes", message.len());
    assert_eq!(error["error"]["code"], "model_not_found");
}
