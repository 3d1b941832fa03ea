//! Where the marks of one worker are, whatever the type of its id.

use super::worker::{Retired, SeatId, Tidy, Watch, WorkerState};
use crate::sync::Arc;
use std::sync;

/// A worker's entry in a set.
pub(crate) trait Lookup: Send + Sync {
    fn existing(&self) -> Option<Arc<WorkerState>>;
    fn current(&self) -> Arc<WorkerState>;
    fn tidy(&self);
}

/// Finds the state of one worker for those who mark it. The type of its id is
/// erased, so that what holds a place needs no bounds to be dropped.
#[derive(Clone)]
pub(crate) struct Place(sync::Arc<dyn Lookup>);

impl Place {
    pub(crate) fn new(lookup: impl Lookup + 'static) -> Self {
        Self(sync::Arc::new(lookup))
    }

    pub(crate) fn existing(&self) -> Option<Arc<WorkerState>> {
        self.0.existing()
    }

    pub(crate) fn current(&self) -> Arc<WorkerState> {
        self.0.current()
    }

    /// Runs `with` on the worker's state, on its successor's if it has just
    /// left.
    pub(crate) fn with_worker<R>(
        &self,
        with: impl Fn(&Arc<WorkerState>) -> Result<R, Retired>,
    ) -> R {
        loop {
            if let Ok(result) = with(&self.0.current()) {
                return result;
            }
        }
    }

    /// Seats a new connection to the worker.
    pub(crate) fn attach(&self, watch: &sync::Arc<dyn Watch>) -> (Arc<WorkerState>, SeatId) {
        let tidy: sync::Arc<dyn Tidy> = sync::Arc::new(self.clone());
        self.with_worker(|worker| {
            let seat = worker.attach(watch.clone(), tidy.clone())?;
            Ok((worker.clone(), seat))
        })
    }

    /// Forgets the worker if nothing needs it any more.
    pub(crate) fn tidy(&self) {
        self.0.tidy();
    }
}

impl Tidy for Place {
    fn tidy(&self) {
        Self::tidy(self);
    }
}
