//! A gateway with clients of both of its addresses, and workers that answer
//! what the test says.

pub use crate::eventually::eventually;
use crate::{
    gateway::{Gateway, GatewayConfig},
    serving::{Client, config, value},
};
use axum::{Router, body::Body, extract::Request, response::Response};
use http::{Method, StatusCode};
use overload_examples::{
    engine::Timing,
    serve::Server,
    worker::{Worker, WorkerConfig},
};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";
pub const MESSAGES: &str = "/v1/messages";

pub const OVERLOADED: &str =
    r#"{"message":"Service temporarily overloaded","type":"Overloaded","code":529}"#;
pub const UNAVAILABLE: &str =
    r#"{"message":"Service temporarily unavailable","type":"Service Unavailable","code":503}"#;

/// Nobody listens there.
pub const NOWHERE: &str = "http://127.0.0.1:1";
pub const NOWHERE_ELSE: &str = "http://127.0.0.2:1";

/// The headers of JSON.
pub const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

pub struct Fleet {
    pub gateway: Gateway,
    pub public: Client,
    pub admin: Client,
}

impl Fleet {
    pub async fn start(config: GatewayConfig) -> Self {
        Self::of(Gateway::start(config).await.unwrap())
    }

    pub fn of(gateway: Gateway) -> Self {
        let client = |address| Client::new(format!("http://{address}"));
        Self {
            public: client(gateway.address()),
            admin: client(gateway.admin_address()),
            gateway,
        }
    }

    pub async fn empty() -> Self {
        Self::start(GatewayConfig::default()).await
    }

    /// Registers a worker, with more members of its registration.
    pub async fn register(&self, id: &str, url: &str, more: Value) -> Value {
        let mut body = json!({ "url": url });
        let members = body.as_object_mut().unwrap();
        members.extend(more.as_object().unwrap().clone());
        let path = format!("/workers/{id}");
        let put = self.admin.send(Method::PUT, &path, JSON, body.to_string());
        let response = put.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        value(response).await
    }

    /// Starts a worker that registers itself and reports its load.
    pub async fn join(&self, id: &str, limits: Option<(usize, usize)>, timing: Timing) -> Worker {
        let worker = Worker::start(WorkerConfig {
            id: Some(id.into()),
            register: Some(self.gateway.admin_url()),
            ..config(limits, timing)
        });
        let worker = worker.await.unwrap();
        eventually("it registers", async || self.worker(id).await.is_some()).await;
        worker
    }

    pub async fn workers(&self) -> Value {
        value(self.admin.get("/workers").await).await
    }

    pub async fn worker(&self, id: &str) -> Option<Value> {
        let workers = self.workers().await;
        let mut workers = workers["workers"].as_array().unwrap().iter();
        workers.find(|worker| worker["id"] == id).cloned()
    }

    pub async fn metrics(&self) -> String {
        crate::serving::text(self.admin.get("/metrics").await).await
    }
}

/// A worker that answers with what a function makes of the request.
pub struct Stub {
    _server: Server,
    pub url: String,
    calls: Arc<AtomicUsize>,
}

impl Stub {
    pub async fn start(
        answer: impl Fn(Request) -> Response + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::with(move |request| std::future::ready(answer(request))).await
    }

    /// As soon as that is ready.
    pub async fn with<F>(answer: impl Fn(Request) -> F + Clone + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let app = Router::new().fallback(move |request: Request| {
            count.fetch_add(1, Ordering::SeqCst);
            answer(request)
        });
        let server = Server::start("127.0.0.1:0".parse().unwrap(), app);
        let server = server.await.unwrap();
        Self {
            url: format!("http://{}", server.address()),
            _server: server,
            calls,
        }
    }

    /// Always the same answer.
    pub async fn answering(status: u16, headers: &'static [(&'static str, &'static str)]) -> Self {
        Self::start(move |_| {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            response.body(Body::from("{}")).unwrap()
        })
        .await
    }

    /// Takes requests and never answers.
    pub async fn hanging() -> Self {
        Self::with(|_| std::future::pending()).await
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}
