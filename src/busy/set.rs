//! The marks of all workers of one model, by worker id.

use super::{
    builder::{BusySetBuilder, BusySetError},
    marks::{EXCLUDED, Mark, Marks, Times},
    owned::{BusyMark, DrainMark},
    place::{Lookup, Place},
    shared::Shared,
    worker::{SeatId, WorkerState},
};
use crate::{
    WorkerId,
    metrics::Prefix,
    sync::{Arc, Mutex, lock},
};
use std::{collections::HashMap, fmt, time::Duration};
use tokio::time::Instant;

/// The marks that keep requests away from workers, by worker id.
///
/// It is what routing and monitoring share: the monitor marks workers *busy*,
/// requests mark the worker that they were sent to *leased* or *unreachable*,
/// the operator takes one out by a *draining* mark. Which workers are alive is
/// not its business; that is the [membership](super::Members) of a
/// [`WorkerPool`](crate::pool::WorkerPool) or a
/// [`BusyDiscover`](super::BusyDiscover).
///
/// A mark that somebody owns ([`BusyMark`], [`DrainMark`]) ends with its
/// owner; the others end by time. Memory is used for workers that have an
/// connection or a mark, not for every id ever seen. Clones share the set.
pub struct BusySet<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    workers: Mutex<Workers<K>>,
    shared: Arc<Shared>,
}

struct Workers<K> {
    by_id: HashMap<K, Arc<WorkerState>>,
    /// At this size the map is searched for workers that nobody needs.
    sweep_at: usize,
}

const MIN_SWEEP: usize = 64;

impl<K> BusySet<K> {
    /// A set with the default times: a lease of 1 s (at most 30 s if the
    /// worker names one), a cooldown of 1 s that doubles up to 30 s.
    pub fn new() -> Self {
        Self::builder()
            .build()
            .expect("the default times are within bounds")
    }

    /// A set with other times, or with the labels of its metrics.
    pub fn builder() -> BusySetBuilder {
        BusySetBuilder::default()
    }

    /// Whether both are the same set.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(crate) fn model(&self) -> &str {
        &self.inner.shared.model
    }

    pub(crate) fn prefix(&self) -> &Prefix {
        &self.inner.shared.prefix
    }
}

impl<K: WorkerId> BusySet<K> {
    /// The busy mark of a worker, for the one who judges its load.
    ///
    /// The mark is off until it is [set](BusyMark::set). Dropping it clears it.
    /// Two owners of one worker's mark overwrite each other: have one.
    pub fn busy_mark(&self, worker: K) -> BusyMark {
        BusyMark::new(self.place(worker))
    }

    /// Keeps new requests away from a worker until the mark is dropped, the
    /// last one if there are several; what the worker is doing goes on.
    pub fn drain(&self, worker: K) -> DrainMark {
        DrainMark::new(self.place(worker))
    }

    /// Leases `worker` as if a request had seen its refusal. A time that the
    /// worker named is bounded.
    pub fn refused(&self, worker: &K, retry_after: Option<Duration>) {
        let retry_after = retry_after.filter(|named| !named.is_zero());
        while self.current(worker).leased(retry_after).is_err() {}
    }

    /// A response of `worker` that was no refusal has ended: ends its lease.
    pub fn completed(&self, worker: &K) {
        if let Some(state) = self.existing(worker) {
            state.has_completed();
        }
    }

    /// The marks of `worker` now.
    pub fn marks(&self, worker: &K) -> WorkerMarks {
        match self.existing(worker) {
            Some(state) => WorkerMarks(state.marks_at(Instant::now()).0.bits()),
            None => WorkerMarks::default(),
        }
    }

    /// The marks of `worker` now, each with its times and the failures behind
    /// it.
    pub fn mark_states(&self, worker: &K) -> Vec<MarkState> {
        let Some(state) = self.existing(worker) else {
            return Vec::new();
        };
        let (marks, since) = state.marks_at(Instant::now());
        let on = Mark::ALL.into_iter();
        let on = on.filter(|mark| marks.bits() & mark.bit() != 0);
        on.map(|mark| MarkState {
            mark,
            since: since[mark as usize],
            until: marks.end(mark),
            failures: marks.failures(),
        })
        .collect()
    }

    /// Marks `worker` unreachable, as if a request had found no connection.
    pub fn unreachable(&self, worker: &K) {
        while self.current(worker).say(Marks::failed_to_connect).is_err() {}
    }

