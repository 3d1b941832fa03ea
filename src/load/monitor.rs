use super::{
    DropReason, LoadEvent, ModelThresholds, Thresholds, ThresholdsHandle, WorkerConfig,
    WorkerCounts,
    few::Few,
    gauges::{self, RankGauges},
    rank::{Capacity, Clock, FreshCounts, Moment, RankLoad, Signals, worker_busy_until},
    thresholds,
};
use crate::{
    WorkerId,
    busy::{BusyMark, BusySet},
    metrics::{self, Prefix},
    sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, lock},
    unwind::FirstPanic,
};
use ::metrics::{Counter, Gauge};
use std::{
    borrow::Borrow, collections::HashMap, convert::Infallible, fmt, mem, num::NonZeroU64,
    sync::Arc as Shared, time::Duration,
};
use tokio::time::Instant;

/// Judges the load of workers and is the only writer of their busy marks.
///
/// See the [module documentation](super) for the rules. A handle: clones
/// share one monitor. When the last one is dropped, all its marks fall.
///
/// `K` names a worker, in the marks and, by its `Display`, in metrics and
/// logs.
pub struct WorkerMonitor<K> {
    inner: Arc<Inner<K>>,
}

/// Makes a [`WorkerMonitor`] with other than the default options.
#[derive(Clone, Debug)]
pub struct WorkerMonitorBuilder {
    stale_after: Option<Duration>,
    prefix: Prefix,
    worker_gauges: bool,
}

impl WorkerMonitorBuilder {
    /// How long a reported count is good; 30 s by default, `None` for ever.
    /// With zero, no evidence is ever good and no worker ever busy.
    #[must_use]
    pub fn stale_after(mut self, stale_after: impl Into<Option<Duration>>) -> Self {
        self.stale_after = stale_after.into();
        self
    }

    /// What the names of the metrics start with; `dynamo` by default.
    #[must_use]
    pub fn metrics_prefix(mut self, prefix: Prefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// Whether the load of each worker is shown by gauges of the installed
    /// recorder (default: yes). Their series cannot end: those of a worker that
    /// is gone show 0. Where workers come under ever new ids, switch them off,
    /// and add [`WorkerMonitor::worker_gauges`] to what is scraped.
    #[must_use]
    pub fn worker_gauges(mut self, shown: bool) -> Self {
        self.worker_gauges = shown;
        self
    }

    /// A monitor without models and workers.
    pub fn build<K: WorkerId>(self) -> WorkerMonitor<K> {
        let dropped = |reason: DropReason| {
            metrics::LOAD_EVENTS_DROPPED.counter(&self.prefix, &[reason.as_str()])
        };
        WorkerMonitor {
            inner: Arc::new(Inner {
                clock: Clock::starting(Instant::now()),
                stale_after: self.stale_after,
                thresholds: ModelThresholds::new(),
                changes: Arc::new(AtomicU64::new(0)),
                accepted: metrics::LOAD_EVENTS.counter(&self.prefix, &[]),
                dropped_unregistered: dropped(DropReason::UnregisteredWorker),
                dropped_undeclared: dropped(DropReason::UndeclaredRank),
                prefix: self.prefix,
                worker_gauges: self.worker_gauges,
                state: Mutex::new(State {
                    workers: HashMap::new(),
                    models: Models::default(),
                    counts: HashMap::new(),
                    forget_counts_at: FEW_COUNTS,
                    seen_changes: 0,
                }),
            }),
        }
    }
}

struct Inner<K> {
    clock: Clock,
    stale_after: Option<Duration>,
    prefix: Prefix,
    /// Whether they are the recorder's.
    worker_gauges: bool,
    thresholds: ModelThresholds,
    /// Counts stored threshold changes; read without a lock by every event.
    changes: Arc<AtomicU64>,
    accepted: Counter,
    dropped_unregistered: Counter,
    dropped_undeclared: Counter,
    state: Mutex<State<K>>,
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

struct State<K> {
    /// Whole entries in the map: at many workers, each pointer that an event
    /// follows is a cache miss.
    workers: HashMap<K, Entry>,
    models: Models<K>,
    /// Of workers whose counts somebody reads, registered or not.
    counts: HashMap<K, WorkerCounts>,
    /// With so many it is looked which nobody reads any more.
    forget_counts_at: usize,
    /// The count of threshold changes that are in effect.
    seen_changes: u64,
}

/// What is known under one worker id. It outlives the worker until the
/// worker's marks are dropped, so that a successor's are made after that and
/// not before.
struct Entry {
    worker: Option<Worker>,
    marks: Marks,
}

/// The marks of one worker id. They are changed without the monitor's lock,
/// because a change wakes others: one thread at a time takes them out, and
/// looks again before it puts them back.
enum Marks {
    Here(Vec<Held>),
    Out,
}

struct Held {
    model: ModelId,
    mark: BusyMark,
    /// What the mark was last set to.
    is: Moment,
    /// What it is to be set to; `None` if it is to be dropped.
    wanted: Option<Moment>,
    /// The news of the worker that it was last set by, and is to be set by.
    news: u64,
    wanted_news: u64,
}

struct Worker {
    /// Those who read its counts from outside.
    counts: Option<WorkerCounts>,
    capacity: Capacity,
    /// Boxed, because no event reads it.
    config: Box<WorkerConfig>,
    /// By `dp_rank`, ascending.
    ranks: Few<Rank>,
    seats: Few<Seat>,
    signals: Signals,
    /// Counts the reports in which a count was another one than before.
    news: u64,
}

struct Rank {
    dp_rank: u32,
    load: RankLoad,
    gauges: RankGauges,
}

/// The verdict of one model on one worker.
struct Seat {
    model: ModelId,
    busy_until: Moment,
    missing: [bool; 3],
}

/// A place in [`Models`]. The stamp tells a model from a later one that has
/// taken its place.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ModelId {
    place: u32,
    stamp: u32,
}

struct Models<K> {
    places: Vec<Option<Model<K>>>,
    next_stamp: u32,
}

struct Model<K> {
    id: ModelId,
    name: Shared<str>,
    set: BusySet<K>,
    handle: ThresholdsHandle,
    /// The thresholds that are in effect.
    thresholds: Thresholds,
    /// For each threshold, the workers that never gave a signal for it.
    missing: [u64; 3],
    missing_gauges: [Gauge; 3],
}

impl<K> Default for Models<K> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            next_stamp: 0,
        }
    }
}

