//! The future of a response.

use super::{EventStreamBody, api::Api, body::ending};
use http::Response;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// The response of an [`EventStream`](super::EventStream).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        api: Option<Api>,
    }
}

impl<F> ResponseFuture<F> {
    pub(super) const fn new(inner: F, api: Option<Api>) -> Self {
        Self { inner, api }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<EventStreamBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let api = *this.api;
        this.inner.poll(cx).map_ok(|response| ending(response, api))
    }
}
