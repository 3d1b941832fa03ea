//! The public face of a fleet, and its state.

use super::{
    Compose, Connect, FleetBuilder, Id, ModelMarks, Origin, Refused, RefusedKind, Registration,
    ServedModel, SignsOfLife, WorkerUpdate, WorkerView,
    expiry::next_end,
    model::{Fresh, Models, Served},
    registration::{Checked, check_id, check_name, check_ttl, is_same_url},
    worker::{Around, Entry, Placed, Plan, Track, Wanted, bring},
};
use crate::{
    BoxError,
    busy::{BusySetBuilder, Members, Notifier, roster},
    load::{LoadEvent, ModelThresholds, Observed, WorkerMonitor},
    status::{KnownModels, Model},
    sync::{Mutex, lock},
    unwind::FirstPanic,
};
use ::metrics::Recorder;
use http::Uri;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::time::Instant;

/// The workers that are there and the models that they serve. See the [module
/// documentation](super).
///
/// `S` is the client of a worker, and `M` what stands in front of the workers
/// of a model; both are [made by the application](FleetBuilder::build). A
/// handle: clones share one fleet.
///
/// When a call returns, all that it says has been done, unless another thread
/// is changing the same worker right now and will do it.
pub struct Fleet<S, M> {
    pub(super) inner: Arc<Inner<S, M>>,
}

type ConnectFn<S> = dyn Fn(&Connect<'_>) -> Result<S, BoxError> + Send + Sync;
type ComposeFn<S, M> = dyn Fn(Compose<'_, S>) -> Result<(M, Members), BoxError> + Send + Sync;

pub(super) struct Inner<S, M> {
    pub(super) monitor: WorkerMonitor<Id>,
    tracker: Option<Box<dyn Track>>,
    known: Option<KnownModels>,
    recorder: Option<Arc<dyn Recorder + Send + Sync>>,
    sets: BusySetBuilder,
    pub(super) default_model: Option<Arc<str>>,
    ttl: Duration,
    max_workers: usize,
    connect: Box<ConnectFn<S>>,
    compose: Box<ComposeFn<S, M>>,
    models: Models<S, M>,
    pub(super) state: Mutex<State<S, M>>,
    /// Workers have come, changed or gone.
    changed: Notifier,
}

pub(super) struct State<S, M> {
    next: u64,
    pub(super) workers: BTreeMap<Id, Entry<S, M>>,
    /// Static workers that an operator has removed.
    removed: BTreeSet<Id>,
    /// Where workers were that have left while the tracker counts requests
    /// that they still have.
    left: BTreeMap<Id, Uri>,
    /// With so many it is looked which have none any more.
    forget_left_at: usize,
}

/// As many workers that have left are kept in any case.
const FEW_LEFT: usize = 64;

impl<S, M> State<S, M> {
    pub(super) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn has_left(&mut self, id: &Id, url: Uri, tracker: &dyn Track) {
        self.left.insert(id.clone(), url);
        if self.left.len() > self.forget_left_at {
            self.left.retain(|id, _| tracker.has(id));
            self.forget_left_at = (2 * self.left.len()).max(FEW_LEFT);
        }
    }

    pub(super) fn wanted(&self, id: &str) -> Option<&Wanted<S, M>> {
        self.workers.get(id)?.wanted.as_ref()
    }

    pub(super) fn wanted_mut(&mut self, id: &str) -> Option<&mut Wanted<S, M>> {
        self.workers.get_mut(id)?.wanted.as_mut()
    }
}

/// What a removal has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// A worker that is back when it, or its discovery, says that it is there.
    UntilItIsBack,
    /// A worker of the configuration: nobody but an operator brings it back.
    ForGood,
}

impl<S, M> Inner<S, M> {
    pub(super) fn new(
        models: Models<S, M>,
        builder: FleetBuilder,
        connect: Box<ConnectFn<S>>,
        compose: Box<ComposeFn<S, M>>,
    ) -> Self {
        Self {
            monitor: builder.monitor,
            tracker: builder.tracker,
            known: builder.known,
            recorder: builder.recorder,
            sets: builder.sets,
            default_model: builder.default_model,
            ttl: builder.ttl,
            max_workers: builder.max_workers,
            connect,
            compose,
            models,
            state: Mutex::new(State {
                next: 0,
                workers: BTreeMap::new(),
                removed: BTreeSet::new(),
                left: BTreeMap::new(),
                forget_left_at: FEW_LEFT,
            }),
            changed: Notifier::new(),
        }
    }

    /// Has handles of metrics be made with the fleet's recorder.
    fn recorded<R>(&self, what: impl FnOnce() -> R) -> R {
        match &self.recorder {
            Some(recorder) => ::metrics::with_local_recorder(&**recorder, what),
            None => what(),
        }
    }

    fn around(&self) -> Around<'_> {
        Around {
            monitor: &self.monitor,
            tracker: self.tracker.as_deref(),
            known: self.known.as_ref(),
        }
    }
}

