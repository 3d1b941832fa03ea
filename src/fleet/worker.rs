//! What is to be of a worker, what is, and how the one becomes the other.

use super::{Id, Origin, Registration, SignsOfLife, model::Served, registration::is_same_url};
use crate::{
    busy::DrainMark,
    load::{LoadEvent, Observed, WorkerConfig, WorkerMonitor},
    status::KnownModels,
    unwind::FirstPanic,
};
use http::Uri;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// What is known under one id. It outlives the worker until all that it has
/// left behind is gone.
pub(super) struct Entry<S, M> {
    pub(super) wanted: Option<Wanted<S, M>>,
    pub(super) placed: Placed<S, M>,
}

/// What a worker has been given. That is changed without the lock, since it
/// wakes others: one thread at a time takes it out, and looks again before it
/// puts it back.
pub(super) enum Placed<S, M> {
    Here(Option<Place<S, M>>),
    Out,
}

impl<S, M> Default for Entry<S, M> {
    fn default() -> Self {
        Self {
            wanted: None,
            placed: Placed::Here(None),
        }
    }
}

/// A worker as it is to be.
pub(super) struct Wanted<S, M> {
    pub(super) registration: Registration,
    /// What a discovery said of it last, before others changed it.
    pub(super) said: Option<Registration>,
    pub(super) origin: Origin,
    /// When something was last heard of it.
    pub(super) heard: Instant,
    /// When it last reported its load itself.
    pub(super) reported: Option<Instant>,
    /// An operator drains it.
    pub(super) operator_drains: bool,
    /// What its metrics say of its capacity.
    pub(super) learned: Learned,
    pub(super) plan: Plan<S, M>,
}

impl<S, M> Wanted<S, M> {
    /// Whether it has reported its load itself, and that is still good.
    pub(super) fn reports_itself(&self, good_for: Option<Duration>) -> bool {
        self.reported.is_some_and(|at| match good_for {
            Some(good_for) => at.elapsed() < good_for,
            None => true,
        })
    }
}

/// What the metrics of a worker say.
#[derive(Clone, Default)]
pub(super) struct Learned {
    /// Its capacity, for what its registration does not say.
    pub(super) kv_total_blocks: Option<u64>,
    pub(super) dp_ranks: Option<Vec<u32>>,
    pub(super) load: Option<Reading>,
}

/// When the load was read, and what it is.
pub(super) type Reading = (Instant, Arc<Loads>);

/// The load of a worker that is configured so: what is read is a share.
pub(super) type Loads = dyn Fn(&Id, &WorkerConfig) -> Vec<LoadEvent<Id>> + Send + Sync;

impl Learned {
    /// The configuration of a worker that is registered so.
    pub(super) fn complete(
        &self,
        registration: &Registration,
        given: WorkerConfig,
    ) -> WorkerConfig {
        let ranks = self.dp_ranks.as_ref();
        let ranks = ranks.filter(|_| registration.dp_ranks.is_none());
        let config = match ranks.map(|ranks| WorkerConfig::new(ranks.iter().copied())) {
            Some(Ok(config)) => config.max_num_batched_tokens(registration.max_num_batched_tokens),
            _ => given,
        };
        config.kv_total_blocks(registration.kv_total_blocks.or(self.kv_total_blocks))
    }
}

/// What a worker is to be given.
pub(super) struct Plan<S, M> {
    /// Another one with each change.
    pub(super) revision: u64,
    /// Another one for each worker that had the id.
    pub(super) incarnation: u64,
    pub(super) url: Uri,
    pub(super) service: S,
    pub(super) signs: SignsOfLife,
    pub(super) config: WorkerConfig,
    /// Its load by its metrics, unless it knows better.
    pub(super) load: Option<Reading>,
    pub(super) draining: bool,
    pub(super) models: Arc<[Arc<Served<S, M>>]>,
}

impl<S: Clone, M> Clone for Plan<S, M> {
    fn clone(&self) -> Self {
        Self {
            revision: self.revision,
            incarnation: self.incarnation,
            url: self.url.clone(),
            service: self.service.clone(),
            signs: self.signs.clone(),
            config: self.config.clone(),
            load: self.load.clone(),
            draining: self.draining,
            models: self.models.clone(),
        }
    }
}

/// What a worker was given.
pub(super) struct Place<S, M> {
    pub(super) revision: u64,
    pub(super) url: Uri,
    incarnation: u64,
    signs: SignsOfLife,
    models: Arc<[Arc<Served<S, M>>]>,
    /// Keep requests away while they live.
    drains: Vec<DrainMark>,
}

/// What workers are made known to, beside their models.
pub(super) struct Around<'a> {
    pub(super) monitor: &'a WorkerMonitor<Id>,
    pub(super) tracker: Option<&'a dyn Track>,
    pub(super) known: Option<&'a KnownModels>,
}

