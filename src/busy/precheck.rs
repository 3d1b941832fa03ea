//! The verdict above a `Buffer`: a refusal that does not go through its task.

use super::{
    future::ResponseFuture,
    members::Members,
    service::{Answer, Answers},
};
use crate::{BoxError, OverloadReason, metrics::Prefix};
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
            step: Step::PassOn,
        }
    }
}

/// See [`PreCheckLayer`].
///
/// While a verdict is due it does not ask the inner service whether it is
/// ready, so a refusal holds no place of a `Buffer`.
pub struct PreCheck<S> {
    inner: S,
    members: Members,
    answers: Arc<Answers>,
    step: Step,
}

/// What the next call does.
#[derive(Clone, Copy)]
enum Step {
    PassOn,
    Refuse,
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
        if self.due().is_some() {
            self.step = Step::Refuse;
            return Poll::Ready(Ok(()));
        }
        self.step = Step::PassOn;
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        match self.step {
            Step::PassOn => ResponseFuture::running(self.inner.call(request)),
            Step::Refuse => {
                // What has changed since can only be seen further in, and
                // nothing is ready there: the request is not sent, and can be
                // sent again at once.
                let at_dispatch = Answer::Overloaded(OverloadReason::BusyAtDispatch);
                let answer = self.due().unwrap_or(at_dispatch);
                self.answers.count(answer);
                ResponseFuture::answered(answer)
            }
        }
    }
}

impl<S> PreCheck<S> {
    fn due(&self) -> Option<Answer> {
        self.members.settled_verdict().and_then(Answer::due)
    }
}

/// A clone has no readiness.
impl<S: Clone> Clone for PreCheck<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            members: self.members.clone(),
            answers: self.answers.clone(),
            step: Step::PassOn,
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