impl<K> Models<K> {
    fn iter(&self) -> impl Iterator<Item = &Model<K>> {
        self.places.iter().flatten()
    }

    fn id(&self, name: &str) -> Option<ModelId> {
        let model = self.iter().find(|model| &*model.name == name)?;
        Some(model.id)
    }

    fn get(&self, id: ModelId) -> Option<&Model<K>> {
        self.places.get(id.place as usize)?.as_ref()
    }

    fn get_mut(&mut self, id: ModelId) -> Option<&mut Model<K>> {
        self.places.get_mut(id.place as usize)?.as_mut()
    }

    fn remove(&mut self, id: ModelId) -> Option<Model<K>> {
        self.places.get_mut(id.place as usize)?.take()
    }

    fn insert(
        &mut self,
        name: &str,
        set: BusySet<K>,
        handle: ThresholdsHandle,
        missing_gauges: [Gauge; 3],
    ) {
        let vacant = self.places.iter().position(Option::is_none);
        let place = vacant.unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(None);
        }
        let id = ModelId {
            place: place as u32,
            stamp: self.next_stamp,
        };
        self.next_stamp = self.next_stamp.wrapping_add(1);
        self.places[place] = Some(Model {
            id,
            name: name.into(),
            set,
            thresholds: handle.get(),
            handle,
            missing: [0; 3],
            missing_gauges,
        });
    }
}

impl<K> Model<K> {
    /// Moves a worker from one row of the count to another.
    fn recount(&mut self, from: &mut [bool; 3], to: [bool; 3]) {
        for (i, to) in to.into_iter().enumerate() {
            let from = mem::replace(&mut from[i], to);
            if from == to {
                continue;
            }
            self.missing[i] = if to {
                self.missing[i] + 1
            } else {
                self.missing[i].saturating_sub(1)
            };
            self.missing_gauges[i].set(self.missing[i] as f64);
        }
    }
}

/// A worker that became busy or free, and the numbers that did it; logged
/// when the lock is released.
struct Transition<K> {
    worker: K,
    model: Shared<str>,
    to: To,
    ranks: usize,
    dp_rank: u32,
    counts: FreshCounts,
    capacity: Capacity,
    thresholds: Thresholds,
}

#[derive(Clone, Copy)]
enum To {
    Busy,
    Free,
    Stale,
}

impl<K: fmt::Display> Transition<K> {
    fn log(&self) {
        macro_rules! log {
            ($message:literal) => {
                tracing::info!(
                    worker = %self.worker,
                    model = &*self.model,
                    ranks = self.ranks,
                    dp_rank = self.dp_rank,
                    active_decode_blocks = self.counts.active_decode_blocks,
                    kv_used_blocks = self.counts.kv_used_blocks,
                    active_prefill_tokens = self.counts.active_prefill_tokens,
                    kv_total_blocks = self.capacity.kv_total_blocks.map(NonZeroU64::get),
                    max_num_batched_tokens =
                        self.capacity.max_num_batched_tokens.map(NonZeroU64::get),
                    active_decode_blocks_threshold = self.thresholds.active_decode_blocks(),
                    active_prefill_tokens_threshold = self.thresholds.active_prefill_tokens(),
                    active_prefill_tokens_threshold_frac =
                        self.thresholds.active_prefill_tokens_frac(),
                    $message
                )
            };
        }
        match self.to {
            To::Busy => log!("worker is busy"),
            To::Free => log!("worker is free"),
            To::Stale => log!("worker is free: the evidence of its load went stale"),
        }
    }
}