    /// A request has failed at `worker`: many in a row mark it failing, as
    /// those that were sent there do.
    pub fn failed(&self, worker: &K) {
        let failed = |marks: &mut Marks, now, times: &_| {
            marks.failed(now, None, times);
        };
        while self.current(worker).say(failed).is_err() {}
    }

    /// `worker` is well, by a request that it has answered well: ends its
    /// marks *unreachable* and *failing*, those that are on probation included.
    pub fn well(&self, worker: &K) {
        self.say(worker, |marks, _, _| marks.recovered());
    }

    /// A connection to `worker` was made: it is not unreachable.
    pub fn reached(&self, worker: &K) {
        self.say(worker, |marks, _, _| marks.reached());
    }

    /// `worker` lives, by what it says or what else was seen of it, and may
    /// not be reached from here all the same. Its marks *unreachable* and
    /// *failing* last no longer than [`cooldown`](BusySetBuilder::cooldown)
    /// from their beginning, and then one request finds out. If that fails, what
    /// else is seen of a failing worker says nothing of its answers: it does not
    /// count until one has ended well.
    pub fn alive(&self, worker: &K) {
        self.say(worker, Marks::seen_alive);
    }

    fn say(&self, worker: &K, what: impl Fn(&mut Marks, Instant, &Times)) {
        if let Some(state) = self.existing(worker) {
            if state.is_troubled() {
                // One that was retired meanwhile has no such marks.
                let _ = state.say(what);
            }
        }
    }

    /// The workers that are excluded now, with their marks, in no order.
    ///
    /// Marks whose time is over are not in it, whether or not anything was
    /// routed since.
    pub fn snapshot(&self) -> Vec<(K, WorkerMarks)> {
        let now = Instant::now();
        let marked = self.all().into_iter().map(|(worker, state)| {
            let marks = WorkerMarks(state.marks_at(now).0.bits());
            (worker, marks)
        });
        marked.filter(|(_, marks)| marks.is_excluded()).collect()
    }

    /// Takes off the marks whose time is over.
    ///
    /// Routing and snapshots never need this: they look at the time. The
    /// `…_excluded_workers` gauges and the log do not, so that a fleet without
    /// requests would show its last leases for ever. Call it before a scrape,
    /// or now and then. Its cost is linear in the number of workers.
    pub fn sweep(&self) {
        let now = Instant::now();
        for (_, state) in self.all() {
            state.expire(now);
        }
    }

    fn all(&self) -> Vec<(K, Arc<WorkerState>)> {
        let workers = lock(&self.inner.workers);
        let workers = workers.by_id.iter();
        workers
            .map(|(id, state)| (id.clone(), state.clone()))
            .collect()
    }

    /// How many workers the set has memory for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.inner.workers).by_id.len()
    }

    fn existing(&self, worker: &K) -> Option<Arc<WorkerState>> {
        lock(&self.inner.workers).by_id.get(worker).cloned()
    }

    fn current(&self, worker: &K) -> Arc<WorkerState> {
        if let Some(state) = self.existing(worker) {
            return state;
        }
        let label: std::sync::Arc<str> = worker.to_string().into();
        let fresh = Arc::new(WorkerState::new(
            label,
            self.shared().clone(),
            Marks::default(),
        ));
        let mut swept = Vec::new();
        let mut workers = lock(&self.inner.workers);
        if workers.by_id.len() >= workers.sweep_at {
            let now = Instant::now();
            workers.by_id.retain(|_, state| {
                let (vacant, effects) = state.retire_if_vacant(now);
                swept.push((state.clone(), effects));
                !vacant
            });
            workers.sweep_at = (workers.by_id.len() * 2).max(MIN_SWEEP);
        }
        let current = workers.by_id.entry(worker.clone()).or_insert(fresh);
        let current = current.clone();
        drop(workers);
        for (state, effects) in swept {
            state.finish(effects);
        }
        current
    }

    /// Where the marks of `worker` are.
    pub(crate) fn place(&self, worker: K) -> Place {
        Place::new(Entry {
            set: self.clone(),
            worker,
        })
    }

    /// Says that `worker` has left: what its connections marked goes at once,
    /// it gets nothing more, and requests on their way can mark
    /// nothing any more. Marks that somebody owns stay with their owner.
    ///
    /// A discovery says the same when the balancer next asks it, which may be
    /// long after: a registry that can be read in between says it here too.
    pub fn forget(&self, worker: &K) {
        if let Some(state) = self.existing(worker) {
            self.retire(worker, &state, None, false);
        }
    }

    /// `worker` has left the seat `from`, or all: its connections there get
    /// nothing more, and a successor starts without its lease and failures.
    pub(crate) fn retire(
        &self,
        worker: &K,
        state: &Arc<WorkerState>,
        from: Option<SeatId>,
        replaced: bool,
    ) {
        let mut workers = lock(&self.inner.workers);
        let current = workers.by_id.get(worker);
        let is_current = current.is_some_and(|current| Arc::ptr_eq(current, state));
        let (marks, effects) = state.retire(from, replaced, Instant::now());
        let gone = match marks {
            Some(marks) if is_current && marks.bits() != 0 => {
                let label = state.label().clone();
                let successor = WorkerState::new(label, self.shared().clone(), marks);
                workers.by_id.insert(worker.clone(), Arc::new(successor))
            }
            Some(_) if is_current => workers.by_id.remove(worker),
            _ => None,
        };
        drop(workers);
        drop(gone);
        state.finish(effects);
    }

    /// Forgets the worker if nothing needs it any more.
    fn tidy(&self, worker: &K) {
        let mut workers = lock(&self.inner.workers);
        let Some(state) = workers.by_id.get(worker).cloned() else {
            return;
        };
        let (vacant, effects) = state.retire_if_vacant(Instant::now());
        if vacant {
            workers.by_id.remove(worker);
        }
        drop(workers);
        state.finish(effects);
    }
}

