//! Whatever is configured and whatever the error says, the response is valid.

use crate::support::*;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use http_body_util::Full;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use proptest::prelude::*;
use std::time::Duration;
use tower::Layer;
use tower_overload::status::{Builder, Format};

/// Through hyper's HTTP/1.1 server and client, over a pipe.
async fn exchange(configured: Builder, retry_after: Option<Duration>, grpc: bool) -> Answer {
    let error = BUSY.with_retry_after(retry_after);
    let service = configured
        .build()
        .unwrap()
        .infallible()
        .layer(failing(error));
    let (near, far) = tokio::io::duplex(64 * 1024);
    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    tokio::spawn(async move {
        let service = TowerToHyperService::new(service);
        let _ = server.serve_connection(TokioIo::new(far), service).await;
    });
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near))
        .await
        .unwrap();
    tokio::spawn(connection);
    let content_type = if grpc {
        "application/grpc"
    } else {
        "application/json"
    };
    let request = Request::post("/v1/completions")
        .header("host", "x")
        .header("content-type", content_type)
        .body(Full::<Bytes>::default())
        .unwrap();
    Answer::of(sender.send_request(request).await.unwrap()).await
}

fn seconds() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(-0.0),
        Just(1e9),
        Just(1e19),
        Just(f64::MIN_POSITIVE),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(-1.0),
        any::<f64>(),
        0.0..1e6,
    ]
}

fn duration() -> impl Strategy<Value = Option<Duration>> {
    let any = (any::<u64>(), 0..1_000_000_000u32).prop_map(|(s, n)| Duration::new(s, n));
    prop_oneof![
        Just(None),
        Just(Some(Duration::ZERO)),
        Just(Some(Duration::MAX)),
        any.prop_map(Some),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn what_can_be_configured_is_a_valid_response(
        message in any::<String>(),
        default in seconds(),
        known in duration(),
        name in "[ -~]{0,8}|x-[a-z]{1,8}|[a-z]{2,6}|a\nb",
        status in any::<u16>().prop_map(|status| status % 1100),
        openai in any::<bool>(),
        grpc in any::<bool>(),
    ) {
        let status = if status < 200 { 529 } else { status };
        let format = if openai { Format::OpenAi } else { Format::Reference };
        let valid = default.is_finite()
            && Duration::try_from_secs_f64(default).is_ok()
            && HeaderName::try_from(&name).is_ok()
            && status < 1000;
        let configured = builder()
            .overload_status(status)
            .overloaded_message(&message)
            .default_retry_after_secs(default)
            .reason_header(&name)
            .format(format);
        prop_assert_eq!(configured.clone().build().is_ok(), valid);
        prop_assume!(valid);

        let answer = block_on(exchange(configured, known, grpc));
        prop_assert_eq!(answer.header(&name), Some("all_workers_busy"));
        if grpc {
            prop_assert_eq!(answer.status, 200);
            prop_assert_eq!(&*answer.body, "");
            let pushback: u32 = answer.header("grpc-retry-pushback-ms").unwrap().parse().unwrap();
            prop_assert!(i32::try_from(pushback).is_ok());
            return Ok(());
        }
        prop_assert_eq!(answer.status, status);
        let expected = known.unwrap_or(Duration::try_from_secs_f64(default).unwrap());
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        prop_assert!(seconds >= 1 && Duration::from_secs(seconds) >= expected.min(Duration::from_secs(u64::MAX)));
        let millis: u64 = answer.header("retry-after-ms").unwrap().parse().unwrap();
        prop_assert!(millis >= 1);
        if !matches!(status, 204 | 205 | 304) {
            let json: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
            let at = if openai { "/error/message" } else { "/message" };
            prop_assert_eq!(json.pointer(at).unwrap().as_str(), Some(&*message));
            let length = answer.body.len().to_string();
            prop_assert_eq!(answer.header("content-length"), Some(&*length));
        }
    }

    #[test]
    fn no_content_type_of_a_client_breaks_the_answer(value in prop::collection::vec(any::<u8>(), 0..24)) {
        let mut asked = b"application/grpc".to_vec();
        asked.extend(value);
        let Ok(asked) = HeaderValue::from_bytes(&asked) else {
            return Ok(());
        };
        let mut request = Request::new(());
        request.headers_mut().insert("content-type", asked.clone());
        let info = tower_overload::status::RequestInfo::of(&request);
        let response = layer().respond(BUSY, &info);
        let given = response.headers()["content-type"].as_bytes();
        if info.is_grpc() {
            prop_assert!(asked.as_bytes().starts_with(given));
            prop_assert!(given.iter().all(u8::is_ascii_graphic));
        } else {
            prop_assert_eq!(given, b"application/json");
        }
    }
}
