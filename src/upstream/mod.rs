//! Workers over HTTP, as Tower services.
//!
//! [`HttpWorker`] is the way from a gateway to a worker, and from a sidecar to
//! its engine: it forwards what a proxy may forward, and when there is no
//! answer it says why, with a kind that the layers of [`busy`](crate::busy)
//! act on. [`EventStreamLayer`](sse::EventStreamLayer) ends a stream well whose
//! worker has died.
//!
//! ```
//! use bytes::Bytes;
//! use http::{HeaderValue, Request, StatusCode};
//! use http_body_util::{BodyExt, Full};
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_overload::{
//!     BoxError, BusySet, OverloadStatusLayer,
//!     busy::roster,
//!     pool::WorkerPool,
//!     upstream::{HttpWorkerBuilder, sse::EventStreamLayer},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! # let engine = axum::Router::new().fallback(|request: axum::extract::Request| async move {
//! #     request.uri().path().to_owned()
//! # });
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! # tokio::spawn(async move { axum::serve(listener, engine).await });
//! let worker = HttpWorkerBuilder::new()
//!     .header("authorization", HeaderValue::from_static("Bearer of-this-worker"))
//!     .alias("tiny", "hf-internal/tiny-random")
//!     .build(&format!("http://{address}/tenant-a"))?;
//!
//! let (workers, changes) = roster();
//! workers.insert("worker-0", worker);
//! let status = OverloadStatusLayer::builder().strip_reason_from_upstream(true);
//! let gateway = ServiceBuilder::new()
//!     .layer(EventStreamLayer::new())
//!     .layer(status.build()?.infallible())
//!     .service(WorkerPool::new(changes, BusySet::new()));
//!
//! let request = Request::post("/v1/completions").body(Full::new(Bytes::from("{}")))?;
//! let response = gateway.oneshot(request).await?;
//! assert_eq!(response.status(), StatusCode::OK);
//! let body = response.into_body().collect().await?.to_bytes();
//! assert_eq!(body, "/tenant-a/v1/completions");
//! # Ok(())
//! # }
//! ```
//!
//! # What is forwarded
//!
//! What RFC 9110 and RFC 9112 say, both ways; [`forward`] has it rule by rule,
//! for a gateway's public side too. A request that is not forwarded, since it
//! is a loop or its path leads out of the worker's, is answered by `HttpWorker`
//! itself, in plain text: a gateway that wants its API's form for that, or to
//! keep such answers from counting as the worker's, asks
//! [`Forwarding::check`](forward::Forwarding::check) first.
//!
//! Bodies are streamed, with their trailers. How a request is framed follows
//! from its body alone: with a `Content-Length` where that is known, and in
//! chunks otherwise. Informational responses are not passed on.
//!
//! # Connections
//!
//! With HTTP/1.1, the connection that was used last is used next. Before, the
//! system is asked whether it is still open, so that one which the worker has
//! closed meanwhile is noticed. A response body holds its connection and gives
//! it back at its end; dropped before, it closes the connection. With HTTP/2,
//! requests share a connection, and get another when it has as many as the
//! worker takes. Connections that nobody uses are closed in time
//! ([`idle_limit`](HttpWorkerBuilder::idle_limit)), and all of them when the
//! last clone of the worker and the last of its bodies are gone.
//!
//! A request that was lost on a connection that had served others, before any
//! byte of an answer, is sent once more on a new one, if no more than 64 KiB of
//! its body were sent: the worker has closed the connection for being idle, most
//! likely, at the moment when the request came. That a worker had begun on it
//! can never be ruled out; [`idle_limit`](HttpWorkerBuilder::idle_limit) of 0
//! gives every request a connection of its own.
//!
//! # What is not bounded here
//!
//! A worker is given [time to connect](HttpWorkerBuilder::connect_limit), and
//! as long as it takes for its answer: [`limits`](crate::limits) around the
//! service are for that.
//! What it sends is bounded whatever it does: heads by 64 KiB and 100 fields,
//! informational responses by 100 (over HTTP/2, by 10,000 on a connection that
//! answers nothing), bodies by how fast the client reads.

mod alias;
mod base;
mod body;
mod builder;
mod classify;
mod connect;
mod fault;
pub mod forward;
mod frames;
pub mod future;
mod io;
mod pool;
mod setting;
pub mod sse;
mod tls;
mod upload;
mod worker;

pub use self::{
    body::WorkerBody,
    builder::{HttpWorkerBuilder, Protocol},
    fault::{Fault, FaultKind, MalformedAnswer},
    setting::InvalidSetting,
    worker::HttpWorker,
};
pub use crate::error::{Limit, LimitPassed};
pub(crate) use classify::{is_bad_gateway, is_lost_reused, of_fault, of_hyper};

use crate::BoxError;