impl<S: Clone, M> Inner<S, M> {
    /// Gives a worker what it is to have, without the lock. If another thread
    /// is at it, that will see to this change as well.
    fn settle(&self, id: &Id, panic: &mut FirstPanic) {
        let mut state = lock(&self.state);
        let Some(entry) = state.workers.get_mut(id) else {
            return;
        };
        let Placed::Here(mut place) = mem::replace(&mut entry.placed, Placed::Out) else {
            return;
        };
        let mut gone = None;
        loop {
            let Some(entry) = state.workers.get_mut(id) else {
                // Not reached: an entry that is out is removed by its thread.
                return;
            };
            let wanted = entry.wanted.as_ref().map(|wanted| &wanted.plan);
            let is_placed = place.as_ref().map(|place| place.revision);
            if wanted.map(|plan| plan.revision) == is_placed {
                if wanted.is_none() {
                    if let Some((url, tracker)) = gone.zip(self.tracker.as_deref()) {
                        state.has_left(id, url, tracker);
                    }
                    state.workers.remove(id);
                } else {
                    entry.placed = Placed::Here(place);
                }
                return;
            }
            let wanted = wanted.cloned();
            let was = place.as_ref().map(|place| place.url.clone());
            gone = was.or(gone).or_else(|| state.left.remove(id));
            drop(state);
            self.recorded(|| {
                let around = self.around();
                place = bring(
                    id,
                    place.take(),
                    gone.as_ref(),
                    wanted.as_ref(),
                    &around,
                    panic,
                );
            });
            drop(wanted);
            state = lock(&self.state);
        }
    }

    pub(super) fn settled(&self, ids: impl IntoIterator<Item = Id>) {
        let mut panic = FirstPanic::default();
        for id in ids {
            self.settle(&id, &mut panic);
        }
        panic.catch(|| self.changed.notify());
        panic.resume();
    }
}

impl<S, M> Drop for Inner<S, M> {
    /// Who looks after the fleet's workers ends with it.
    fn drop(&mut self) {
        self.changed.notify();
    }
}

/// Who says what of a worker.
enum Said {
    /// A discovery, or the one who configures: all of it.
    Whole(Registration, Origin),
    /// The worker or an operator: what it names. Whether there has to be one.
    Part(WorkerUpdate, bool),
}

impl<S: Clone, M> Fleet<S, M> {
    pub(super) fn of(inner: Inner<S, M>) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Registers a worker, or changes all that is known of it. With another
    /// URL it is another worker: the load, the marks and the counts of the one
    /// before are not its own. Requests that were sent go on.
    ///
    /// One of [`Origin::Static`] stays that, whoever registers it again.
    ///
    /// # Errors
    ///
    /// Something of it cannot be used, an operator has removed it, or there is
    /// no room. Nothing has changed.
    pub fn register(
        &self,
        id: &str,
        registration: Registration,
        origin: Origin,
    ) -> Result<WorkerView, Refused> {
        self.say(id, Said::Whole(registration, origin))
    }

