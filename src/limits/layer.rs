use super::{ByRequest, Limits, StreamedWhen, TimeLimit};
use std::{sync::Arc, time::Duration};
use tower_layer::Layer;

/// Limits the time that a worker may take: see the [module](super).
///
/// `P` says of which requests the answers are [streamed](super::IsStreamed).
#[derive(Clone, Debug)]
pub struct TimeLimitLayer<P = ByRequest> {
    limits: Limits,
    streamed: P,
}

impl TimeLimitLayer {
    /// With the defaults that the methods name.
    pub const fn new() -> Self {
        Self {
            limits: Limits {
                head: Some(Duration::from_secs(60)),
                whole_head: None,
                first_frame: Some(Duration::from_secs(60)),
                frame: Some(Duration::from_secs(30)),
                worker: None,
            },
            streamed: ByRequest,
        }
    }
}

impl<P> TimeLimitLayer<P> {
    /// Sets how long the head of an answer may take that is streamed (default:
    /// 60 s); `None` is any time.
    ///
    /// Time in a queue and the prefill of a long prompt may come before it.
    #[must_use]
    pub const fn head(mut self, limit: Option<Duration>) -> Self {
        self.limits.head = limit;
        self
    }

    /// Sets how long the head of an answer may take that comes whole (default:
    /// `None`, any time).
    ///
    /// It comes with the last token, so this is a limit on the whole work.
    #[must_use]
    pub const fn whole_head(mut self, limit: Option<Duration>) -> Self {
        self.limits.whole_head = limit;
        self
    }

    /// Sets how long the first data frame may take after the head (default:
    /// 60 s); `None` is any time, and then no head is held back.
    ///
    /// Of engines that send the head at once, this is the limit on queue and
    /// prefill.
    #[must_use]
    pub const fn first_frame(mut self, limit: Option<Duration>) -> Self {
        self.limits.first_frame = limit;
        self
    }

    /// Sets how long each frame may take after the one before it (default:
    /// 30 s), and the end after the last one; `None` is any time.
    #[must_use]
    pub const fn frame(mut self, limit: Option<Duration>) -> Self {
        self.limits.frame = limit;
        self
    }

    /// Names the worker in the errors, as it is named where it is chosen.
    ///
    /// A request that is sent again is then sent to another one, if there is
    /// one.
    #[must_use]
    pub fn worker(mut self, worker: impl Into<Arc<str>>) -> Self {
        self.limits.worker = Some(worker.into());
        self
    }

    /// Says of which requests the answers are streamed, in place of
    /// [what the requests say](ByRequest).
    ///
    /// ```
    /// use http::Request;
    /// use tower_overload::TimeLimitLayer;
    ///
    /// let layer = TimeLimitLayer::new()
    ///     .streamed_when(|request: &Request<String>| request.uri().path().ends_with("/stream"));
    /// # let _ = layer;
    /// ```
    pub fn streamed_when<F>(self, streamed: F) -> TimeLimitLayer<StreamedWhen<F>> {
        TimeLimitLayer {
            limits: self.limits,
            streamed: StreamedWhen(streamed),
        }
    }
}

impl Default for TimeLimitLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S, P: Clone> Layer<S> for TimeLimitLayer<P> {
    type Service = TimeLimit<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        TimeLimit::new(inner, Arc::new(self.limits.clone()), self.streamed.clone())
    }
}
