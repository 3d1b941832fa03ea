use super::{
    Cost,
    future::ResponseFuture,
    output::{Frames, OutputTokens, StreamTokens},
    worker::{Tracked, Worker},
};
use crate::completion::TrackedBody;
use http::Response;
use http_body::Body;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tower::load::Load;
use tower_service::Service;

/// The client of a worker, whose requests are counted as the worker's load.
///
/// A request counts from `call`, before the client sees it; being ready counts
/// for nothing. It passes everything on as it is.
pub struct TrackLoad<S, C, T = StreamTokens> {
    inner: S,
    worker: Arc<dyn Worker>,
    cost: C,
    frames: Frames<T>,
}

impl<S, C, T> TrackLoad<S, C, T> {
    pub(super) fn new(inner: S, worker: Arc<dyn Worker>, cost: C, frames: Frames<T>) -> Self {
        Self {
            inner,
            worker,
            cost,
            frames,
        }
    }

    /// The client.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The client, to be changed.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Gives the client back; requests that were counted go on to be.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, C, T, R, B> Service<R> for TrackLoad<S, C, T>
where
    S: Service<R, Response = Response<B>>,
    C: Fn(&R) -> Cost,
    T: OutputTokens<B::Data> + Clone,
    B: Body,
{
    type Response = Response<TrackedBody<B, Tracked, Frames<T>>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let cost = (self.cost)(&request);
        // It is there first: should the client panic, it takes the cost off.
        let tracked = Tracked::begin(&self.worker, cost);
        let future = self.inner.call(request);
        ResponseFuture::new(future, tracked, self.frames.clone())
    }
}

impl<S: Load, C, T> Load for TrackLoad<S, C, T> {
    type Metric = S::Metric;

    fn load(&self) -> Self::Metric {
        self.inner.load()
    }
}

impl<S: Clone, C: Clone, T: Clone> Clone for TrackLoad<S, C, T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            worker: self.worker.clone(),
            cost: self.cost.clone(),
            frames: self.frames.clone(),
        }
    }
}

impl<S: fmt::Debug, C, T> fmt::Debug for TrackLoad<S, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackLoad")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
