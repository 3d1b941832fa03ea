//! Who waits at the gate: two queues threaded through one slab.
//!
//! Every operation takes constant time. The slab keeps its size, which is the
//! most that have waited at one time, so waiting allocates only while that
//! number grows.

use std::task::Waker;

/// Names an entry from its insertion until its removal.
pub(super) type Key = usize;

/// What an entry waits for, or what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Waits for a place, in line.
    Parked,
    /// Holds a place and waits for a slot, in line.
    Queued,
    /// Owns a slot that has not been claimed yet.
    Granted {
        /// Whether it counts as awaiting its first token.
        counted: bool,
    },
    /// Was sent away because the gate has closed.
    Closed,
}

#[derive(Debug, Default)]
pub(super) struct Waiters {
    entries: Vec<Entry>,
    vacant: Option<Key>,
    queued: Line,
    parked: Line,
}

#[derive(Debug)]
struct Entry {
    /// `None` while the entry is vacant.
    state: Option<State>,
    waker: Option<Waker>,
    /// Neighbours in the entry's line; of a vacant entry, `next` is the next
    /// vacant one.
    next: Option<Key>,
    prev: Option<Key>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    head: Option<Key>,
    tail: Option<Key>,
}

impl Waiters {
    /// Joins the end of the line that belongs to `state`.
    pub(super) fn insert(&mut self, state: State, waker: Option<Waker>) -> Key {
        let entry = Entry {
            state: Some(state),
            waker,
            next: None,
            prev: None,
        };
        let key = match self.vacant {
            Some(key) => {
                self.vacant = self.entries[key].next;
                self.entries[key] = entry;
                key
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.link(key, state);
        key
    }

    /// Leaves its line and joins the end of the one that belongs to `state`,
    /// if there is one. The waker is handed back: whoever waits is to be told.
    pub(super) fn change(&mut self, key: Key, state: State) -> Option<Waker> {
        self.unlink(key);
        self.entries[key].state = Some(state);
        self.link(key, state);
        self.entries[key].waker.take()
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Waker> {
        self.unlink(key);
        let entry = &mut self.entries[key];
        entry.state = None;
        entry.next = self.vacant.replace(key);
        entry.waker.take()
    }

    pub(super) fn state(&self, key: Key) -> State {
        self.entries[key].state.expect("a key names a live entry")
    }

    pub(super) fn waker(&mut self, key: Key) -> &mut Option<Waker> {
        &mut self.entries[key].waker
    }

    /// The oldest that waits for a slot.
    pub(super) fn first_queued(&self) -> Option<Key> {
        self.queued.head
    }

    /// The oldest that waits for a place.
    pub(super) fn first_parked(&self) -> Option<Key> {
        self.parked.head
    }

    /// Nobody waits for a slot or for a place.
    pub(super) fn is_empty(&self) -> bool {
        self.queued.head.is_none() && self.parked.head.is_none()
    }

    fn line(&mut self, state: State) -> Option<&mut Line> {
        match state {
            State::Queued => Some(&mut self.queued),
            State::Parked => Some(&mut self.parked),
            State::Granted { .. } | State::Closed => None,
        }
    }

    fn link(&mut self, key: Key, state: State) {
        let Some(line) = self.line(state) else { return };
        let prev = line.tail.replace(key);
        if prev.is_none() {
            line.head = Some(key);
        }
        self.entries[key].prev = prev;
        if let Some(prev) = prev {
            self.entries[prev].next = Some(key);
        }
    }

    fn unlink(&mut self, key: Key) {
        let state = self.state(key);
        let entry = &mut self.entries[key];
        let (prev, next) = (entry.prev.take(), entry.next.take());
        let Some(line) = self.line(state) else { return };
        if prev.is_none() {
            line.head = next;
        }
        if next.is_none() {
            line.tail = prev;
        }
        if let Some(prev) = prev {
            self.entries[prev].next = next;
        }
        if let Some(next) = next {
            self.entries[next].prev = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn order(waiters: &Waiters, mut at: Option<Key>) -> Vec<Key> {
        let mut keys = Vec::new();
        while let Some(key) = at {
            keys.push(key);
            at = waiters.entries[key].next;
        }
        keys
    }

    proptest! {
        #[test]
        fn both_lines_keep_the_order_of_arrival(steps in prop::collection::vec((0..5u8, 0..64usize), 0..200)) {
            let mut waiters = Waiters::default();
            let mut queued = VecDeque::new();
            let mut parked = VecDeque::new();
            let mut most = 0;
            for (step, pick) in steps {
                match step {
                    0 => queued.push_back(waiters.insert(State::Queued, None)),
                    1 => parked.push_back(waiters.insert(State::Parked, None)),
                    2 if !queued.is_empty() => {
                        let at = pick % queued.len();
                        waiters.remove(queued.remove(at).unwrap());
                    }
                    3 if !parked.is_empty() => {
                        let at = pick % parked.len();
                        waiters.remove(parked.remove(at).unwrap());
                    }
                    4 if !parked.is_empty() => {
                        let key = parked.pop_front().unwrap();
                        waiters.change(key, State::Queued);
                        queued.push_back(key);
                    }
                    _ => {}
                }
                most = most.max(queued.len() + parked.len());
                prop_assert_eq!(order(&waiters, waiters.first_queued()), Vec::from(queued.clone()));
                prop_assert_eq!(order(&waiters, waiters.first_parked()), Vec::from(parked.clone()));
                prop_assert_eq!(waiters.is_empty(), queued.is_empty() && parked.is_empty());
                prop_assert_eq!(waiters.entries.len(), most);
            }
        }
    }
}
