use super::Id;
use crate::{
    busy::BusySet,
    sync::{Mutex, lock},
};
use std::{fmt, mem, sync::Arc};

/// What shows that a worker is there, and ends its marks in the sets of all
/// its models.
///
/// For the [one who connects](super::Connect::signs) and for what looks after
/// workers beside the requests that they get. It is of one worker at one URL:
/// when that has left, it says nothing any more. Clones are the same one.
#[derive(Clone)]
pub struct SignsOfLife(Arc<Inner>);

struct Inner {
    id: Id,
    sets: Mutex<Arc<[BusySet<Id>]>>,
}

impl SignsOfLife {
    pub(super) fn of(id: Id) -> Self {
        Self(Arc::new(Inner {
            id,
            sets: Mutex::new(Arc::new([])),
        }))
    }

    /// The worker serves other models from here on.
    pub(super) fn mark_in(&self, sets: impl Iterator<Item = BusySet<Id>>) {
        let sets = sets.collect();
        let old = mem::replace(&mut *lock(&self.0.sets), sets);
        drop(old);
    }

    /// It has left: what is seen of it later is of no other.
    pub(super) fn end(&self) {
        self.mark_in([].into_iter());
    }

    /// It was reached from here: ends the mark *unreachable*.
    pub fn reached(&self) {
        self.each(|set, id| set.reached(id));
    }

    /// It said something, or something was heard of it: see
    /// [`BusySet::alive`].
    pub fn alive(&self) {
        self.each(|set, id| set.alive(id));
    }

    fn each(&self, say: impl Fn(&BusySet<Id>, &Id)) {
        // A mark that ends wakes others: not under the lock.
        let sets = lock(&self.0.sets).clone();
        sets.iter().for_each(|set| say(set, &self.0.id));
    }
}

impl fmt::Debug for SignsOfLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SignsOfLife").field(&self.0.id).finish()
    }
}
