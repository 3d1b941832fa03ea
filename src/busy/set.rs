//! The marks of all workers of one model, by worker id.

use super::{
    cell::{Cell, Retired},
    marks::{EXCLUDED, Mark, Marks, Times},
    members::Members,
};
use crate::{
    WorkerId,
    metrics::{self, Prefix},
    sync::{Arc, Mutex, lock},
};
use std::{collections::HashMap, error::Error, fmt, time::Duration};
use tokio::time::Instant;

/// The marks that keep requests away from workers, by worker id.
///
/// It is what routing and monitoring share: the monitor marks workers *busy*,
/// the endpoints mark their own worker *leased* or *unreachable*, the operator
/// takes one out by a *draining* mark. Which workers are alive is not its
/// business; that is the [membership](Members) of a
/// [`BusyDiscover`](super::BusyDiscover).
///
/// A mark that somebody owns ([`BusyMark`], [`DrainMark`]) ends with its
/// owner; the others end by time. Memory is used for workers that have an
/// endpoint or a mark, not for every id ever seen. Clones share the set.
pub struct BusySet<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    cells: Mutex<Cells<K>>,
    shared: Arc<Shared>,
}

struct Cells<K> {
    by_worker: HashMap<K, Arc<Cell>>,
    /// At this size the map is searched for workers that nobody needs.
    sweep_at: usize,
}

const MIN_SWEEP: usize = 64;

/// What the cells of a set share.
pub(crate) struct Shared {
    pub(crate) times: Times,
    model: Box<str>,
    prefix: Prefix,
    marked: [::metrics::Counter; 4],
    excluded: [::metrics::Gauge; 4],
}

impl Shared {
    /// The bits of a worker changed; `live` if it has an endpoint.
    pub(crate) fn transition(&self, worker: &str, old: u64, new: u64, live: bool) {
        for mark in Mark::ALL {
            let (was, is) = (old & mark.bit() != 0, new & mark.bit() != 0);
            if was == is {
                continue;
            }
            if is {
                self.marked[mark as usize].increment(1);
            }
            if live {
                self.count(mark, is);
            }
            let (model, mark) = (&*self.model, mark.as_str());
            // Under overload leases come and go with the requests; and whoever
            // judges the load knows the numbers, and has logged them.
            if new & (Mark::Unreachable.bit() | Mark::Draining.bit())
                != old & (Mark::Unreachable.bit() | Mark::Draining.bit())
            {
                tracing::info!(model, worker, mark, on = is, "worker mark changed");
            } else {
                tracing::debug!(model, worker, mark, on = is, "worker mark changed");
            }
        }
    }

    /// The first endpoint of a worker with these marks came, or its last went.
    pub(crate) fn live(&self, bits: u64, live: bool) {
        if bits & EXCLUDED == 0 {
            return;
        }
        for mark in Mark::ALL {
            if bits & mark.bit() != 0 {
                self.count(mark, live);
            }
        }
    }