/// What a call leaves to do: workers whose marks have to change, transitions
/// to log, events to count, and a panic of a waker to pass on.
struct Outcome<K> {
    changed: Vec<K>,
    transitions: Vec<Transition<K>>,
    accepted: u64,
    dropped_unregistered: u64,
    dropped_undeclared: u64,
    panic: FirstPanic,
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
    fn count<T>(&mut self, observed: &Result<T, DropReason>) {
        match observed {
            Ok(_) => self.accepted += 1,
            Err(DropReason::UnregisteredWorker) => self.dropped_unregistered += 1,
            Err(DropReason::UndeclaredRank) => self.dropped_undeclared += 1,
        }
    }
}

impl Worker {
    fn is_busy(&self) -> bool {
        let mut seats = self.seats.iter();
        seats.any(|seat| seat.busy_until != Moment::NEVER)
    }

    /// Lets every model of the worker judge it. Returns whether a mark has
    /// to change.
    fn judge<K: Clone>(
        &mut self,
        key: &K,
        models: &mut Models<K>,
        now: Moment,
        transitions: &mut Vec<Transition<K>>,
    ) -> bool {
        let mut changed = false;
        for seat in &mut *self.seats {
            let Some(model) = models.get_mut(seat.model) else {
                continue;
            };
            model.recount(
                &mut seat.missing,
                self.signals.missing(&model.thresholds, &self.capacity),
            );
            let loads = self.ranks.iter().map(|rank| &rank.load);
            let until = worker_busy_until(loads, &model.thresholds, &self.capacity, now);
            let was = mem::replace(&mut seat.busy_until, until);
            if was == until {
                continue;
            }
            changed = true;
            let was_busy = was != Moment::NEVER;
            let is_busy = until != Moment::NEVER;
            let steps = match (was_busy, is_busy) {
                (true, _) if was.is_over(now) => [Some(To::Stale), is_busy.then_some(To::Busy)],
                (true, false) => [Some(To::Free), None],
                (false, true) => [Some(To::Busy), None],
                // Still busy, until another time.
                _ => [None, None],
            };
            for to in steps.into_iter().flatten() {
                // Nobody listens: spare the clones. The level is a static,
                // so no subscriber runs under the lock.
                if tracing::level_filters::LevelFilter::current() < tracing::Level::INFO {
                    break;
                }
                if let Some(rank) = cause(&self.ranks, model, &self.capacity, to, now) {
                    transitions.push(Transition {
                        worker: key.clone(),
                        model: model.name.clone(),
                        to,
                        ranks: self.ranks.len(),
                        dp_rank: rank.dp_rank,
                        counts: rank.load.fresh(now),
                        capacity: self.capacity,
                        thresholds: model.thresholds,
                    });
                }
            }
        }
        changed
    }

    /// Has those who read the counts see what was last reported.
    fn publish_counts(&self, good_until: Moment) {
        if let Some(counts) = &self.counts {
            let (mut tokens, mut blocks) = (0_u64, 0_u64);
            for rank in &*self.ranks {
                let [active, used, prefill] = rank.load.last_reported();
                tokens = tokens.saturating_add(prefill);
                blocks = blocks.saturating_add(active.max(used));
            }
            counts.report(tokens, blocks, good_until);
        }
    }

    /// The worker is gone: its gauges show 0, and no model counts it.
    fn retire<K>(&mut self, models: &mut Models<K>) {
        if let Some(counts) = &self.counts {
            counts.report(0, 0, Moment::NEVER);
        }
        for rank in &*self.ranks {
            rank.gauges.retire();
        }
        for seat in &mut *self.seats {
            if let Some(model) = models.get_mut(seat.model) {
                model.recount(&mut seat.missing, [false; 3]);
            }
        }
    }
}

/// The rank to name as the cause: of *busy* the one with the latest evidence,
/// which is the one that tipped the worker; of *free* the first that is free.
fn cause<'a, K>(
    ranks: &'a [Rank],
    model: &Model<K>,
    capacity: &Capacity,
    to: To,
    now: Moment,
) -> Option<&'a Rank> {
    let until = |rank: &&Rank| rank.load.busy_until(&model.thresholds, capacity, now);
    match to {
        To::Busy => ranks.iter().max_by_key(until),
        To::Free | To::Stale => ranks.iter().min_by_key(until),
    }
}

/// As many handles are kept without a look whether somebody reads them.
const FEW_COUNTS: usize = 64;

