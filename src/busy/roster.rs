//! A [`Discover`](tower::discover::Discover) that the application writes to.

use crate::sync::{Arc, Mutex, lock};
use futures::Stream;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    convert::Infallible,
    fmt,
    hash::Hash,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use tower::discover::Change;

/// Makes a roster of workers and the stream of its changes, a
/// [`Discover`](tower::discover::Discover) for a balancer.
///
/// Nothing polls a balancer while it is idle, so changes may wait for long:
/// there is at most one for each worker, the latest. A worker that came and
/// went in between leaves nothing.
pub fn roster<K, S>() -> (Roster<K, S>, RosterChanges<K, S>) {
    let shared = Arc::new(Mutex::new(State {
        next: 0,
        order: BTreeMap::new(),
        pending: HashMap::new(),
        known: HashSet::new(),
        waker: None,
    }));
    let changes = RosterChanges {
        shared: shared.clone(),
    };
    (Roster { shared }, changes)
}

/// The handle by which the application adds and removes workers. Clones share
/// the roster.
pub struct Roster<K, S> {
    shared: Arc<Mutex<State<K, S>>>,
}

/// The changes of a [`Roster`]; it never fails and never ends.
pub struct RosterChanges<K, S> {
    shared: Arc<Mutex<State<K, S>>>,
}

struct State<K, S> {
    next: u64,
    order: BTreeMap<u64, K>,
    /// The latest change of each worker, with its place in the order.
    pending: HashMap<K, (u64, Option<S>)>,
    /// The workers that the balancer knows of.
    known: HashSet<K>,
    waker: Option<Waker>,
}

impl<K: Clone + Eq + Hash, S> Roster<K, S> {
    /// Adds a worker, or replaces the one with this id.
    pub fn insert(&self, worker: K, service: S) {
        self.change(worker, Some(service));
    }

    /// Removes a worker; requests that it has go on.
    pub fn remove(&self, worker: &K) {
        self.change(worker.clone(), None);
    }

    fn change(&self, worker: K, service: Option<S>) {
        let mut state = lock(&self.shared);
        let replaced = state.pending.remove(&worker);
        if let Some((place, _)) = &replaced {
            state.order.remove(place);
        }
        if service.is_some() || state.known.contains(&worker) {
            let place = state.next;
            state.next += 1;
            state.order.insert(place, worker.clone());
            state.pending.insert(worker, (place, service));
        }
        let waker = state.waker.take();
        drop(state);
        drop(replaced);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<K: Clone + Eq + Hash, S> Stream for RosterChanges<K, S> {
    type Item = Result<Change<K, S>, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut guard = lock(&self.shared);
        let state = &mut *guard;
        if let Some((_, worker)) = state.order.pop_first() {
            let service = state
                .pending
                .remove(&worker)
                .and_then(|(_, service)| service);
            return Poll::Ready(Some(Ok(match service {
                Some(service) => {
                    state.known.insert(worker.clone());
                    Change::Insert(worker, service)
                }
                None => {
                    state.known.remove(&worker);
                    Change::Remove(worker)
                }
            })));
        }
        let waker = &mut state.waker;
        let old = match waker {
            Some(waker) if waker.will_wake(cx.waker()) => None,
            _ => waker.replace(cx.waker().clone()),
        };
        drop(guard);
        drop(old);
        Poll::Pending
    }
}

impl<K, S> Clone for Roster<K, S> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<K, S> fmt::Debug for Roster<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster").finish_non_exhaustive()
    }
}

impl<K, S> fmt::Debug for RosterChanges<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RosterChanges").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, StreamExt};

    fn next(changes: &mut RosterChanges<&'static str, u32>) -> Option<(&'static str, Option<u32>)> {
        match changes.next().now_or_never()?? {
            Ok(Change::Insert(worker, service)) => Some((worker, Some(service))),
            Ok(Change::Remove(worker)) => Some((worker, None)),
            Err(never) => match never {},
        }
    }

    #[test]
    fn only_the_latest_change_of_a_worker_waits() {
        let (roster, mut changes) = roster();
        roster.insert("a", 1);
        roster.insert("b", 1);
        roster.insert("a", 2);
        assert_eq!(next(&mut changes), Some(("b", Some(1))));
        assert_eq!(next(&mut changes), Some(("a", Some(2))));
        assert_eq!(next(&mut changes), None);
        roster.remove(&"a");
        roster.insert("a", 3);
        assert_eq!(next(&mut changes), Some(("a", Some(3))));
        roster.remove(&"a");
        assert_eq!(next(&mut changes), Some(("a", None)));
        assert_eq!(next(&mut changes), None);
    }

    #[test]
    fn a_worker_that_came_and_went_unseen_leaves_nothing() {
        let (roster, mut changes) = roster();
        for worker in ["a", "b", "c"] {
            roster.insert(worker, 1);
            roster.remove(&worker);
        }
        let state = lock(&roster.shared);
        assert!(state.order.is_empty() && state.pending.is_empty() && state.known.is_empty());
        drop(state);
        assert_eq!(next(&mut changes), None);
    }

    #[test]
    fn a_change_wakes_the_one_who_waits() {
        let (roster, mut changes) = roster();
        let mut task = tokio_test::task::spawn(async move { changes.next().await });
        assert!(task.poll().is_pending());
        roster.insert("a", 1);
        assert!(task.is_woken());
        assert!(task.poll().is_ready());
    }
}
