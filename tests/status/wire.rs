//! What hyper makes of the answers, without a framework in between.

use crate::support::*;
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use std::{convert::Infallible, error::Error, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_overload::{
    Limit, LimitPassed, OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason,
    Unreachable,
    status::{Format, OverloadStatusLayer},
};

async fn answer_on_both(
    layer: OverloadStatusLayer,
    error: impl Into<BoxError> + Clone + Send + Sync + 'static,
    request: impl Fn() -> Request<&'static str>,
    check: impl Fn(Answer),
) {
    let address = serve(layer.infallible().layer(failing(error))).await;
    for version in VERSIONS {
        check(send(address, version, request()).await);
    }
}

#[tokio::test]
async fn each_endpoint_gets_the_references_body() {
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses"] {
        answer_on_both(
            layer(),
            BUSY,
            || post(path),
            |answer| {
                answer.assert_json(529, REFERENCE_529);
                assert_eq!(answer.header("retry-after"), None);
                assert_eq!(answer.header("retry-after-ms"), None);
            },
        )
        .await;
    }
    answer_on_both(
        layer(),
        BUSY,
        || post("/v1/messages"),
        |answer| {
            answer.assert_json(529, ANTHROPIC_529);
        },
    )
    .await;
    answer_on_both(
        layer(),
        NO_WORKERS,
        || post("/v1/chat/completions"),
        |answer| {
            answer.assert_json(503, REFERENCE_503);
            assert_eq!(answer.header("x-overload-reason"), Some("no_workers"));
        },
    )
    .await;
}

#[tokio::test]
async fn the_anthropic_header_asks_for_anthropics_error_on_any_path() {
    let request = || {
        Request::get("/v1/models")
            .header("anthropic-version", "2023-06-01")
            .body("")
            .unwrap()
    };
    answer_on_both(layer(), BUSY, request, |answer| {
        answer.assert_json(529, ANTHROPIC_529);
    })
    .await;
}

