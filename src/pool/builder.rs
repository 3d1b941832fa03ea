use super::{
    core::{Core, Options},
    pick::Pick,
    service::WorkerPool,
};
use crate::{
    BusySet,
    busy::{Carry, InExtensions, JudgeBody, RefusalPolicy},
    completion::CompleteOnBody,
    load::WorkerLoad,
};
use http::Request;
use std::{fmt, num::NonZeroU64, sync::Arc, time::Duration};
use tower::discover::Discover;

/// Configures a [`WorkerPool`].
///
/// ```
/// use http::Request;
/// use std::{num::NonZeroU64, time::Duration};
/// use tower_overload::{
///     BusySet,
///     busy::roster,
///     pool::{WorkerPool, WorkerPoolBuilder, pick::LeastLoaded},
/// };
///
/// # type Client = tower::util::BoxCloneSyncService<Request<()>, http::Response<()>, std::io::Error>;
/// let (roster, changes) = roster::<String, Client>();
/// let pool: WorkerPool<_, Request<()>> = WorkerPoolBuilder::new(BusySet::new())
///     .max_wait(Duration::from_secs(1))
///     .max_in_flight(NonZeroU64::new(256).unwrap())
///     .pick(LeastLoaded::of(3))
///     .build(changes);
/// ```
#[must_use]
pub struct WorkerPoolBuilder<K, Req, P = RefusalPolicy, C = CompleteOnBody<JudgeBody>> {
    options: Options<K, Req, P, C>,
}

/// The longest wait that can be configured: a day.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

impl<K, Req> WorkerPoolBuilder<K, Req> {
    /// A pool whose workers are marked in the set.
    pub fn new(set: BusySet<K>) -> Self {
        Self {
            options: Options {
                set,
                policy: RefusalPolicy::new(),
                completion: CompleteOnBody::observing(JudgeBody),
                pick: None,
                load: None,
                weight: None,
                trail: |_| None,
                max_wait: Duration::from_secs(3),
                max_waiting: 1024,
                max_in_flight: u64::MAX,
                startup_grace: Duration::ZERO,
                slow_start: Duration::from_secs(1),
            },
        }
    }
}

impl<K, Req, P, C> WorkerPoolBuilder<K, Req, P, C> {
    /// Tells refusals and failed connections from answers: a
    /// [`Classify`](crate::busy::Classify).
    pub fn policy<P2>(self, policy: P2) -> WorkerPoolBuilder<K, Req, P2, C> {
        let options = self.options.with_policy(policy);
        WorkerPoolBuilder { options }
    }

    /// Tells when a response is over: a
    /// [`TrackCompletion`](tower::load::TrackCompletion).
    pub fn completion<C2>(self, completion: C2) -> WorkerPoolBuilder<K, Req, P, C2> {
        let options = self.options.with_completion(completion);
        WorkerPoolBuilder { options }
    }

    /// How a worker is chosen (default: the lesser loaded of two at random, by
    /// requests in flight).
    pub fn pick(mut self, pick: impl Pick<Req> + 'static) -> Self {
        self.options.pick = Some(Box::new(pick));
        self
    }

    /// The load that is kept beside each worker, for a choice
    /// [by load](super::pick::LeastLoaded::by_load). It is asked for once, when
    /// the worker joins.
    pub fn load<L>(mut self, load: impl Fn(&K) -> L + Send + Sync + 'static) -> Self
    where
        L: WorkerLoad<Req> + 'static,
    {
        self.options.load = Some(Box::new(move |id| Arc::new(load(id))));
        self
    }

    /// How much each worker takes, in relation to the others (default: 1; 0
    /// counts as 1). It is asked for once, when the worker joins.
    ///
    /// With the default choice a weight brings a worker at most two of every
    /// `n` requests, where there are `n` workers:
    /// see [`LeastLoaded`](super::pick::LeastLoaded).
    pub fn weight(mut self, weight: impl Fn(&K) -> u64 + Send + Sync + 'static) -> Self {
        self.options.weight = Some(Box::new(weight));
        self
    }

    /// How long a request waits at most for a worker that takes it, over all
    /// its attempts (default: 3 s; at most a day). It bounds the wait alone: a
    /// request that was sent is not cut, one that probes a worker included. A
    /// worker that takes requests and never answers them has to be given a time
    /// limit of its own, by a layer around its service.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.options.max_wait = max_wait.min(LONGEST_WAIT);
        self
    }

    /// How many requests wait at once (default: 1,024). The next one is
    /// refused: [`TooManyWaiting`](crate::OverloadReason::TooManyWaiting).
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.options.max_waiting = max_waiting;
        self
    }

    /// How many requests each worker has in flight at once (default: any
    /// number). A worker with as many counts as busy.
    pub fn max_in_flight(mut self, max_in_flight: NonZeroU64) -> Self {
        self.options.max_in_flight = max_in_flight.get();
        self
    }

    /// How long a worker that has come, or come back, is brought up to its share
    /// of the load (default: 1 s; zero is at once; at most a day).
    ///
    /// It has no requests in flight when it comes, so a choice by load would
    /// send it all that come until it has as many as the others. Instead it
    /// counts as if it had as many as the least loaded of some others, and one
    /// less from time to time. So nothing is refused or waits for the sake of a slow
    /// start: where the others have no room it takes what there is.
    pub fn slow_start(mut self, slow_start: Duration) -> Self {
        self.options.slow_start = slow_start.min(LONGEST_WAIT);
        self
    }

    /// How long after the pool's start requests wait while the discovery has
    /// not said anything yet, instead of being answered as unavailable
    /// (default: not at all; at most a day).
    pub fn startup_grace(mut self, grace: Duration) -> Self {
        self.options.startup_grace = grace.min(LONGEST_WAIT);
        self
    }

    /// A pool for requests of any type. They carry no
    /// [`Trail`](crate::busy::Trail): see [`RetryRefused::any_request`](crate::busy::RetryRefused::any_request).
    pub fn build_any<D: Discover<Key = K>>(self, discover: D) -> WorkerPool<D, Req, P, C> {
        WorkerPool::with(Core::new(discover, self.options))
    }
}

impl<K, B, P, C> WorkerPoolBuilder<K, Request<B>, P, C> {
    /// A pool for HTTP requests, which carry their [`Trail`](crate::busy::Trail) when they are
    /// sent again.
    pub fn build<D: Discover<Key = K>>(mut self, discover: D) -> WorkerPool<D, Request<B>, P, C> {
        self.options.trail = |request| InExtensions.trail(request);
        self.build_any(discover)
    }
}

impl<K, Req, P, C> fmt::Debug for WorkerPoolBuilder<K, Req, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPoolBuilder")
            .field("max_wait", &self.options.max_wait)
            .field("max_waiting", &self.options.max_waiting)
            .field("max_in_flight", &self.options.max_in_flight)
            .finish_non_exhaustive()
    }
}
