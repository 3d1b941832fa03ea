mod error;
mod marks;
mod models;
mod snapshot;
mod state;
mod transition;
mod worker;

pub use error::{DuplicateModel, UnknownModel};
pub use snapshot::{ModelVerdict, Observed, RankSnapshot, WorkerSnapshot};

use marks::{Entry, Marks};
use models::{ModelId, Models};
use state::{FEW_COUNTS, Inner, Outcome, State};
use worker::{Rank, Seat, Worker};

use super::{
    DropReason, LoadEvent, ModelThresholds, ThresholdsHandle, WorkerConfig, WorkerCounts,
    gauges::{self, RankGauges},
    rank::{Clock, FreshCounts, Moment, RankLoad, Signals},
    thresholds,
};
use crate::{
    WorkerId,
    busy::BusySet,
    metrics::{self, Prefix},
    sync::{Arc, AtomicU64, Mutex, lock},
    unwind::FirstPanic,
};
use ::metrics::Gauge;
use std::{borrow::Borrow, collections::HashMap, convert::Infallible, fmt, mem, time::Duration};
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
