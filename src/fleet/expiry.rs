//! Workers of which nothing is heard end.

use super::{Fleet, Origin, fleet::WeakFleet};
use crate::busy::Observation;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// Woken so much later than it asked to be, this process was stopped or had no
/// time, and what workers say is still to be read.
const LATE: Duration = Duration::from_secs(1);

/// Workers have so long to be heard then. They may have to connect again.
const GRACE: Duration = Duration::from_secs(5);

/// When a worker ends if nothing is heard of it after `heard`.
pub(super) fn next_end(origin: &Origin, heard: Instant) -> Option<Instant> {
    match origin {
        Origin::Reported(ttl) => Some(heard + *ttl),
        Origin::Static | Origin::Source(_) => None,
    }
}

/// Removes the workers of a fleet that are silent for too long; made by
/// [`Fleet::expiry`].
#[must_use = "futures do nothing unless polled"]
pub struct Expiry<S, M> {
    fleet: WeakFleet<S, M>,
    changes: Observation,
    seen: u64,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Until then nobody is silent.
    grace: Option<Instant>,
}

impl<S: Clone, M> Fleet<S, M> {
    /// Removes the workers of [`Origin::Reported`] that are silent for longer
    /// than they are good for. Spawn it.
    ///
    /// If this process was stopped for a while, they are heard first: they have
    /// 5 s from when it goes on.
    ///
    /// Completes when the fleet is gone. Cancel safe: another one goes on where
    /// it was dropped.
    ///
    /// # Panics
    ///
    /// When it is polled outside of a tokio runtime that has its timer enabled.
    pub fn expiry(&self) -> Expiry<S, M> {
        Expiry {
            fleet: self.downgrade(),
            changes: self.changed().observe(),
            seen: 0,
            sleep: None,
            grace: None,
        }
    }
}

impl<S: Clone, M> Future for Expiry<S, M> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let slept = match &mut this.sleep {
                Some(sleep) => sleep.as_mut().poll(cx).is_ready(),
                None => false,
            };
            this.changes.register(cx.waker());
            let epoch = this.changes.epoch();
            if epoch == this.seen && !slept {
                // Woken by the timer, by a change, or by the last handle.
                return Poll::Pending;
            }
            this.seen = epoch;
            let Some(fleet) = this.fleet.upgrade() else {
                return Poll::Ready(());
            };
            let now = Instant::now();
            let asked_for = this.sleep.as_ref().map(|sleep| sleep.deadline());
            if asked_for.is_some_and(|asked_for| now - asked_for > LATE) {
                this.grace = Some(now + GRACE);
            }
            this.grace.take_if(|grace| *grace <= now);
            // Another expiry than the one slept for, or none: heard meanwhile.
            let next = this.grace.or_else(|| fleet.expire(now));
            this.sleep = next.map(|next| Box::pin(sleep_until(next)));
        }
    }
}

impl<S, M> fmt::Debug for Expiry<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expiry").finish_non_exhaustive()
    }
}
