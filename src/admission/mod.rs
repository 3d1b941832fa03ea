//! Admits at most N requests into the engine and lets at most Q wait.
//!
//! An inference engine that is given more requests than it can batch makes
//! all of them slow. This layer keeps the surplus out: up to N requests are
//! in the engine, up to Q wait in the order in which they came, and the rest
//! is refused at once, so that a gateway can send it elsewhere or tell the
//! client.
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{BoxError, Service, ServiceBuilder, service_fn};
//! use tower_overload::{OverloadReason, ServiceOverloaded, admission::EngineAdmissionLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! async fn engine(_: Request<()>) -> Result<Response<Full<Bytes>>, BoxError> {
//!     Ok(Response::new(Full::from("a token")))
//! }
//!
//! // One request in the engine, one waiting.
//! let mut worker = ServiceBuilder::new()
//!     .layer(EngineAdmissionLayer::new(1, 1)?)
//!     .service(service_fn(engine));
//!
//! let first = worker.call(Request::new(()));
//! let second = worker.call(Request::new(()));
//! let third = worker.call(Request::new(()));
//!
//! let refused = third.await.unwrap_err();
//! let overloaded = ServiceOverloaded::find_in(&*refused).expect("it is refused for overload");
//! assert_eq!(overloaded.reason(), OverloadReason::WorkerAtCapacity);
//!
//! drop(first.await?); // the body: its end lets the second request in
//! second.await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - **The cap is exact.** At every instant at most N requests are in the
//!   engine and at most Q wait. A request is refused only if it fits neither,
//!   and never while it would fit. No task and no channel stands in between
//!   that could hold one more, or one too few.
//! - **First come, first served.** A place is taken inside `call`. An arrival
//!   never overtakes one that waits, and a slot that becomes free goes to the
//!   oldest request that still waits.
//! - **A slot is held until the end of the response body**, its failure or its
//!   drop, since a model streams its answer: see [`completion`](crate::completion).
//!   It is given back exactly once, also when the request is cancelled, in
//!   whatever phase, and when the engine panics.
//! - **Being ready holds nothing.** The service is always ready; the engine is
//!   asked once a request owns a slot.
//! - **Limits change at run time** through [`AdmissionHandle`], and nothing
//!   that runs or waits is revoked.
//!
//! # Responses that are not `http::Response`
//!
//! Which end of a request counts is a type parameter, along tower's
//! [`TrackCompletion`](tower::load::TrackCompletion). By default it is the end
//! of the body of an `http::Response`. For a service with any other response,
//! say so:
//!
//! ```
//! use tower::{BoxError, Service, ServiceBuilder, service_fn};
//! use tower_overload::admission::EngineAdmissionLayer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let mut doubled = ServiceBuilder::new()
//!     .layer(EngineAdmissionLayer::new(1, 0)?.until_response())
//!     .service(service_fn(async |n: u64| Ok::<_, BoxError>(2 * n)));
//! assert_eq!(doubled.call(21).await?, 42);
//! # Ok(())
//! # }
//! ```
//!
//! # Shed or make wait
//!
//! [`EngineAdmission`] refuses. With
//! [`backpressure`](EngineAdmissionLayer::backpressure) the same gate makes
//! callers wait in `poll_ready` instead; see [`EngineBackpressure`] for when
//! not to use it.
//!
//! # From the environment
//!
//! [`EngineAdmissionLayer::from_env`] reads `DYN_ENGINE_REQUEST_LIMIT` and
//! `DYN_DYNAMO_REQUEST_QUEUE_LIMIT`. Without the first there is no cap: the
//! layer passes requests through, and has no [handle](AdmissionHandle).
//!
//! # Panics
//!
//! A panic of the engine, in `poll_ready`, `call` or its future, goes to the
//! caller; the slot is given back when the response future is dropped.
//!
//! A panic of a waker goes to whoever gave the slot or the place away that it
//! announces, after all others that got one have been woken. If that caller
//! is unwinding already, it goes no further.

mod estimate;
mod future;
mod gate;
mod handle;
mod layer;
mod limits;
mod metrics;
mod permit;
mod service;
mod shared;
mod waiters;
mod word;

pub use future::EngineAdmissionFuture;
pub use gate::Snapshot;
pub use handle::AdmissionHandle;
pub use layer::{
    AlwaysQueue, DEFAULT_MAX_RETRY_AFTER, EngineAdmissionLayer, EngineBackpressureLayer,
    NoQueueWhen, UntilBodyEnd,
};
pub use limits::{
    DEFAULT_QUEUE_LIMIT, ENGINE_REQUEST_LIMIT, EnvError, LimitError, Limits, MAX_LIMIT,
    MIN_QUEUE_LIMIT_IN_ENV, REQUEST_QUEUE_LIMIT,
};
pub use permit::{FirstMatch, FirstToken, HoldInExtensions, Permit, SlotHold};
pub use service::{EngineAdmission, EngineBackpressure};

use crate::{OverloadReason, UnavailableReason};

/// Decides whether a request may wait in the queue, or takes a free slot or
/// nothing.
pub trait QueuePolicy<R> {
    /// Whether `request` may wait.
    fn may_queue(&self, request: &R) -> bool;
}

/// Why the admission turned a request away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    AtCapacity,
    WaitedTooLong,
    ShuttingDown,
}

impl Refusal {
    const fn as_str(self) -> &'static str {
        match self {
            Self::AtCapacity => OverloadReason::WorkerAtCapacity.as_str(),
            Self::WaitedTooLong => OverloadReason::WaitedTooLong.as_str(),
            Self::ShuttingDown => UnavailableReason::ShuttingDown.as_str(),
        }
    }
}
