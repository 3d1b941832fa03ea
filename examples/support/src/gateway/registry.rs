use super::{
    balance::Loads,
    limits::WorkerLimits,
    scrape::{Given, Metrics, Scraping},
    signs::SignsOfLife,
    stack::{Id, Stack, StackOptions, WorkerClient, stack},
    tracking::{RouterTracking, Tracking, WorkerService},
};
use crate::cli;
use http::Uri;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    fmt, io, mem,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock},
    time::{Duration, SystemTime},
};
use tokio::{
    task,
    time::{Instant, interval, sleep_until},
};
use tower_overload::{
    busy::{BusySet, DrainMark, Mark, Members, Roster, WorkerMarks},
    load::{LoadEvent, ModelThresholds, Observed, ThresholdUpdate, WorkerConfig, WorkerMonitor},
    metrics::{Prefix, describe},
    nats::{self, FleetSource},
    scrape::{EngineReport, WaitingTokens},
    status::{AnswerAll, KnownModels, Model, OverloadStatusLayer},
    upstream::{
        InvalidSetting,
        forward::{Forwarding, XForwarded},
    },
};

/// What the registry is made with.
#[derive(Clone, Debug)]
pub(super) struct RegistryOptions {
    pub(super) default_model: String,
    pub(super) overload_status: u16,
    pub(super) lease: Duration,
    pub(super) stale_after: Option<Duration>,
    pub(super) registration_ttl: Duration,
    pub(super) tracking: Option<RouterTracking>,
    pub(super) probe_timeout: Duration,
    pub(super) probe_after: Option<Duration>,
    pub(super) limits: WorkerLimits,
    pub(super) stack: StackOptions,
}

/// The workers and the models that they serve: what the admin API writes, the
/// public one reads, and the balancers follow.
pub(super) struct Registry {
    options: RegistryOptions,
    monitor: WorkerMonitor<Id>,
    /// Counts load by the requests that were sent.
    tracking: Option<Tracking>,
    status: OverloadStatusLayer<AnswerAll>,
    forwarding: Forwarding,
    recorder: PrometheusRecorder,
    /// Taken by the admin API only.
    workers: Mutex<BTreeMap<Id, Registered>>,
    /// Read by every request; models are added and never removed.
    models: RwLock<HashMap<Arc<str>, Arc<ServedModel>>>,
    /// If workers' metrics are read.
    scraping: OnceLock<Scraping>,
}

/// One model: the workers that serve it are behind its stack.
pub(super) struct ServedModel {
    pub(super) name: Arc<str>,
    /// When the gateway first heard of it.
    pub(super) since: SystemTime,
    pub(super) label: Model,
    pub(super) stack: Stack,
    set: BusySet<Id>,
    roster: Roster<Id, WorkerService>,
    members: Members,
}

struct Registered {
    url: Uri,
    models: Vec<Arc<ServedModel>>,
    given: Given,
    /// What is given, and the rest from the worker's metrics.
    config: WorkerConfig,
    metrics: Metrics,
    client: WorkerClient,
    signs: SignsOfLife,
    /// Keep requests away while they live.
    _drains: Vec<DrainMark>,
    kept: Kept,
}

/// How long a worker stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// From the command line: whatever it does.
    Always,
    /// Until nothing was heard of it for too long, since then.
    WhileHeard(Instant),
    /// Until its fleet says that it is gone.
    UntilItLeaves,
}

/// What a worker says of itself, or an operator of it. A member that is not
/// known is refused, as one that is misspelt has to be.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Registration {
    pub(super) url: String,
    pub(super) dp_ranks: Option<Vec<u32>>,
    pub(super) kv_total_blocks: Option<u64>,
    pub(super) max_num_batched_tokens: Option<u64>,
    #[serde(default)]
    pub(super) draining: bool,
    pub(super) models: Option<Vec<String>>,
}

impl Registration {
    /// A worker from the command line, of which only the address is known.
    pub(super) fn at(url: &Uri) -> Self {
        Self {
            url: url.to_string(),
            dp_ranks: None,
            kv_total_blocks: None,
            max_num_batched_tokens: None,
            draining: false,
            models: None,
        }
    }

