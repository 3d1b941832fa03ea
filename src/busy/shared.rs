//! What the workers of one set have in common.

use super::marks::{EXCLUDED, Mark, Times};
use crate::metrics::{self, Prefix};

/// What the workers of a set share: the durations of marks, and where their
/// changes are counted and logged.
pub(crate) struct Shared {
    pub(crate) times: Times,
    pub(crate) model: Box<str>,
    pub(crate) prefix: Prefix,
    marked: [::metrics::Counter; 4],
    excluded: [::metrics::Gauge; 4],
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

    /// The bits of a worker changed; `live` if it has a connection.
    pub(crate) fn transition(&self, worker: &str, old: u64, new: u64, live: bool) {
        for mark in Mark::ALL {
            let (was, is) = (old & mark.bit() != 0, new & mark.bit() != 0);
            if was == is {
                continue;
            }
            if is {
                self.marked[mark as usize].increment(1);
            }
            if live {
                self.count(mark, is);
            }
            let (model, mark) = (&*self.model, mark.as_str());
            // Under overload leases come and go with the requests; and whoever
            // judges the load knows the numbers, and has logged them.
            if new & (Mark::Unreachable.bit() | Mark::Draining.bit())
                != old & (Mark::Unreachable.bit() | Mark::Draining.bit())
            {
                tracing::info!(model, worker, mark, on = is, "worker mark changed");
            } else {
                tracing::debug!(model, worker, mark, on = is, "worker mark changed");
            }
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