impl<K: WorkerId> State<K> {
    /// Forgets the counts that nobody reads: a handle that is dropped does not
    /// say so. There are never more than twice as many as are read, and a few.
    fn forget_unread_counts(&mut self) {
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
    fn knows(&self, worker: &K) -> bool {
        let entry = self.workers.get(worker);
        entry.is_some_and(|entry| entry.worker.is_some())
    }

    /// Takes the counts of an event and judges its worker, or all workers if
    /// thresholds have changed since the last time. Returns whether the marks
    /// of the event's worker have to change; those of others are in `outcome`.
    fn observe(
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
    fn judge_all(&mut self, at: At, outcome: &mut Outcome<K>) {
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

impl Entry {
    /// Plans how the marks, which the caller has taken out, get to what they
    /// should be. `false` if they are.
    fn plan<K: WorkerId>(&self, key: &K, models: &Models<K>, marks: &mut Vec<Held>) -> bool {
        let worker = self.worker.as_ref();
        let seats = worker.map_or(&[][..], |worker| &*worker.seats);
        let news = worker.map_or(0, |worker| worker.news);
        let mut change = false;
        let mut gone = false;
        for held in &mut *marks {
            let seat = seats.iter().find(|seat| seat.model == held.model);
            held.wanted = seat.map(|seat| seat.busy_until);
            held.wanted_news = news;
            gone |= seat.is_none();
            change |= held.wanted != Some(held.is);
            change |= held.is != Moment::NEVER && held.news != news;
        }
        if gone {
            // Those first, before another one is made for the same worker.
            return true;
        }
        for seat in seats {
            let held = marks.iter().any(|held| held.model == seat.model);
            if held || seat.busy_until == Moment::NEVER {
                continue;
            }
            if let Some(model) = models.get(seat.model) {
                change = true;
                marks.push(Held {
                    model: seat.model,
                    mark: model.set.busy_mark(key.clone()),
                    is: Moment::NEVER,
                    wanted: Some(seat.busy_until),
                    news: news.wrapping_sub(1),
                    wanted_news: news,
                });
            }
        }
        change
    }
}

/// When an event arrived, and what follows from that.
#[derive(Clone, Copy)]
struct At {
    now: Moment,
    good_until: Moment,
    /// How many threshold changes were stored by then.
    changes: u64,
}

impl<K: WorkerId> Inner<K> {
    /// Brings the marks of a worker to what they should be. The lock is
    /// released while they change. A panic of a waker is left in `panic`.
    ///
    /// If another thread is at it, it will see to this change as well.
    fn settle<'a>(
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

    fn finish<'a>(&'a self, mut state: MutexGuard<'a, State<K>>, outcome: Outcome<K>) {
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
    fn at(&self, now: Instant) -> At {
        let now = self.clock.moment(now);
        At {
            now,
            good_until: now.plus(self.stale_after),
            changes: self.changes.load(Ordering::Acquire),
        }
    }
}

/// Does to each mark what is wanted. What can panic is a waker, and then the
/// mark is changed already.
fn apply(marks: &mut Vec<Held>, clock: &Clock, panic: &mut FirstPanic) {
    let mut at = 0;
    while let Some(held) = marks.get_mut(at) {
        let Some(wanted) = held.wanted else {
            let gone = marks.swap_remove(at);
            panic.catch(|| drop(gone));
            continue;
        };
        at += 1;
        let was = mem::replace(&mut held.is, wanted);
        let is_news = mem::replace(&mut held.news, held.wanted_news) != held.wanted_news;
        panic.catch(|| match wanted {
            Moment::NEVER if was != wanted => held.mark.clear(),
            Moment::NEVER => {}
            // A mark that has fallen by its time is another one.
            busy_until if is_news || was == Moment::NEVER => {
                held.mark.set(clock.instant(busy_until));
            }
            busy_until if was != wanted => held.mark.keep(clock.instant(busy_until)),
            _ => {}
        });
    }
}

/// How many events of a batch are looked up before the first is judged.
const LOOKAHEAD: usize = 64;

impl WorkerMonitor<()> {
    /// A builder with the default options.
    pub fn builder() -> WorkerMonitorBuilder {
        WorkerMonitorBuilder {
            stale_after: Some(DEFAULT_STALE_AFTER),
            prefix: Prefix::default(),
            worker_gauges: true,
        }
    }
}

/// How long a reported count is good unless the application says otherwise:
/// workers report at least every second, so thirty of their reports are lost
/// by then.
pub const DEFAULT_STALE_AFTER: Duration = Duration::from_secs(30);

impl<K: WorkerId> WorkerMonitor<K> {
    /// A monitor without models and workers.
    pub fn new() -> Self {
        WorkerMonitor::builder().build()
    }

    /// A monitor for a fleet with one model: its marks go to `busy`, and
    /// workers are configured with [`configure_for_all`](Self::configure_for_all).
    pub fn for_model(model: &str, busy: BusySet<K>) -> (Self, ThresholdsHandle) {
        let monitor = Self::new();
        let handle = ThresholdsHandle::new(monitor.inner.changes.clone());
        monitor.insert_model(model, busy, &handle);
        (monitor, handle)
    }

    /// Adds a model, without thresholds and workers. Its marks go to `busy`,
    /// which must be a set of its own.
    ///
    /// # Errors
    ///
    /// There is a model of that name: nothing changes.
    pub fn add_model(
        &self,
        model: &str,
        busy: BusySet<K>,
    ) -> Result<ThresholdsHandle, DuplicateModel> {
        let handle = ThresholdsHandle::new(self.inner.changes.clone());
        if self.insert_model(model, busy, &handle) {
            Ok(handle)
        } else {
            Err(DuplicateModel(model.to_owned()))
        }
    }

    fn insert_model(&self, model: &str, busy: BusySet<K>, handle: &ThresholdsHandle) -> bool {
        // Made before the lock is taken: it runs the recorder.
        let missing_gauges = [
            thresholds::DECODE,
            thresholds::PREFILL_TOKENS,
            thresholds::PREFILL_FRAC,
        ]
        .map(|threshold| {
            metrics::WORKERS_WITHOUT_SIGNAL.gauge(&self.inner.prefix, &[model, threshold])
        });
        let mut state = lock(&self.inner.state);
        let inserted = self.inner.thresholds.insert(model, handle);
        if inserted {
            let handle = handle.clone();
            state.models.insert(model, busy, handle, missing_gauges);
        }
        inserted
    }

    /// Removes a model: its marks fall, and its handle changes nothing any
    /// more. Workers that served it stay, as do their loads. Returns whether
    /// there was one.
    pub fn remove_model(&self, model: &str) -> bool {
        self.remove_model_if(model, |_| true)
    }

    /// Thresholds for a [model](Self::put_model) of this monitor.
    pub(crate) fn new_thresholds(&self) -> ThresholdsHandle {
        ThresholdsHandle::new(self.inner.changes.clone())
    }

    /// Has `busy` be the set of the model: a model of that name with another
    /// set goes first, and one with this set stays as it is. The handle is
    /// from [`new_thresholds`](Self::new_thresholds); models may share one.
    pub(crate) fn put_model(&self, model: &str, busy: &BusySet<K>, handle: &ThresholdsHandle) {
        while !self.insert_model(model, busy.clone(), handle) && !self.has_model(model, busy) {
            self.remove_model_if(model, |set| !set.is(busy));
        }
    }

    fn has_model(&self, model: &str, busy: &BusySet<K>) -> bool {
        let state = lock(&self.inner.state);
        let id = state.models.id(model);
        let model = id.and_then(|id| state.models.get(id));
        model.is_some_and(|model| model.set.is(busy))
    }

    /// As [`remove_model`](Self::remove_model), if `busy` is its set.
    pub(crate) fn take_model(&self, model: &str, busy: &BusySet<K>) -> bool {
        self.remove_model_if(model, |set| set.is(busy))
    }

    fn remove_model_if(&self, model: &str, is_it: impl FnOnce(&BusySet<K>) -> bool) -> bool {
        let mut state = lock(&self.inner.state);
        let State {
            workers, models, ..
        } = &mut *state;
        let id = models.id(model).filter(|id| {
            let known = models.get(*id);
            known.is_some_and(|known| is_it(&known.set))
        });
        let Some(id) = id else {
            return false;
        };
        self.inner.thresholds.remove(model);
        // Dropped after the lock is released: its set may be.
        let removed = models.remove(id);
        if let Some(model) = &removed {
            model.missing_gauges.iter().for_each(|gauge| gauge.set(0.0));
        }
        let mut outcome = Outcome::default();
        for (key, entry) in workers {
            let Some(worker) = &mut entry.worker else {
                continue;
            };
            if worker.seats.iter().any(|seat| seat.model == id) {
                let seats = mem::replace(&mut worker.seats, Vec::new().into());
                let stay = seats.into_vec().into_iter();
                worker.seats = stay.filter(|seat| seat.model != id).collect();
                outcome.changed.push(key.clone());
            }
        }
        self.inner.finish(state, outcome);
        drop(removed);
        true
    }

    pub(super) fn load_sources(&self) -> Gauge {
        metrics::LOAD_SOURCES.gauge(&self.inner.prefix, &[])
    }

    /// The thresholds of all models, for an operator's interface.
    pub fn thresholds(&self) -> ModelThresholds {
        self.inner.thresholds.clone()
    }

    /// Registers a worker, or changes its configuration. `models` are the
    /// ones that it serves from now on, each of which judges it.
    ///
    /// The loads of ranks that it already had stay, those of ranks that it
    /// has no more are gone, and the worker is judged again at once. The
    /// evidence gets no older and no younger.
    ///
    /// # Errors
    ///
    /// There is no such model: nothing changes.
    pub fn configure<M>(
        &self,
        worker: K,
        config: WorkerConfig,
        models: M,
    ) -> Result<(), UnknownModel>
    where
        M: IntoIterator<Item: AsRef<str>>,
    {
        self.configure_at(worker, config, models, Instant::now())
    }

    /// As [`configure`](Self::configure), at the given time.
    ///
    /// # Errors
    ///
    /// There is no such model: nothing changes.
    pub fn configure_at<M>(
        &self,
        worker: K,
        config: WorkerConfig,
        models: M,
        now: Instant,
    ) -> Result<(), UnknownModel>
    where
        M: IntoIterator<Item: AsRef<str>>,
    {
        let models: Vec<_> = models.into_iter().collect();
        self.configure_with(worker, config, now, |known| {
            let mut ids: Vec<ModelId> = Vec::with_capacity(models.len());
            for name in &models {
                let name = name.as_ref();
                let id = known
                    .id(name)
                    .ok_or_else(|| UnknownModel(name.to_owned()))?;
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
            Ok(ids)
        })
    }

    /// As [`configure`](Self::configure), for a worker that serves every
    /// model that the monitor has now.
    pub fn configure_for_all(&self, worker: K, config: WorkerConfig) {
        let all = |known: &Models<K>| Ok(known.iter().map(|model| model.id).collect());
        let Ok(()) = self.configure_with::<Infallible>(worker, config, Instant::now(), all);
    }

    fn configure_with<E>(
        &self,
        key: K,
        config: WorkerConfig,
        now: Instant,
        models: impl FnOnce(&Models<K>) -> Result<Vec<ModelId>, E>,
    ) -> Result<(), E> {
        // Made before the lock is taken: it runs the recorder.
        let label = key.to_string();
        let gauges: Vec<_> = config
            .ranks()
            .iter()
            .map(|&rank| match self.inner.worker_gauges {
                true => RankGauges::new(&self.inner.prefix, &label, rank, config.label()),
                false => RankGauges::none(),
            })
            .collect();

        let mut state = lock(&self.inner.state);
        let ids = models(&state.models)?;
        let at = self.inner.at(now);
        let State {
            workers,
            models,
            counts,
            seen_changes,
            ..
        } = &mut *state;
        let entry = workers.entry(key.clone()).or_insert(Entry {
            worker: None,
            marks: Marks::Here(Vec::new()),
        });
        let new = Worker {
            counts: counts.get(&key).cloned(),
            capacity: config.capacity(),
            ranks: config
                .ranks()
                .iter()
                .zip(gauges)
                .map(|(&dp_rank, gauges)| Rank {
                    dp_rank,
                    load: RankLoad::default(),
                    gauges,
                })
                .collect(),
            config: Box::new(config),
            seats: ids
                .into_iter()
                .map(|model| Seat {
                    model,
                    busy_until: Moment::NEVER,
                    missing: [false; 3],
                })
                .collect(),
            signals: Signals::default(),
            news: 0,
        };
        let worker = match &mut entry.worker {
            Some(worker) => {
                worker.reconfigure(new, models);
                worker
            }
            none => none.insert(new),
        };
        let mut outcome = Outcome::default();
        if at.changes == *seen_changes {
            worker.judge(&key, models, at.now, &mut outcome.transitions);
        } else {
            state.judge_all(at, &mut outcome);
        }
        // In any case: its models may be others, though no verdict is new.
        let state = self.inner.settle(state, &key, &mut outcome.panic);
        self.inner.finish(state, outcome);
        Ok(())
    }

    /// The counts of a worker as it last reported them, at any time; 0 while it
    /// is not registered or its report is stale. To choose workers by, with
    /// [what was sent since](super::LoadBy::and_sent).
    ///
    /// The handle stays that of the worker's id, whoever comes and goes under
    /// it.
    pub fn counts(&self, worker: K) -> WorkerCounts {
        let mut state = lock(&self.inner.state);
        let at = self.inner.at(Instant::now());
        if let Some(counts) = state.counts.get(&worker) {
            return counts.clone();
        }
        if state.counts.len() >= state.forget_counts_at {
            state.forget_unread_counts();
        }
        let State {
            workers, counts, ..
        } = &mut *state;
        let new = WorkerCounts::new(self.inner.clock, self.inner.stale_after);
        let registered = workers.get_mut(&worker);
        if let Some(registered) = registered.and_then(|entry| entry.worker.as_mut()) {
            registered.counts = Some(new.clone());
            let is_fresh = |rank: &Rank| rank.load.fresh(at.now) != FreshCounts::default();
            if registered.ranks.iter().any(is_fresh) {
                registered.publish_counts(at.good_until);
            }
        }
        counts.insert(worker, new.clone());
        new
    }

    /// The load of each rank of the workers that are there, as they last
    /// reported it, in the text format of Prometheus: the same gauges as
    /// [those of the recorder](WorkerMonitorBuilder::worker_gauges), which are
    /// then to be off. The series of a worker end when it is removed.
    ///
    /// Costs a copy of all ranks, under the monitor's lock.
    pub fn worker_gauges(&self) -> String {
        let state = lock(&self.inner.state);
        let workers = state.workers.iter();
        let workers = workers.filter_map(|(key, entry)| Some((key, entry.worker.as_ref()?)));
        let ranks = workers.flat_map(|(key, worker)| {
            let ranks = worker.ranks.iter();
            ranks.map(move |rank| (key, rank.dp_rank, worker.config.label(), rank.load))
        });
        let ranks = ranks.map(|(key, dp_rank, label, load)| {
            (key.clone(), dp_rank, label.to_owned(), load.last_reported())
        });
        let ranks: Vec<_> = ranks.collect();
        drop(state);
        let rows = ranks.into_iter();
        let rows = rows.map(|(key, dp_rank, worker_type, counts)| gauges::Row {
            worker: key.to_string(),
            dp_rank,
            worker_type,
            counts,
        });
        gauges::text(&self.inner.prefix, rows.collect())
    }

    /// Forgets a worker and all its state: its marks fall, its gauges show 0,
    /// and an event that comes late is dropped. Returns whether there was one.
    pub fn remove(&self, worker: &K) -> bool {
        let mut state = lock(&self.inner.state);
        let State {
            workers, models, ..
        } = &mut *state;
        let entry = workers.get_mut(worker);
        let Some(mut gone) = entry.and_then(|entry| entry.worker.take()) else {
            return false;
        };
        gone.retire(models);
        let mut panic = FirstPanic::default();
        drop(self.inner.settle(state, worker, &mut panic));
        panic.resume();
        true
    }

    /// Takes a load event into account.
    ///
    /// When this returns, the marks of the worker say what its load says,
    /// unless another thread is changing them right now and will do it.
    ///
    /// # Errors
    ///
    /// The worker or its rank is not configured: the event was dropped and
    /// counted, and nothing changed.
    pub fn observe(&self, event: impl Borrow<LoadEvent<K>>) -> Result<(), DropReason> {
        self.observe_at(event, Instant::now())
    }

    /// As [`observe`](Self::observe), for an event that arrived at `now`.
    ///
    /// # Errors
    ///
    /// As [`observe`](Self::observe).
    pub fn observe_at(
        &self,
        event: impl Borrow<LoadEvent<K>>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let event = event.borrow();
        let mut outcome = Outcome::default();
        let mut state = lock(&self.inner.state);
        let at = self.inner.at(now);
        let observed = state.observe(event, at, &mut outcome);
        outcome.count(&observed);
        if let Ok(true) = observed {
            state = self.inner.settle(state, &event.worker, &mut outcome.panic);
        }
        self.inner.finish(state, outcome);
        observed.map(drop)
    }

    /// Takes several load events into account, in order, and says how many
    /// were accepted and dropped. Cheaper than one by one.
    pub fn observe_all(&self, events: &[LoadEvent<K>]) -> Observed {
        self.observe_all_at(events, Instant::now())
    }

    /// As [`observe_all`](Self::observe_all), for events that arrived at `now`.
    pub fn observe_all_at(&self, events: &[LoadEvent<K>], now: Instant) -> Observed {
        let mut outcome = Outcome::default();
        let mut changed = Vec::new();
        let mut state = lock(&self.inner.state);
        let at = self.inner.at(now);
        for events in events.chunks(LOOKAHEAD) {
            // All look-ups first: they do not depend on each other, so the
            // processor waits for their cache misses together.
            let mut known = [false; LOOKAHEAD];
            for (known, event) in known.iter_mut().zip(events) {
                *known = state.knows(&event.worker);
            }
            for (known, event) in known.into_iter().zip(events) {
                let result = if known {
                    state.observe(event, at, &mut outcome)
                } else {
                    Err(DropReason::UnregisteredWorker)
                };
                outcome.count(&result);
                if let Ok(true) = result {
                    changed.push(&event.worker);
                }
            }
        }
        for worker in changed {
            state = self.inner.settle(state, worker, &mut outcome.panic);
        }
        let observed = Observed {
            accepted: outcome.accepted,
            dropped: outcome.dropped_unregistered + outcome.dropped_undeclared,
        };
        self.inner.finish(state, outcome);
        observed
    }

    /// What the monitor knows about every worker now, in no order.
    pub fn snapshot(&self) -> Vec<WorkerSnapshot<K>> {
        self.snapshot_at(Instant::now())
    }

    /// As [`snapshot`](Self::snapshot), at the given time.
    pub fn snapshot_at(&self, now: Instant) -> Vec<WorkerSnapshot<K>> {
        let now = self.inner.clock.moment(now);
        let state = lock(&self.inner.state);
        let workers = state.workers.iter();
        workers
            .filter_map(|(key, entry)| entry.snapshot(key, &state.models, now))
            .collect()
    }

    /// What the monitor knows about one worker now, if it is registered.
    pub fn worker(&self, worker: &K) -> Option<WorkerSnapshot<K>> {
        let now = self.inner.clock.moment(Instant::now());
        let state = lock(&self.inner.state);
        let entry = state.workers.get(worker)?;
        entry.snapshot(worker, &state.models, now)
    }
}

impl Worker {
    /// Becomes `new`, keeping what is known of the ranks and models that stay.
    fn reconfigure<K>(&mut self, new: Self, models: &mut Models<K>) {
        let mut old = mem::replace(self, new);
        self.signals = old.signals;
        let same_labels = self.config.label() == old.config.label();
        let mut kept = old.ranks.into_vec().into_iter().peekable();
        for rank in &mut *self.ranks {
            while let Some(gone) = kept.next_if(|old| old.dp_rank < rank.dp_rank) {
                gone.gauges.retire();
            }
            if let Some(old) = kept.next_if(|old| old.dp_rank == rank.dp_rank) {
                rank.load = old.load;
                if same_labels {
                    rank.gauges = old.gauges;
                } else {
                    old.gauges.retire();
                    rank.gauges.restore(&old.load);
                }
            }
        }
        kept.for_each(|gone| gone.gauges.retire());
        for seat in &mut *old.seats {
            match self.seats.iter_mut().find(|new| new.model == seat.model) {
                Some(new) => {
                    new.busy_until = seat.busy_until;
                    new.missing = seat.missing;
                }
                None => {
                    if let Some(model) = models.get_mut(seat.model) {
                        model.recount(&mut seat.missing, [false; 3]);
                    }
                }
            }
        }
    }
}

impl Entry {
    fn snapshot<K: Clone>(
        &self,
        key: &K,
        models: &Models<K>,
        now: Moment,
    ) -> Option<WorkerSnapshot<K>> {
        let worker = self.worker.as_ref()?;
        let judges = || {
            let models = worker.seats.iter().map(|seat| models.get(seat.model));
            models.flatten()
        };
        let ranks = worker.ranks.iter().map(|rank| {
            let FreshCounts {
                active_decode_blocks,
                kv_used_blocks,
                active_prefill_tokens,
            } = rank.load.fresh(now);
            let busy = |model: &Model<K>| {
                let until = rank
                    .load
                    .busy_until(&model.thresholds, &worker.capacity, now);
                until != Moment::NEVER
            };
            RankSnapshot {
                dp_rank: rank.dp_rank,
                active_decode_blocks,
                kv_used_blocks,
                active_prefill_tokens,
                busy: judges().any(busy),
            }
        });
        let models = worker.seats.iter().filter_map(|seat| {
            Some(ModelVerdict {
                model: models.get(seat.model)?.name.clone(),
                busy: !seat.busy_until.is_over(now),
            })
        });
        let (kv_total_blocks, max_num_batched_tokens) = worker.config.given();
        Some(WorkerSnapshot {
            worker: key.clone(),
            models: models.collect(),
            ranks: ranks.collect(),
            kv_total_blocks,
            max_num_batched_tokens,
        })
    }
}

/// What a monitor knows about a worker at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerSnapshot<K> {
    /// The worker.
    pub worker: K,
    /// What each model that it serves makes of its load.
    pub models: Vec<ModelVerdict>,
    /// Its ranks, ascending.
    pub ranks: Vec<RankSnapshot>,
    /// KV blocks of each rank, as configured.
    pub kv_total_blocks: Option<u64>,
    /// Tokens that each rank takes into one batch, as configured.
    pub max_num_batched_tokens: Option<u64>,
}

impl<K> WorkerSnapshot<K> {
    /// Whether the worker is busy for at least one of its models.
    pub fn is_busy(&self) -> bool {
        self.models.iter().any(|model| model.busy)
    }

    /// Whether the worker is busy for the model; `None` if it does not serve it.
    pub fn is_busy_for(&self, model: &str) -> Option<bool> {
        let verdict = self
            .models
            .iter()
            .find(|verdict| &*verdict.model == model)?;
        Some(verdict.busy)
    }
}

/// What one model makes of the load of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelVerdict {
    /// The model.
    pub model: Shared<str>,
    /// Whether the worker is marked busy for it.
    pub busy: bool,
}

/// What a monitor knows about one rank of a worker. A count is the last one
/// reported, or `None` if there was none or it is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankSnapshot {
    /// The data-parallel rank.
    pub dp_rank: u32,
    /// KV blocks in use by decoding, as a router counts them.
    pub active_decode_blocks: Option<u64>,
    /// KV blocks in use, as the worker itself counts them.
    pub kv_used_blocks: Option<u64>,
    /// Prompt tokens that wait for or are in prefill.
    pub active_prefill_tokens: Option<u64>,
    /// Whether the rank is busy by the thresholds of at least one model of
    /// the worker.
    pub busy: bool,
}

/// How many load events were accepted and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Events that were taken into account.
    pub accepted: u64,
    /// Events for workers or ranks that are not configured.
    pub dropped: u64,
}

/// A model of that name exists already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateModel(String);

impl fmt::Display for DuplicateModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model {:?} exists already", self.0)
    }
}

impl std::error::Error for DuplicateModel {}

/// There is no model of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownModel(String);

impl UnknownModel {
    /// The name.
    pub fn model(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UnknownModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no model {:?}", self.0)
    }
}

impl std::error::Error for UnknownModel {}

impl<K> WorkerMonitor<K> {
    pub(crate) fn stale_after(&self) -> Option<Duration> {
        self.inner.stale_after
    }
}

impl<K: WorkerId> Default for WorkerMonitor<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Clone for WorkerMonitor<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<K> fmt::Debug for WorkerMonitor<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerMonitor")
            .field("thresholds", &self.inner.thresholds)
            .field("stale_after", &self.inner.stale_after)
            .finish_non_exhaustive()
    }
}
