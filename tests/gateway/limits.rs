//! Workers that hang: before the head of an answer, after it, in the middle of
//! a stream, and before there is a connection.
//!
//! Limits are short here, so a worker that is well may pass one on a machine
//! that is busy; that is sent again as often as it takes.

use crate::{
    gateway::{GatewayConfig, WorkerLimits},
    serving::{events, prompt, text},
    support::{CHAT, COMPLETIONS, Fleet, MESSAGES, Stub, UNAVAILABLE, eventually},
};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::StatusCode;
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc, time::Duration};
#[cfg(target_os = "linux")]
use tokio::net::{TcpSocket, TcpStream};
use tokio::{sync::Notify, task::JoinHandle};

const SHORT: Option<Duration> = Some(Duration::from_millis(200));

const OFF: WorkerLimits = WorkerLimits {
    connect: None,
    head: None,
    whole_head: None,
    first_frame: None,
    frame: None,
};

async fn gateway(limits: WorkerLimits, retry_refused: usize) -> Fleet {
    Fleet::start(GatewayConfig {
        limits,
        retry_refused,
        retry_lost_percent: 100,
        ..GatewayConfig::default()
    })
    .await
}

/// A worker whose answer is a stream that begins so and stops.
async fn stopping(frames: &'static [&'static str]) -> Stub {
    Stub::start(move |_| {
        let frames = frames
            .iter()
            .map(|frame| Bytes::from_static(frame.as_bytes()));
        let frames = stream::iter(frames.map(Ok::<_, Infallible>));
        Response::builder()
            .header("content-type", "text/event-stream")
            .body(Body::from_stream(frames.chain(stream::pending())))
            .unwrap()
    })
    .await
}

const EVENT: &str = "data: {\"n\":1}\n\n";

/// A worker that is well.
async fn good() -> Stub {
    Stub::start(|_| {
        Response::builder()
            .header("content-type", "text/event-stream")
            .body(Body::from("data: good\n\ndata: [DONE]\n\n"))
            .unwrap()
    })
    .await
}

fn spawn_post(
    fleet: &Fleet,
    path: &'static str,
    body: Value,
) -> JoinHandle<http::Response<Incoming>> {
    let public = fleet.public.clone();
    tokio::spawn(async move { public.post(path, &body).await })
}

async fn is_asked(stub: &Stub) {
    eventually("it is asked", async || stub.calls() > 0).await;
}

async fn assert_unavailable(response: http::Response<Incoming>, reason: &str) {
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["x-overload-reason"], reason);
    assert_eq!(text(response).await, UNAVAILABLE);
}

/// What is sent to such a worker alone, and what if there is another one.
async fn hangs(limits: WorkerLimits, hanging: Stub, body: Value) {
    let fleet = gateway(limits, 0).await;
    fleet.register("hangs", &hanging.url, json!({})).await;
    let alone = fleet.public.post(COMPLETIONS, &body).await;
    assert_unavailable(alone, "worker_timeout").await;
    assert_eq!(hanging.calls(), 1);

    let fleet = gateway(limits, 64).await;
    fleet.register("hangs", &hanging.url, json!({})).await;
    let call = spawn_post(&fleet, COMPLETIONS, body);
    eventually("it is asked", async || hanging.calls() > 1).await;
    let good = good().await;
    fleet.register("good", &good.url, json!({})).await;
    let response = call.await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(events(&text(response).await), ["good", "[DONE]"]);
}

#[tokio::test]
async fn a_worker_that_takes_requests_and_never_answers_is_passed_over() {
    let limits = WorkerLimits { head: SHORT, ..OFF };
    hangs(limits, Stub::hanging().await, prompt(1)).await;
}

#[tokio::test]
async fn whole_answers_have_a_limit_of_their_own() {
    let limits = WorkerLimits {
        whole_head: SHORT,
        ..OFF
    };
    let mut whole = prompt(1);
    whole["stream"] = json!(false);
    hangs(limits, Stub::hanging().await, whole).await;
}

#[tokio::test]
async fn a_worker_that_sends_the_head_of_a_stream_and_nothing_else_is_passed_over() {
    let limits = WorkerLimits {
        first_frame: SHORT,
        ..OFF
    };
    hangs(limits, stopping(&[]).await, prompt(1)).await;
}

