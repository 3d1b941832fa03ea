//! Workers of which nothing is heard end.

use super::{Fleet, Origin, fleet::WeakFleet};
use crate::busy::Observation;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::time::{Instant, Sleep, sleep_until};

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
}

impl<S: Clone, M> Fleet<S, M> {
    /// Removes the workers of [`Origin::Reported`] that are silent for longer
    /// than they are good for. Spawn it.
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
            // Another expiry than the one slept for, or none: heard meanwhile.
            let next = fleet.expire(Instant::now());
            this.sleep = next.map(|next| Box::pin(sleep_until(next)));
        }
    }
}

impl<S, M> fmt::Debug for Expiry<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expiry").finish_non_exhaustive()
    }
}