#[tokio::test]
async fn a_request_for_a_stream_is_refused_in_plain_json() {
    let request = || {
        Request::post("/v1/chat/completions")
            .header("content-type", "application/json")
            .header("accept", "text/event-stream")
            .body(r#"{"model":"tiny","stream":true}"#)
            .unwrap()
    };
    answer_on_both(layer(), BUSY, request, |answer| {
        answer.assert_json(529, REFERENCE_529);
        assert_eq!(answer.header("transfer-encoding"), None);
    })
    .await;
}

#[tokio::test]
async fn the_body_follows_the_configured_status_and_still_says_overloaded() {
    let layer = || builder().overload_status(503).build().unwrap();
    answer_on_both(
        layer(),
        BUSY,
        || post("/v1/completions"),
        |answer| {
            answer.assert_json(
                503,
                r#"{"message":"Service temporarily overloaded","type":"Overloaded","code":503}"#,
            );
        },
    )
    .await;
    answer_on_both(
        layer(),
        BUSY,
        || post("/v1/messages"),
        |answer| {
            answer.assert_json(503, ANTHROPIC_529);
        },
    )
    .await;
}

#[tokio::test]
async fn which_wait_was_too_long_decides_between_529_and_503() {
    let queued = ServiceOverloaded::new(OverloadReason::WaitedTooLong);
    answer_on_both(
        layer(),
        queued,
        || post("/v1/completions"),
        |answer| {
            answer.assert_json(529, REFERENCE_529);
            assert_eq!(answer.header("x-overload-reason"), Some("waited_too_long"));
        },
    )
    .await;
    let no_worker = Unavailable::new(UnavailableReason::WaitedTooLong);
    answer_on_both(
        layer(),
        no_worker,
        || post("/v1/completions"),
        |answer| {
            answer.assert_json(503, REFERENCE_503);
        },
    )
    .await;
}

#[tokio::test]
async fn a_retry_is_dated_by_the_error_or_else_by_the_default() {
    let layer = || builder().default_retry_after_secs(2.5).build().unwrap();
    answer_on_both(
        layer(),
        BUSY,
        || post("/v1/completions"),
        |answer| {
            assert_eq!(answer.header("retry-after"), Some("3"));
            assert_eq!(answer.header("retry-after-ms"), Some("2500"));
        },
    )
    .await;
    let known = BUSY.with_retry_after(Some(Duration::from_millis(1)));
    answer_on_both(
        layer(),
        known,
        || post("/v1/completions"),
        |answer| {
            assert_eq!(answer.header("retry-after"), Some("1"));
            assert_eq!(answer.header("retry-after-ms"), Some("1"));
        },
    )
    .await;
}

#[tokio::test]
async fn the_other_formats_are_valid_on_the_wire() {
    let openai = builder().format(Format::OpenAi).build().unwrap();
    answer_on_both(openai, BUSY, || post("/v1/completions"), |answer| {
        answer.assert_json(
            529,
            r#"{"error":{"message":"Service temporarily overloaded","type":"server_error","code":"overloaded","param":null}}"#,
        );
    })
    .await;

    let empty = builder().format(Format::Empty).build().unwrap();
    answer_on_both(
        empty,
        BUSY,
        || post("/v1/completions"),
        |answer| {
            assert_eq!((answer.status.as_u16(), &*answer.body), (529, ""));
            assert_eq!(answer.header("content-length"), Some("0"));
            assert_eq!(answer.header("content-type"), None);
        },
    )
    .await;

    let custom = Format::custom(|refusal| {
        let text = format!(
            "{} {} {:?}",
            refusal.endpoint().as_str(),
            refusal.reason().unwrap_or("-"),
            refusal.retry_after(),
        );
        (http::HeaderValue::from_static("text/plain"), text.into())
    });
    let custom = builder()
        .format(custom)
        .default_retry_after_secs(4.0)
        .build()
        .unwrap();
    answer_on_both(
        custom,
        BUSY,
        || post("/v1/completions"),
        |answer| {
            assert_eq!(answer.status, 529);
            assert_eq!(answer.body, "completions all_workers_busy Some(4s)");
            assert_eq!(answer.header("content-type"), Some("text/plain"));
            assert_eq!(answer.header("content-length"), Some("37"));
        },
    )
    .await;
}

#[tokio::test]
async fn statuses_without_content_and_head_requests_stay_valid() {
    for (status, length) in [(204, None), (304, None), (205, Some("0"))] {
        let layer = builder().overload_status(status).build().unwrap();
        answer_on_both(
            layer,
            BUSY,
            || post("/v1/completions"),
            |answer| {
                assert_eq!((answer.status.as_u16(), &*answer.body), (status, ""));
                assert_eq!(answer.header("content-length"), length);
                assert_eq!(answer.header("content-type"), None);
            },
        )
        .await;
    }
    let head = || Request::head("/v1/completions").body("").unwrap();
    answer_on_both(layer(), BUSY, head, |answer| {
        assert_eq!((answer.status.as_u16(), &*answer.body), (529, ""));
        let length = REFERENCE_529.len().to_string();
        assert_eq!(answer.header("content-length"), Some(&*length));
    })
    .await;
}

#[tokio::test]
async fn a_status_without_a_reason_phrase_is_a_valid_status_line() {
    for status in [529, 600, 999] {
        let layer = builder().overload_status(status).build().unwrap();
        let address = serve(layer.infallible().layer(failing(BUSY))).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut raw = String::new();
        stream.read_to_string(&mut raw).await.unwrap();
        let (line, _) = raw.split_once("\r\n").unwrap();
        assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{line}");
        assert!(
            line.bytes()
                .all(|byte| byte == b' ' || byte.is_ascii_graphic()),
            "{line}"
        );
        let (_, body) = raw.split_once("\r\n\r\n").unwrap();
        assert!(body.ends_with(&format!("\"code\":{status}}}")), "{body}");
    }
}

#[tokio::test]
async fn a_connection_is_kept_after_a_refusal() {
    let address = serve(layer().infallible().layer(failing(BUSY))).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        sender.ready().await.unwrap();
        let request = post("/v1/completions").map(Full::<Bytes>::from);
        let answer = Answer::of(sender.send_request(request).await.unwrap()).await;
        answer.assert_json(529, REFERENCE_529);
    }
}

#[tokio::test]
async fn an_error_that_is_not_ours_becomes_a_500_without_its_text() {
    let secret = std::io::Error::other("connection to 10.0.0.7 overloaded");
    let error = std::sync::Arc::new(secret);
    answer_on_both(
        layer(),
        error,
        || post("/v1/completions"),
        |answer| {
            answer.assert_json(
                500,
                r#"{"message":"Internal server error","type":"Internal Server Error","code":500}"#,
            );
            assert_eq!(answer.header("x-overload-reason"), None);
            assert!(!format!("{answer:?}").contains("10.0.0.7"));
        },
    )
    .await;
}

