use super::FrontBody;
use futures::future::BoxFuture;
use http::Response;
use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// The answer of a [`Front`](super::Front).
///
/// Cancel safe: dropped, it drops the request, wherever that is.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<RB>(BoxFuture<'static, Result<Response<FrontBody<RB>>, Infallible>>);

impl<RB> ResponseFuture<RB> {
    pub(super) fn new(
        answer: impl Future<Output = Result<Response<FrontBody<RB>>, Infallible>> + Send + 'static,
    ) -> Self {
        Self(Box::pin(answer))
    }
}

impl<RB> Future for ResponseFuture<RB> {
    type Output = Result<Response<FrontBody<RB>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<RB> fmt::Debug for ResponseFuture<RB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