    /// With what its engine can hold, as far as that is known.
    pub(super) fn with_capacity(mut self, blocks: Option<u64>, tokens: Option<u64>) -> Self {
        self.kv_total_blocks = blocks;
        self.max_num_batched_tokens = tokens;
        self
    }
}

/// A registration that cannot be used; nothing was changed.
#[derive(Clone, Debug)]
pub(super) struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A worker as the admin API shows it.
#[derive(Debug, Serialize)]
pub(super) struct WorkerView {
    id: Id,
    url: String,
    eligible: bool,
    busy: bool,
    leased: bool,
    unreachable: bool,
    failing: bool,
    draining: bool,
    marks: Vec<MarkView>,
    ranks: Vec<RankView>,
    kv_total_blocks: Option<u64>,
    max_num_batched_tokens: Option<u64>,
    models: Vec<Arc<str>>,
}

/// A mark of a worker, as the admin API shows it.
#[derive(Debug, Serialize)]
struct MarkView {
    model: Arc<str>,
    mark: &'static str,
    /// For how long it has been on.
    for_ms: Option<u64>,
    /// When it ends by itself, if it does.
    ends_in_ms: Option<u64>,
    failures_in_a_row: u32,
    failures_of_last_32: u32,
}

impl MarkView {
    fn all(model: &ServedModel, id: &Id) -> Vec<Self> {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let now = Instant::now();
        let states = model.set.mark_states(id);
        let states = states.iter().map(|state| Self {
            model: model.name.clone(),
            mark: state.mark().as_str(),
            for_ms: state.since().map(|since| ms(now - since)),
            ends_in_ms: state.until().map(|until| ms(until - now)),
            failures_in_a_row: state.failures_in_a_row(),
            failures_of_last_32: state.failures_of_last_32(),
        });
        states.collect()
    }
}

#[derive(Debug, Serialize)]
struct RankView {
    dp_rank: u32,
    active_decode_blocks: Option<u64>,
    kv_used_blocks: Option<u64>,
    active_prefill_tokens: Option<u64>,
    busy: bool,
}

/// How many workers the pool of a model has, as the admin API shows it.
#[derive(Debug, Serialize)]
pub(super) struct ModelView {
    model: Arc<str>,
    /// Those that it knows.
    alive: u64,
    /// Of these, the ones that are neither unreachable, failing nor draining.
    usable: u64,
    /// Of those, the ones that are neither busy nor leased.
    eligible: u64,
}

/// The most models of one worker.
const MAX_MODELS: usize = 64;

impl Registry {
    /// A registry without workers, and with the default model.
    pub(super) fn new(options: RegistryOptions) -> Result<Self, String> {
        let recorder = PrometheusBuilder::new().build_recorder();
        let (monitor, status) = metrics::with_local_recorder(&recorder, || {
            describe(&Prefix::default());
            let status = OverloadStatusLayer::builder()
                .overload_status(options.overload_status)
                .strip_reason_from_upstream(true);
            let monitor = WorkerMonitor::builder()
                .stale_after(options.stale_after)
                .build();
            status
                .build()
                .map(|status| (monitor, status.infallible()))
                .map_err(|error| error.to_string())
        })?;
        let default_model = options.default_model.clone();
        let tracking = options.tracking.map(|how| Tracking::new(&monitor, how));
        let registry = Self {
            options,
            monitor,
            tracking,
            status,
            // Who the client is, is for the proxy before this one to say.
            forwarding: Forwarding::new().x_forwarded(XForwarded::Pass),
            recorder,
            workers: Mutex::new(BTreeMap::new()),
            models: RwLock::new(HashMap::new()),
            scraping: OnceLock::new(),
        };
        registry.ensure_model(&default_model)?;
        Ok(registry)
    }

    /// The model that a request without one is for.
    pub(super) fn default_model(&self) -> &str {
        &self.options.default_model
    }

    /// What is forwarded, and how.
    pub(super) fn forwarding(&self) -> &Forwarding {
        &self.forwarding
    }

    /// What counts load by the requests that were sent, if anything does.
    pub(super) fn tracking(&self) -> Option<&Tracking> {
        self.tracking.as_ref()
    }