    fn count(&self, mark: Mark, up: bool) {
        let gauge = &self.excluded[mark as usize];
        if up {
            gauge.increment(1.0);
        } else {
            gauge.decrement(1.0);
        }
    }
}

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
        BusyMark {
            place: self.place(worker),
            cell: None,
        }
    }

    /// Keeps new requests away from a worker until the mark is dropped, the
    /// last one if there are several; what the worker is doing goes on.
    pub fn drain(&self, worker: K) -> DrainMark {
        let place = self.place(worker);
        place.with_cell(|cell| cell.drain());
        DrainMark { place }
    }

    /// Leases `worker` as if one of its endpoints had seen a refusal. A time
    /// that the worker named is bounded, and no completed response ends it early.
    pub fn refused(&self, worker: &K, retry_after: Option<Duration>) {
        let retry_after = retry_after.filter(|named| !named.is_zero());
        while self.current(worker).leased(retry_after).is_err() {}
    }

    /// A response of `worker` that was no refusal has ended: ends its lease,
    /// unless the worker named the time.
    pub fn completed(&self, worker: &K) {
        if let Some(cell) = self.existing(worker) {
            cell.has_completed();
        }
    }

    /// The marks of `worker` now.
    pub fn marks(&self, worker: &K) -> WorkerMarks {
        match self.existing(worker) {
            Some(cell) => WorkerMarks(cell.marks_at(Instant::now()).bits()),
            None => WorkerMarks::default(),
        }
    }

    /// The workers that are excluded now, with their marks, in no order.
    ///
    /// Marks whose time is over are not in it, whether or not anything was
    /// routed since.
    pub fn snapshot(&self) -> Vec<(K, WorkerMarks)> {
        let now = Instant::now();
        let marked = self.cells().into_iter().map(|(worker, cell)| {
            let marks = WorkerMarks(cell.marks_at(now).bits());
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
        for (_, cell) in self.cells() {
            cell.expire(now);
        }
    }

    fn cells(&self) -> Vec<(K, Arc<Cell>)> {
        let cells = lock(&self.inner.cells);
        let cells = cells.by_worker.iter();
        cells.map(|(k, cell)| (k.clone(), cell.clone())).collect()
    }

    /// How many workers the set has memory for.
    #[cfg(all(test, not(tower_overload_loom)))]
    fn len(&self) -> usize {
        lock(&self.inner.cells).by_worker.len()
    }

    fn existing(&self, worker: &K) -> Option<Arc<Cell>> {
        lock(&self.inner.cells).by_worker.get(worker).cloned()
    }

    fn current(&self, worker: &K) -> Arc<Cell> {
        if let Some(cell) = self.existing(worker) {
            return cell;
        }
        let label = worker.to_string().into();
        let fresh = Arc::new(Cell::new(label, self.shared().clone(), Marks::default()));
        let mut swept = Vec::new();
        let mut cells = lock(&self.inner.cells);
        if cells.by_worker.len() >= cells.sweep_at {
            let now = Instant::now();
            cells.by_worker.retain(|_, cell| {
                let (vacant, effects) = cell.retire_if_vacant(now);
                swept.push((cell.clone(), effects));
                !vacant
            });
            cells.sweep_at = (cells.by_worker.len() * 2).max(MIN_SWEEP);
        }
        let current = cells.by_worker.entry(worker.clone()).or_insert(fresh);
        let current = current.clone();
        drop(cells);
        for (cell, effects) in swept {
            cell.finish(effects);
        }
        current
    }

    /// Where the marks of `worker` are.
    pub(crate) fn place(&self, worker: K) -> Place {
        Place(std::sync::Arc::new(Entry {
            set: self.clone(),
            worker,
        }))
    }

    /// Says that `worker` has left: what its connections marked goes at once,
    /// its endpoints get nothing more, and requests on their way can mark
    /// nothing any more. Marks that somebody owns stay with their owner.
    ///
    /// A discovery says the same when the balancer next asks it, which may be
    /// long after: a registry that can be read in between says it here too.
    pub fn forget(&self, worker: &K) {
        if let Some(cell) = self.existing(worker) {
            self.retire(worker, &cell, None, false);
        }
    }

    /// `worker` has left `from`, or every membership: its endpoints there get
    /// nothing more, and a successor starts without its lease and failures.
    pub(crate) fn retire(
        &self,
        worker: &K,
        cell: &Arc<Cell>,
        from: Option<&Members>,
        replaced: bool,
    ) {
        let mut cells = lock(&self.inner.cells);
        let current = cells.by_worker.get(worker);
        let is_current = current.is_some_and(|current| Arc::ptr_eq(current, cell));
        let (marks, effects) = cell.retire(from, replaced, Instant::now());
        let gone = match marks {
            Some(marks) if is_current && marks.bits() != 0 => {
                let label = cell.label().into();
                let successor = Cell::new(label, self.shared().clone(), marks);
                cells.by_worker.insert(worker.clone(), Arc::new(successor))
            }
            Some(_) if is_current => cells.by_worker.remove(worker),
            _ => None,
        };
        drop(cells);
        drop(gone);
        cell.finish(effects);
    }

    /// Forgets the worker if nothing needs it any more.
    fn tidy(&self, worker: &K) {
        let mut cells = lock(&self.inner.cells);
        let Some(cell) = cells.by_worker.get(worker).cloned() else {
            return;
        };
        let (vacant, effects) = cell.retire_if_vacant(Instant::now());
        if vacant {
            cells.by_worker.remove(worker);
        }
        drop(cells);
        cell.finish(effects);
    }
}

struct Entry<K> {
    set: BusySet<K>,
    worker: K,
}

/// A worker's entry in a set, whatever the type of its id.
trait Lookup: Send + Sync {
    fn existing(&self) -> Option<Arc<Cell>>;
    fn current(&self) -> Arc<Cell>;
    fn tidy(&self);
}

impl<K: WorkerId> Lookup for Entry<K> {
    fn existing(&self) -> Option<Arc<Cell>> {
        self.set.existing(&self.worker)
    }

    fn current(&self) -> Arc<Cell> {
        self.set.current(&self.worker)
    }

    fn tidy(&self) {
        self.set.tidy(&self.worker);
    }
}

/// Finds the cell of one worker for those who mark it; the type of its id is
/// erased, so that what holds a place needs no bounds to be dropped.
#[derive(Clone)]
pub(crate) struct Place(std::sync::Arc<dyn Lookup>);

impl Place {
    /// Runs `with` on the worker's cell, on its successor if it has just left.
    fn with_cell<R>(&self, with: impl Fn(&Arc<Cell>) -> Result<R, Retired>) -> R {
        loop {
            if let Ok(result) = with(&self.0.current()) {
                return result;
            }
        }
    }

    /// Seats a new endpoint of the worker.
    pub(crate) fn attach(&self, members: &Members) -> (Arc<Cell>, u64) {
        self.with_cell(|cell| Ok((cell.clone(), cell.attach(members, self)?)))
    }

    /// Forgets the worker if nothing needs it any more.
    pub(crate) fn tidy(&self) {
        self.0.tidy();
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

/// The busy mark of one worker, owned by the one who judges its load.
pub struct BusyMark {
    place: Place,
    /// Where the mark was last set.
    cell: Option<Arc<Cell>>,
}

impl BusyMark {
    /// Marks the worker busy until the instant, or until it is cleared;
    /// replaces an earlier end, be it sooner or later.
    ///
    /// The mark falls at its end without any event.
    pub fn set(&mut self, until: Option<Instant>) {
        let known = self.cell.as_ref();
        if known.is_some_and(|cell| cell.set_busy(until).is_ok()) {
            return;
        }
        loop {
            // Known before it is marked: whatever a waker does, it is cleared.
            let cell = self.place.0.current();
            let cell = self.cell.insert(cell);
            if cell.set_busy(until).is_ok() {
                return;
            }
        }
    }

    /// Takes the mark off, if it is on.
    pub fn clear(&mut self) {
        let Some(cell) = &self.cell else {
            return;
        };
        if cell.clear_busy().is_ok() {
            return;
        }
        // The worker was replaced in between; its successor has the mark.
        self.cell = None;
        while let Some(cell) = self.place.0.existing() {
            if cell.clear_busy().is_ok() {
                self.cell = Some(cell);
                return;
            }
        }
    }
}

impl Drop for BusyMark {
    fn drop(&mut self) {
        self.clear();
        if self.cell.is_some() {
            self.place.tidy();
        }
    }
}

impl fmt::Debug for BusyMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusyMark")
            .field("cell", &self.cell)
            .finish_non_exhaustive()
    }
}

/// Keeps new requests away from a worker while it lives.
pub struct DrainMark {
    place: Place,
}

impl Drop for DrainMark {
    fn drop(&mut self) {
        self.place.with_cell(|cell| cell.undrain());
        self.place.tidy();
    }
}

impl fmt::Debug for DrainMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrainMark").finish_non_exhaustive()
    }
}

