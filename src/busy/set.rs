use crate::sync::{Arc, Mutex, lock};
use std::{collections::HashMap, fmt, hash::Hash};
use tokio::time::Instant;

type Marks<K> = Arc<Mutex<HashMap<K, Option<Instant>>>>;

/// The marks of workers, by worker; clones share them.
pub struct BusySet<K> {
    marks: Marks<K>,
}

impl<K: Clone + Eq + Hash> BusySet<K> {
    /// A set without marks.
    pub fn new() -> Self {
        Self {
            marks: Marks::default(),
        }
    }

    /// The busy mark of a worker; held by whoever judges its load. Dropping
    /// it clears the mark.
    pub fn busy_mark(&self, worker: K) -> BusyMark<K> {
        BusyMark {
            marks: self.marks.clone(),
            clear: |marks, worker| {
                lock(marks).remove(worker);
            },
            set: |marks, worker, until| {
                lock(marks).insert(worker.clone(), until);
            },
            worker,
        }
    }

    /// Whether the worker is marked busy now.
    pub fn is_busy(&self, worker: &K) -> bool {
        match lock(&self.marks).get(worker) {
            Some(Some(until)) => *until > Instant::now(),
            Some(None) => true,
            None => false,
        }
    }
}

impl<K: Clone + Eq + Hash> Default for BusySet<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Clone for BusySet<K> {
    fn clone(&self) -> Self {
        Self {
            marks: self.marks.clone(),
        }
    }
}

impl<K> fmt::Debug for BusySet<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusySet").finish_non_exhaustive()
    }
}

/// The busy mark of one worker.
pub struct BusyMark<K> {
    marks: Marks<K>,
    worker: K,
    clear: fn(&Marks<K>, &K),
    set: fn(&Marks<K>, &K, Option<Instant>),
}

impl<K> BusyMark<K> {
    /// Marks the worker until then, or without end.
    pub fn set(&mut self, until: Option<Instant>) {
        (self.set)(&self.marks, &self.worker, until);
    }

    /// Clears the mark.
    pub fn clear(&mut self) {
        (self.clear)(&self.marks, &self.worker);
    }
}

impl<K> Drop for BusyMark<K> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<K: fmt::Debug> fmt::Debug for BusyMark<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BusyMark").field(&self.worker).finish()
    }
}