    /// The model of this name, if any worker has ever served it.
    pub(super) fn model(&self, name: &str) -> Option<Arc<ServedModel>> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        models.get(name).cloned()
    }

    /// All models that any worker has ever served, by name, and the default
    /// one.
    pub(super) fn known_models(&self) -> Vec<Arc<ServedModel>> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let mut known: Vec<_> = models.values().cloned().collect();
        drop(models);
        known.sort_by(|one, other| one.name.cmp(&other.name));
        known
    }

    /// The thresholds of every model.
    pub(super) fn thresholds(&self) -> ModelThresholds {
        self.monitor.thresholds()
    }

    /// Sets thresholds of the default model.
    pub(super) fn update_thresholds(&self, update: ThresholdUpdate) -> Result<(), String> {
        let thresholds = self.thresholds().get(self.default_model());
        let thresholds = thresholds.ok_or("the default model is gone")?;
        thresholds
            .update(update)
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    /// The metrics as they are now.
    pub(super) fn metrics(&self) -> String {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        models.values().for_each(|model| model.set.sweep());
        drop(models);
        self.recorder.handle().render()
    }

    /// The recorder keeps every sample of a histogram until somebody asks for
    /// them, and perhaps nobody does.
    pub(super) async fn keep_metrics_small(self: Arc<Self>) {
        let metrics = self.recorder.handle();
        let mut interval = interval(Duration::from_secs(5));
        loop {
            interval.tick().await;
            metrics.run_upkeep();
        }
    }

    /// The fleet that these servers tell of, counted in the metrics here.
    pub(super) async fn fleet(&self, servers: &nats::Servers) -> io::Result<FleetSource<Id>> {
        let options = metrics::with_local_recorder(&self.recorder, || {
            servers.connect_options(&Prefix::default())
        });
        let client = options.connect(servers).await.map_err(io::Error::other)?;
        Ok(metrics::with_local_recorder(&self.recorder, || {
            FleetSource::subscribe(&client)
        }))
    }

    fn ensure_model(&self, name: &str) -> Result<Arc<ServedModel>, String> {
        if let Some(model) = self.model(name) {
            return Ok(model);
        }
        let model = metrics::with_local_recorder(&self.recorder, || {
            let known: &KnownModels = self.status.models();
            known.add(name).map_err(|error| error.to_string())?;
            let lease = self.options.lease;
            let longest = lease.max(Duration::from_secs(30));
            let set = BusySet::<Id>::builder()
                .model(name)
                .lease(lease)
                .max_lease(longest)
                .probe_timeout(self.options.probe_timeout)
                .probe_after(self.options.probe_after)
                .build();
            let set = set.map_err(|error| error.to_string())?;
            self.monitor
                .add_model(name, set.clone())
                .map_err(|error| error.to_string())?;
            let loads = Loads::new(&self.monitor, self.tracking.as_ref());
            let (stack, roster, members) =
                stack(set.clone(), &loads, &self.options.stack, &self.status);
            Ok::<_, String>(Arc::new(ServedModel {
                name: name.into(),
                since: SystemTime::now(),
                label: Model::new(name),
                stack,
                set,
                roster,
                members,
            }))
        })?;
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        models.insert(name.into(), model.clone());
        Ok(model)
    }

    fn workers(&self) -> MutexGuard<'_, BTreeMap<Id, Registered>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(
        &self,
        id: &str,
        url: &Uri,
        signs: &SignsOfLife,
    ) -> Result<WorkerClient, InvalidSetting> {
        let limits = &self.options.limits;
        WorkerClient::new(id, url, &self.forwarding, limits, signs.clone())
    }

    /// Those of all workers.
    pub(super) fn clients(&self) -> Vec<(SignsOfLife, WorkerClient)> {
        let workers = self.workers();
        let clients = workers.values();
        let clients = clients.map(|worker| (worker.signs.clone(), worker.client.clone()));
        clients.collect()
    }

    /// Adds a worker or changes its configuration; with another URL it is
    /// another worker. One that is to stay always does, whoever registers it
    /// again.
    pub(super) fn register(
        &self,
        id: &str,
        registration: Registration,
        kept: Kept,
    ) -> Result<WorkerView, Refused> {
        check_name("the id", id)?;
        let url = cli::base_url(&registration.url)
            .map_err(|expected| Refused(format!("url is {:?}: {expected}", registration.url)))?;
        let signs = match self.workers().get(id) {
            Some(worker) if worker.url == url => worker.signs.clone(),
            _ => SignsOfLife::of(id.into()),
        };
        let client = self
            .client(id, &url, &signs)
            .map_err(|error| Refused(format!("url is {url}: {error}")))?;
        let has_ranks = registration.dp_ranks.is_some();
        let config = WorkerConfig::new(registration.dp_ranks.unwrap_or_else(|| vec![0]))
            .map_err(|error| Refused(error.to_string()))?
            .kv_total_blocks(registration.kv_total_blocks)
            .max_num_batched_tokens(registration.max_num_batched_tokens);
        let given = Given { config, has_ranks };
        let names = registration
            .models
            .unwrap_or_else(|| vec![self.default_model().to_owned()]);
        if names.is_empty() || names.len() > MAX_MODELS {
            return Err(Refused(format!(
                "models has {} names: expected from 1 to {MAX_MODELS}",
                names.len()
            )));
        }
        for (n, name) in names.iter().enumerate() {
            check_name("models", name)?;
            if names[..n].contains(name) {
                return Err(Refused(format!("models has {name:?} twice")));
            }
        }

        let mut workers = self.workers();
        self.check_room_for(&names)?;
        let models: Result<Vec<_>, _> = names.iter().map(|name| self.ensure_model(name)).collect();
        let models = models.map_err(Refused)?;
        let mut old = workers.remove(id);
        let id: Id = id.into();
        let service = match &self.tracking {
            Some(tracking) => tracking.client(id.clone(), client.clone()),
            None => WorkerService::Plain(client.clone()),
        };
        let is_same = old.as_ref().is_some_and(|old| old.url == url);
        let mut metrics = match &mut old {
            Some(old) if is_same => mem::take(&mut old.metrics),
            _ => Metrics::default(),
        };
        let config = match &metrics.report {
            Some((report, _)) => given.complete(report),
            None => given.config.clone(),
        };
        let (old_models, kept) = match &old {
            Some(old) if old.kept == Kept::Always => (&*old.models, Kept::Always),
            Some(old) => (&*old.models, kept),
            None => (&[][..], kept),
        };
        if !is_same && old.is_some() {
            self.monitor.remove(&id);
        }
        for model in old_models {
            if !is_same || !models.iter().any(|other| Arc::ptr_eq(other, model)) {
                model.set.forget(&id);
                model.roster.remove(&id);
            }
        }
        if let Some(tracking) = self.tracking.as_ref().filter(|_| !is_same && old.is_some()) {
            tracking.hand_over(&id);
        }
        for model in &models {
            if !is_same || !old_models.iter().any(|other| Arc::ptr_eq(other, model)) {
                model.roster.insert(id.clone(), service.clone());
            }
        }
        let configured = metrics::with_local_recorder(&self.recorder, || {
            if metrics.task.is_none() {
                let scraping = self.scraping.get();
                metrics.task = scraping.and_then(|it| it.start(&id, client.clone()));
            }
            self.monitor.configure(id.clone(), config.clone(), &names)
        });
        debug_assert!(configured.is_ok(), "the models were just made");
        if let Some((report, read_at)) = &metrics.report {
            // What was read is a share, and the blocks may be others now.
            if !metrics.reports_itself(self.options.stale_after) {
                let loads = report.loads(&id, &config, WaitingTokens::default());
                self.observe_at(&loads, *read_at);
            }
        }
        if let Some(tracking) = &self.tracking {
            tracking.configured(&id, config.ranks());
        }
        // Made before the old ones are dropped, so that the worker is not
        // eligible in between.
        let drains = models.iter().filter(|_| registration.draining);
        let drains = drains.map(|model| model.set.drain(id.clone())).collect();
        let registered = Registered {
            url,
            models,
            given,
            config,
            metrics,
            client,
            signs,
            _drains: drains,
            kept,
        };
        registered
            .signs
            .mark_in(registered.models.iter().map(|model| model.set.clone()));
        // Whoever registers lives; whether it is reached, a request finds out.
        registered.signs.alive();
        if let Some(old) = old.filter(|_| !is_same) {
            old.signs.end();
        }
        let view = self.view(&id, &registered);
        workers.insert(id, registered);
        Ok(view)
    }

    /// Whether all of `names` can be models. Asked before the first of them is
    /// made, so that one that cannot be leaves nothing behind.
    fn check_room_for(&self, names: &[String]) -> Result<(), Refused> {
        const MOST: usize = KnownModels::DEFAULT_LIMIT;
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let new = names.iter().filter(|name| !models.contains_key(&***name));
        if models.len() + new.count() > MOST {
            return Err(Refused(format!(
                "models has a new one: no more than {MOST} can be known"
            )));
        }
        Ok(())
    }

    /// Whether there is a worker of this id.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.workers().contains_key(id)
    }

    /// Removes a worker; requests that it has go on. Whether there was one.
    pub(super) fn remove(&self, id: &str) -> bool {
        let Some((id, gone)) = self.workers().remove_entry(id) else {
            return false;
        };
        self.leave(&id, &gone);
        true
    }

    /// Removes a worker that its fleet says is gone. Whether it was there, and
    /// is not kept for another reason.
    pub(super) fn leave_fleet(&self, id: &Id) -> bool {
        let mut workers = self.workers();
        let is_its = |worker: &Registered| worker.kept == Kept::UntilItLeaves;
        if !workers.get(id).is_some_and(is_its) {
            return false;
        }
        if let Some(gone) = workers.remove(id) {
            self.leave(id, &gone);
        }
        true
    }

    fn leave(&self, id: &Id, gone: &Registered) {
        self.monitor.remove(id);
        gone.signs.end();
        for model in &gone.models {
            model.set.forget(id);
            model.roster.remove(id);
        }
    }

    /// Takes load events; whoever sends one is alive.
    pub(super) fn load(&self, events: &[LoadEvent<Id>]) -> Observed {
        let now = Instant::now();
        let mut workers = self.workers();
        for event in events {
            if let Some(worker) = workers.get_mut(&event.worker) {
                if let Kept::WhileHeard(last) = &mut worker.kept {
                    *last = now;
                }
                worker.metrics.reported_itself = Some(now);
                worker.signs.alive();
            }
        }
        drop(workers);
        self.observe_at(events, now)
    }

    /// Has the monitor take what is said of workers' load, without what is
    /// counted here.
    fn observe_at(&self, events: &[LoadEvent<Id>], now: Instant) -> Observed {
        if self.tracking.is_some() {
            let rest: Vec<_> = events.iter().map(Tracking::rest_of).collect();
            return self.monitor.observe_all_at(&rest, now);
        }
        self.monitor.observe_all_at(events, now)
    }

    /// Reads the metrics of all workers from now on, each once in an interval.
    /// Called once.
    pub(super) fn scrape(self: &Arc<Self>, interval: Duration) {
        let mut workers = self.workers();
        let scraping = Scraping::new(Arc::downgrade(self), interval);
        let scraping = self.scraping.get_or_init(|| scraping);
        metrics::with_local_recorder(&self.recorder, || {
            for (id, worker) in &mut *workers {
                worker.metrics.task = scraping.start(id, worker.client.clone());
            }
        });
    }

    /// Takes what a task has read from a worker's metrics. That is no sign
    /// of the worker's to be kept: a registration says what a worker is and
    /// whose, and metrics do not.
    pub(super) fn scraped(&self, id: &Id, by: task::Id, report: EngineReport) {
        let mut workers = self.workers();
        let Some(worker) = workers.get_mut(id) else {
            return;
        };
        worker.signs.reached();
        worker.signs.alive();
        if !worker.metrics.wants_from(by, self.options.stale_after) {
            return;
        }
        let config = worker.given.complete(&report);
        if config != worker.config {
            let names = worker.models.iter().map(|model| &*model.name);
            let configured = metrics::with_local_recorder(&self.recorder, || {
                self.monitor.configure(id.clone(), config.clone(), names)
            });
            debug_assert!(configured.is_ok(), "models are never removed");
            if let Some(tracking) = &self.tracking {
                tracking.configured(id, config.ranks());
            }
            worker.config = config;
        }
        let loads = report.loads(id, &worker.config, WaitingTokens::default());
        let now = Instant::now();
        self.observe_at(&loads, now);
        worker.metrics.report = Some((report, now));
    }

    /// All workers, by id.
    pub(super) fn views(&self) -> Vec<WorkerView> {
        let workers = self.workers();
        let views = workers.iter().map(|(id, worker)| self.view(id, worker));
        views.collect()
    }

    /// How many workers each model has, by name.
    pub(super) fn model_views(&self) -> Vec<ModelView> {
        let view = |model: Arc<ServedModel>| ModelView {
            model: model.name.clone(),
            alive: model.members.alive(),
            usable: model.members.usable(),
            eligible: model.members.eligible(),
        };
        self.known_models().into_iter().map(view).collect()
    }

    fn view(&self, id: &Id, worker: &Registered) -> WorkerView {
        let marks: Vec<WorkerMarks> = worker.models.iter().map(|m| m.set.marks(id)).collect();
        let has = |mark| marks.iter().any(|marks| marks.has(mark));
        let known = self.monitor.worker(id);
        let ranks = known.iter().flat_map(|known| &known.ranks);
        WorkerView {
            id: id.clone(),
            url: worker.url.to_string().trim_end_matches('/').to_owned(),
            eligible: !marks.iter().any(|marks| marks.is_excluded()),
            busy: has(Mark::Busy),
            leased: has(Mark::Leased),
            unreachable: has(Mark::Unreachable),
            failing: has(Mark::Failing),
            draining: has(Mark::Draining),
            marks: worker
                .models
                .iter()
                .flat_map(|m| MarkView::all(m, id))
                .collect(),
            ranks: ranks
                .map(|rank| RankView {
                    dp_rank: rank.dp_rank,
                    active_decode_blocks: rank.active_decode_blocks,
                    kv_used_blocks: rank.kv_used_blocks,
                    active_prefill_tokens: rank.active_prefill_tokens,
                    busy: rank.busy,
                })
                .collect(),
            kv_total_blocks: known.as_ref().and_then(|known| known.kv_total_blocks),
            max_num_batched_tokens: known
                .as_ref()
                .and_then(|known| known.max_num_batched_tokens),
            models: worker.models.iter().map(|m| m.name.clone()).collect(),
        }
    }

    /// Removes the workers that are silent for too long, for ever.
    pub(super) async fn expire_registrations(self: Arc<Self>) {
        let ttl = self.options.registration_ttl;
        loop {
            sleep_until(self.remove_silent(Instant::now(), ttl)).await;
        }
    }

    /// When to look again: whoever registers later is silent later.
    fn remove_silent(&self, now: Instant, ttl: Duration) -> Instant {
        let mut workers = self.workers();
        let mut next = now + ttl;
        let silent = |worker: &Registered| match worker.kept {
            Kept::WhileHeard(heard) => Some(heard + ttl),
            Kept::Always | Kept::UntilItLeaves => None,
        };
        let mut gone = Vec::new();
        for (id, worker) in workers.iter() {
            match silent(worker) {
                Some(end) if end <= now => gone.push(id.clone()),
                Some(end) => next = next.min(end),
                None => {}
            }
        }
        for id in gone {
            if let Some(worker) = workers.remove(&id) {
                tracing::warn!(worker = &*id, "removed: it was silent for too long");
                self.leave(&id, &worker);
            }
        }
        next
    }
}

