use super::service::BusyFilter;
use crate::{busy::members::Members, metrics::Prefix};
use std::time::Duration;
use tower_layer::Layer;

/// Answers for a balanced service set when none of its workers is ready.
///
/// It stands directly above the balancer, whose readiness it judges: a `Buffer`
/// in between is always ready, and would leave it nothing to say. It takes the
/// handle to the membership of the [`BusyDiscover`] that feeds the balancer.
///
/// [`BusyDiscover`]: crate::busy::BusyDiscover
#[derive(Clone, Debug)]
#[must_use]
pub struct BusyFilterLayer {
    pub(super) members: Members,
    pub(super) options: Options,
}

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) max_wait: Duration,
    pub(super) startup_grace: Duration,
    pub(super) model: Box<str>,
    pub(super) prefix: Prefix,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(3),
            startup_grace: Duration::ZERO,
            model: "".into(),
            prefix: Prefix::default(),
        }
    }
}

/// The longest wait that can be configured: a day.
const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

impl BusyFilterLayer {
    /// A filter over the balancer that the members belong to.
    pub fn new(members: Members) -> Self {
        Self {
            members,
            options: Options::default(),
        }
    }

    /// How long a request waits at most for a worker that has no mark and is
    /// not ready, a connecting one for example (default: 3 s; at most a day).
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.options.max_wait = max_wait.min(MAX_WAIT);
        self
    }

    /// How long after its start the filter makes requests wait while the
    /// discovery has not said anything yet, instead of calling them
    /// unavailable (default: not at all; at most a day).
    pub fn startup_grace(mut self, grace: Duration) -> Self {
        self.options.startup_grace = grace.min(MAX_WAIT);
        self
    }

    /// The model label of the metrics and logs (default: empty).
    pub fn model(mut self, model: impl Into<Box<str>>) -> Self {
        self.options.model = model.into();
        self
    }

    /// What the names of the metrics start with (default: `dynamo`).
    pub fn metrics_prefix(mut self, prefix: Prefix) -> Self {
        self.options.prefix = prefix;
        self
    }
}

impl<S> Layer<S> for BusyFilterLayer {
    type Service = BusyFilter<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BusyFilter::new(inner, self.members.clone(), self.options.clone())
    }
}