impl Around<'_> {
    /// Has the monitor take what is said of workers' load, without what the
    /// tracker counts.
    pub(super) fn observe(&self, events: &[LoadEvent<Id>], now: Instant) -> Observed {
        if self.tracker.is_none() {
            return self.monitor.observe_all_at(events, now);
        }
        let rest = events.iter().map(|event| {
            LoadEvent::new(event.worker.clone(), event.dp_rank).kv_used_blocks(event.kv_used_blocks)
        });
        let rest: Vec<_> = rest.collect();
        self.monitor.observe_all_at(&rest, now)
    }
}

/// A [`LoadTracker`](crate::load::tracker::LoadTracker), whatever its cost is.
pub(super) trait Track: Send + Sync {
    /// The worker was configured with these ranks, perhaps after it was away.
    fn configured(&self, id: &Id, ranks: &[u32]);
    /// The id is another worker's from now on.
    fn hand_over(&self, id: &Id);
    /// Whether it counts anything of the worker, there or not.
    fn has(&self, id: &Id) -> bool;
}

/// Brings a worker from what it was given to what it is to have. The order is
/// what matters:
///
/// - what leaves is chosen no more before its load and its marks go, so that
///   no request is sent to it as to one that is free;
/// - what comes is judged and drained before it can be chosen;
/// - the marks of a new drain are there before the old ones go.
///
/// `before` is where the worker was that left under this id: requests that it
/// still has are load of the one that comes if that is the same.
///
/// Each step runs, whatever a waker of another one does.
pub(super) fn bring<S: Clone, M>(
    id: &Id,
    was: Option<Place<S, M>>,
    before: Option<&Uri>,
    to: Option<&Plan<S, M>>,
    around: &Around<'_>,
    panic: &mut FirstPanic,
) -> Option<Place<S, M>> {
    let stays = match (&was, to) {
        (Some(was), Some(to)) => was.incarnation == to.incarnation,
        _ => false,
    };
    let serves = |models: &[Arc<Served<S, M>>], model: &Arc<Served<S, M>>| {
        models.iter().any(|other| Arc::ptr_eq(other, model))
    };
    if let Some(was) = &was {
        let after = to.filter(|_| stays).map_or(&[][..], |to| &*to.models);
        let left = || was.models.iter().filter(|model| !serves(after, model));
        for model in left() {
            panic.catch(|| model.roster.remove(id));
        }
        if !stays {
            panic.catch(|| {
                around.monitor.remove(id);
            });
        }
        for model in left() {
            panic.catch(|| model.set().forget(id));
        }
        if !stays {
            was.signs.end();
        }
    }
    let Some(to) = to else {
        panic.catch(|| drop(was));
        return None;
    };
    let before = was.as_ref().map(|was| &was.url).or(before);
    let is_another = before.is_some_and(|before| !is_same_url(before, &to.url));
    if let Some(tracker) = around.tracker.filter(|_| is_another) {
        panic.catch(|| tracker.hand_over(id));
    }
    for model in &*to.models {
        panic.catch(|| model.join(around.monitor, around.known));
    }
    panic.catch(|| {
        let names = to.models.iter().map(|model| model.name());
        let configured = around
            .monitor
            .configure(id.clone(), to.config.clone(), names);
        debug_assert!(configured.is_ok(), "they have just joined");
    });
    if let Some((read_at, loads)) = &to.load {
        panic.catch(|| {
            around.observe(&loads(id, &to.config), *read_at);
        });
    }
    if let Some(tracker) = around.tracker {
        panic.catch(|| tracker.configured(id, to.config.ranks()));
    }
    let mut drains = Vec::new();
    for model in to.models.iter().filter(|_| to.draining) {
        panic.catch(|| drains.push(model.set().drain(id.clone())));
    }
    let sets = to.models.iter().map(|model| model.set().clone());
    to.signs.mark_in(sets);
    let before = was.as_ref().filter(|_| stays);
    let before = before.map_or(&[][..], |was| &*was.models);
    for model in to.models.iter().filter(|model| !serves(before, model)) {
        panic.catch(|| model.roster.insert(id.clone(), to.service.clone()));
    }
    // Whoever registers lives; whether it is reached, a request finds out.
    panic.catch(|| to.signs.alive());
    panic.catch(|| drop(was));
    Some(Place {
        revision: to.revision,
        url: to.url.clone(),
        incarnation: to.incarnation,
        signs: to.signs.clone(),
        models: to.models.clone(),
        drains,
    })
}

impl<S, M> Drop for Place<S, M> {
    /// Each mark falls, whatever a waker of another one does.
    fn drop(&mut self) {
        let mut panic = FirstPanic::default();
        for drain in self.drains.drain(..) {
            panic.catch(|| drop(drain));
        }
        panic.resume();
    }
}
