use super::{LoadEvent, Observed, WorkerMonitor};
use crate::WorkerId;
use futures::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// The most events that one poll takes from a stream that is always ready, so
/// that other tasks of its thread get their turn.
pub(super) const EVENTS_PER_POLL: usize = 256;

pin_project! {
    /// Feeds a monitor from a stream of load events; see [`WorkerMonitor::drive`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Drive<K, S> {
        #[pin]
        events: S,
        monitor: WorkerMonitor<K>,
        batch: Vec<LoadEvent<K>>,
        observed: Observed,
    }
}

impl<K: WorkerId> WorkerMonitor<K> {
    /// Feeds the monitor from a stream of load events.
    ///
    /// The future ends when the stream does, which means that the source of
    /// the events is gone: it says so in the log, and returns how many events
    /// were accepted and dropped. Nothing hangs by that; marks fall when their
    /// evidence is stale. [`follow`](Self::follow) connects again.
    ///
    /// Cancel safe: a dropped future loses no event that it has taken.
    ///
    /// ```
    /// use futures::stream;
    /// use tower_overload::{
    ///     busy::BusySet,
    ///     load::{LoadEvent, WorkerConfig, WorkerMonitor},
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (monitor, _thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
    /// monitor.configure_for_all("worker-0", WorkerConfig::new([0])?);
    /// let events = stream::iter([
    ///     LoadEvent::new("worker-0", 0).kv_used_blocks(10),
    ///     LoadEvent::new("worker-7", 0).kv_used_blocks(10),
    /// ]);
    /// let observed = monitor.drive(events).await;
    /// assert_eq!((observed.accepted, observed.dropped), (1, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn drive<S>(&self, events: S) -> Drive<K, S>
    where
        S: Stream<Item = LoadEvent<K>>,
    {
        Drive {
            events,
            monitor: self.clone(),
            batch: Vec::new(),
            observed: Observed::default(),
        }
    }

    /// Observes the events of a batch and empties it.
    pub(super) fn observe_batch(&self, batch: &mut Vec<LoadEvent<K>>) -> Observed {
        if batch.is_empty() {
            return Observed::default();
        }
        let observed = self.observe_all(batch);
        batch.clear();
        observed
    }
}

impl<K, S> Future for Drive<K, S>
where
    K: WorkerId,
    S: Stream<Item = LoadEvent<K>>,
{
    type Output = Observed;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Observed> {
        let mut this = self.project();
        let ended = loop {
            match this.events.as_mut().poll_next(cx) {
                Poll::Ready(Some(event)) => this.batch.push(event),
                Poll::Ready(None) => break true,
                Poll::Pending => break false,
            }
            if this.batch.len() == EVENTS_PER_POLL {
                cx.waker().wake_by_ref();
                break false;
            }
        };
        let observed = this.monitor.observe_batch(this.batch);
        this.observed.accepted += observed.accepted;
        this.observed.dropped += observed.dropped;
        if !ended {
            return Poll::Pending;
        }
        tracing::warn!(
            accepted = this.observed.accepted,
            dropped = this.observed.dropped,
            "the source of load events ended"
        );
        Poll::Ready(*this.observed)
    }
}

impl<K, S> fmt::Debug for Drive<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive")
            .field("observed", &self.observed)
            .finish_non_exhaustive()
    }
}
