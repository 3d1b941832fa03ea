use super::{EventStreamBody, api::Api, future::ResponseFuture};
use http::{Request, Response};
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// Ends a stream of events that breaks off with an error event: see the
/// [module](super).
#[derive(Clone, Copy, Debug, Default)]
pub struct EventStreamLayer(());

impl EventStreamLayer {
    /// Makes the layer.
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for EventStreamLayer {
    type Service = EventStream<S>;

    fn layer(&self, inner: S) -> Self::Service {
        EventStream { inner }
    }
}

/// The service of an [`EventStreamLayer`].
#[derive(Clone, Copy, Debug)]
pub struct EventStream<S> {
    inner: S,
}

impl<S, B, R> Service<Request<B>> for EventStream<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<EventStreamBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let api = Api::of(&request);
        ResponseFuture::new(self.inner.call(request), api)
    }
}
