//! The two layers.

use super::{
    AdmissionHandle, EngineAdmission, EngineBackpressure, EnvError, LimitError, Limits,
    QueuePolicy,
    gate::Gate,
    limits::check,
    permit::{FirstMatch, FirstToken, HoldInExtensions},
    shared::{Shared, Timing},
};
use crate::{completion::CompleteOnBody, metrics::Prefix, sync::Arc};
use std::time::Duration;
use tower::load::CompleteOnResponse;
use tower_layer::Layer;

/// The longest retry-after of a refusal, unless the application says
/// otherwise: 60 seconds. Clients of the OpenAI SDK ignore one above 120.
pub const DEFAULT_MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A request is over at the end of its response body, and its first token is
/// that of a stream of events, or the first frame of another body. The default.
pub type UntilBodyEnd = CompleteOnBody<FirstToken>;

/// Every request may wait in the queue. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysQueue;

impl<R> QueuePolicy<R> for AlwaysQueue {
    fn may_queue(&self, _: &R) -> bool {
        true
    }
}

/// A request that satisfies the predicate does not wait: it is refused if
/// there is no free slot.
#[derive(Clone, Copy, Debug)]
pub struct NoQueueWhen<P>(P);

impl<R, P: Fn(&R) -> bool> QueuePolicy<R> for NoQueueWhen<P> {
    fn may_queue(&self, request: &R) -> bool {
        !(self.0)(request)
    }
}

/// Admits at most N requests into the engine and lets at most Q wait; the
/// rest it sheds. See the [module](super) for what it promises.
///
/// All services made by one layer value and its clones share one gate.
///
/// `C` says which end of a request gives its slot back, and `W` which
/// requests may wait.
#[derive(Clone, Debug)]
pub struct EngineAdmissionLayer<C = UntilBodyEnd, W = AlwaysQueue> {
    shared: Shared<C, W>,
    prefix: Prefix,
}

impl EngineAdmissionLayer {
    /// At most `slots` requests in the engine and `queue_limit` waiting.
    ///
    /// # Errors
    ///
    /// `slots` must be 1 to [`MAX_LIMIT`](super::MAX_LIMIT), `queue_limit` 0
    /// to [`MAX_LIMIT`](super::MAX_LIMIT).
    pub fn new(slots: usize, queue_limit: usize) -> Result<Self, LimitError> {
        Ok(Self::from_limits(Some(Limits::new(slots, queue_limit)?)))
    }

    /// The limits that the environment asks for, see [`Limits::from_env`];
    /// without any, a layer that passes everything through.
    ///
    /// # Errors
    ///
    /// A variable with a value that is not allowed.
    pub fn from_env() -> Result<Self, EnvError> {
        Ok(Self::from_limits(Limits::from_env()?))
    }

    /// These limits, or with `None` a layer that passes everything through:
    /// no cap, no queue, no metrics.
    pub fn from_limits(limits: Option<Limits>) -> Self {
        Self {
            shared: Shared {
                gate: limits.map(|limits| {
                    let (slots, queue) = limits.raw();
                    Arc::new(Gate::new(slots, queue))
                }),
                timing: Timing {
                    max_queue_wait: None,
                    max_retry_after: DEFAULT_MAX_RETRY_AFTER,
                },
                completion: CompleteOnBody::observing(FirstToken::new()),
                queueing: AlwaysQueue,
            },
            prefix: Prefix::default(),
        }
    }
}

impl<C, W> EngineAdmissionLayer<C, W> {
    /// Looks at the gate and changes its limits while it is in use; `None` if
    /// there is no cap.
    pub fn handle(&self) -> Option<AdmissionHandle> {
        self.shared.gate.clone().map(AdmissionHandle::new)
    }

    /// Refuses a request that has waited in the queue for `max_wait`, with
    /// [`WaitedTooLong`](crate::OverloadReason::WaitedTooLong). Off by
    /// default. Needs tokio's timer.
    ///
    /// A slot that is granted in time is used, however late the request
    /// notices.
    #[must_use]
    pub const fn with_max_queue_wait(mut self, max_wait: Duration) -> Self {
        self.shared.timing.max_queue_wait = Some(max_wait);
        self
    }

    /// Never asks a client to wait for longer than `max` before it tries
    /// again; [`DEFAULT_MAX_RETRY_AFTER`] by default.
    #[must_use]
    pub const fn with_max_retry_after(mut self, max: Duration) -> Self {
        self.shared.timing.max_retry_after = max;
        self
    }

    /// Lets at most `limit` of the requests in the engine be such that have
    /// not produced their first token yet: prefill is what a burst hurts. Off
    /// by default; without a cap it does nothing. A request needs room under
    /// both limits.
    ///
    /// It belongs to the gate, so it holds for all clones of this layer.
    ///
    /// # Errors
    ///
    /// `limit` must be 1 to [`MAX_LIMIT`](super::MAX_LIMIT).
    pub fn with_first_token_limit(self, limit: usize) -> Result<Self, LimitError> {
        let limit = check("first-token limit", limit, 1)?;
        if let Some(gate) = &self.shared.gate {
            gate.set_first_token_limit(Some(limit));
        }
        Ok(self)
    }

