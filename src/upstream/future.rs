//! The future of an answer.

use super::{Fault, WorkerBody};
use http::Response;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// The answer of an [`HttpWorker`](super::HttpWorker), when its head has come.
///
/// Dropping it closes the connection, or resets the stream over HTTP/2.
pub struct ResponseFuture(Pin<Box<dyn Future<Output = Answered> + Send>>);

type Answered = Result<Response<WorkerBody>, Fault>;

impl ResponseFuture {
    pub(super) fn new(answered: impl Future<Output = Answered> + Send + 'static) -> Self {
        Self(Box::pin(answered))
    }
}

impl Future for ResponseFuture {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
