//! The gateway that the README shows, on a listener of the test's.

use axum::{Router, body::Body, routing::get};
use http::Request;
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_overload::{
    BoxError, BusySet, OverloadStatusLayer, WorkerPool,
    busy::roster,
    upstream::{HttpWorkerBuilder, sse::EventStreamLayer},
};

pub async fn serve(listener: TcpListener, urls: Vec<String>) -> Result<(), BoxError> {
    let set = BusySet::new();
    let (workers, changes) = roster();
    for url in urls {
        let worker = HttpWorkerBuilder::new().build(&url)?;
        workers.insert(url, worker);
    }

    let pool = WorkerPool::<_, Request<Body>>::new(changes, set);
    tokio::spawn(pool.driver()); // what changes while no request comes is applied at once
    let status = OverloadStatusLayer::builder().strip_reason_from_upstream(true);
    let stack = ServiceBuilder::new()
        .layer(EventStreamLayer::new()) // a stream whose worker dies says so
        .layer(status.build()?.infallible())
        .service(pool);
    let app = Router::new()
        .route_service("/v1/{*path}", stack)
        .route("/health", get(|| async { "ok" }));
    axum::serve(listener, app).await?;
    Ok(())
}

/// Code without what only rustfmt has a say in.
fn squashed(code: &str) -> String {
    let code: String = code.split_whitespace().collect();
    code.replace(",)", ")")
}

#[test]
fn it_is_what_the_readme_shows() {
    let code = include_str!("readme.rs");
    let (_, stack) = code.split_once("    let pool").unwrap();
    let (stack, _) = stack.split_once("    axum::serve").unwrap();
    let readme = squashed(include_str!("../../README.md"));
    assert!(readme.contains(&squashed(stack)), "{stack}");
}
