//! Overload control for LLM serving, as [Tower](tower) layers: a request too
//! many is refused, quickly and with an answer that clients understand, and no
//! request is refused without need.
//!
//! There are two lines of defence. A gateway keeps new requests away from
//! workers that are busy, and answers *overloaded* (529) when all of them are
//! and *unavailable* (503) when there is none. A worker takes exactly N
//! requests into its engine and lets exactly Q wait.
//!
//! ```text
//! gateway:  OverloadStatusLayer → Retry(RetryRefused) → WorkerPool(any Discover) → per worker: LoadTracker → client
//!                 └ 529 / 503                            └ marks ◀── BusySet ◀── WorkerMonitor ◀ load events
//! worker:   OverloadStatusLayer → EngineAdmissionLayer(N, Q) → engine
//! by hand:  OverloadStatusLayer → Buffer → BusyFilterLayer → any balancer → BusyDiscover(any Discover)
//! ```
//!
//! Every piece works alone:
//!
//! | module | what it does |
//! |---|---|
//! | [`admission`] | a worker's cap: N slots, a FIFO queue of Q, exact at every instant |
//! | [`pool`] | one service for many workers: it chooses among those that are open, and bounds every wait |
//! | [`busy`] | the marks of workers, and the layers that make a stock balancer honour them |
//! | [`limits`] | how long a worker may take: to the head, to the first frame, between frames |
//! | [`load`] | when a worker is busy, from what it reports |
//! | [`fleet`] | who is there: what changes when a worker comes, moves, drains or goes. **Start here for a gateway** |
//! | `front` | what stands before the models: reads a request and hands it to the one that it is for |
//! | `api` | what a gateway reads of a request: its model, whether it streams, the size of its prompt |
//! | `admin` | what operators and workers say to a gateway over HTTP |
//! | [`status`] | errors become responses |
//! | [`completion`] | a request is over when its response *body* is |
//! | [`error`] | the errors, and how to find them |
//! | [`sse`] | how far a streamed answer has come: its first token, its tokens, its end |
//! | [`metrics`] | every metric, in one table |
//!
//! The feature `admin` adds the interface of operators and workers over HTTP,
//! `api` the front and the reader of requests, `nats` load events and
//! registrations for a fleet of many gateways, `scrape` the load of stock
//! engines, and `upstream` workers over HTTP, with what a proxy has to do.
//!
//! # Example
//!
//! A worker with one slot and no queue, behind a gateway:
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use std::convert::Infallible;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_overload::{
//!     BoxError,
//!     admission::EngineAdmissionLayer,
//!     busy::{BusySet, roster},
//!     pool::WorkerPool,
//!     status::OverloadStatusLayer,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let engine = service_fn(|_: Request<()>| async {
//!     Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("tokens"))))
//! });
//! let worker = ServiceBuilder::new()
//!     .layer(OverloadStatusLayer::new().infallible())
//!     .layer(EngineAdmissionLayer::new(1, 0)?)
//!     .service(engine);
//!
//! // In real life an HTTP client stands between the two.
//! let (roster, changes) = roster();
//! roster.insert("worker-0", worker);
//! let gateway = ServiceBuilder::new()
//!     .layer(OverloadStatusLayer::new().infallible())
//!     .service(WorkerPool::new(changes, BusySet::new()));
//!
//! // A response holds its slot until its body has ended.
//! let first = gateway.clone().oneshot(Request::new(())).await?;
//! assert_eq!(first.status(), 200);
//! let second = gateway.clone().oneshot(Request::new(())).await?;
//! assert_eq!(second.status(), 529);
//! drop(first);
//! let third = gateway.oneshot(Request::new(())).await?;
//! assert_eq!(third.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! The examples `gateway`, `worker` and `replay` in the repository are the
//! whole system over HTTP. Ten small ones show one idea each: `axum_gateway`,
//! `own_discovery`, `own_pick`, `time_limits`, `grpc`, `tenants`, `retry`,
//! `priorities`, `shutdown` and `paused_clock`.
#![forbid(unsafe_code)]
#![deny(missing_docs, missing_debug_implementations)]

#[cfg(feature = "admin")]
pub mod admin;
pub mod admission;
#[cfg(feature = "api")]
pub mod api;
pub mod busy;
pub mod completion;
pub mod error;
pub mod fleet;
#[cfg(feature = "api")]
pub mod front;
pub mod limits;
pub mod load;
pub mod metrics;
#[cfg(feature = "nats")]
pub mod nats;
pub mod pool;
#[cfg(feature = "scrape")]
pub mod scrape;
pub mod sse;
pub mod status;
#[cfg(feature = "upstream")]
pub mod upstream;

mod random;
mod sync;
mod unwind;

use std::{fmt, hash::Hash};

pub use admission::EngineAdmissionLayer;
pub use busy::{BusyDiscover, BusyFilterLayer, BusySet};
pub use error::{
    Limit, LimitPassed, OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason,
    Unreachable,
};
pub use limits::TimeLimitLayer;
pub use pool::WorkerPool;
pub use status::OverloadStatusLayer;

/// A boxed error, as Tower's middleware use it.
pub type BoxError = tower::BoxError;

/// What can be the id of a worker: a string, a number, an address.
///
/// Implemented for everything that fits. The text it displays as is the
/// worker's name in logs and metrics.
pub trait WorkerId: Clone + Eq + Hash + fmt::Display + Send + Sync + 'static {}

impl<T: Clone + Eq + Hash + fmt::Display + Send + Sync + 'static> WorkerId for T {}

#[cfg(all(doctest, feature = "upstream"))]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
