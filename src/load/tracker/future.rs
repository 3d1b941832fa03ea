use super::{
    output::{Frames, OutputTokens, StreamTokens},
    worker::Tracked,
};
use crate::completion::{CompleteOnBody, TrackedBody};
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::load::TrackCompletion;

pin_project! {
    /// The response of a [`TrackLoad`](super::TrackLoad).
    ///
    /// Dropping it gives the request up, and it does not count any more.
    #[derive(Debug)]
    pub struct ResponseFuture<F, T = StreamTokens> {
        #[pin]
        future: F,
        // After the future, so that it is dropped when the client is done.
        tracked: Tracked,
        frames: Frames<T>,
    }
}

impl<F, T> ResponseFuture<F, T> {
    pub(super) const fn new(future: F, tracked: Tracked, frames: Frames<T>) -> Self {
        Self {
            future,
            tracked,
            frames,
        }
    }
}

impl<F, T, B, E> Future for ResponseFuture<F, T>
where
    F: Future<Output = Result<Response<B>, E>>,
    T: OutputTokens<B::Data> + Clone,
    B: Body,
{
    type Output = Result<Response<TrackedBody<B, Tracked, Frames<T>>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.future.poll(cx));
        let mut tracked = mem::take(this.tracked);
        Poll::Ready(result.map(|response| {
            let status = response.status();
            if status.is_client_error() || status.is_server_error() {
                // The engine does nothing for it, however long its body is.
                drop(mem::take(&mut tracked));
            }
            CompleteOnBody::observing(this.frames.clone()).track_completion(tracked, response)
        }))
    }
}
