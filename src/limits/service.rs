use super::{ByRequest, IsStreamed, Limits, TimeLimitBody, future::ResponseFuture};
use crate::BoxError;
use http::{Method, Request, Response};
use http_body::Body;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower::load::Load;
use tower_service::Service;

/// The service of a [`TimeLimitLayer`](super::TimeLimitLayer).
///
/// It is ready when its worker is; being ready has no limit here.
#[derive(Clone, Debug)]
pub struct TimeLimit<S, P = ByRequest> {
    inner: S,
    limits: Arc<Limits>,
    streamed: P,
}

impl<S, P> TimeLimit<S, P> {
    pub(super) const fn new(inner: S, limits: Arc<Limits>, streamed: P) -> Self {
        Self {
            inner,
            limits,
            streamed,
        }
    }

    /// The worker's service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The worker's service, to be changed.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Gives the worker's service back.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, P, B, R> Service<Request<B>> for TimeLimit<S, P>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    P: IsStreamed<Request<B>>,
    R: Body,
    R::Error: Into<BoxError>,
{
    type Response = Response<TimeLimitBody<R>>;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let head = match self.streamed.is_streamed(&request) {
            true => self.limits.head,
            false => self.limits.whole_head,
        };
        let has_body = request.method() != Method::HEAD;
        let future = self.inner.call(request);
        ResponseFuture::new(future, self.limits.clone(), head, has_body)
    }
}

impl<S: Load, P> Load for TimeLimit<S, P> {
    type Metric = S::Metric;

    fn load(&self) -> Self::Metric {
        self.inner.load()
    }
}
