//! When a request is over: at the end of its response *body*.
//!
//! A model streams its answer, so the moment the response head arrives says
//! little; the slot, the pending count and the lease of a worker all end with
//! the body. [`CompleteOnBody`] is a Tower [`TrackCompletion`] that carries a
//! guard in the body and drops it when the body ends, fails, or is dropped,
//! whichever comes first:
//!
//! ```
//! use http::Response;
//! use std::sync::Arc;
//! use tower::load::{CompleteOnResponse, TrackCompletion};
//! use tower_overload::completion::CompleteOnBody;
//!
//! let guard = Arc::new(());
//! # type Body = http_body_util::Full<bytes::Bytes>;
//! let response = Response::new(Body::from("hello"));
//! let tracked = CompleteOnBody::new().track_completion(guard.clone(), response);
//! assert_eq!(Arc::strong_count(&guard), 2, "the body is not read yet");
//! drop(tracked);
//! assert_eq!(Arc::strong_count(&guard), 1);
//! ```
//!
//! It serves Tower's own load metrics as well:
//! `PendingRequests::new(service, CompleteOnBody::new())` counts a streaming
//! request until its last byte.

use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::load::TrackCompletion;

/// Is told of every frame of a response body before the client is.
///
/// `H` is the guard that the body carries and `D` its data type.
pub trait ObserveFrame<H, D> {
    /// The head has arrived, with these headers: what the body is.
    fn head(&mut self, handle: &mut H, headers: &HeaderMap) {
        let _ = (handle, headers);
    }

    /// The head has arrived, and the body is about to be read.
    fn begun(&mut self, handle: &mut H) {
        let _ = handle;
    }

    /// A frame of the body has arrived.
    fn observe(&mut self, handle: &mut H, frame: &Frame<D>);

    /// The body has ended, as it should.
    fn ended(&mut self, handle: &mut H) {
        let _ = handle;
    }

    /// The body has broken off with an error.
    fn failed(&mut self, handle: &mut H) {
        let _ = handle;
    }
}

/// Observes nothing: the guard only lives as long as the body.
impl<H, D> ObserveFrame<H, D> for () {
    fn observe(&mut self, _: &mut H, _: &Frame<D>) {}
}

/// A [`TrackCompletion`] for `http::Response`: the request is over when the
/// response body has ended, has failed, or was dropped.
///
/// A body that is at its end from the start (`is_end_stream`) ends the
/// request at once. `O` observes the frames on their way.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompleteOnBody<O = ()> {
    observer: O,
}

impl CompleteOnBody {
    /// The guard lives until the body ends.
    pub const fn new() -> Self {
        Self { observer: () }
    }
}

impl<O> CompleteOnBody<O> {
    /// As [`new`](CompleteOnBody::new), with an observer of the frames; each
    /// response gets a clone of it.
    pub const fn observing(observer: O) -> Self {
        Self { observer }
    }
}

impl<H, B, O> TrackCompletion<H, Response<B>> for CompleteOnBody<O>
where
    B: Body,
    O: ObserveFrame<H, B::Data> + Clone,
{
    type Output = Response<TrackedBody<B, H, O>>;

    fn track_completion(&self, mut handle: H, response: Response<B>) -> Self::Output {
        let mut observer = self.observer.clone();
        observer.head(&mut handle, response.headers());
        observer.begun(&mut handle);
        response.map(|body| {
            let mut handle = Some(handle);
            if body.is_end_stream() {
                end(&mut handle, |handle| observer.ended(handle));
            }
            TrackedBody {
                body,
                handle,
                observer,
            }
        })
    }
}

/// Has the guard hear of its end, and drops it.
fn end<H>(handle: &mut Option<H>, hear: impl FnOnce(&mut H)) {
    if let Some(mut handle) = handle.take() {
        hear(&mut handle);
    }
}

pin_project! {
    /// A response body that carries a guard until its end.
    ///
    /// The guard is dropped exactly once: before the caller sees the frame
    /// after which the body is at its end, its error or its end, or when the
    /// body itself is dropped.
    #[derive(Debug)]
    pub struct TrackedBody<B, H, O = ()> {
        #[pin]
        body: B,
        handle: Option<H>,
        observer: O,
    }
}

impl<B: Default, H, O: Default> Default for TrackedBody<B, H, O> {
    fn default() -> Self {
        Self {
            body: B::default(),
            handle: None,
            observer: O::default(),
        }
    }
}

impl<B, H, O> Body for TrackedBody<B, H, O>
where
    B: Body,
    O: ObserveFrame<H, B::Data>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        let observer = this.observer;
        match &frame {
            Some(Ok(frame)) => {
                if let Some(handle) = this.handle {
                    observer.observe(handle, frame);
                }
                if this.handle.is_some() && this.body.is_end_stream() {
                    end(this.handle, |handle| observer.ended(handle));
                }
            }
            Some(Err(_)) => end(this.handle, |handle| observer.failed(handle)),
            None => end(this.handle, |handle| observer.ended(handle)),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::{BodyExt, Empty, StreamBody};
    use std::sync::Arc;

    fn tracked(
        frames: Vec<Result<Frame<Bytes>, &'static str>>,
    ) -> (
        Arc<()>,
        impl Body<Data = Bytes, Error = &'static str> + Unpin,
    ) {
        let guard = Arc::new(());
        let body = StreamBody::new(futures::stream::iter(frames));
        let response = CompleteOnBody::new().track_completion(guard.clone(), Response::new(body));
        (guard, response.into_body())
    }

    fn data() -> Result<Frame<Bytes>, &'static str> {
        Ok(Frame::data(Bytes::from_static(b"token")))
    }

    #[tokio::test]
    async fn the_guard_lives_until_the_end_of_the_body() {
        let (guard, mut body) = tracked(vec![data(), data()]);
        body.frame().await;
        body.frame().await;
        assert_eq!(Arc::strong_count(&guard), 2);
        assert!(body.frame().await.is_none());
        assert_eq!(Arc::strong_count(&guard), 1);
    }

    #[tokio::test]
    async fn an_error_or_a_drop_ends_it_as_well() {
        let (guard, mut body) = tracked(vec![data(), Err("broken"), data()]);
        body.frame().await;
        body.frame().await;
        assert_eq!(Arc::strong_count(&guard), 1, "the error frame ends it");

        let (guard, mut body) = tracked(vec![data(), data()]);
        body.frame().await;
        drop(body);
        assert_eq!(Arc::strong_count(&guard), 1);
    }

    #[test]
    fn a_body_without_content_is_over_at_once() {
        let guard = Arc::new(());
        let response = Response::new(Empty::<Bytes>::new());
        let response = CompleteOnBody::new().track_completion(guard.clone(), response);
        assert_eq!(Arc::strong_count(&guard), 1);
        drop(response);
    }
}
