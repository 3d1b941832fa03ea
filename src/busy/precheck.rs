//! The verdict above a `Buffer`: a refusal that does not go through its task.

use super::{
    future::ResponseFuture,
    members::Members,
    service::{Answer, Answers},
};
use crate::{BoxError, metrics::Prefix};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// Answers a verdict that is due without passing the request on.
///
/// It goes above the `Buffer` that makes a [`BusyFilter`](super::BusyFilter)
/// cloneable, and it only knows what the filter has found: where anything has
/// changed since the filter last looked, the request goes in, and the filter
/// decides. So it can refuse only what the filter would refuse.
#[derive(Clone, Debug)]
#[must_use]
pub struct PreCheckLayer {
    members: Members,
    model: Box<str>,
    prefix: Prefix,
}

impl PreCheckLayer {
    /// A pre-check for the filter over `members`.
    pub fn new(members: Members) -> Self {
        Self {
            members,
            model: "".into(),
            prefix: Prefix::default(),
        }
    }

    /// The model label of the metrics (default: empty).
    pub fn model(mut self, model: impl Into<Box<str>>) -> Self {
        self.model = model.into();
        self
    }

    /// What the names of the metrics start with (default: `dynamo`).
    pub fn metrics_prefix(mut self, prefix: Prefix) -> Self {
        self.prefix = prefix;
        self
    }
}

impl<S> Layer<S> for PreCheckLayer {
    type Service = PreCheck<S>;

    fn layer(&self, inner: S) -> Self::Service {
        PreCheck {
            inner,
            members: self.members.clone(),
            answers: Arc::new(Answers::new(&self.prefix, &self.model)),
        }
    }
}

/// See [`PreCheckLayer`].
#[derive(Clone)]
pub struct PreCheck<S> {
    inner: S,
    members: Members,
    answers: Arc<Answers>,
}

impl<S, Req> Service<Req> for PreCheck<S>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        match self.members.settled_verdict().and_then(Answer::due) {
            Some(answer) => {
                self.answers.count(answer);
                ResponseFuture::answered(answer)
            }
            None => ResponseFuture::running(self.inner.call(request)),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for PreCheck<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreCheck")
            .field("inner", &self.inner)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}
