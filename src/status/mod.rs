//! Overload becomes a response that the client understands.
//!
//! A layer further in refuses a request with an error, because an error stops
//! a retry, a balancer and a buffer from taking it for an answer. A client
//! needs a response: a status that its SDK retries, a body that it can parse,
//! a time to wait. [`OverloadStatusLayer`] stands outside of all the layers
//! that refuse, and turns [`ServiceOverloaded`] into a 529 and
//! [`Unavailable`] into a 503, and so what else means that no worker has
//! answered:
//!
//! ```
//! use axum::{Router, body::Body, routing::get};
//! use http::{Request, Response};
//! use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
//! use tower_overload::{OverloadReason, ServiceOverloaded, status::OverloadStatusLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! // Stands for a balancer whose workers are all busy.
//! let full = service_fn(|_: Request<Body>| async {
//!     Err::<Response<Body>, BoxError>(
//!         ServiceOverloaded::new(OverloadReason::AllWorkersBusy).into(),
//!     )
//! });
//! let status = OverloadStatusLayer::builder()
//!     .overload_status(529)
//!     .default_retry_after_secs(1.5)
//!     .build()?
//!     .infallible();
//!
//! let app: Router = Router::new()
//!     .route_service(
//!         "/v1/chat/completions",
//!         ServiceBuilder::new().layer(status).service(full),
//!     )
//!     .route("/health", get(|| async { "ok" }));
//!
//! let request = Request::post("/v1/chat/completions").body(Body::empty())?;
//! let response = app.oneshot(request).await?;
//! assert_eq!(response.status(), 529);
//! assert_eq!(response.headers()["retry-after"], "2");
//! assert_eq!(response.headers()["x-overload-reason"], "all_workers_busy");
//! let body = axum::body::to_bytes(response.into_body(), 1024).await?;
//! assert_eq!(
//!     body,
//!     r#"{"message":"Service temporarily overloaded","type":"Overloaded","code":529}"#
//! );
//! # Ok(())
//! # }
//! ```
//!
//! # Where it stands
//!
//! From outside to inside: tracing, *this layer*, then `Buffer`, the busy
//! filter, the balancer; in a worker, this layer and then the engine
//! admission. Tracing is outside so that it sees the status that the client
//! sees. Health and metrics routes are outside of all of it: they have to
//! answer while everything else is refused.
//!
//! # What is answered, and what is not
//!
//! [`Answer`] has the table. It is decided by the type of an error in the
//! chain, never by its text. What happens to all the other errors is the mode:
//!
//! - *Pass-through*, the default: they are returned. A [`BoxError`] is returned
//!   as it is; another error type is boxed, and `downcast` gives it back. (Which
//!   errors are ours can only be seen in a `dyn Error`, and `Into<BoxError>` is
//!   the one way to it that a boxed error and a concrete one share.)
//! - *Infallible*, by [`OverloadStatusLayer::infallible`]: they become a 500
//!   whose body is always the same, and their text goes to a `tracing` event.
//!   The error type is [`Infallible`](std::convert::Infallible), so that the
//!   service mounts in axum by `Router::layer`, `route_layer`, `route_service`
//!   and `fallback_service`.
//!
//! Responses of the inner service are not looked at and not changed, whatever
//! their status. The one exception is asked for, by
//! [`Builder::strip_reason_from_upstream`].
//!
//! # What the client gets
//!
//! The form is chosen per request, and is the same for `stream: true`: the
//! client has not been promised an event stream before it has the head.
//!
//! - A gRPC request (`content-type: application/grpc*`) gets a trailers-only
//!   answer: HTTP status 200, its own content type, `grpc-status`
//!   (RESOURCE_EXHAUSTED or UNAVAILABLE), a percent-encoded `grpc-message`,
//!   and `grpc-retry-pushback-ms` if a delay is known.
//! - A request for Anthropic's API, by its path (`/v1/messages`) or an
//!   `anthropic-version` header, gets Anthropic's error object.
//! - Any other gets the body of the reference, or another [`Format`].
//!
//! `content-type` and `content-length` are always there, except where HTTP
//! has no content (204, 205, 304). `retry-after` and `retry-after-ms` say when
//! to retry, if the error knows or a default is configured. The reason is in a
//! header of its own.
//!
//! # Metrics
//!
//! `…_frontend_model_rejection_total{model,endpoint}` counts overload answers,
//! whatever their status, and `…_frontend_model_unavailable_total` the
//! unavailable ones, those to workers that were not reached or took too long
//! among them. A 500 and a 502 are in neither. The endpoint is told from the path ([`Endpoint`]), the model from
//! a [`Model`] extension, and only [`KnownModels`] have series of their own.
//!
//! # Readiness
//!
//! An error of the inner `poll_ready` is final in Tower. If it is one to
//! answer, the service stays ready and answers each call with it, without
//! asking the dead service again; a clone asks its own clone of it. So a
//! `Buffer` that has closed makes 503s and not dead connections.
//!
//! # The parts alone
//!
//! [`OverloadStatusLayer::answer`] gives the response for an error to a handler
//! that has no service to wrap, and [`Answer::of`] tells what an error comes to.
//!
//! [`ServiceOverloaded`]: crate::ServiceOverloaded
//! [`Unavailable`]: crate::Unavailable
//! [`BoxError`]: crate::BoxError

mod answer;
mod body;
mod format;
mod future;
mod headers;
mod layer;
mod model;
mod request;
mod responder;
mod service;

pub use self::{
    answer::{Answer, AnswerKind},
    body::StatusBody,
    format::{CustomFormat, Format, Refusal},
    future::ResponseFuture,
    layer::{
        Builder, DEFAULT_OVERLOAD_STATUS, DEFAULT_REASON_HEADER, InvalidSetting,
        OVERLOAD_STATUS_VARIABLE, OverloadStatusLayer, parse_overload_status,
    },
    model::{KnownModels, Model, TooManyModels},
    request::{Endpoint, RequestInfo},
    service::{Mode, OverloadStatus},
};

/// The mode in which errors that are not about overload are returned.
#[derive(Clone, Copy, Debug)]
pub enum PassThrough {}

/// The mode in which errors that are not about overload are answered with a
/// 500, and the service is infallible.
#[derive(Clone, Copy, Debug)]
pub enum AnswerAll {}
