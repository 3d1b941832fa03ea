//! All workers and models, and how a change of them becomes marks.

use super::super::{
    DropReason, LoadEvent, ModelThresholds, WorkerCounts,
    rank::{Clock, Moment},
};
use super::{
    marks::{Entry, Marks, apply},
    models::Models,
    transition::Transition,
};
use crate::{
    WorkerId,
    metrics::Prefix,
    sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, lock},
    unwind::FirstPanic,
};
use ::metrics::Counter;
use std::{collections::HashMap, mem, time::Duration};
use tokio::time::Instant;

pub(super) struct Inner<K> {
    pub(super) clock: Clock,
    pub(super) stale_after: Option<Duration>,
    pub(super) prefix: Prefix,
    /// Whether they are the recorder's.
    pub(super) worker_gauges: bool,
    pub(super) thresholds: ModelThresholds,
    /// Counts stored threshold changes; read without a lock by every event.
    pub(super) changes: Arc<AtomicU64>,
    pub(super) accepted: Counter,
    pub(super) dropped_unregistered: Counter,
    pub(super) dropped_undeclared: Counter,
    pub(super) state: Mutex<State<K>>,
}

impl<K> Drop for Inner<K> {
    fn drop(&mut self) {
        let workers = mem::take(&mut lock(&self.state).workers);
        let mut panic = FirstPanic::default();
        for entry in workers.into_values() {
            if let Marks::Here(marks) = entry.marks {
                for held in marks {
                    panic.catch(|| drop(held));
                }
            }
        }
        panic.resume();
    }
}

pub(super) struct State<K> {
    /// Whole entries in the map: at many workers, each pointer that an event
    /// follows is a cache miss.
    pub(super) workers: HashMap<K, Entry>,
    pub(super) models: Models<K>,
    /// Of workers whose counts somebody reads, registered or not.
    pub(super) counts: HashMap<K, WorkerCounts>,
    /// With so many it is looked which nobody reads any more.
    pub(super) forget_counts_at: usize,
    /// The count of threshold changes that are in effect.
    pub(super) seen_changes: u64,
}

/// As many handles are kept without a look whether somebody reads them.
pub(super) const FEW_COUNTS: usize = 64;

/// What a call leaves to do: workers whose marks have to change, transitions
/// to log, events to count, and a panic of a waker to pass on.
pub(super) struct Outcome<K> {
    pub(super) changed: Vec<K>,
    pub(super) transitions: Vec<Transition<K>>,
    pub(super) accepted: u64,
    pub(super) dropped_unregistered: u64,
    pub(super) dropped_undeclared: u64,
    pub(super) panic: FirstPanic,
}

impl<K> Default for Outcome<K> {
    fn default() -> Self {
        Self {
            changed: Vec::new(),
            transitions: Vec::new(),
            accepted: 0,
            dropped_unregistered: 0,
            dropped_undeclared: 0,
            panic: FirstPanic::default(),
        }
    }
}

impl<K> Outcome<K> {
    /// Counts an event.
    pub(super) fn count<T>(&mut self, observed: &Result<T, DropReason>) {
        match observed {
            Ok(_) => self.accepted += 1,
            Err(DropReason::UnregisteredWorker) => self.dropped_unregistered += 1,
            Err(DropReason::UndeclaredRank) => self.dropped_undeclared += 1,
        }
    }
}

impl<K: WorkerId> State<K> {
    /// Forgets the counts that nobody reads: a handle that is dropped does not
    /// say so. There are never more than twice as many as are read, and a few.
    pub(super) fn forget_unread_counts(&mut self) {
        let workers = &mut self.workers;
        self.counts.retain(|key, counts| {
            let entry = workers.get_mut(key);
            let here = entry.and_then(|entry| entry.worker.as_mut());
            let reporters = 1 + usize::from(here.is_some());
            let unread = counts.is_unread(reporters);
            if let Some(worker) = here.filter(|_| unread) {
                worker.counts = None;
            }
            !unread
        });
        self.forget_counts_at = FEW_COUNTS.max(2 * self.counts.len());
    }

    /// Whether a worker of that id is registered.
    pub(super) fn knows(&self, worker: &K) -> bool {
        let entry = self.workers.get(worker);
        entry.is_some_and(|entry| entry.worker.is_some())
    }

