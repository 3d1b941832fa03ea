//! `/busy_threshold` over real connections, mounted in axum and in hyper.
#![cfg(feature = "admin")]

use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower_overload::{
    admin::{BusyThreshold, MAX_BODY_BYTES},
    busy::BusySet,
    load::{LoadEvent, ThresholdUpdate, WorkerConfig, WorkerMonitor},
};

const JSON: &str = "application/json";

#[derive(Clone, Copy, Debug)]
enum Server {
    Axum,
    Hyper,
}

/// A monitor with the models `other` and `tiny`, and a client of its admin
/// service.
struct Admin {
    monitor: WorkerMonitor<String>,
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Admin {
    async fn start(server: Server) -> Self {
        let (monitor, _) = WorkerMonitor::for_model("tiny", BusySet::new());
        monitor.add_model("other", BusySet::new()).unwrap();
        let service = BusyThreshold::new(monitor.thresholds());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/busy_threshold", listener.local_addr().unwrap());
        match server {
            Server::Axum => {
                let app = axum::Router::new().route_service("/busy_threshold", service);
                tokio::spawn(async { axum::serve(listener, app).await });
            }
            Server::Hyper => {
                tokio::spawn(async move {
                    while let Ok((socket, _)) = listener.accept().await {
                        let service = TowerToHyperService::new(service.clone());
                        tokio::spawn(async move {
                            auto::Builder::new(TokioExecutor::new())
                                .serve_connection(TokioIo::new(socket), service)
                                .await
                        });
                    }
                });
            }
        }
        Self {
            monitor,
            url,
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    async fn send(
        &self,
        method: Method,
        content_type: Option<&str>,
        body: impl Into<Bytes>,
    ) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(&self.url);
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let response = self.client.request(request).await.unwrap();
        let status = response.status();
        assert_eq!(response.headers()["content-type"], JSON);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn get(&self) -> Value {
        let (status, body) = self.send(Method::GET, None, "").await;
        assert_eq!(status, StatusCode::OK);
        body
    }

    async fn post(&self, body: Value) -> (StatusCode, Value) {
        self.send(Method::POST, Some(JSON), body.to_string()).await
    }

    /// The request is refused with this status and an error, and changes nothing.
    async fn refuses(&self, status: StatusCode, content_type: Option<&str>, body: &str) -> String {
        let before = self.get().await;
        let (answer, error) = self.send(Method::POST, content_type, body.to_owned()).await;
        assert_eq!(answer, status, "{body:.200}: {error}");
        assert_eq!(self.get().await, before, "{body:.200}");
        error["error"].as_str().expect("a text").to_owned()
    }
}

fn entry(model: &str, decode: Value, tokens: Value, frac: Value) -> Value {
    json!({
        "model": model,
        "active_decode_blocks_threshold": decode,
        "active_prefill_tokens_threshold": tokens,
        "active_prefill_tokens_threshold_frac": frac,
    })
}

async fn on_both(test: impl AsyncFn(Admin)) {
    for server in [Server::Axum, Server::Hyper] {
        println!("mounted in {server:?}");
        test(Admin::start(server).await).await;
    }
}

#[tokio::test]
async fn every_model_is_listed_with_nulls_for_what_is_not_set() {
    on_both(async |admin| {
        let tiny = admin.monitor.thresholds().get("tiny").unwrap();
        let update = ThresholdUpdate::new().active_decode_blocks(0.85);
        tiny.update(update).unwrap();
        let nothing = Value::Null;
        assert_eq!(
            admin.get().await,
            json!({"thresholds": [
                entry("other", nothing.clone(), nothing.clone(), nothing.clone()),
                entry("tiny", json!(0.85), nothing.clone(), nothing),
            ]})
        );
    })
    .await;
}

#[tokio::test]
async fn an_update_merges_and_answers_the_new_values() {
    on_both(async |admin| {
        let set = json!({"model": "tiny", "active_decode_blocks_threshold": 0.5});
        let now = entry("tiny", json!(0.5), Value::Null, Value::Null);
        assert_eq!(admin.post(set).await, (StatusCode::OK, now));

        let set = json!({
            "model": "tiny",
            "active_prefill_tokens_threshold": 10_000,
            "active_prefill_tokens_threshold_frac": 1.5,
        });
        let now = entry("tiny", json!(0.5), json!(10_000), json!(1.5));
        assert_eq!(admin.post(set).await, (StatusCode::OK, now.clone()));

        let read = json!({"model": "tiny"});
        assert_eq!(admin.post(read).await, (StatusCode::OK, now));
    })
    .await;
}

#[tokio::test]
async fn null_clears_a_threshold_and_absence_leaves_it() {
    on_both(async |admin| {
        let set = entry("tiny", json!(1), json!(0), json!(0));
        let now = entry("tiny", json!(1.0), json!(0), json!(0.0));
        assert_eq!(admin.post(set).await, (StatusCode::OK, now));

        let clear = json!({"model": "tiny", "active_decode_blocks_threshold": null});
        let now = entry("tiny", Value::Null, json!(0), json!(0.0));
        assert_eq!(admin.post(clear).await, (StatusCode::OK, now));
    })
    .await;
}

#[tokio::test]
async fn an_unknown_model_can_be_read_but_not_set() {
    on_both(async |admin| {
        let read = json!({"model": "nope"});
        let nothing = entry("nope", Value::Null, Value::Null, Value::Null);
        assert_eq!(admin.post(read).await, (StatusCode::OK, nothing));

        for value in ["0.5", "null"] {
            let set = format!(r#"{{"model": "nope", "active_decode_blocks_threshold": {value}}}"#);
            let error = admin.refuses(StatusCode::NOT_FOUND, Some(JSON), &set).await;
            assert!(error.contains("nope"), "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_value_out_of_range_is_a_400_that_names_it() {
    on_both(async |admin| {
        for (field, value, model) in [
            ("active_decode_blocks_threshold", "1.01", "tiny"),
            ("active_decode_blocks_threshold", "-0.01", "tiny"),
            ("active_decode_blocks_threshold", "85", "nope"),
            ("active_prefill_tokens_threshold_frac", "-0.5", "tiny"),
        ] {
            let body = format!(r#"{{"model": "{model}", "{field}": {value}}}"#);
            let error = admin
                .refuses(StatusCode::BAD_REQUEST, Some(JSON), &body)
                .await;
            assert!(error.contains(field) && error.contains(value), "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn json_of_another_shape_is_a_422() {
    on_both(async |admin| {
        for body in [
            r#"{}"#,
            r#"[]"#,
            r#""tiny""#,
            r#"{"active_decode_blocks_threshold": 0.5}"#,
            r#"{"model": null}"#,
            r#"{"model": 7}"#,
            r#"{"model": "tiny", "active_decode_blocks_threshold": "0.5"}"#,
            r#"{"model": "tiny", "active_decode_blocks_threshold": true}"#,
            r#"{"model": "tiny", "active_prefill_tokens_threshold": -1}"#,
            r#"{"model": "tiny", "active_prefill_tokens_threshold": 1.5}"#,
            r#"{"model": "tiny", "active_prefill_tokens_threshold": 1e30}"#,
            r#"{"model": "tiny", "active_prefill_tokens_threshold": 99999999999999999999}"#,
            r#"{"model": "tiny", "active_decode_block_threshold": 0.5}"#,
            r#"{"model": "tiny", "model": "other"}"#,
        ] {
            admin
                .refuses(StatusCode::UNPROCESSABLE_ENTITY, Some(JSON), body)
                .await;
        }
    })
    .await;
}

#[tokio::test]
async fn one_bad_field_refuses_the_whole_update() {
    on_both(async |admin| {
        let body = entry("tiny", json!(0.5), json!(7), json!(-1)).to_string();
        admin
            .refuses(StatusCode::BAD_REQUEST, Some(JSON), &body)
            .await;
        let body = entry("tiny", json!(0.5), json!(-7), json!(1)).to_string();
        admin
            .refuses(StatusCode::UNPROCESSABLE_ENTITY, Some(JSON), &body)
            .await;
    })
    .await;
}

#[tokio::test]
async fn what_is_not_json_is_a_400() {
    on_both(async |admin| {
        for body in [
            "",
            "{",
            "nonsense",
            r#"{"model": "tiny"} {}"#,
            r#"{"model": "tiny", "active_decode_blocks_threshold": NaN}"#,
            r#"{"model": "tiny", "active_prefill_tokens_threshold_frac": 1e999}"#,
        ] {
            admin
                .refuses(StatusCode::BAD_REQUEST, Some(JSON), body)
                .await;
        }
    })
    .await;
}

#[tokio::test]
async fn another_content_type_is_a_415() {
    on_both(async |admin| {
        let body = r#"{"model": "tiny", "active_prefill_tokens_threshold": 1}"#;
        for content_type in [
            None,
            Some("text/plain"),
            Some("application/x-www-form-urlencoded"),
            Some("text/json"),
            Some(""),
        ] {
            admin
                .refuses(StatusCode::UNSUPPORTED_MEDIA_TYPE, content_type, body)
                .await;
        }
        for content_type in [
            "application/json; charset=utf-8",
            "Application/JSON",
            "application/vnd.api+json",
        ] {
            let (status, _) = admin.send(Method::POST, Some(content_type), body).await;
            assert_eq!(status, StatusCode::OK, "{content_type}");
        }
    })
    .await;
}

#[tokio::test]
async fn other_methods_are_a_405_that_names_the_allowed_ones() {
    on_both(async |admin| {
        for method in [Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
            let (status, body) = admin.send(method, Some(JSON), "{}").await;
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
            assert!(body["error"].is_string(), "{body}");
        }
        let put = Request::put(&admin.url).body(Full::default()).unwrap();
        let response = admin.client.request(put).await.unwrap();
        assert_eq!(response.headers()["allow"], "GET, HEAD, POST");
        let (status, body) = admin.send(Method::HEAD, None, "").await;
        assert_eq!((status, body), (StatusCode::OK, Value::Null));
    })
    .await;
}

#[tokio::test]
async fn a_body_above_the_limit_is_a_413_and_one_at_it_is_read() {
    on_both(async |admin| {
        let mut body = r#"{"model": "tiny", "active_prefill_tokens_threshold": 5}"#.to_owned();
        body.push_str(&" ".repeat(MAX_BODY_BYTES - body.len()));
        let (status, _) = admin.send(Method::POST, Some(JSON), body.clone()).await;
        assert_eq!(status, StatusCode::OK);
        body.push(' ');
        admin
            .refuses(StatusCode::PAYLOAD_TOO_LARGE, Some(JSON), &body)
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_change_takes_effect_with_the_next_event() {
    on_both(async |admin| {
        let worker = "a".to_owned();
        let config = WorkerConfig::new([0]).unwrap();
        admin.monitor.configure_for_all(worker.clone(), config);
        let event = LoadEvent::new(worker.clone(), 0).active_prefill_tokens(500);
        admin.monitor.observe(&event).unwrap();
        let set = json!({"model": "tiny", "active_prefill_tokens_threshold": 100});
        assert_eq!(admin.post(set).await.0, StatusCode::OK);
        let busy = || admin.monitor.worker(&worker).unwrap().is_busy_for("tiny");
        assert_eq!(busy(), Some(false));
        admin.monitor.observe(&event).unwrap();
        assert_eq!(busy(), Some(true));
    })
    .await;
}

mod body {
    //! What a client's body can do that a well-behaved connection cannot.

    use super::*;
    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use std::convert::Infallible;
    use tower::ServiceExt;

    async fn answer(
        frames: Vec<Result<Frame<Bytes>, &'static str>>,
    ) -> (StatusCode, WorkerMonitor<String>) {
        let (monitor, _) = WorkerMonitor::for_model("tiny", BusySet::new());
        let request = Request::post("/busy_threshold")
            .header("content-type", JSON)
            .body(StreamBody::new(stream::iter(frames)))
            .unwrap();
        let service = BusyThreshold::new(monitor.thresholds());
        let response: Result<_, Infallible> = service.oneshot(request).await;
        (response.unwrap().status(), monitor)
    }

    fn data(data: &'static str) -> Result<Frame<Bytes>, &'static str> {
        Ok(Frame::data(Bytes::from_static(data.as_bytes())))
    }

    fn tokens(monitor: &WorkerMonitor<String>) -> Option<u64> {
        let tiny = monitor.thresholds().get("tiny").unwrap();
        tiny.get().active_prefill_tokens()
    }

    #[tokio::test]
    async fn arrives_in_pieces_with_trailers() {
        let (status, monitor) = answer(vec![
            data(r#"{"model": "ti"#),
            data(""),
            data(r#"ny", "active_prefill_tokens_threshold": 5}"#),
            Ok(Frame::trailers(Default::default())),
        ])
        .await;
        assert_eq!((status, tokens(&monitor)), (StatusCode::OK, Some(5)));
    }

    #[tokio::test]
    async fn breaks_off_after_what_would_have_been_enough() {
        let whole = data(r#"{"model": "tiny", "active_prefill_tokens_threshold": 5}"#);
        let (status, monitor) = answer(vec![whole, Err("reset")]).await;
        assert_eq!((status, tokens(&monitor)), (StatusCode::BAD_REQUEST, None));
    }

    #[tokio::test]
    async fn exceeds_the_limit_without_having_announced_its_length() {
        let spaces = (0..MAX_BODY_BYTES / 16).map(|_| data("                "));
        let frames = spaces.chain([data(" ")]).collect();
        let (status, _) = answer(frames).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    }
}
