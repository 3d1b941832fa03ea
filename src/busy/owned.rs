//! The marks that somebody owns: they end with their owner.

use super::{place::Place, worker::WorkerState};
use crate::sync::Arc;
use std::fmt;
use tokio::time::Instant;

/// The busy mark of one worker, owned by the one who judges its load.
pub struct BusyMark {
    place: Place,
    /// Where the mark was last set.
    worker: Option<Arc<WorkerState>>,
}

impl BusyMark {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            worker: None,
        }
    }

    /// Marks the worker busy until the instant, or until it is cleared;
    /// replaces an earlier end, be it sooner or later.
    ///
    /// The mark falls at its end without any event.
    ///
    /// This is news of the worker: it is
    /// [asked](super::BusySetBuilder::probe_after) only if it stays busy
    /// without any.
    pub fn set(&mut self, until: Option<Instant>) {
        self.set_to(until, true);
    }

    /// As [`set`](Self::set), for a worker that says the same as before: it may
    /// be that what it says is stuck.
    pub fn keep(&mut self, until: Option<Instant>) {
        self.set_to(until, false);
    }

    fn set_to(&mut self, until: Option<Instant>, is_news: bool) {
        let known = self.worker.as_ref();
        if known.is_some_and(|worker| worker.set_busy(until, is_news).is_ok()) {
            return;
        }
        loop {
            // Known before it is marked: whatever a waker does, it is cleared.
            let worker = self.place.current();
            let worker = self.worker.insert(worker);
            if worker.set_busy(until, is_news).is_ok() {
                return;
            }
        }
    }

    /// Takes the mark off, if it is on.
    pub fn clear(&mut self) {
        let Some(worker) = &self.worker else {
            return;
        };
        if worker.clear_busy().is_ok() {
            return;
        }
        // The worker was replaced in between; its successor has the mark.
        self.worker = None;
        while let Some(worker) = self.place.existing() {
            if worker.clear_busy().is_ok() {
                self.worker = Some(worker);
                return;
            }
        }
    }
}

impl Drop for BusyMark {
    fn drop(&mut self) {
        self.clear();
        if self.worker.is_some() {
            self.place.tidy();
        }
    }
}

impl fmt::Debug for BusyMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusyMark")
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

/// Keeps new requests away from a worker while it lives.
pub struct DrainMark {
    place: Place,
}

impl DrainMark {
    pub(super) fn new(place: Place) -> Self {
        place.with_worker(|worker| worker.drain());
        Self { place }
    }
}

impl Drop for DrainMark {
    fn drop(&mut self) {
        self.place.with_worker(|worker| worker.undrain());
        self.place.tidy();
    }
}

impl fmt::Debug for DrainMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrainMark").finish_non_exhaustive()
    }
}
