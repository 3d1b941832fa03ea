//! Serves the models of a fleet from axum: each request goes to the stack of the
//! model that its body names.
//!
//! The [`Fleet`] connects workers over HTTP and composes, for each model, status
//! → retry → pool. The [`Front`](tower_overload::front::Front) reads requests,
//! answers what is no load, such as `/v1/models`, and mounts beside whatever
//! routes the application has.
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
    body::Body,
    http::{Request, Response, StatusCode},
    routing::get,
    serve::ListenerExt,
};
use clap::Parser;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{convert::Infallible, future::pending, io, net::SocketAddr};
use tokio::net::TcpListener;
use tower::{Layer, ServiceBuilder, retry::RetryLayer, util::BoxCloneSyncService};
use tower_overload::{
    BoxError, OverloadStatusLayer, TimeLimitLayer, WorkerPool,
    busy::RetryRefused,
    fleet::{Compose, Connect, Fleet, FleetBuilder, Origin, Registration},
    front::{FrontBuilder, Problem, WholeBody},
    limits::TimeLimit,
    upstream::{HttpWorker, HttpWorkerBuilder, forward::Forwarding, sse::EventStreamLayer},
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
type Stack = BoxCloneSyncService<Request<WholeBody>, Response<Body>, Infallible>;

fn fleet() -> Result<Fleet<Worker, Stack>, BoxError> {
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
            .map_response(|response: Response<_>| response.map(Body::new))
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

fn app(fleet: Fleet<Worker, Stack>) -> Router {
    // What cannot be forwarded says nothing about the workers.
    let forwarding = Forwarding::new();
    let front = FrontBuilder::new()
        .check(move |parts| forwarding.check(parts).map_err(Problem::from))
        .build(fleet);
    let version = get(|| async { env!("CARGO_PKG_VERSION") });
    Router::new()
        .route("/version", version)
        .fallback_service(front)
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
    let fleet = fleet()?;
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
        let registration = Registration::at(format!("http://{}", serve(any, worker).await?));
        fleet.register(id, registration, Origin::Static)?;
    }
    let address = serve(any, app(fleet.clone())).await?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let ask = async |model: &str| {
        let body = WholeBody::from(format!(r#"{{"model":"{model}","prompt":"Hello"}}"#));
        let request = Request::post(format!("http://{address}/v1/completions")).body(body)?;
        let status = client.request(request).await?.status();
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
