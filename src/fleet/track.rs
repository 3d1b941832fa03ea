use super::{Id, worker::Track};
use crate::load::tracker::LoadTracker;

impl<C, T> Track for LoadTracker<Id, C, T>
where
    C: Clone + Send + Sync,
    T: Clone + Send + Sync,
{
    fn configured(&self, id: &Id, ranks: &[u32]) {
        drop(self.layer(id.clone()).ranks(ranks.iter().copied()));
        self.report(id);
    }

    fn hand_over(&self, id: &Id) {
        LoadTracker::hand_over(self, id);
    }

    fn has(&self, id: &Id) -> bool {
        LoadTracker::has(self, id)
    }
}