#[tokio::test]
async fn a_worker_that_cannot_be_reached_or_takes_too_long_is_a_503_that_says_which() {
    let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    let passed = |limit| LimitPassed::new(limit, Duration::from_secs(60)).into();
    let errors: [(BoxError, _); 6] = [
        (Unreachable::new(refused()).into(), "none_reachable"),
        (Unreachable::lost(refused()).into(), "none_reachable"),
        (passed(Limit::Connect), "none_reachable"),
        (passed(Limit::Head), "worker_timeout"),
        (passed(Limit::FirstFrame), "worker_timeout"),
        (passed(Limit::Frame), "worker_timeout"),
    ];
    for (error, reason) in errors {
        answer_on_both(
            layer(),
            Arc::<dyn Error + Send + Sync>::from(error),
            || post("/v1/completions"),
            |answer| {
                answer.assert_json(503, REFERENCE_503);
                assert_eq!(answer.header("x-overload-reason"), Some(reason));
            },
        )
        .await;
    }
}

#[tokio::test]
async fn what_says_that_nobody_answered_has_the_status_that_is_configured() {
    let configured = builder().unavailable_status(504).build().unwrap();
    answer_on_both(
        configured,
        LimitPassed::new(Limit::Head, Duration::from_secs(60)),
        || post("/v1/completions"),
        |answer| {
            assert_eq!(answer.status, 504);
            assert_eq!(answer.header("x-overload-reason"), Some("worker_timeout"));
        },
    )
    .await;
}

#[tokio::test]
async fn a_response_of_the_inner_service_is_not_rewritten() {
    for status in [200, 404, 429, 500, 503, 529] {
        let service = always(move || {
            let response = Response::builder()
                .status(status)
                .header("retry-after", "7")
                .header("x-overload-reason", "mine");
            Ok(response.body("theirs".into()).unwrap())
        });
        let address = serve(layer().infallible().layer(service)).await;
        for version in VERSIONS {
            let answer = send(address, version, post("/v1/completions")).await;
            assert_eq!((answer.status.as_u16(), &*answer.body), (status, "theirs"));
            assert_eq!(answer.header("retry-after"), Some("7"));
            assert_eq!(answer.header("x-overload-reason"), Some("mine"));
        }
    }
}

#[tokio::test]
async fn nobody_upstream_can_forge_the_reason_where_it_is_stripped() {
    let forged = || {
        Ok(Response::builder()
            .status(529)
            .header("x-why", "worker_at_capacity")
            .header("x-why", "again")
            .header("x-other", "stays")
            .body("theirs".into())
            .unwrap())
    };
    let layer = builder()
        .reason_header("X-Why")
        .strip_reason_from_upstream(true)
        .build()
        .unwrap();
    let address = serve(layer.clone().infallible().layer(always(forged))).await;
    let answer = send(address, Version::HTTP_11, post("/v1/completions")).await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (529, "theirs"));
    assert_eq!(answer.header("x-why"), None);
    assert_eq!(answer.header("x-other"), Some("stays"));

    answer_on_both(
        layer,
        BUSY,
        || post("/v1/completions"),
        |answer| {
            assert_eq!(answer.header("x-why"), Some("all_workers_busy"));
        },
    )
    .await;
}

#[tokio::test]
async fn serves_a_proxys_and_a_boxed_body_alike() {
    let upstream = serve(layer().infallible().layer(succeeding())).await;

    let incoming = client(Version::HTTP_11);
    let proxy = service_fn(move |request: Request<hyper::body::Incoming>| {
        let mut onward = Request::new(Full::<Bytes>::default());
        *onward.uri_mut() = format!("http://{upstream}{}", request.uri().path())
            .parse()
            .unwrap();
        incoming.request(onward)
    });
    let address = serve(layer().infallible().layer(proxy.clone())).await;
    let answer = send(address, Version::HTTP_2, post("/v1/completions")).await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (200, "fine"));

    let boxed = proxy.map_response(|response| response.map(BoxBody::<Bytes, hyper::Error>::new));
    let address = serve(layer().infallible().layer(boxed)).await;
    let answer = send(address, Version::HTTP_2, post("/v1/completions")).await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (200, "fine"));
}

#[tokio::test]
async fn a_streamed_response_arrives_frame_by_frame() {
    let (frames, body) = futures::channel::mpsc::unbounded();
    let body = StreamBody::new(body);
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let service = service_fn(move |_: Request<hyper::body::Incoming>| {
        let body = body.lock().unwrap().take().expect("one request");
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    let address = serve(layer().infallible().layer(service)).await;
    let client = client(Version::HTTP_11);
    let uri = format!("http://{address}/v1/completions").parse().unwrap();
    let mut response = client.get(uri).await.unwrap();
    for token in ["a", "b"] {
        let frame = Ok::<_, Infallible>(Frame::data(Bytes::from(token)));
        frames.unbounded_send(frame).unwrap();
        let frame = response.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), token);
    }
    drop(frames);
    assert!(response.frame().await.is_none());
}
