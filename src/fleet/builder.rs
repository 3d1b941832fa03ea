use super::{
    Fleet, Id, Refused, SignsOfLife, fleet::Inner, model::Models, registration::check_ttl,
    worker::Track,
};
use crate::{
    BoxError,
    busy::{BusySet, BusySetBuilder, Members, RosterChanges},
    load::{WorkerMonitor, tracker::LoadTracker},
    status::KnownModels,
};
use ::metrics::Recorder;
use http::Uri;
use std::{fmt, sync::Arc, time::Duration};

/// A worker that is to be connected to, for the first of the two functions of
/// [`FleetBuilder::build`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Connect<'a> {
    /// What it is called.
    pub id: &'a Id,
    /// Where it is reached.
    pub url: &'a Uri,
    /// To be told when it is reached.
    pub signs: &'a SignsOfLife,
}

/// A model that is to be served, for the second of the two functions of
/// [`FleetBuilder::build`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Compose<'a, S> {
    /// What it is called.
    pub name: &'a str,
    /// The marks of its workers.
    pub set: BusySet<Id>,
    /// Its workers as they come and go: the `Discover` of a pool or a balancer.
    pub changes: RosterChanges<Id, S>,
}

/// Makes a [`Fleet`].
#[must_use]
pub struct FleetBuilder {
    pub(super) monitor: WorkerMonitor<Id>,
    pub(super) tracker: Option<Box<dyn Track>>,
    pub(super) sets: BusySetBuilder,
    pub(super) known: Option<KnownModels>,
    pub(super) recorder: Option<Arc<dyn Recorder + Send + Sync>>,
    pub(super) default_model: Option<Arc<str>>,
    pub(super) ttl: Duration,
    pub(super) max_workers: usize,
    max_models: usize,
}

impl Default for FleetBuilder {
    fn default() -> Self {
        Self {
            monitor: WorkerMonitor::new(),
            tracker: None,
            sets: BusySet::<Id>::builder(),
            known: None,
            recorder: None,
            default_model: None,
            ttl: Duration::from_secs(10),
            max_workers: 16 * 1024,
            max_models: KnownModels::DEFAULT_LIMIT,
        }
    }
}

impl FleetBuilder {
    /// A builder with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Who judges the load of the workers (default: a monitor with the
    /// defaults). Its workers and models are the fleet's from here on.
    pub fn monitor(mut self, monitor: WorkerMonitor<Id>) -> Self {
        self.monitor = monitor;
        self
    }

    /// Who counts load by the requests that were sent (default: nobody). The
    /// clients that [`build`](Self::build) connects have its layer.
    ///
    /// What it counts is then taken off the events of the workers: their
    /// `active_decode_blocks` and `active_prefill_tokens`.
    pub fn tracker<C, T>(mut self, tracker: LoadTracker<Id, C, T>) -> Self
    where
        C: Clone + Send + Sync + 'static,
        T: Clone + Send + Sync + 'static,
    {
        self.tracker = Some(Box::new(tracker));
        self
    }

    /// How the sets of the models are made: their leases, cooldowns and probes
    /// (default: a builder with the defaults). Each gets the name of its model.
    pub fn sets(mut self, sets: BusySetBuilder) -> Self {
        self.sets = sets;
        self
    }

    /// Where models are made known while workers serve them, so that their
    /// rejections are counted by name (default: nowhere).
    pub fn known_models(mut self, known: KnownModels) -> Self {
        self.known = Some(known);
        self
    }

    /// Who records the metrics of the models and workers (default: the
    /// recorder that is installed when they come).
    pub fn recorder(mut self, recorder: Arc<dyn Recorder + Send + Sync>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// The model of workers that name none. It is there from the start and
    /// is never forgotten (default: none, and workers have to name theirs).
    pub fn default_model(mut self, name: impl Into<Arc<str>>) -> Self {
        self.default_model = Some(name.into());
        self
    }

    /// How long a worker is kept that was not heard of, if its registration
    /// does not say (default: 10 s; from 1 ms to a day).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How many workers there may be (default: 16,384).
    pub fn max_workers(mut self, workers: usize) -> Self {
        self.max_workers = workers;
        self
    }

    /// How many models there may be (default: 1,024). When there are as many,
    /// a new one takes the place of one that no worker serves, unless it has
    /// thresholds or is [to stay](Fleet::add_model).
    pub fn max_models(mut self, models: usize) -> Self {
        self.max_models = models;
        self
    }

    /// The fleet, without workers.
    ///
    /// `connect` makes the client of a worker that is new or has another URL.
    /// An error refuses the registration. `compose` makes what stands in front
    /// of the workers of a model that is new, such as a
    /// [pool](crate::pool::WorkerPool) with a retry and the status layer above
    /// it, and says how many workers that has. Both are called by those who
    /// register workers, under no lock, perhaps by several at once, and what
    /// they make may be dropped unused.
    ///
    /// # Errors
    ///
    /// The default model cannot be made, or the [time to live](Self::ttl) or a
    /// time of the [sets](Self::sets) is out of its range.
    pub fn build<S, M, C, F>(self, connect: C, compose: F) -> Result<Fleet<S, M>, Refused>
    where
        S: Clone + Send + 'static,
        M: Send + Sync + 'static,
        C: Fn(&Connect<'_>) -> Result<S, BoxError> + Send + Sync + 'static,
        F: Fn(Compose<'_, S>) -> Result<(M, Members), BoxError> + Send + Sync + 'static,
    {
        check_ttl(self.ttl)?;
        let default_model = self.default_model.clone();
        let fleet = Fleet::of(Inner::new(
            Models::new(self.max_models),
            self,
            Box::new(connect),
            Box::new(compose),
        ));
        if let Some(model) = default_model {
            fleet.add_model(&model)?;
        }
        Ok(fleet)
    }
}

impl fmt::Debug for FleetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetBuilder")
            .field("default_model", &self.default_model)
            .field("ttl", &self.ttl)
            .field("max_workers", &self.max_workers)
            .field("max_models", &self.max_models)
            .finish_non_exhaustive()
    }
}