/// Configures a [`BusySet`].
#[derive(Clone, Debug)]
#[must_use]
pub struct BusySetBuilder {
    times: Times,
    model: Box<str>,
    prefix: Prefix,
}

/// No duration of a set may be longer than a day.
const MAX_TIME: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for BusySetBuilder {
    fn default() -> Self {
        Self {
            times: Times {
                lease: Duration::from_secs(1),
                max_lease: Duration::from_secs(30),
                cooldown: Duration::from_secs(1),
                max_cooldown: Duration::from_secs(30),
            },
            model: "".into(),
            prefix: Prefix::default(),
        }
    }
}

impl BusySetBuilder {
    /// How long a worker is leased after a refusal that names no time
    /// (default: 1 s, what the reference was measured to do).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.times.lease = lease;
        self
    }

    /// The longest lease that a worker's `Retry-After` can bring (default: 30 s).
    pub fn max_lease(mut self, max_lease: Duration) -> Self {
        self.times.max_lease = max_lease;
        self
    }

    /// How long a worker is unreachable after a failed connection (default: 1 s).
    pub fn cooldown(mut self, cooldown: Duration) -> Self {
        self.times.cooldown = cooldown;
        self
    }

    /// Where the doubling of the cooldown stops (default: 30 s).
    pub fn max_cooldown(mut self, max_cooldown: Duration) -> Self {
        self.times.max_cooldown = max_cooldown;
        self
    }

    /// The model whose workers these are; the label of metrics and logs
    /// (default: empty).
    pub fn model(mut self, model: impl Into<Box<str>>) -> Self {
        self.model = model.into();
        self
    }

    /// What the names of the metrics start with (default: `dynamo`).
    pub fn metrics_prefix(mut self, prefix: Prefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// Builds the set.
    ///
    /// # Errors
    ///
    /// A duration that is longer than a day, a cooldown of 0 (a dead worker
    /// would get every request), or a longest one below the first.
    pub fn build<K>(self) -> Result<BusySet<K>, BusySetError> {
        let Times {
            lease,
            max_lease,
            cooldown,
            max_cooldown,
        } = self.times;
        for (name, value) in [("max_lease", max_lease), ("max_cooldown", max_cooldown)] {
            if value > MAX_TIME {
                return Err(BusySetError {
                    name,
                    value,
                    allowed: "at most 24 hours",
                });
            }
        }
        if lease > max_lease {
            return Err(BusySetError {
                name: "lease",
                value: lease,
                allowed: "at most max_lease",
            });
        }
        if cooldown.is_zero() || cooldown > max_cooldown {
            return Err(BusySetError {
                name: "cooldown",
                value: cooldown,
                allowed: "above 0 and at most max_cooldown",
            });
        }
        let (model, prefix) = (&*self.model, &self.prefix);
        let shared = Shared {
            times: self.times,
            marked: Mark::ALL
                .map(|mark| metrics::WORKER_MARKS.counter(prefix, &[model, mark.as_str()])),
            excluded: Mark::ALL
                .map(|mark| metrics::EXCLUDED_WORKERS.gauge(prefix, &[model, mark.as_str()])),
            model: self.model,
            prefix: self.prefix,
        };
        Ok(BusySet {
            inner: Arc::new(Inner {
                cells: Mutex::new(Cells {
                    by_worker: HashMap::new(),
                    sweep_at: MIN_SWEEP,
                }),
                shared: Arc::new(shared),
            }),
        })
    }
}

