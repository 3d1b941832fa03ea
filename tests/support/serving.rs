//! A client, and workers whose requests end when the test says so.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use overload_examples::{
    client::{self, HttpClient},
    engine::Timing,
    worker::{Worker, WorkerConfig},
};
use serde_json::{Value, json};
use std::time::Duration;
use tower_overload::admission::Limits;

/// The first token at once, and the second one never.
pub const STUCK: Timing = Timing {
    prefill_tokens_per_second: 0.0,
    decode_tokens_per_second: 1e-9,
};

/// A worker on a port of its own, with this cap.
pub fn config(limits: Option<(usize, usize)>, timing: Timing) -> WorkerConfig {
    WorkerConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        limits: limits.map(|(slots, queue)| Limits::new(slots, queue).unwrap()),
        timing,
        ..WorkerConfig::default()
    }
}

pub async fn worker(limits: Option<(usize, usize)>, timing: Timing) -> Worker {
    Worker::start(config(limits, timing)).await.unwrap()
}

/// A request to generate: streamed, with this many tokens.
pub fn prompt(max_tokens: u32) -> Value {
    json!({"model": "tiny", "prompt": "a b c", "max_tokens": max_tokens, "stream": true})
}

#[derive(Clone)]
pub struct Client {
    base: String,
    client: HttpClient<Full<Bytes>>,
}

impl Client {
    pub fn new(base: impl Into<String>) -> Self {
        Self {
            base: base.into(),
            client: client::new(Duration::from_secs(10)),
        }
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        self.client.request(request).await
    }

    pub async fn get(&self, path: &str) -> Response<Incoming> {
        self.send(Method::GET, path, &[], "").await.unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) -> Response<Incoming> {
        let body = body.to_string();
        self.send(Method::POST, path, &[], body).await.unwrap()
    }

    /// A streamed completion whose head has arrived, so it is in the engine.
    pub async fn start(&self, max_tokens: u32) -> Response<Incoming> {
        let response = self.post("/v1/completions", &prompt(max_tokens)).await;
        assert_eq!(response.status(), StatusCode::OK);
        response
    }
}

pub async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.into()).unwrap()
}

pub async fn value(response: Response<Incoming>) -> Value {
    serde_json::from_str(&text(response).await).unwrap()
}

/// The data of the events of a stream.
pub fn events(stream: &str) -> Vec<&str> {
    let stream = stream.strip_suffix("\n\n").expect("the stream is complete");
    stream
        .split("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("an event is its data"))
        .collect()
}
