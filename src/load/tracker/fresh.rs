use super::worker::{self, Fleet, Worker};
use crate::unwind::FirstPanic;
use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Reports within the time that a count is good: two may be late.
const TIMES: u32 = 3;

/// What a timer can tell apart, and what it can wait for.
const SHORTEST_PERIOD: Duration = Duration::from_millis(1);
const LONGEST_PERIOD: Duration = Duration::from_secs(24 * 60 * 60);

/// The most workers that are reported in one poll, so that other tasks of its
/// thread get their turn.
const WORKERS_PER_POLL: usize = 128;

/// Keeps what is reported of running requests from going stale; see
/// [`LoadTracker::keep_fresh`](super::LoadTracker::keep_fresh).
#[must_use = "futures do nothing unless polled"]
pub struct KeepFresh<K> {
    fleet: Arc<Fleet<K>>,
    /// `None`: nothing ages, or everything is stale at once.
    period: Option<Duration>,
    /// Made when it is first polled, because it needs a runtime.
    interval: Option<Interval>,
    /// Those that are still to be reported this time.
    due: Vec<Weak<dyn Worker>>,
}

impl<K> KeepFresh<K> {
    pub(super) fn new(fleet: Arc<Fleet<K>>) -> Self {
        let stale_after = fleet.monitor.stale_after();
        let period = stale_after.filter(|stale_after| !stale_after.is_zero());
        Self {
            period: period.map(|period| (period / TIMES).clamp(SHORTEST_PERIOD, LONGEST_PERIOD)),
            interval: None,
            due: Vec::new(),
            fleet,
        }
    }
}

impl<K> Future for KeepFresh<K> {
    type Output = Infallible;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Infallible> {
        let this = &mut *self;
        let Some(period) = this.period else {
            return Poll::Pending;
        };
        let interval = this.interval.get_or_insert_with(|| {
            let mut interval = interval_at(Instant::now() + period, period);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        loop {
            let rest = this.due.len().saturating_sub(WORKERS_PER_POLL);
            let mut panic = FirstPanic::default();
            for worker in this.due.drain(rest..) {
                if let Some(worker) = worker.upgrade() {
                    worker::refresh(&*worker, &mut panic);
                }
            }
            panic.resume();
            if rest > 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(interval.poll_tick(cx));
            this.due = this.fleet.all();
        }
    }
}

impl<K> fmt::Debug for KeepFresh<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepFresh")
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}
