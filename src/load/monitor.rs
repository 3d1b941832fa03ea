use super::{
    DropReason, LoadEvent, ModelThresholds, Thresholds, ThresholdsHandle, WorkerConfig,
    few::Few,
    rank::{Capacity, FreshCounts, RankLoad, Signals, Until, worker_busy_until},
    thresholds,
};
use crate::{
    WorkerId,
    busy::{BusyMark, BusySet},
    metrics::{self, Prefix},
    sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, lock},
};
use ::metrics::{Counter, Gauge};
use std::{
    borrow::{Borrow, Cow},
    collections::HashMap,
    convert::Infallible,
    fmt, mem,
    sync::Arc as Shared,
    time::Duration,
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

    /// A monitor without models and workers.
    pub fn build<K: WorkerId>(self) -> WorkerMonitor<K> {
        let dropped = |reason: DropReason| {
            metrics::LOAD_EVENTS_DROPPED.counter(&self.prefix, &[reason.as_str()])
        };
        WorkerMonitor {
            inner: Arc::new(Inner {
                stale_after: self.stale_after,
                thresholds: ModelThresholds::new(),
                changes: Arc::new(AtomicU64::new(0)),
                accepted: metrics::LOAD_EVENTS.counter(&self.prefix, &[]),
                dropped_unregistered: dropped(DropReason::UnregisteredWorker),
                dropped_undeclared: dropped(DropReason::UndeclaredRank),
                prefix: self.prefix,
                state: Mutex::new(State {
                    index: HashMap::new(),
                    entries: Vec::new(),
                    vacant: Vec::new(),
                    models: Models::default(),
                    seen_changes: 0,
                }),
            }),
        }
    }
}

struct Inner<K> {
    stale_after: Option<Duration>,
    prefix: Prefix,
    thresholds: ModelThresholds,
    /// Counts stored threshold changes; read without a lock by every event.
    changes: Arc<AtomicU64>,
    accepted: Counter,
    dropped_unregistered: Counter,
    dropped_undeclared: Counter,
    state: Mutex<State<K>>,
}

struct State<K> {
    index: HashMap<K, usize>,
    entries: Vec<Option<Entry<K>>>,
    vacant: Vec<usize>,
    models: Models<K>,
    /// The count of threshold changes that are in effect.
    seen_changes: u64,
}

/// One worker id. It outlives the worker until the worker's marks are
/// dropped, so that a successor's are made after that and not before.
struct Entry<K> {
    key: K,
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
    is: Option<Until>,
    wanted: Wanted,
}

#[derive(Clone, Copy)]
enum Wanted {
    Until(Option<Until>),
    Gone,
}

struct Worker {
    capacity: Capacity,
    worker_type: Cow<'static, str>,
    /// By `dp_rank`, ascending.
    ranks: Few<Rank>,
    seats: Few<Seat>,
    signals: Signals,
}

struct Rank {
    dp_rank: u32,
    load: RankLoad,
    gauges: RankGauges,
}

/// The verdict of one model on one worker.
struct Seat {
    model: ModelId,
    busy_until: Option<Until>,
    missing: [bool; 3],
}

struct RankGauges {
    active_decode_blocks: Gauge,
    kv_used_blocks: Gauge,
    active_prefill_tokens: Gauge,
}

impl RankGauges {
    fn new(prefix: &Prefix, worker: &str, dp_rank: u32, worker_type: &str) -> Self {
        let dp_rank = dp_rank.to_string();
        let labels = [worker, &dp_rank, worker_type];
        Self {
            active_decode_blocks: metrics::WORKER_DECODE_BLOCKS.gauge(prefix, &labels),
            kv_used_blocks: metrics::WORKER_KV_USED_BLOCKS.gauge(prefix, &labels),
            active_prefill_tokens: metrics::WORKER_PREFILL_TOKENS.gauge(prefix, &labels),
        }
    }

    fn report<K>(&self, event: &LoadEvent<K>) {
        let set = |gauge: &Gauge, count: Option<u64>| {
            if let Some(count) = count {
                gauge.set(count as f64);
            }
        };
        set(&self.active_decode_blocks, event.active_decode_blocks);
        set(&self.kv_used_blocks, event.kv_used_blocks);
        set(&self.active_prefill_tokens, event.active_prefill_tokens);
    }