#[tokio::test]
async fn a_stream_that_stops_ends_with_an_error_event_and_is_not_sent_again() {
    let limits = WorkerLimits {
        frame: SHORT,
        ..OFF
    };
    for path in [COMPLETIONS, CHAT, MESSAGES] {
        let stops = stopping(&[EVENT]).await;
        let fleet = gateway(limits, 64).await;
        fleet.register("stops", &stops.url, json!({})).await;
        let response = fleet.public.post(path, &prompt(9)).await;
        let good = good().await;
        fleet.register("good", &good.url, json!({})).await;
        assert_eq!(response.status(), StatusCode::OK);
        let stream = text(response).await;
        let rest = stream.strip_prefix(EVENT).expect("what came is passed on");
        if path == MESSAGES {
            assert!(rest.starts_with("event: error\ndata: "), "{stream}");
            assert!(rest.contains("api_error"), "{stream}");
        } else {
            let rest = events(rest);
            assert!(rest[0].contains(r#""code":"worker_failed""#), "{stream}");
            assert_eq!(rest[1..], ["[DONE]"]);
        }
        assert_eq!((stops.calls(), good.calls()), (1, 0));
    }
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_may_take_longer_than_one_that_is() {
    let go_on = Arc::new(Notify::new());
    let slow = Stub::with({
        let go_on = Arc::clone(&go_on);
        move |_| {
            let go_on = Arc::clone(&go_on);
            async move {
                go_on.notified().await;
                Response::new(Body::from("{}"))
            }
        }
    })
    .await;
    let fleet = gateway(WorkerLimits { head: SHORT, ..OFF }, 0).await;
    fleet.register("slow", &slow.url, json!({})).await;
    let whole = json!({"model": "tiny", "prompt": "a", "stream": false});
    let whole = spawn_post(&fleet, COMPLETIONS, whole);
    is_asked(&slow).await;
    // The streamed one came later, and its limit has passed.
    let streamed = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_unavailable(streamed, "worker_timeout").await;
    assert!(!whole.is_finished());
    go_on.notify_waiters();
    assert_eq!(whole.await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn without_limits_nothing_passes() {
    let stops = stopping(&[]).await;
    let slow = Stub::hanging().await;
    let unlimited = gateway(OFF, 0).await;
    let limited = gateway(
        WorkerLimits {
            head: SHORT,
            first_frame: SHORT,
            ..OFF
        },
        0,
    )
    .await;
    for worker in [&stops, &slow] {
        for fleet in [&unlimited, &limited] {
            fleet.register("a", &worker.url, json!({})).await;
        }
        let call = spawn_post(&unlimited, COMPLETIONS, prompt(1));
        is_asked(worker).await;
        let passed = limited.public.post(COMPLETIONS, &prompt(1)).await;
        assert_unavailable(passed, "worker_timeout").await;
        // Of a stream that has no limit, the head is passed on at once.
        if std::ptr::eq(worker, &stops) {
            assert_eq!(call.await.unwrap().status(), StatusCode::OK);
        } else {
            assert!(!call.is_finished());
            call.abort();
        }
    }
}

/// An address whose queue of connections is full, so that there is no answer
/// to another one.
#[cfg(target_os = "linux")]
async fn unaccepting() -> (String, impl Sized) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    // The queue has room for one.
    let first = TcpStream::connect(address).await.unwrap();
    (format!("http://{address}"), (listener, first))
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_worker_that_accepts_no_connection_is_passed_over() {
    let limits = WorkerLimits {
        connect: SHORT,
        ..OFF
    };
    let (url, _held) = unaccepting().await;
    let fleet = gateway(limits, 0).await;
    fleet.register("deaf", &url, json!({})).await;
    let alone = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_unavailable(alone, "none_reachable").await;
    assert_eq!(fleet.worker("deaf").await.unwrap()["unreachable"], true);

    let fleet = gateway(limits, 0).await;
    fleet.register("deaf", &url, json!({})).await;
    let good = good().await;
    fleet.register("good", &good.url, json!({})).await;
    for _ in 0..5 {
        let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(events(&text(response).await), ["good", "[DONE]"]);
    }
}
