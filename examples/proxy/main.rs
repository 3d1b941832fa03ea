//! A gateway of public parts: workers over HTTP, and what keeps them from
//! overload.
//!
//! ```console
//! $ cargo run --release --example worker -- --listen 127.0.0.1:8100
//! $ cargo run --release --features upstream --example proxy -- --worker http://127.0.0.1:8100
//! $ curl -sN localhost:8000/v1/chat/completions -H 'content-type: application/json' \
//!     -d '{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"stream":true}'
//! ```

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
    serve::{Listener, ListenerExt},
};
use clap::Parser;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tower::{Layer, ServiceBuilder};
use tower_overload::{
    BoxError, BusySet, OverloadStatusLayer, TimeLimitLayer,
    busy::roster,
    pool::WorkerPool,
    upstream::{
        HttpWorkerBuilder,
        forward::{Client, Forwarding, XForwarded},
        sse::EventStreamLayer,
    },
};

/// Forwards to workers that have room.
#[derive(Debug, Parser)]
struct Options {
    /// Where clients come.
    #[arg(long, default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// The URL of a worker, perhaps with a path; may be given several times.
    #[arg(long = "worker", required = true)]
    workers: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    // Clients come straight to it, so what they say of others does not count.
    let forwarding = Forwarding::new().x_forwarded(XForwarded::Replace);
    let builder = HttpWorkerBuilder::new().forwarding(forwarding.clone());

    let (workers, changes) = roster();
    for url in options.workers {
        let limits = TimeLimitLayer::new().worker(&*url);
        let worker = limits.layer(builder.clone().build(&url)?);
        workers.insert(url, worker);
    }
    let pool = WorkerPool::new(changes, BusySet::new());
    tokio::spawn(pool.driver());
    let status = OverloadStatusLayer::builder().strip_reason_from_upstream(true);
    let stack = ServiceBuilder::new()
        .layer(EventStreamLayer::new())
        .layer(status.build()?.infallible())
        .service(pool);

    let app = Router::new()
        .fallback_service(stack)
        .layer(middleware::from_fn(move |request, next| {
            admit(forwarding.clone(), request, next)
        }))
        .route("/health", get(|| async { "ok" }));
    let listener = TcpListener::bind(options.listen).await?;
    let listener = listener.tap_io(|stream| {
        // Tokens are small writes, which are not to wait for each other.
        let _ = stream.set_nodelay(true);
    });
    println!("listening on http://{}", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}

/// Answers what cannot be forwarded, and says who has sent the rest.
async fn admit(forwarding: Forwarding, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    if let Err(rejected) = forwarding.check(&parts) {
        return (rejected.status(), rejected.reason()).into_response();
    }
    if let Some(ConnectInfo(address)) = parts.extensions.get::<ConnectInfo<SocketAddr>>() {
        let client = Client::new(address.ip());
        parts.extensions.insert(client);
    }
    next.run(Request::from_parts(parts, body)).await
}