    fn restore(&self, load: &RankLoad) {
        let [blocks, used, tokens] = load.last_reported();
        self.active_decode_blocks.set(blocks as f64);
        self.kv_used_blocks.set(used as f64);
        self.active_prefill_tokens.set(tokens as f64);
    }

    fn retire(&self) {
        self.active_decode_blocks.set(0.0);
        self.kv_used_blocks.set(0.0);
        self.active_prefill_tokens.set(0.0);
    }
}

/// A place in [`Models`]. The stamp tells a model from a later one that has
/// taken its place.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ModelId {
    place: usize,
    stamp: u64,
}

struct Models<K> {
    places: Vec<Option<Model<K>>>,
    next_stamp: u64,
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
        self.places.get(id.place)?.as_ref()
    }

    fn get_mut(&mut self, id: ModelId) -> Option<&mut Model<K>> {
        self.places.get_mut(id.place)?.as_mut()
    }

    fn insert(&mut self, name: &str, set: BusySet<K>, handle: ThresholdsHandle, prefix: &Prefix) {
        let place = match self.places.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.places.push(None);
                self.places.len() - 1
            }
        };
        let id = ModelId {
            place,
            stamp: self.next_stamp,
        };
        self.next_stamp += 1;
        let names = [
            thresholds::DECODE,
            thresholds::PREFILL_TOKENS,
            thresholds::PREFILL_FRAC,
        ];
        self.places[place] = Some(Model {
            id,
            name: name.into(),
            set,
            thresholds: handle.get(),
            handle,
            missing: [0; 3],
            missing_gauges: names
                .map(|threshold| metrics::WORKERS_WITHOUT_SIGNAL.gauge(prefix, &[name, threshold])),
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
                    kv_total_blocks = self.capacity.kv_total_blocks,
                    max_num_batched_tokens = self.capacity.max_num_batched_tokens,
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

/// What one call leaves to do once its counts are in: marks to change, by
/// entry, and transitions to log.
struct Outcome<K> {
    changed: Vec<usize>,
    transitions: Vec<Transition<K>>,
}

impl<K> Default for Outcome<K> {
    fn default() -> Self {
        Self {
            changed: Vec::new(),
            transitions: Vec::new(),
        }
    }
}

impl Worker {
    /// Lets every model of the worker judge it. Returns whether a mark has
    /// to change.
    fn judge<K: Clone>(
        &mut self,
        key: &K,
        models: &mut Models<K>,
        now: Instant,
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
            let stale = was.is_some_and(|was| was.is_over(now));
            let steps = match (was, until) {
                (Some(_), Some(_)) if stale => [Some(To::Stale), Some(To::Busy)],
                (Some(_), None) if stale => [Some(To::Stale), None],
                (None, Some(_)) => [Some(To::Busy), None],
                (Some(_), None) => [Some(To::Free), None],
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

    /// The worker is gone: its gauges show 0, and no model counts it.
    fn retire<K>(&mut self, models: &mut Models<K>) {
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
    now: Instant,
) -> Option<&'a Rank> {
    let until = |rank: &&Rank| rank.load.busy_until(&model.thresholds, capacity, now);
    match to {
        To::Busy => ranks.iter().max_by_key(until),
        To::Free | To::Stale => ranks.iter().min_by_key(until),
    }
}

impl<K: WorkerId> State<K> {
    /// Judges worker `index` after its counts or configuration changed, and
    /// all others too if thresholds have changed since the last time.
    fn judge(&mut self, index: usize, changes: u64, now: Instant, outcome: &mut Outcome<K>) {
        if changes == self.seen_changes {
            self.judge_one(index, now, outcome);
            return;
        }
        self.seen_changes = changes;
        for model in self.models.places.iter_mut().flatten() {
            model.thresholds = model.handle.get();
        }
        for index in 0..self.entries.len() {
            self.judge_one(index, now, outcome);
        }
    }

    fn judge_one(&mut self, index: usize, now: Instant, outcome: &mut Outcome<K>) {
        let Some(entry) = &mut self.entries[index] else {
            return;
        };
        let Some(worker) = &mut entry.worker else {
            return;
        };
        if worker.judge(&entry.key, &mut self.models, now, &mut outcome.transitions) {
            outcome.changed.push(index);
        }
    }

    /// The registered worker of that id.
    fn find(&self, worker: &K) -> Option<usize> {
        let index = *self.index.get(worker)?;
        let entry = self.entries[index].as_ref()?;
        entry.worker.is_some().then_some(index)
    }

    /// Takes the counts of an event; `index` is where its worker was found.
    fn report(
        &mut self,
        index: Option<usize>,
        event: &LoadEvent<K>,
        good_until: Until,
    ) -> Result<usize, DropReason> {
        let index = index.ok_or(DropReason::UnregisteredWorker)?;
        let worker = self.entries[index]
            .as_mut()
            .and_then(|entry| entry.worker.as_mut())
            .ok_or(DropReason::UnregisteredWorker)?;
        let rank = worker
            .ranks
            .binary_search_by_key(&event.dp_rank, |rank| rank.dp_rank)
            .map_err(|_| DropReason::UndeclaredRank)?;
        let rank = &mut worker.ranks[rank];
        rank.load.report(event, good_until);
        // Under the lock, so that a gauge never goes back to an older value.
        rank.gauges.report(event);
        worker.signals.report(event);
        Ok(index)
    }

    /// The entry of the worker id, made if there is none.
    fn entry(&mut self, key: K) -> usize {
        if let Some(index) = self.index.get(&key) {
            return *index;
        }
        let entry = Some(Entry {
            key: key.clone(),
            worker: None,
            marks: Marks::Here(Vec::new()),
        });
        let index = match self.vacant.pop() {
            Some(index) => {
                self.entries[index] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.index.insert(key, index);
        index
    }

    /// Plans how the marks of an entry, which the caller has taken out, get
    /// to what they should be. `false` if they are.
    fn plan(&self, index: usize, marks: &mut Vec<Held>) -> bool {
        let Some(entry) = &self.entries[index] else {
            return false;
        };
        let seats = entry
            .worker
            .as_ref()
            .map_or(&[][..], |worker| &*worker.seats);
        let mut change = false;
        let mut gone = false;
        for held in &mut *marks {
            let seat = seats.iter().find(|seat| seat.model == held.model);
            held.wanted = seat.map_or(Wanted::Gone, |seat| Wanted::Until(seat.busy_until));
            gone |= seat.is_none();
            change |= seat.is_some_and(|seat| seat.busy_until != held.is);
        }
        if gone {
            // Those first, before another one is made for the same worker.
            return true;
        }
        for seat in seats {
            let held = marks.iter().any(|held| held.model == seat.model);
            if held || seat.busy_until.is_none() {
                continue;
            }
            if let Some(model) = self.models.get(seat.model) {
                change = true;
                marks.push(Held {
                    model: seat.model,
                    mark: model.set.busy_mark(entry.key.clone()),
                    is: None,
                    wanted: Wanted::Until(seat.busy_until),
                });
            }
        }
        change
    }

    /// Puts the marks of an entry back; without a worker the entry ends.
    fn put_back(&mut self, index: usize, marks: Vec<Held>) {
        let Some(entry) = &mut self.entries[index] else {
            return;
        };
        if entry.worker.is_none() && marks.is_empty() {
            self.index.remove(&entry.key);
            self.entries[index] = None;
            self.vacant.push(index);
        } else {
            entry.marks = Marks::Here(marks);
        }
    }
}

/// The marks of an entry while they are out. If a waker panics, they go back.
struct Settling<'a, K: WorkerId> {
    inner: &'a Inner<K>,
    index: usize,
    marks: Option<Vec<Held>>,
}

impl<K: WorkerId> Drop for Settling<'_, K> {
    fn drop(&mut self) {
        if let Some(marks) = self.marks.take() {
            lock(&self.inner.state).put_back(self.index, marks);
        }
    }
}

impl<K: WorkerId> Inner<K> {
    /// Brings the marks of an entry to what they should be. The lock is
    /// released while they change.
    ///
    /// If another thread is at it, it will see to this change as well.
    fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<K>>,
        index: usize,
    ) -> MutexGuard<'a, State<K>> {
        let Some(entry) = &mut state.entries[index] else {
            return state;
        };
        let Marks::Here(mut marks) = mem::replace(&mut entry.marks, Marks::Out) else {
            return state;
        };
        while state.plan(index, &mut marks) {
            drop(state);
            let mut settling = Settling {
                inner: self,
                index,
                marks: Some(marks),
            };
            if let Some(marks) = &mut settling.marks {
                marks.retain_mut(Held::apply);
            }
            marks = settling.marks.take().unwrap_or_default();
            state = lock(&self.state);
        }
        state.put_back(index, marks);
        state
    }

    fn finish<'a>(&'a self, mut state: MutexGuard<'a, State<K>>, outcome: Outcome<K>) {
        for index in outcome.changed {
            state = self.settle(state, index);
        }
        drop(state);
        for transition in outcome.transitions {
            transition.log();
        }
    }

    fn dropped(&self, reason: DropReason) {
        match reason {
            DropReason::UnregisteredWorker => self.dropped_unregistered.increment(1),
            DropReason::UndeclaredRank => self.dropped_undeclared.increment(1),
        }
    }

    /// Asked under the lock, so that it never goes back.
    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}

impl Held {
    /// Does what is wanted; `false` if the mark is to be dropped.
    fn apply(&mut self) -> bool {
        match self.wanted {
            Wanted::Gone => return false,
            Wanted::Until(until) if until == self.is => {}
            Wanted::Until(None) => self.mark.clear(),
            Wanted::Until(Some(until)) => self.mark.set(until.instant()),
        }
        if let Wanted::Until(until) = self.wanted {
            self.is = until;
        }
        true
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
        let mut state = lock(&self.inner.state);
        let inserted = self.inner.thresholds.insert(model, handle);
        if inserted {
            let handle = handle.clone();
            state.models.insert(model, busy, handle, &self.inner.prefix);
        }
        inserted
    }

    /// Removes a model: its marks fall, and its handle changes nothing any
    /// more. Workers that served it stay, as do their loads. Returns whether
    /// there was one.
    pub fn remove_model(&self, model: &str) -> bool {
        let mut state = lock(&self.inner.state);
        let State {
            entries, models, ..
        } = &mut *state;
        let Some(id) = models.id(model) else {
            return false;
        };
        self.inner.thresholds.remove(model);
        if let Some(model) = models.places[id.place].take() {
            model.missing_gauges.iter().for_each(|gauge| gauge.set(0.0));
        }
        let mut outcome = Outcome::default();
        for (index, entry) in entries.iter_mut().enumerate() {
            let worker = entry.as_mut().and_then(|entry| entry.worker.as_mut());
            if let Some(worker) = worker {
                if worker.seats.iter().any(|seat| seat.model == id) {
                    let seats = mem::replace(&mut worker.seats, Vec::new().into());
                    let stay = seats.into_vec().into_iter();
                    worker.seats = stay.filter(|seat| seat.model != id).collect();
                    outcome.changed.push(index);
                }
            }
        }
        self.inner.finish(state, outcome);
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
            .map(|&rank| {
                RankGauges::new(&self.inner.prefix, &label, rank, config.worker_type_label())
            })
            .collect();

        let mut state = lock(&self.inner.state);
        let ids = models(&state.models)?;
        let index = state.entry(key);
        let State {
            entries, models, ..
        } = &mut *state;
        let Some(entry) = &mut entries[index] else {
            return Ok(());
        };
        let new = Worker {
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
            worker_type: config.into_worker_type(),
            seats: ids
                .into_iter()
                .map(|model| Seat {
                    model,
                    busy_until: None,
                    missing: [false; 3],
                })
                .collect(),
            signals: Signals::default(),
        };
        match &mut entry.worker {
            Some(worker) => worker.reconfigure(new, models),
            none => *none = Some(new),
        }
        let changes = self.inner.changes();
        let mut outcome = Outcome {
            // Its models may be others, even if the verdicts of those that stay do not change.
            changed: vec![index],
            transitions: Vec::new(),
        };
        state.judge(index, changes, now, &mut outcome);
        self.inner.finish(state, outcome);
        Ok(())
    }

    /// Forgets a worker and all its state: its marks fall, its gauges show 0,
    /// and an event that comes late is dropped. Returns whether there was one.
    pub fn remove(&self, worker: &K) -> bool {
        let mut state = lock(&self.inner.state);
        let State {
            index,
            entries,
            models,
            ..
        } = &mut *state;
        let Some(&index) = index.get(worker) else {
            return false;
        };
        let worker = entries[index]
            .as_mut()
            .and_then(|entry| entry.worker.take());
        let Some(mut worker) = worker else {
            return false;
        };
        worker.retire(models);
        drop(self.inner.settle(state, index));
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
        let good_until = Until::after(now, self.inner.stale_after);
        let mut outcome = Outcome::default();
        let mut state = lock(&self.inner.state);
        let changes = self.inner.changes();
        let event = event.borrow();
        let index = state.find(&event.worker);
        match state.report(index, event, good_until) {
            Ok(index) => {
                state.judge(index, changes, now, &mut outcome);
                self.inner.finish(state, outcome);
                self.inner.accepted.increment(1);
                Ok(())
            }
            Err(reason) => {
                drop(state);
                self.inner.dropped(reason);
                Err(reason)
            }
        }
    }

    /// Takes several load events into account, in order, and says how many
    /// were accepted and dropped. Cheaper than one by one.
    pub fn observe_all(&self, events: &[LoadEvent<K>]) -> Observed {
        self.observe_all_at(events, Instant::now())
    }

    /// As [`observe_all`](Self::observe_all), for events that arrived at `now`.
    pub fn observe_all_at(&self, events: &[LoadEvent<K>], now: Instant) -> Observed {
        let good_until = Until::after(now, self.inner.stale_after);
        let mut outcome = Outcome::default();
        let mut observed = Observed::default();
        let mut state = lock(&self.inner.state);
        let changes = self.inner.changes();
        for events in events.chunks(LOOKAHEAD) {
            // All look-ups first: they do not depend on each other, so the
            // processor waits for their cache misses together.
            let mut found = [None; LOOKAHEAD];
            for (index, event) in found.iter_mut().zip(events) {
                *index = state.find(&event.worker);
            }
            for (index, event) in found.into_iter().zip(events) {
                match state.report(index, event, good_until) {
                    Ok(index) => {
                        state.judge(index, changes, now, &mut outcome);
                        observed.accepted += 1;
                    }
                    Err(reason) => {
                        self.inner.dropped(reason);
                        observed.dropped += 1;
                    }
                }
            }
        }
        self.inner.finish(state, outcome);
        self.inner.accepted.increment(observed.accepted);
        observed
    }

    /// What the monitor knows about every worker now, in no order.
    pub fn snapshot(&self) -> Vec<WorkerSnapshot<K>> {
        self.snapshot_at(Instant::now())
    }

    /// As [`snapshot`](Self::snapshot), at the given time.
    pub fn snapshot_at(&self, now: Instant) -> Vec<WorkerSnapshot<K>> {
        let state = lock(&self.inner.state);
        let entries = state.entries.iter().flatten();
        entries
            .filter_map(|entry| entry.snapshot(&state.models, now))
            .collect()
    }

    /// What the monitor knows about one worker now, if it is registered.
    pub fn worker(&self, worker: &K) -> Option<WorkerSnapshot<K>> {
        let now = Instant::now();
        let state = lock(&self.inner.state);
        let entry = state.entries[*state.index.get(worker)?].as_ref()?;
        entry.snapshot(&state.models, now)
    }
}

impl Worker {
    /// Becomes `new`, keeping what is known of the ranks and models that stay.
    fn reconfigure<K>(&mut self, new: Self, models: &mut Models<K>) {
        let mut old = mem::replace(self, new);
        self.signals = old.signals;
        let same_labels = self.worker_type == old.worker_type;
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

impl<K: Clone> Entry<K> {
    fn snapshot(&self, models: &Models<K>, now: Instant) -> Option<WorkerSnapshot<K>> {
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
                until.is_some()
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
                busy: seat.busy_until.is_some_and(|until| !until.is_over(now)),
            })
        });
        Some(WorkerSnapshot {
            worker: self.key.clone(),
            models: models.collect(),
            ranks: ranks.collect(),
            kv_total_blocks: worker.capacity.kv_total_blocks,
            max_num_batched_tokens: worker.capacity.max_num_batched_tokens,
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
    /// KV blocks of each rank, if known.
    pub kv_total_blocks: Option<u64>,
    /// Tokens that each rank takes into one batch, if known.
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
