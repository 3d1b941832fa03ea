//! Streams of events that end well although their worker did not.
//!
//! A worker that dies in the middle of an answer leaves its client with half of
//! one, and a connection that is cut: SDKs report that as a failure of the
//! network, without saying whose. [`EventStreamLayer`] ends such a stream with
//! an error event in the form that the API has for it, and then well:
//!
//! | path ends in | the stream ends with |
//! |---|---|
//! | `/chat/completions`, `/completions` | `data: {"error":{…}}`, and `data: [DONE]` |
//! | `/responses` | `event: error`, `data: {"type":"error",…}` |
//! | `/messages` | `event: error`, `data: {"type":"error","error":{…}}` |
//!
//! Any other body that breaks off stays an error, so that the connection is
//! cut and nobody takes it for whole: one that is no `text/event-stream`, is
//! compressed, has a `Content-Length`, or is of another path. So does an event
//! of more than 256 KiB of which a part was passed on. Of what is shorter, the
//! part of an event that came is not passed on, since a client can do nothing
//! with it. A stream whose last event has come already just ends.
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response, header::CONTENT_TYPE};
//! use http_body::Frame;
//! use http_body_util::{BodyExt, StreamBody};
//! use std::{convert::Infallible, io};
//! use tower::{Layer, ServiceExt, service_fn};
//! use tower_overload::upstream::sse::EventStreamLayer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dies = service_fn(|_: Request<()>| async {
//!     let frames = [
//!         Ok(Frame::data(Bytes::from("data: {\"n\":1}\n\ndata: {\"n"))),
//!         Err(io::Error::from(io::ErrorKind::ConnectionReset)),
//!     ];
//!     let mut response = Response::new(StreamBody::new(futures::stream::iter(frames)));
//!     response.headers_mut().insert(CONTENT_TYPE, "text/event-stream".parse().unwrap());
//!     Ok::<_, Infallible>(response)
//! });
//! let gateway = EventStreamLayer::new().layer(dies);
//! let response = gateway.oneshot(Request::post("/v1/chat/completions").body(())?).await?;
//! let text = response.into_body().collect().await?.to_bytes();
//! assert!(text.starts_with(b"data: {\"n\":1}\n\ndata: {\"error\":{"));
//! assert!(text.ends_with(b"\n\ndata: [DONE]\n\n"));
//! # Ok(())
//! # }
//! ```
//!
//! It stands outside of what watches the bodies of workers, such as trackers
//! and the completion of leases, which see the failure.

mod api;
mod body;
mod events;
pub mod future;
mod layer;

pub use self::{
    body::EventStreamBody,
    layer::{EventStream, EventStreamLayer},
};