    /// Registers a worker, or changes what the update names and nothing else:
    /// what `PUT` does. See [`WorkerUpdate::ttl`] for who says so.
    ///
    /// A worker that an operator registers is kept like one that registers
    /// itself, so it goes when it was silent for the fleet's [time to
    /// live](FleetBuilder::ttl), and it is kept for good if it is one of [`Origin::Static`] that was
    /// removed.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub fn put(&self, id: &str, update: WorkerUpdate) -> Result<WorkerView, Refused> {
        self.say(id, Said::Part(update, false))
    }

    /// Changes what the update names and nothing else: what `PATCH` does.
    ///
    /// # Errors
    ///
    /// There is no such worker, or as [`register`](Self::register).
    pub fn patch(&self, id: &str, update: WorkerUpdate) -> Result<WorkerView, Refused> {
        self.say(id, Said::Part(update, true))
    }

    /// Keeps new requests away from a worker, or no longer, as an operator
    /// wants it. What it has goes on.
    ///
    /// # Errors
    ///
    /// There is no such worker.
    pub fn drain(&self, id: &str, draining: bool) -> Result<WorkerView, Refused> {
        self.patch(id, WorkerUpdate::new().draining(draining))
    }

    fn say(&self, id: &str, said: Said) -> Result<WorkerView, Refused> {
        check_id(id)?;
        loop {
            // What a worker is made of is foreign, so it is made without the
            // lock, and again if the worker is another one by then.
            let seen = self.seen(id);
            if let Some(view) = self.try_say(id, &said, seen)? {
                return Ok(view);
            }
        }
    }

    /// The revision of a worker, if there is one.
    fn seen(&self, id: &str) -> Option<u64> {
        let state = lock(&self.inner.state);
        state.wanted(id).map(|wanted| wanted.plan.revision)
    }

    /// `None`: the worker has changed meanwhile.
    fn try_say(
        &self,
        id: &str,
        said: &Said,
        seen: Option<u64>,
    ) -> Result<Option<WorkerView>, Refused> {
        let inner = &*self.inner;
        let now = Instant::now();
        let state = lock(&inner.state);
        let known = state.wanted(id);
        if known.map(|known| known.plan.revision) != seen {
            return Ok(None);
        }
        let was_removed = known.is_none() && state.removed.contains(id);
        let (registration, origin, operator_drains) = match said {
            Said::Whole(registration, origin) => {
                let by_operator = *origin == Origin::Static;
                if was_removed && !by_operator {
                    return Err(Refused::removed(id));
                }
                (registration.clone(), origin.clone(), None)
            }
            Said::Part(_, true) if known.is_none() => return Err(Refused::unknown(id)),
            Said::Part(update, _) => {
                if was_removed && update.ttl.is_some() {
                    return Err(Refused::removed(id));
                }
                let origin = match (update.ttl, known) {
                    (Some(ttl), _) => Origin::Reported(ttl),
                    (None, Some(known)) => known.origin.clone(),
                    (None, None) if was_removed => Origin::Static,
                    (None, None) => Origin::Reported(inner.ttl),
                };
                let registration = update
                    .clone()
                    .onto(known.map(|known| &known.registration))?;
                (registration, origin, update.operator_drains())
            }
        };
        if let Origin::Reported(ttl) = &origin {
            check_ttl(*ttl)?;
        }
        let origin = match known {
            Some(known) if known.origin == Origin::Static => Origin::Static,
            _ => origin,
        };
        let Checked { url, given, models } = registration.check(inner.default_model.as_deref())?;
        if known.is_none() && state.workers.len() >= inner.max_workers {
            return Err(Refused::full(format!(
                "no more than {} workers can be registered",
                inner.max_workers
            )));
        }
        let same = known.filter(|known| is_same_url(&known.plan.url, &url));
        let kept = same.map(|known| {
            let Plan {
                incarnation,
                service,
                signs,
                ..
            } = &known.plan;
            (*incarnation, service.clone(), signs.clone())
        });
        let learned = same.map(|known| known.learned.clone()).unwrap_or_default();
        let said_before = known.and_then(|known| known.said.clone());
        let reported = same.and_then(|known| known.reported);
        let good_for = inner.monitor.stale_after();
        let knows_better = same.is_some_and(|known| known.reports_itself(good_for));
        let drained = known.is_some_and(|known| known.operator_drains);
        drop(state);

        let id: Id = id.into();
        let (incarnation, service, signs) = match kept {
            Some((incarnation, service, signs)) => (Some(incarnation), service, signs),
            None => {
                let signs = SignsOfLife::of(id.clone());
                let connect = Connect {
                    id: &id,
                    url: &url,
                    signs: &signs,
                };
                let service = inner.recorded(|| (inner.connect)(&connect));
                let service =
                    service.map_err(|error| Refused::invalid(format!("url is {url}: {error}")))?;
                (None, service, signs)
            }
        };
        let names = models.iter().map(|model| &*model.name);
        // Held until all are, so that none of them gives way to another.
        let known = names.clone().filter_map(|name| inner.models.claim(name));
        let _known: Vec<_> = known.collect();
        inner.models.check_room(names)?;
        let mut claimed: Vec<Arc<Served<S, M>>> = Vec::with_capacity(models.len());
        for model in &models {
            let base = model.base.as_deref();
            let base = base.and_then(|base| claimed.iter().find(|it| it.name() == base));
            let base = base.cloned();
            claimed.push(self.claim(&model.name, base)?);
        }

        let operator_drains = operator_drains.unwrap_or(drained);
        let mut state = lock(&inner.state);
        let known = state.wanted(&id).map(|known| known.plan.revision);
        // That there is none, before and after, does not mean that none has
        // come and gone, or that the last place is still free.
        let is_another = known.is_none()
            && (state.removed.contains(&id) != was_removed
                || state.workers.len() >= inner.max_workers);
        if known != seen || is_another {
            return Ok(None);
        }
        let revision = state.next();
        state.removed.remove(&id);
        let wanted = Wanted {
            plan: Plan {
                revision,
                incarnation: incarnation.unwrap_or(revision),
                url,
                service,
                signs,
                config: learned.complete(&registration, given),
                load: learned.load.clone().filter(|_| !knows_better),
                draining: operator_drains || registration.draining,
                models: claimed.into(),
            },
            registration,
            said: match said {
                Said::Whole(registration, _) => Some(registration.clone()),
                Said::Part(..) => said_before,
            },
            origin,
            heard: now,
            reported,
            operator_drains,
            learned,
        };
        let entry = state.workers.entry(id.clone()).or_default();
        let old = entry.wanted.replace(wanted);
        let view = Self::viewed(&id, entry);
        drop(state);
        inner.settled([id]);
        // Not before: it is foreign, and may panic.
        drop(old);
        Ok(view.map(|view| self.complete(view)))
    }

    /// The model of this name, for one who serves it; made if it is new.
    fn claim(
        &self,
        name: &Arc<str>,
        base: Option<Arc<Served<S, M>>>,
    ) -> Result<Arc<Served<S, M>>, Refused> {
        let inner = &*self.inner;
        if let Some(known) = inner.models.claim(name) {
            return Ok(known);
        }
        let refused = |error: BoxError| Refused::invalid(format!("model {name:?}: {error}"));
        let fresh = inner.recorded(|| {
            let set = inner.sets.clone().model(&**name).build();
            let set = set.map_err(|error| refused(error.into()))?;
            let (roster, changes) = roster();
            let compose = Compose {
                name,
                set: set.clone(),
                changes,
            };
            let (service, members) = (inner.compose)(compose).map_err(refused)?;
            Ok::<_, Refused>(Fresh {
                name: name.clone(),
                label: Model::new(&**name),
                set,
                members,
                service,
                roster,
                base,
            })
        })?;
        let entered = inner.models.enter(fresh, &inner.monitor)?;
        if let Some(gone) = entered.forgotten {
            inner.monitor.take_model(gone.name(), gone.set());
            if let Some(known) = &inner.known {
                known.remove(gone.name());
                // It may be back by now, and its counters with it.
                if inner.models.get(gone.name()).is_some() {
                    inner.recorded(|| drop(known.add(gone.name())));
                }
            }
        }
        Ok(entered.served)
    }

    /// Has a model be known, whether or not a worker serves it, and for ever.
    ///
    /// # Errors
    ///
    /// It cannot be made, or there is no room.
    pub fn add_model(&self, name: &str) -> Result<Arc<ServedModel<M>>, Refused> {
        check_name("the model", name)?;
        let served = self.claim(&name.into(), None)?;
        served.pin();
        let inner = &*self.inner;
        inner.recorded(|| served.join(&inner.monitor, inner.known.as_ref()));
        Ok(served.model.clone())
    }

    /// Removes a worker, as an operator wants it: it gets no new request, and
    /// those that it has go on. `None` if there is no such worker.
    ///
    /// One of [`Origin::Static`] does not come back by itself: see
    /// [`Removed::ForGood`].
    pub fn remove(&self, id: &str) -> Option<Removed> {
        self.take(id, |_| true)
    }

    /// Removes a worker, as the one says who has registered it. Whether it was
    /// there and is kept for no other reason: the configuration, or another
    /// discovery. A worker that [reports](Origin::Reported) itself may leave
    /// with any time to live.
    pub fn leave(&self, id: &str, origin: &Origin) -> bool {
        let is_its = |known: &Origin| match (known, origin) {
            (Origin::Reported(_), Origin::Reported(_)) => true,
            (Origin::Static, _) => false,
            _ => known == origin,
        };
        self.take(id, is_its).is_some()
    }

    /// Has the workers of a [discovery](Origin::Source) be these and no others:
    /// registers those that are new or have changed, and has those
    /// [leave](Self::leave) that are not among them. Those that come are there
    /// before the others leave, as far as there is room. Returns which were
    /// refused, and why. What an operator has changed of one stays until the
    /// discovery says something else of it than before.
    ///
    /// For a discovery that knows all of its workers at once. One that cannot
    /// be asked knows nothing: leave the workers as they are.
    pub fn sync<I: Into<Id>>(
        &self,
        discovery: &str,
        workers: impl IntoIterator<Item = (I, Registration)>,
    ) -> Vec<(Id, Refused)> {
        let origin = Origin::source(discovery);
        let workers = workers.into_iter().map(|(id, worker)| (id.into(), worker));
        let workers: BTreeMap<Id, Registration> = workers.collect();
        let state = lock(&self.inner.state);
        let known = state.workers.iter();
        let known = known.filter_map(|(id, entry)| Some((id, entry.wanted.as_ref()?)));
        let is_its = |wanted: &Wanted<S, M>| wanted.origin == origin;
        let gone: Vec<Id> = known
            .filter(|(id, wanted)| is_its(wanted) && !workers.contains_key(*id))
            .map(|(id, _)| id.clone())
            .collect();
        let is_as_said = |id: &Id, worker: &Registration| {
            let known = state.wanted(id);
            known.is_some_and(|known| is_its(known) && known.said.as_ref() == Some(worker))
        };
        let news: Vec<_> = workers
            .iter()
            .filter(|(id, worker)| !is_as_said(id, worker))
            .collect();
        drop(state);
        let refused = |id: &Id, worker: &Registration| {
            let registered = self.register(id, worker.clone(), origin.clone());
            if registered.is_ok() {
                tracing::info!(worker = &**id, discovery, "is there");
            }
            registered.err()
        };
        // If all are others now, nobody would be there in between.
        let mut not_there = Vec::new();
        for (id, worker) in news {
            if let Some(why) = refused(id, worker) {
                not_there.push((id, worker, why));
            }
        }
        for id in gone {
            if self.leave(&id, &origin) {
                tracing::info!(worker = &*id, discovery, "has left");
            }
        }
        let not_there = not_there.into_iter().filter_map(|(id, worker, why)| {
            let why = match why.kind() {
                RefusedKind::Full => refused(id, worker)?,
                _ => why,
            };
            Some((id.clone(), why))
        });
        not_there.collect()
    }

    fn take(&self, id: &str, is_its: impl FnOnce(&Origin) -> bool) -> Option<Removed> {
        let mut state = lock(&self.inner.state);
        let (id, _) = state.workers.get_key_value(id)?;
        let id = id.clone();
        let entry = state.workers.get_mut(&id)?;
        let gone = entry.wanted.take_if(|wanted| is_its(&wanted.origin))?;
        let removed = match gone.origin {
            Origin::Static => {
                state.removed.insert(id.clone());
                Removed::ForGood
            }
            Origin::Reported(_) | Origin::Source(_) => Removed::UntilItIsBack,
        };
        drop(state);
        self.inner.settled([id]);
        Some(removed)
    }

    /// Takes load events of workers: whoever sends one lives.
    ///
    /// Where the fleet has a [tracker](FleetBuilder::tracker), what that counts
    /// is taken off.
    pub fn observe(&self, events: &[LoadEvent<Id>]) -> Observed {
        let now = Instant::now();
        let mut alive: Vec<SignsOfLife> = Vec::new();
        let mut state = lock(&self.inner.state);
        for event in events {
            if let Some(worker) = state.wanted_mut(&event.worker) {
                worker.heard = now;
                if event.has_counts() {
                    worker.reported = Some(now);
                }
                alive.push(worker.plan.signs.clone());
            }
        }
        drop(state);
        alive.iter().for_each(SignsOfLife::alive);
        self.observe_at(events, now)
    }

    /// Has the monitor take what is said of workers' load, without what is
    /// counted here.
    pub(super) fn observe_at(&self, events: &[LoadEvent<Id>], now: Instant) -> Observed {
        self.inner.around().observe(events, now)
    }

    /// What is sent to the workers, for those who look after them.
    pub(super) fn clients(&self) -> Vec<(S, SignsOfLife)> {
        let state = lock(&self.inner.state);
        let workers = state.workers.values();
        let plans = workers.filter_map(|entry| Some(&entry.wanted.as_ref()?.plan));
        plans
            .map(|plan| (plan.service.clone(), plan.signs.clone()))
            .collect()
    }

    /// Removes the workers of which nothing was heard for as long as they are
    /// good for, and says when the next one ends if nothing is heard of it.
    pub(super) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = lock(&self.inner.state);
        let mut gone = Vec::new();
        let mut ended = Vec::new();
        let mut next: Option<Instant> = None;
        for (id, entry) in &mut state.workers {
            let Some(wanted) = &entry.wanted else {
                continue;
            };
            match next_end(&wanted.origin, wanted.heard) {
                Some(end) if end <= now => {
                    gone.push(id.clone());
                    ended.push(entry.wanted.take());
                }
                Some(end) => next = Some(next.map_or(end, |next| next.min(end))),
                None => {}
            }
        }
        drop(state);
        if !gone.is_empty() {
            for id in &gone {
                tracing::warn!(worker = &**id, "removed: it was silent for too long");
            }
            self.inner.settled(gone);
        }
        // Not before: it is foreign, and may panic.
        drop(ended);
        next
    }

    /// Whether there is a worker of this id.
    pub fn knows(&self, id: &str) -> bool {
        lock(&self.inner.state).wanted(id).is_some()
    }

    /// A worker as it is now.
    pub fn worker(&self, id: &str) -> Option<WorkerView> {
        let state = lock(&self.inner.state);
        let (id, entry) = state.workers.get_key_value(id)?;
        let view = Self::viewed(id, entry);
        drop(state);
        view.map(|view| self.complete(view))
    }

    /// All workers as they are now, by id.
    pub fn workers(&self) -> Vec<WorkerView> {
        let state = lock(&self.inner.state);
        let workers = state.workers.iter();
        let views = workers.filter_map(|(id, entry)| Self::viewed(id, entry));
        let views: Vec<_> = views.collect();
        drop(state);
        let views = views.into_iter();
        views.map(|view| self.complete(view)).collect()
    }

    fn viewed(id: &Id, entry: &Entry<S, M>) -> Option<Viewed<S, M>> {
        let wanted = entry.wanted.as_ref()?;
        Some(Viewed {
            id: id.clone(),
            origin: wanted.origin.clone(),
            plan: wanted.plan.clone(),
        })
    }

    fn complete(&self, viewed: Viewed<S, M>) -> WorkerView {
        let Viewed { id, origin, plan } = viewed;
        let known = self.inner.monitor.worker(&id);
        let (kv_total_blocks, max_num_batched_tokens) = plan.config.given();
        let models = plan.models.iter().map(|model| ModelMarks {
            model: model.model.name().clone(),
            marks: model.set().marks(&id),
            states: model.set().mark_states(&id),
        });
        WorkerView {
            models: models.collect(),
            id,
            url: plan.url,
            origin,
            ranks: known.map(|known| known.ranks).unwrap_or_default(),
            kv_total_blocks,
            max_num_batched_tokens,
        }
    }

    /// A model that the fleet knows, whether or not a worker serves it now.
    pub fn model(&self, name: &str) -> Option<Arc<ServedModel<M>>> {
        self.inner.models.get(name)
    }

    /// All models that the fleet knows, by name.
    pub fn models(&self) -> Vec<Arc<ServedModel<M>>> {
        self.inner.models.all()
    }

    /// The thresholds of every model. An adapter's are those of its model.
    pub fn thresholds(&self) -> ModelThresholds {
        self.inner.monitor.thresholds()
    }

    /// The model of workers and requests that name none.
    pub fn default_model(&self) -> Option<&Arc<str>> {
        self.inner.default_model.as_ref()
    }

    /// Has handles of metrics that `what` makes be of the fleet's
    /// [recorder](FleetBuilder::recorder).
    pub fn recorded<R>(&self, what: impl FnOnce() -> R) -> R {
        self.inner.recorded(what)
    }
}

impl<S, M> Fleet<S, M> {
    pub(super) fn changed(&self) -> &Notifier {
        &self.inner.changed
    }

    pub(super) fn downgrade(&self) -> WeakFleet<S, M> {
        WeakFleet(Arc::downgrade(&self.inner))
    }
}

/// A fleet that ends when the application drops it.
pub(super) struct WeakFleet<S, M>(Weak<Inner<S, M>>);

impl<S, M> WeakFleet<S, M> {
    #[cfg(feature = "nats")]
    pub(super) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    pub(super) fn upgrade(&self) -> Option<Fleet<S, M>> {
        let inner = self.0.upgrade()?;
        Some(Fleet { inner })
    }
}

struct Viewed<S, M> {
    id: Id,
    origin: Origin,
    plan: Plan<S, M>,
}

impl<S, M> Clone for Fleet<S, M> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<S, M> fmt::Debug for Fleet<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = lock(&self.inner.state).workers.len();
        f.debug_struct("Fleet")
            .field("workers", &workers)
            .field("default_model", &self.inner.default_model)
            .finish_non_exhaustive()
    }
}
