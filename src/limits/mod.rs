//! How long a worker may take.
//!
//! A connection that fails says so. A worker that hangs says nothing: its
//! sockets are open, and a request that was sent to it waits until the client
//! has enough. [`TimeLimitLayer`] around the service of each worker ends such a
//! request with a [`LimitPassed`], which says which limit
//! it was, so that what was not answered can be sent elsewhere:
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use std::time::Duration;
//! use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
//! use tower_overload::{
//!     Limit, LimitPassed,
//!     limits::{Streamed, TimeLimitLayer},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let hangs = service_fn(|_: Request<()>| async {
//!     std::future::pending::<()>().await;
//!     Ok::<_, BoxError>(Response::new(Full::<Bytes>::default()))
//! });
//! let limits = TimeLimitLayer::new()
//!     .worker("worker-0")
//!     .head(Some(Duration::from_millis(20)));
//! let worker = ServiceBuilder::new().layer(limits).service(hangs);
//!
//! let mut request = Request::new(());
//! request.extensions_mut().insert(Streamed(true));
//! let error = worker.oneshot(request).await.unwrap_err();
//! let passed = LimitPassed::find_in(&*error).expect("it is in the chain");
//! assert_eq!(passed.limit(), Limit::Head);
//! assert_eq!(passed.worker(), Some("worker-0"));
//! # Ok(())
//! # }
//! ```
//!
//! # The limits
//!
//! | limit | from | to | default |
//! |---|---|---|---|
//! | [`head`](TimeLimitLayer::head) | the request | the head of an answer that is streamed | 60 s |
//! | [`whole_head`](TimeLimitLayer::whole_head) | the request | the head of an answer that comes whole | none |
//! | [`first_frame`](TimeLimitLayer::first_frame) | the head | the first data frame | 60 s |
//! | [`frame`](TimeLimitLayer::frame) | each frame | the next one, or the end | 30 s |
//!
//! The defaults are for the traffic of language models:
//!
//! - Engines send the head of a stream at once, or with the first token. The
//!   prefill of a prompt of 100,000 tokens and a queue before it take tens of
//!   seconds together, and mean no harm: a shorter limit would send the longest
//!   prompts around the fleet and have each worker begin with them. nginx waits
//!   60 s for a worker by default as well (`proxy_read_timeout`), and OpenAI's
//!   SDKs 600 s for the whole: a request that was sent again once or twice is
//!   still served.
//! - An answer that is not streamed has its head when the last token has been
//!   made. How long that is depends on what was asked for, so there is no limit
//!   unless you know one: 10 minutes are what the SDKs wait.
//! - Tokens come several times a second, or an engine sends comments that keep
//!   the connection alive. When an engine is short of memory it puts a sequence
//!   aside and computes it again later, a pause of seconds; 30 s without a
//!   frame are no pause.
//!
//! A limit of zero passes as soon as something is not there at once. One that
//! is longer than the clock can tell, such as [`Duration::MAX`], never passes.
//!
//! [`Duration::MAX`]: std::time::Duration::MAX
//!
//! # Which answers are streamed
//!
//! That has to be known before the head has come, and so from the request: by
//! a [`Streamed`] among its extensions, by its headers without that, or as you
//! [say](TimeLimitLayer::streamed_when). See [`ByRequest`].
//!
//! # What passes is an error, and of what
//!
//! A passed `head` or `whole_head` is the error of the response. A passed
//! `frame` is an error of the body: a part of the answer is with the client.
//!
//! A worker may send a head and then nothing. So the head of an event stream
//! (a response with a status of success whose type is `text/event-stream`) is
//! held back until its first data frame is there, if there is a limit on that,
//! and a passed `first_frame` is an error of the response: nobody has seen
//! anything of it, and the request can be sent elsewhere. The same holds for an
//! error of the body before that frame. The head of anything else passes at
//! once, and `first_frame` is a matter of its body. A frame is a frame,
//! whatever is in it: a comment of an event stream is a sign of life too.
//!
//! [`RetryRefused`](crate::busy::RetryRefused) sends again what is an error of
//! the response, [`OverloadStatusLayer`](crate::OverloadStatusLayer) answers
//! it with a 503 and `worker_timeout` if there is no other worker, and
//! `EventStreamLayer` of the feature `upstream` ends a stream whose next frame
//! does not come with an error event.
//!
//! # A client that does not read
//!
//! Time passes for a worker only while it owes something. The limits of a body
//! begin when the body is asked for a frame and has none, and end when it has
//! one; between two frames nothing runs until the next is asked for. A frame
//! that is there when the limit has passed is given out. So a client that reads
//! slowly, or not at all, has its worker not blamed.
//!
//! # What it costs
//!
//! A response that is ready when it is asked for costs no timer. A stream has
//! one timer, which is set once in a limit's time and not for each token. A
//! held-back stream costs one allocation.

mod body;
pub mod future;
mod layer;
mod service;
mod streamed;
mod timer;

pub use self::{
    body::TimeLimitBody,
    layer::TimeLimitLayer,
    service::TimeLimit,
    streamed::{ByRequest, IsStreamed, Streamed, StreamedWhen},
};

use crate::{BoxError, Limit, LimitPassed, Unreachable};
use std::{sync::Arc, time::Duration};

/// What a service, its futures and its bodies share.
#[derive(Clone, Debug)]
struct Limits {
    head: Option<Duration>,
    whole_head: Option<Duration>,
    first_frame: Option<Duration>,
    frame: Option<Duration>,
    worker: Option<Arc<str>>,
}

impl Limits {
    /// Nobody has seen anything of the answer that broke off.
    fn lost(&self, error: BoxError) -> BoxError {
        let lost = Unreachable::lost(error);
        match &self.worker {
            Some(worker) => lost.with_worker(worker.clone()).into(),
            None => lost.into(),
        }
    }

    fn passed(&self, limit: Limit, after: Duration) -> LimitPassed {
        let passed = LimitPassed::new(limit, after);
        match &self.worker {
            Some(worker) => passed.with_worker(worker.clone()),
            None => passed,
        }
    }
}
