//! Takes a worker out of service without a request that fails.
//!
//! In this order: the gateway drains it, so that it gets nothing new; its gate is
//! closed, so that gateways that have not heard of it get a 503 that says why; its
//! server accepts no more connections; what is under way ends, within a time; and
//! the fleet forgets it.
//!
//! ```console
//! $ cargo run --features upstream --example shutdown
//! ```

use axum::{Router, body::Body, extract::Request, response::Response};
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Empty};
use std::{convert::Infallible, io, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    sync::{Notify, Semaphore},
    task::JoinHandle,
};
use tower::{ServiceBuilder, ServiceExt};
use tower_overload::{
    BoxError, EngineAdmissionLayer, OverloadStatusLayer, WorkerPool,
    admission::AdmissionHandle,
    fleet::{Compose, Connect, FleetBuilder, Origin, Registration},
    upstream::HttpWorkerBuilder,
};

type Nothing = Empty<bytes::Bytes>;

struct Worker {
    url: String,
    gate: AdmissionHandle,
    stop: Arc<Notify>,
    server: JoinHandle<io::Result<()>>,
}

/// Starts a worker whose answers are its name, and the same again when they may
/// end.
async fn worker(name: &'static str, may_end: Arc<Semaphore>) -> Result<Worker, BoxError> {
    let admission = EngineAdmissionLayer::new(8, 8)?;
    let gate = admission.handle().ok_or("it has a limit")?;
    let engine = move |_: Request| {
        let may_end = may_end.clone();
        let rest = stream::once(async move {
            let _permit = may_end.acquire().await;
            Ok(name)
        });
        let body = Body::from_stream(stream::iter([Ok::<_, Infallible>(name)]).chain(rest));
        async { Ok::<_, Infallible>(Response::new(body)) }
    };
    let stack = ServiceBuilder::new()
        .layer(OverloadStatusLayer::new().infallible())
        .layer(admission)
        .service_fn(engine);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let stop = Arc::new(Notify::new());
    let stopped = stop.clone();
    let server = tokio::spawn(async move {
        axum::serve(listener, Router::new().fallback_service(stack))
            // In real life this is `tokio::signal`.
            .with_graceful_shutdown(async move { stopped.notified().await })
            .await
    });
    Ok(Worker {
        url,
        gate,
        stop,
        server,
    })
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let may_end = Arc::new(Semaphore::new(0));
    let old = worker("old", may_end.clone()).await?;
    let new = worker("new", may_end.clone()).await?;

    let connect =
        |worker: &Connect<'_>| Ok(HttpWorkerBuilder::new().build(&worker.url.to_string())?);
    let compose = |model: Compose<'_, _>| {
        let pool = WorkerPool::<_, http::Request<Nothing>>::new(model.changes, model.set);
        tokio::spawn(pool.driver());
        let members = pool.members();
        Ok((pool, members))
    };
    let fleet = FleetBuilder::new()
        .default_model("tiny")
        .build(connect, compose)?;
    let model = fleet.model("tiny").ok_or("it is the default")?;
    let send = async || {
        let mut response = model
            .service()
            .clone()
            .oneshot(http::Request::new(Nothing::new()))
            .await?;
        let first = response
            .body_mut()
            .frame()
            .await
            .ok_or("there is a token")??;
        let by = first.into_data().map_err(|_| "it is a token")?;
        Ok::<_, BoxError>((by, response))
    };

    fleet.register("old", Registration::at(&old.url), Origin::Static)?;
    let (by, under_way) = send().await?;
    assert_eq!(by, "old");
    fleet.register("new", Registration::at(&new.url), Origin::Static)?;

    fleet.drain("old", true)?;
    let (by, beside) = send().await?;
    println!("drained: a request goes to {by:?}");
    assert_eq!(by, "new");

    old.gate.close();
    // It comes from a gateway that does not know yet.
    let late = HttpWorkerBuilder::new().build(&old.url)?;
    let late = late.oneshot(http::Request::new(Nothing::new())).await?;
    println!(
        "closed: {}, {:?}",
        late.status(),
        late.headers()["x-overload-reason"]
    );
    assert_eq!(late.headers()["x-overload-reason"], "shutting_down");
    drop(late);

    old.stop.notify_one();
    assert_eq!(old.gate.snapshot().in_engine, 1, "nothing is cut");
    may_end.add_permits(1);
    let rest = under_way.into_body().collect().await?.to_bytes();
    assert_eq!(rest, "old", "the answer is whole");
    tokio::time::timeout(Duration::from_secs(60), old.server).await???;
    assert_eq!(old.gate.snapshot().in_engine, 0);
    fleet.remove("old");
    println!("stopped: its last answer was whole");

    beside.into_body().collect().await?;
    assert_eq!(send().await?.0, "new");
    Ok(())
}
