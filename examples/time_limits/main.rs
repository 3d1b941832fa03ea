//! Bounds every wait around workers that hang, each by a limit of its own.
//!
//! | who waits | what bounds it | what the client gets |
//! |---|---|---|
//! | for the head of an answer | `TimeLimitLayer::head` | another worker's answer, or a 503 |
//! | for the next token | `TimeLimitLayer::frame` | a body that ends with an error |
//! | in a worker's queue | `EngineAdmissionLayer::with_max_queue_wait` | a 529 |
//!
//! ```console
//! $ cargo run --example time_limits
//! ```
//!
//! The clock is paused, so that all those seconds pass at once.

use axum::body::Body;
use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::BodyExt;
use std::{convert::Infallible, future::pending, pin::pin, time::Duration};
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};
use tower_overload::{
    BoxError, BusySet, EngineAdmissionLayer, Limit, LimitPassed, OverloadStatusLayer,
    TimeLimitLayer, WorkerPool,
    busy::{RetryRefused, roster},
};

#[derive(Clone, Copy)]
enum Worker {
    Serves,
    /// Takes requests, and says nothing.
    Hangs,
    /// Makes one token, and no other.
    Stalls,
}

async fn answer(worker: Worker) -> Result<Response<Body>, Infallible> {
    let token = stream::iter([Ok::<_, Infallible>("token")]);
    Ok(Response::new(match worker {
        Worker::Serves => Body::from_stream(token),
        Worker::Hangs => pending().await,
        Worker::Stalls => Body::from_stream(token.chain(stream::pending())),
    }))
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), BoxError> {
    let limits = TimeLimitLayer::new()
        .head(Some(Duration::from_secs(2)))
        .frame(Some(Duration::from_secs(5)));
    let gateway = |fleet: &[(&'static str, Worker)]| {
        let (workers, changes) = roster();
        for (id, worker) in fleet.iter().copied() {
            // Its name in the errors is what lets a retry choose another one.
            let limits = limits.clone().worker(id);
            let client = service_fn(move |_: Request<()>| answer(worker));
            workers.insert(id, limits.layer(client));
        }
        ServiceBuilder::new()
            .layer(OverloadStatusLayer::new().infallible())
            .layer(RetryLayer::new(RetryRefused::new(1)))
            .service(WorkerPool::new(changes, BusySet::new()))
    };
    // The limit on the head is one for streams: the head of a whole answer comes
    // with its last token, and has a limit of its own.
    let streamed = || {
        Request::get("/")
            .header("accept", "text/event-stream")
            .body(())
    };

    let started = Instant::now();
    let response = gateway(&[("hangs", Worker::Hangs)])
        .oneshot(streamed()?)
        .await?;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["x-overload-reason"], "worker_timeout");
    // Sent again, it went to the only worker that there is.
    assert_eq!(started.elapsed().as_secs(), 2 + 2);
    println!("nobody else is there: {}", response.status());

    let two = gateway(&[("hangs", Worker::Hangs), ("serves", Worker::Serves)]);
    for _ in 0..8 {
        let response = two.clone().oneshot(streamed()?).await?;
        assert_eq!(
            response.status(),
            200,
            "what hangs is sent to the other one"
        );
    }
    println!("8 of 8 are served beside a worker that hangs");

    let response = gateway(&[("stalls", Worker::Stalls)])
        .oneshot(streamed()?)
        .await?;
    let mut body = pin!(response.into_body());
    let first = body.frame().await.ok_or("there is a token")??;
    assert_eq!(first.into_data().ok().as_deref(), Some(&b"token"[..]));
    let broken = body.frame().await.ok_or("the body is not over")?;
    let error = broken.err().ok_or("the worker owes a token")?;
    let passed = LimitPassed::find_in(&*error);
    assert_eq!(passed.ok_or("it says which limit")?.limit(), Limit::Frame);
    println!("a stream that stalls ends: {error}");

    let admission = EngineAdmissionLayer::new(1, 1)?.with_max_queue_wait(Duration::from_secs(3));
    let worker = ServiceBuilder::new()
        .layer(OverloadStatusLayer::new().infallible())
        .layer(admission)
        .service_fn(|_: Request<()>| answer(Worker::Stalls));
    let running = worker.clone().oneshot(streamed()?).await?;
    let started = Instant::now();
    let waited = worker.oneshot(streamed()?).await?;
    assert_eq!(waited.status(), 529);
    assert_eq!(waited.headers()["x-overload-reason"], "waited_too_long");
    assert_eq!(started.elapsed().as_secs(), 3);
    println!("behind a stream that does not end: {}", waited.status());
    drop(running);
    Ok(())
}