    /// Takes the counts of an event and judges its worker, or all workers if
    /// thresholds have changed since the last time. Returns whether the marks
    /// of the event's worker have to change; those of others are in `outcome`.
    pub(super) fn observe(
        &mut self,
        event: &LoadEvent<K>,
        at: At,
        outcome: &mut Outcome<K>,
    ) -> Result<bool, DropReason> {
        let worker = self
            .workers
            .get_mut(&event.worker)
            .and_then(|entry| entry.worker.as_mut())
            .ok_or(DropReason::UnregisteredWorker)?;
        let rank = worker
            .ranks
            .binary_search_by_key(&event.dp_rank, |rank| rank.dp_rank)
            .map_err(|_| DropReason::UndeclaredRank)?;
        let rank = &mut worker.ranks[rank];
        let before = rank.load.last_reported();
        rank.load.report(event, at.good_until);
        let is_news = before != rank.load.last_reported();
        // Under the lock, so that a gauge never goes back to an older value.
        rank.gauges.report(event);
        worker.signals.report(event);
        worker.news = worker.news.wrapping_add(u64::from(is_news));
        worker.publish_counts(at.good_until);
        if at.changes != self.seen_changes {
            self.judge_all(at, outcome);
            return Ok(false);
        }
        let transitions = &mut outcome.transitions;
        let has_changed = worker.judge(&event.worker, &mut self.models, at.now, transitions);
        // The mark is to know that the worker says something new.
        Ok(has_changed || (is_news && worker.is_busy()))
    }

    /// Puts the stored thresholds into effect and judges every worker.
    pub(super) fn judge_all(&mut self, at: At, outcome: &mut Outcome<K>) {
        self.seen_changes = at.changes;
        for model in self.models.places.iter_mut().flatten() {
            model.thresholds = model.handle.get();
        }
        for (key, entry) in &mut self.workers {
            let Some(worker) = &mut entry.worker else {
                continue;
            };
            if worker.judge(key, &mut self.models, at.now, &mut outcome.transitions) {
                outcome.changed.push(key.clone());
            }
        }
    }
}

/// When an event arrived, and what follows from that.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) now: Moment,
    pub(super) good_until: Moment,
    /// How many threshold changes were stored by then.
    pub(super) changes: u64,
}

impl<K: WorkerId> Inner<K> {
    /// Brings the marks of a worker to what they should be. The lock is
    /// released while they change. A panic of a waker is left in `panic`.
    ///
    /// If another thread is at it, it will see to this change as well.
    pub(super) fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<K>>,
        key: &K,
        panic: &mut FirstPanic,
    ) -> MutexGuard<'a, State<K>> {
        let mut out = None;
        loop {
            let State {
                workers, models, ..
            } = &mut *state;
            let Some(entry) = workers.get_mut(key) else {
                return state;
            };
            let mut marks = match out.take() {
                Some(marks) => marks,
                None => match mem::replace(&mut entry.marks, Marks::Out) {
                    Marks::Here(marks) => marks,
                    Marks::Out => return state,
                },
            };
            if !entry.plan(key, models, &mut marks) {
                entry.marks = Marks::Here(marks);
                if entry.worker.is_none() {
                    workers.remove(key);
                }
                return state;
            }
            drop(state);
            apply(&mut marks, &self.clock, panic);
            out = Some(marks);
            state = lock(&self.state);
        }
    }

    pub(super) fn finish<'a>(&'a self, mut state: MutexGuard<'a, State<K>>, outcome: Outcome<K>) {
        let mut panic = outcome.panic;
        for key in &outcome.changed {
            state = self.settle(state, key, &mut panic);
        }
        drop(state);
        for (counter, events) in [
            (&self.accepted, outcome.accepted),
            (&self.dropped_unregistered, outcome.dropped_unregistered),
            (&self.dropped_undeclared, outcome.dropped_undeclared),
        ] {
            if events > 0 {
                counter.increment(events);
            }
        }
        for transition in &outcome.transitions {
            transition.log();
        }
        panic.resume();
    }

    /// Asked under the lock, so that the count of changes never goes back.
    pub(super) fn at(&self, now: Instant) -> At {
        let now = self.clock.moment(now);
        At {
            now,
            good_until: now.plus(self.stale_after),
            changes: self.changes.load(Ordering::Acquire),
        }
    }
}
