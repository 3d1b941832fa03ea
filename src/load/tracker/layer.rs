use super::{
    output::{Frames, StreamTokens},
    service::TrackLoad,
    worker::Worker,
};
use crate::unwind::FirstPanic;
use std::{fmt, sync::Arc};
use tower_layer::Layer;

/// Counts the requests to one worker; made by
/// [`LoadTracker::layer`](super::LoadTracker::layer).
pub struct TrackLoadLayer<C, T = StreamTokens> {
    worker: Arc<dyn Worker>,
    cost: C,
    frames: Frames<T>,
}

impl<C, T> TrackLoadLayer<C, T> {
    pub(super) fn new(worker: Arc<dyn Worker>, cost: C, frames: Frames<T>) -> Self {
        Self {
            worker,
            cost,
            frames,
        }
    }

    /// The data-parallel ranks among which a request without one is counted
    /// on the least loaded: the one with the fewest blocks, then with the
    /// fewest prefill tokens, then the first. Without any it is rank 0.
    ///
    /// They belong to the worker: they hold from now on for all its layers and
    /// services, and the last ones that were declared are the ones.
    #[must_use]
    pub fn ranks(self, ranks: impl IntoIterator<Item = u32>) -> Self {
        let mut ranks: Box<[u32]> = ranks.into_iter().collect();
        let mut panic = FirstPanic::default();
        self.worker.change(
            &mut |account| account.choose_from(std::mem::take(&mut ranks)),
            &mut panic,
        );
        panic.resume();
        self
    }
}

impl<S, C: Clone, T: Clone> Layer<S> for TrackLoadLayer<C, T> {
    type Service = TrackLoad<S, C, T>;

    fn layer(&self, inner: S) -> Self::Service {
        let (cost, frames) = (self.cost.clone(), self.frames.clone());
        TrackLoad::new(inner, self.worker.clone(), cost, frames)
    }
}

impl<C: Clone, T: Clone> Clone for TrackLoadLayer<C, T> {
    fn clone(&self) -> Self {
        Self {
            worker: self.worker.clone(),
            cost: self.cost.clone(),
            frames: self.frames.clone(),
        }
    }
}

impl<C, T> fmt::Debug for TrackLoadLayer<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackLoadLayer").finish_non_exhaustive()
    }
}
