//! What the worker's side reports.

use super::Refusal;
use crate::metrics::{
    ENGINE_REQUESTS, Prefix, QUEUE_WAIT, QUEUED_REQUESTS, WORKER_REJECTIONS,
    WORKER_REJECTIONS_BY_REASON,
};
use metrics::{Counter, Gauge, Histogram};

/// Handles, made when the first service is.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) engine: Gauge,
    pub(super) queued: Gauge,
    pub(super) queue_wait: Histogram,
    refused: Counter,
    at_capacity: Counter,
    waited_too_long: Counter,
    shutting_down: Counter,
}

impl Metrics {
    pub(super) fn new(prefix: &Prefix) -> Self {
        let by_reason =
            |refusal: Refusal| WORKER_REJECTIONS_BY_REASON.counter(prefix, &[refusal.as_str()]);
        Self {
            engine: ENGINE_REQUESTS.gauge(prefix, &[]),
            queued: QUEUED_REQUESTS.gauge(prefix, &[]),
            queue_wait: QUEUE_WAIT.histogram(prefix, &[]),
            refused: WORKER_REJECTIONS.counter(prefix, &[]),
            at_capacity: by_reason(Refusal::AtCapacity),
            waited_too_long: by_reason(Refusal::WaitedTooLong),
            shutting_down: by_reason(Refusal::ShuttingDown),
        }
    }

    #[inline]
    pub(super) fn refuse(&self, refusal: Refusal) {
        self.refused.increment(1);
        match refusal {
            Refusal::AtCapacity => self.at_capacity.increment(1),
            Refusal::WaitedTooLong => self.waited_too_long.increment(1),
            Refusal::ShuttingDown => self.shutting_down.increment(1),
        }
    }
}
