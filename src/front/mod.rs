//! What stands before the models of a fleet: each request is read, and goes to
//! the model that it is for.
//!
//! A [`Front`] is a Tower `Service` for HTTP requests that mounts in axum or
//! hyper. It answers what is no load by itself, and hands the rest to what the
//! application has [composed](crate::fleet::FleetBuilder::build) for the model:
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/models`, `GET /v1/models/{id}` | the models that the fleet [knows](crate::fleet::Fleet::models), whether or not a worker is there |
//! | `GET /health` | 200, for a load balancer: the gateway is there |
//! | a browser's preflight | that it may |
//! | anything else under `/v1/` | what stands behind its model answers |
//! | one that cannot be read, or has no model that is known | a [`Problem`], in the words of the client's API |
//!
//! ```
//! use http::{Request, Response};
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_overload::{
//!     BoxError,
//!     fleet::{Compose, Connect, FleetBuilder, Origin, Registration},
//!     front::{Front, WholeBody},
//!     pool::WorkerPool,
//!     status::OverloadStatusLayer,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! // In a gateway, a client of the worker: see `upstream`.
//! let connect = |worker: &Connect<'_>| {
//!     let url = worker.url.to_string();
//!     let client = tower::service_fn(move |_: Request<WholeBody>| {
//!         let answer = Response::new(WholeBody::from(url.clone()));
//!         async { Ok::<_, BoxError>(answer) }
//!     });
//!     Ok(client)
//! };
//! let status = OverloadStatusLayer::builder().build()?.infallible();
//! let compose = move |model: Compose<'_, _>| {
//!     let pool = WorkerPool::new(model.changes, model.set);
//!     let members = pool.members();
//!     let stack = ServiceBuilder::new().layer(status.clone()).service(pool);
//!     Ok((stack, members))
//! };
//! let fleet = FleetBuilder::new().build(connect, compose)?;
//! let worker = Registration::at("http://10.0.0.1:8000").models(["tiny"]);
//! fleet.register("a", worker, Origin::Static)?;
//!
//! let front = Front::new(fleet);
//! let request = Request::post("/v1/completions")
//!     .body(WholeBody::from(r#"{"model": "tiny", "prompt": "Why?"}"#))?;
//! let response = front.oneshot(request).await?;
//! assert_eq!(response.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! # Bodies
//!
//! The body of a request is read whole before a worker is chosen, for its model
//! is in there, and so that it can be sent to another worker. How long it may
//! be, how long a client may send nothing of it, and how much memory all of
//! them take is [bounded](FrontBuilder). It is sent on as it came, as a
//! [`WholeBody`].
//!
//! # Extensions
//!
//! Those of the request are replaced by what was read of it:
//! [`Model`](crate::status::Model),
//! [`Streamed`](crate::limits::Streamed), and where they are asked for
//! [`Cost`](crate::load::tracker::Cost) and [`Key`].

mod body;
mod builder;
mod collect;
mod future;
mod page;
mod problem;
mod read;
mod service;

pub use body::{FrontBody, WholeBody};
pub use builder::FrontBuilder;
pub use future::ResponseFuture;
pub use problem::{Api, Problem};
pub use service::Front;

use http::HeaderValue;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What requests have in common that should go to the same worker: an extension
/// of a request, for [`Affinity`](crate::pool::pick::Affinity).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u64);