impl BusySetBuilder {
    /// Builds the set.
    ///
    /// # Errors
    ///
    /// A duration that is longer than a day, a cooldown of 0 (a dead worker
    /// would get every request), a longest one below the first, or a time for
    /// probes of 0.
    pub fn build<K>(self) -> Result<BusySet<K>, BusySetError> {
        Ok(BusySet {
            inner: Arc::new(Inner {
                workers: Mutex::new(Workers {
                    by_id: HashMap::new(),
                    sweep_at: MIN_SWEEP,
                }),
                shared: Arc::new(self.shared()?),
            }),
        })
    }
}

struct Entry<K> {
    set: BusySet<K>,
    worker: K,
}

impl<K: WorkerId> Lookup for Entry<K> {
    fn existing(&self) -> Option<Arc<WorkerState>> {
        self.set.existing(&self.worker)
    }

    fn current(&self) -> Arc<WorkerState> {
        self.set.current(&self.worker)
    }

    fn tidy(&self) {
        self.set.tidy(&self.worker);
    }
}

impl<K> Clone for BusySet<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<K> Default for BusySet<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> fmt::Debug for BusySet<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusySet")
            .field("model", &self.model())
            .finish_non_exhaustive()
    }
}

/// The marks of one worker at one moment.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerMarks(u64);

impl WorkerMarks {
    /// Whether this mark is on.
    pub fn has(self, mark: Mark) -> bool {
        self.0 & mark.bit() != 0
    }

    /// Whether any mark is on: the worker gets no new request.
    pub fn is_excluded(self) -> bool {
        self.0 & EXCLUDED != 0
    }
}

impl fmt::Debug for WorkerMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = Mark::ALL.into_iter().filter(|mark| self.has(*mark));
        f.debug_set().entries(on).finish()
    }
}

/// A mark of a worker, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkState {
    mark: Mark,
    since: Option<Instant>,
    until: Option<Instant>,
    failures: (u32, u32),
}

impl MarkState {
    /// Which mark it is.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Since when it is on.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }

    /// When it ends by itself, if it does.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// The failures of the worker since its last success, at most 32.
    pub fn failures_in_a_row(&self) -> u32 {
        self.failures.0
    }

    /// The failures among the last 32 outcomes of the worker.
    pub fn failures_of_last_32(&self) -> u32 {
        self.failures.1
    }
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn memory_follows_the_marked_workers_not_those_ever_seen() {
        let set = BusySet::<u32>::new();
        for worker in 0..100_000 {
            let mut mark = set.busy_mark(worker);
            mark.set(Some(Instant::now() + Duration::from_secs(30)));
            drop(mark);
            drop(set.drain(worker));
            set.refused(&worker, None);
            set.forget(&worker);
        }
        assert_eq!(set.len(), 0);
        // Leases of workers that nobody speaks of any more end unseen.
        for worker in 0..100_000 {
            set.refused(&worker, None);
            tokio::time::advance(Duration::from_millis(100)).await;
            assert!(set.len() <= 2 * MIN_SWEEP, "{} workers", set.len());
        }
    }

    #[test]
    fn what_is_shared_can_be_shared() {
        fn shared<T: Send + Sync>() {}
        shared::<BusySet<String>>();
        shared::<BusyMark>();
        shared::<DrainMark>();
        shared::<crate::busy::Members>();
    }
}