/// A duration that a [`BusySet`] cannot work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusySetError {
    name: &'static str,
    value: Duration,
    allowed: &'static str,
}

impl fmt::Display for BusySetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            value,
            allowed,
        } = self;
        write!(f, "{name} is {value:?}; allowed: {allowed}")
    }
}

impl Error for BusySetError {}

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
    fn bad_durations_are_refused_by_name() {
        let build = |builder: BusySetBuilder| builder.build::<u32>().unwrap_err().to_string();
        let day = Duration::from_secs(25 * 60 * 60);
        assert!(build(BusySet::<u32>::builder().lease(day)).contains("lease"));
        assert!(build(BusySet::<u32>::builder().cooldown(Duration::ZERO)).contains("cooldown"));
        let short = BusySet::<u32>::builder().max_cooldown(Duration::from_millis(1));
        assert!(build(short).contains("cooldown"));
    }

    #[test]
    fn what_is_shared_can_be_shared() {
        fn shared<T: Send + Sync>() {}
        shared::<BusySet<String>>();
        shared::<BusyMark>();
        shared::<DrainMark>();
        shared::<Members>();
    }
}

/// Run with `RUSTFLAGS="--cfg tower_overload_loom" cargo test --lib --release loom`.
#[cfg(all(test, tower_overload_loom))]
mod loom_tests {
    use super::super::cell::Check;
    use super::*;
    use crate::sync::model;
    use futures::task::{ArcWake, waker};
    use loom::thread;
    use std::sync::atomic::{AtomicBool as Flag, Ordering::SeqCst};

