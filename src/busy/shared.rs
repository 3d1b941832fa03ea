//! What the workers of one set have in common.

use super::marks::{EXCLUDED, Mark, Marks, Times};
use crate::metrics::{self, Prefix};
use tokio::time::Instant;

/// What the workers of a set share: the durations of marks, and where their
/// changes are counted and logged.
pub(crate) struct Shared {
    pub(crate) times: Times,
    pub(crate) model: Box<str>,
    pub(crate) prefix: Prefix,
    marked: [::metrics::Counter; 5],
    excluded: [::metrics::Gauge; 5],
}

/// A change of a worker's marks, to be counted and logged.
pub(crate) struct Transition {
    old: u64,
    new: u64,
    /// It has a connection.
    live: bool,
    /// What the worker has come to.
    marks: Marks,
}

impl Transition {
    pub(crate) fn new(old: u64, new: u64, live: bool, marks: &Marks) -> Self {
        let marks = marks.clone();
        Self {
            old,
            new,
            live,
            marks,
        }
    }
}

impl Shared {
    pub(crate) fn new(times: Times, model: Box<str>, prefix: Prefix) -> Self {
        let label = |mark: Mark| [&*model, mark.as_str()];
        Self {
            times,
            marked: Mark::ALL.map(|mark| metrics::WORKER_MARKS.counter(&prefix, &label(mark))),
            excluded: Mark::ALL.map(|mark| metrics::EXCLUDED_WORKERS.gauge(&prefix, &label(mark))),
            model,
            prefix,
        }
    }

    pub(crate) fn transition(&self, worker: &str, transition: &Transition) {
        let (old, new) = (transition.old, transition.new);
        for mark in Mark::ALL {
            let (was, is) = (old & mark.bit() != 0, new & mark.bit() != 0);
            if was == is {
                continue;
            }
            if is {
                self.marked[mark as usize].increment(1);
            }
            if transition.live {
                self.count(mark, is);
            }
            self.log(worker, mark, is, &transition.marks);
        }
    }

    fn log(&self, worker: &str, mark: Mark, on: bool, marks: &Marks) {
        let model = &*self.model;
        let until_ms = || {
            let left = marks.end(mark)?.checked_duration_since(Instant::now())?;
            u64::try_from(left.as_millis()).ok()
        };
        let until_ms = if on { until_ms() } else { None };
        let (in_a_row, of_last_32) = marks.failures();
        let mark_name = mark.as_str();
        match mark {
            Mark::Failing => tracing::info!(
                model,
                worker,
                mark = mark_name,
                on,
                until_ms,
                in_a_row,
                of_last_32,
                "worker mark changed"
            ),
            Mark::Unreachable | Mark::Draining => tracing::info!(
                model,
                worker,
                mark = mark_name,
                on,
                until_ms,
                "worker mark changed"
            ),
            // Under overload leases come and go with the requests; and whoever
            // judges the load knows the numbers, and has logged them.
            Mark::Busy | Mark::Leased => tracing::debug!(
                model,
                worker,
                mark = mark_name,
                on,
                until_ms,
                "worker mark changed"
            ),
        }
    }

    /// The first connection to a worker with these marks came, or its last went.
    pub(crate) fn live(&self, bits: u64, live: bool) {
        if bits & EXCLUDED == 0 {
            return;
        }
        for mark in Mark::ALL {
            if bits & mark.bit() != 0 {
                self.count(mark, live);
            }
        }
    }

    fn count(&self, mark: Mark, up: bool) {
        let gauge = &self.excluded[mark as usize];
        if up {
            gauge.increment(1.0);
        } else {
            gauge.decrement(1.0);
        }
    }
}