    /// Starts the names of the metrics with `prefix`. Counts for the services
    /// made from now on; the gate reports under the prefix that the first of
    /// them was made with.
    #[must_use]
    pub fn with_metrics_prefix(mut self, prefix: Prefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// A request that satisfies `predicate` is refused when it would have to
    /// wait.
    ///
    /// ```
    /// use tower_overload::admission::EngineAdmissionLayer;
    ///
    /// let layer = EngineAdmissionLayer::new(4, 16)?
    ///     .no_queue_when(|request: &http::Request<()>| request.headers().contains_key("x-no-queue"));
    /// # Ok::<(), tower_overload::admission::LimitError>(())
    /// ```
    pub fn no_queue_when<P>(self, predicate: P) -> EngineAdmissionLayer<C, NoQueueWhen<P>> {
        self.with_queue_policy(NoQueueWhen(predicate))
    }

    /// Asks `policy` whether a request may wait in the queue.
    pub fn with_queue_policy<V>(self, policy: V) -> EngineAdmissionLayer<C, V> {
        self.map(|completion, _| (completion, policy))
    }

    /// Gives the slot back when `completion` says so: it gets the [`Permit`]
    /// with the engine's response, and decides how long it lives.
    ///
    /// [`Permit`]: super::Permit
    pub fn with_completion<D>(self, completion: D) -> EngineAdmissionLayer<D, W> {
        self.map(|_, queueing| (completion, queueing))
    }

    /// Gives the slot back when the engine has answered: for responses
    /// without a body.
    ///
    /// The default needs an `http::Response`, and no default can depend on
    /// the type of the response; so for any other it is this call.
    pub fn until_response(self) -> EngineAdmissionLayer<CompleteOnResponse, W> {
        self.with_completion(CompleteOnResponse::default())
    }

    /// Takes the first frame of the body that satisfies `predicate` for the
    /// first token, instead of what [`FirstToken`] takes for it. Without a
    /// first-token limit it is never asked.
    pub fn first_token_when<P>(
        self,
        predicate: P,
    ) -> EngineAdmissionLayer<CompleteOnBody<FirstMatch<P>>, W> {
        self.with_completion(CompleteOnBody::observing(FirstMatch(predicate)))
    }

    /// Puts a [`SlotHold`](super::SlotHold) into the extensions of every
    /// response, so that the slot can be kept for longer than the body.
    pub fn hold_in_extensions(self) -> EngineAdmissionLayer<HoldInExtensions<C>, W> {
        self.map(|completion, queueing| (HoldInExtensions(completion), queueing))
    }

    /// The same gate for services that make callers wait in `poll_ready`
    /// instead of refusing them.
    pub fn backpressure(self) -> EngineBackpressureLayer<C, W> {
        EngineBackpressureLayer { admission: self }
    }

    fn map<D, V>(self, change: impl FnOnce(C, W) -> (D, V)) -> EngineAdmissionLayer<D, V> {
        let (completion, queueing) = change(self.shared.completion, self.shared.queueing);
        EngineAdmissionLayer {
            shared: Shared {
                gate: self.shared.gate,
                timing: self.shared.timing,
                completion,
                queueing,
            },
            prefix: self.prefix,
        }
    }
}

impl<C: Clone, W: Clone> EngineAdmissionLayer<C, W> {
    fn shared(&self) -> Shared<C, W> {
        if let Some(gate) = &self.shared.gate {
            gate.report(&self.prefix);
        }
        self.shared.clone()
    }
}

impl<S, C: Clone, W: Clone> Layer<S> for EngineAdmissionLayer<C, W> {
    type Service = EngineAdmission<S, C, W>;

    fn layer(&self, inner: S) -> Self::Service {
        EngineAdmission::new(inner, self.shared())
    }
}

/// Makes services that wait in `poll_ready` while there is no room, see
/// [`EngineBackpressure`]. Made by [`EngineAdmissionLayer::backpressure`].
#[derive(Clone, Debug)]
pub struct EngineBackpressureLayer<C = UntilBodyEnd, W = AlwaysQueue> {
    admission: EngineAdmissionLayer<C, W>,
}

impl<C, W> EngineBackpressureLayer<C, W> {
    /// As [`EngineAdmissionLayer::handle`].
    pub fn handle(&self) -> Option<AdmissionHandle> {
        self.admission.handle()
    }
}

impl<S, C: Clone, W: Clone> Layer<S> for EngineBackpressureLayer<C, W> {
    type Service = EngineBackpressure<S, C, W>;

    fn layer(&self, inner: S) -> Self::Service {
        EngineBackpressure::new(inner, self.admission.shared())
    }
}