    struct Woken(Flag);

    impl ArcWake for Woken {
        fn wake_by_ref(woken: &std::sync::Arc<Self>) {
            woken.0.store(true, SeqCst);
        }
    }

    /// What an endpoint does in `poll_ready`.
    fn poll(cell: &Cell, seat: u64, woken: &std::sync::Arc<Woken>) -> bool {
        cell.is_open() || cell.check(seat, Instant::now(), &waker(woken.clone())) == Check::Open
    }

    #[test]
    fn loom_a_parked_endpoint_is_woken_by_whatever_frees_it() {
        model(3, || {
            let set = BusySet::<u32>::new();
            let members = Members::new();
            let (cell, seat) = set.place(0).attach(&members);
            let mut mark = set.busy_mark(0);
            mark.set(None);
            let monitor = thread::spawn(move || {
                mark.clear();
                mark
            });
            let woken = std::sync::Arc::new(Woken(Flag::new(false)));
            let open = poll(&cell, seat, &woken);
            let mark = monitor.join().unwrap();
            assert!(open || woken.0.load(SeqCst), "asleep while it is free");
            assert!(poll(&cell, seat, &woken));
            assert_eq!((members.usable(), members.eligible()), (1, 1));
            drop(mark);
            cell.detach(seat);
            assert_eq!((members.alive(), members.usable()), (0, 0));
        });
    }

    #[test]
    fn loom_an_endpoint_that_waits_for_its_own_service_hears_of_a_mark() {
        model(3, || {
            let set = BusySet::<u32>::new();
            let members = Members::new();
            let (cell, seat) = set.place(0).attach(&members);
            let mut mark = set.busy_mark(0);
            let monitor = thread::spawn(move || {
                mark.set(None);
                mark
            });
            let woken = std::sync::Arc::new(Woken(Flag::new(false)));
            // Its service is pending: it looks whether it may go on waiting.
            let waits = cell.is_open() && cell.watch(seat, &waker(woken.clone()));
            let mark = monitor.join().unwrap();
            assert!(!waits || woken.0.load(SeqCst), "no timer is armed");
            drop(mark);
            cell.detach(seat);
        });
    }

    #[test]
    fn loom_marks_of_two_kinds_race_and_the_counts_are_right() {
        model(3, || {
            let set = BusySet::<u32>::new();
            let members = Members::new();
            let (cell, seat) = set.place(0).attach(&members);
            let drain = set.drain(0);
            let operator = thread::spawn(move || drop(drain));
            let mut mark = set.busy_mark(0);
            mark.set(None);
            let woken = std::sync::Arc::new(Woken(Flag::new(false)));
            assert!(!poll(&cell, seat, &woken));
            operator.join().unwrap();
            assert_eq!((members.usable(), members.eligible()), (1, 0));
            woken.0.store(false, SeqCst);
            assert!(!poll(&cell, seat, &woken));
            mark.clear();
            assert!(woken.0.load(SeqCst));
            assert_eq!((members.usable(), members.eligible()), (1, 1));
            cell.detach(seat);
        });
    }

    #[test]
    fn loom_a_worker_that_leaves_while_it_is_marked_leaves_nothing() {
        model(2, || {
            let set = BusySet::<u32>::new();
            let members = Members::new();
            let (cell, seat) = set.place(0).attach(&members);
            let mut mark = set.busy_mark(0);
            let monitor = thread::spawn(move || {
                mark.set(None);
                drop(mark);
            });
            set.forget(&0);
            let late = thread::spawn({
                let cell = cell.clone();
                move || cell.refused(seat, None, true)
            });
            cell.detach(seat);
            monitor.join().unwrap();
            late.join().unwrap();
            assert_eq!(
                (members.alive(), members.usable(), members.eligible()),
                (0, 0, 0)
            );
            assert!(!set.marks(&0).is_excluded());
            assert_eq!(lock(&set.inner.cells).by_worker.len(), 0);
        });
    }
}