fn check_name(what: &str, name: &str) -> Result<(), Refused> {
    match cli::name(name) {
        Ok(_) => Ok(()),
        Err(expected) => Err(Refused(format!("{what} is {name:?}: {expected}"))),
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::balance::Balance, *};

    fn registry() -> Registry {
        Registry::new(RegistryOptions {
            default_model: "tiny".into(),
            overload_status: 529,
            lease: Duration::from_secs(1),
            stale_after: None,
            registration_ttl: Duration::from_secs(10),
            tracking: None,
            probe_timeout: Duration::from_secs(1),
            probe_after: None,
            limits: WorkerLimits::default(),
            stack: StackOptions {
                balance: Balance::P2c,
                max_wait: Duration::from_secs(3),
                max_waiting: 1024,
                max_in_flight: None,
                retry_refused: 1,
                retry_budget_percent: 20,
                retry_lost_percent: 50,
            },
        })
        .unwrap()
    }

    fn heard() -> Kept {
        Kept::WhileHeard(Instant::now())
    }

    fn at(port: u16) -> Registration {
        Registration::at(&format!("http://127.0.0.1:{port}").parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_is_removed_when_it_was_silent_for_the_whole_ttl() {
        let registry = Arc::new(registry());
        let mut upkeep = tokio::task::JoinSet::new();
        upkeep.spawn(registry.clone().expire_registrations());
        let pass = |seconds: u64| tokio::time::sleep(Duration::from_millis(1000 * seconds + 1));
        registry.register("permanent", at(1), Kept::Always).unwrap();
        registry.register("silent", at(2), heard()).unwrap();
        registry.register("heard", at(3), heard()).unwrap();
        let ids = || -> Vec<_> {
            let views = registry.views().into_iter();
            views.map(|view| view.id.to_string()).collect()
        };
        pass(9).await;
        let event = |worker: &str| LoadEvent::new(worker.into(), 0);
        registry.load(&[event("heard"), event("nobody")]);
        assert_eq!(ids(), ["heard", "permanent", "silent"]);
        pass(1).await;
        assert_eq!(ids(), ["heard", "permanent"]);
        pass(8).await;
        // A registration is heard as well, and does not make it expire.
        registry.register("permanent", at(1), heard()).unwrap();
        registry.register("heard", at(3), heard()).unwrap();
        pass(9).await;
        assert_eq!(ids(), ["heard", "permanent"]);
        pass(1).await;
        assert_eq!(ids(), ["permanent"]);
        pass(100).await;
        assert_eq!(ids(), ["permanent"]);
    }

    #[tokio::test]
    async fn a_fleet_takes_away_only_what_is_its_own() {
        let registry = registry();
        let of_fleet = Kept::UntilItLeaves;
        registry.register("permanent", at(1), Kept::Always).unwrap();
        registry.register("permanent", at(1), of_fleet).unwrap();
        registry.register("operated", at(2), of_fleet).unwrap();
        registry.register("operated", at(2), heard()).unwrap();
        registry.register("adopted", at(3), heard()).unwrap();
        registry.register("adopted", at(3), of_fleet).unwrap();
        let leaves = |id: &str| registry.leave_fleet(&id.into());
        assert!(!leaves("permanent") && !leaves("operated") && !leaves("unknown"));
        assert!(leaves("adopted") && !leaves("adopted"));
        assert!(registry.knows("permanent") && registry.knows("operated"));
        let later = Instant::now() + Duration::from_secs(100);
        registry.remove_silent(later, Duration::from_secs(10));
        assert!(registry.knows("permanent") && !registry.knows("operated"));
    }

    #[tokio::test]
    async fn a_registration_with_a_model_too_many_makes_none() {
        let registry = registry();
        let most = KnownModels::DEFAULT_LIMIT;
        let serving = |names: Vec<String>| Registration {
            models: Some(names),
            ..at(1)
        };
        let mut names = (1..most - 1).map(|n| format!("m{n}"));
        loop {
            let some: Vec<_> = names.by_ref().take(MAX_MODELS).collect();
            if some.is_empty() {
                break;
            }
            registry.register("a", serving(some), heard()).unwrap();
        }
        let two = vec!["last".to_owned(), "one-too-many".to_owned()];
        let refused = registry.register("b", serving(two), heard()).unwrap_err();
        assert!(refused.to_string().contains("1024"), "{refused}");
        assert!(registry.model("last").is_none());
        assert!(!registry.knows("b"));
        let last = vec!["last".to_owned(), "tiny".to_owned()];
        registry.register("b", serving(last), heard()).unwrap();
    }
}
