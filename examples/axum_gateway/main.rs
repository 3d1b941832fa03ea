//! Serves the models of a fleet from axum: `POST /v1/*` goes to the stack of
//! the model that the body names.
//!
//! The [`Fleet`] connects workers over HTTP and composes, for each model, status
//! → retry → pool. The body is in memory, so that it can be sent again.
//!
//! ```console
//! $ cargo run --features api,upstream --example axum_gateway -- \
//!     --listen 127.0.0.1:8000 --worker http://127.0.0.1:8100
//! ```
//!
//! Without options it starts two workers of its own, one of them full, sends
//! itself some requests and exits.

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
    serve::ListenerExt,
};
use bytes::Bytes;
use clap::Parser;
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{convert::Infallible, future::pending, io, net::SocketAddr};
use tokio::net::TcpListener;
use tower::{Layer, ServiceBuilder, ServiceExt, retry::RetryLayer, util::BoxCloneSyncService};
use tower_overload::{
    BoxError, OverloadStatusLayer, TimeLimitLayer, WorkerPool,
    api::RequestReader,
    busy::RetryRefused,
    fleet::{Compose, Connect, Fleet, FleetBuilder, Origin, Registration},
    limits::{Streamed, TimeLimit},
    upstream::{HttpWorker, HttpWorkerBuilder, sse::EventStreamLayer},
};

#[derive(Debug, Parser)]
struct Options {
    /// Where clients come; without it the example talks to itself.
    #[arg(long, requires = "workers")]
    listen: Option<SocketAddr>,
    /// The URL of a worker; may be given several times.
    #[arg(long = "worker", requires = "listen")]
    workers: Vec<String>,
}

type Worker = TimeLimit<HttpWorker>;
type Stack = BoxCloneSyncService<http::Request<Full<Bytes>>, Response, Infallible>;
type Gateway = Fleet<Worker, Stack>;

fn gateway() -> Result<Gateway, BoxError> {
    let builder = HttpWorkerBuilder::new();
    let connect = move |worker: &Connect<'_>| {
        let limits = TimeLimitLayer::new().worker(worker.id.clone());
        Ok(limits.layer(builder.clone().build(&worker.url.to_string())?))
    };
    let status = OverloadStatusLayer::builder().strip_reason_from_upstream(true);
    let status = status.build()?.infallible();
    let compose = move |model: Compose<'_, Worker>| {
        let pool = WorkerPool::new(model.changes, model.set);
        tokio::spawn(pool.driver());
        let members = pool.members();
        let stack = ServiceBuilder::new()
            .map_response(|response: http::Response<_>| response.map(Body::new))
            .layer(status.clone())
            .layer(EventStreamLayer::new())
            .layer(RetryLayer::new(RetryRefused::new(2)))
            .service(pool);
        Ok((BoxCloneSyncService::new(stack), members))
    };
    // The model of workers that do not say what they serve.
    let builder = FleetBuilder::new().default_model("tiny");
    Ok(builder.build(connect, compose)?)
}

fn app(fleet: Gateway) -> Router {
    Router::new()
        .route("/v1/{*path}", post(forward))
        .route("/health", get(|| async { "ok" }))
        .with_state(fleet)
}

async fn forward(State(fleet): State<Gateway>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, 8 << 20).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let Ok(read) = RequestReader::new().read(&parts.headers, &body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let Some(model) = read.model.and_then(|name| fleet.model(&name)) else {
        return (StatusCode::NOT_FOUND, "no such model").into_response();
    };
    // For the series of the status layer, and for the limits on a head.
    parts.extensions.insert(model.label().clone());
    parts
        .extensions
        .insert(Streamed(read.streamed == Some(true)));
    let request = http::Request::from_parts(parts, Full::from(body));
    let Ok(response) = model.service().clone().oneshot(request).await;
    response
}

async fn serve(address: SocketAddr, app: Router) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    // Tokens are small writes, which are not to wait for each other.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    let fleet = gateway()?;
    for url in options.workers {
        fleet.register(&url, Registration::at(&url), Origin::Static)?;
    }
    if let Some(address) = options.listen {
        println!("listening on http://{}", serve(address, app(fleet)).await?);
        return pending().await;
    }

    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    for (id, status) in [("free", 200), ("full", 529)] {
        let status = StatusCode::from_u16(status)?;
        let worker = Router::new().fallback(move || async move { (status, id) });
        let address = serve(any, worker).await?;
        let registration = Registration::at(format!("http://{address}"));
        fleet.register(id, registration, Origin::Static)?;
    }
    let address = serve(any, app(fleet.clone())).await?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let ask = async |model: &str| {
        let body = Full::<Bytes>::from(format!(r#"{{"model":"{model}","prompt":"Hello"}}"#));
        let request = http::Request::post(format!("http://{address}/v1/completions"));
        let status = client.request(request.body(body)?).await?.status();
        println!("{model}: {status}");
        Ok::<_, BoxError>(status.as_u16())
    };
    for _ in 0..8 {
        assert_eq!(ask("tiny").await?, 200, "what one refuses the other serves");
    }
    assert_eq!(ask("huge").await?, 404);
    fleet.remove("free");
    assert_eq!(ask("tiny").await?, 529);
    Ok(())
}
