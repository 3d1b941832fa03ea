use super::{
    discover::BusyDiscover, endpoint::Endpoint, layer::BusyFilterLayer, policy::RefusalPolicy,
    service::BusyFilter, set::BusySet,
};
use crate::{BoxError, WorkerId, completion::CompleteOnBody};
use std::time::Duration;
use tower::{balance::p2c::Balance, discover::Discover, load::PendingRequestsDiscover};
use tower_layer::Layer;
use tower_service::Service;

/// A filter over tower's `Balance` (the lesser loaded of two at random, by
/// pending requests) over the workers of `D`.
pub type Balanced<D, Req, P = RefusalPolicy, C = CompleteOnBody> =
    BusyFilter<Balance<PendingRequestsDiscover<BusyDiscover<D, P, C>, C>, Req>>;

/// Builds discover, balancer and filter together, so that the pieces cannot be
/// mismatched.
#[derive(Clone, Debug)]
#[must_use]
pub struct BusyBalance<K, P = RefusalPolicy, C = CompleteOnBody> {
    set: BusySet<K>,
    policy: P,
    completion: C,
    max_wait: Option<Duration>,
    startup_grace: Duration,
}

impl<K> BusyBalance<K> {
    /// HTTP workers with the default policy; a request is pending until its
    /// response body ends.
    pub fn new(set: BusySet<K>) -> Self {
        Self {
            set,
            policy: RefusalPolicy::new(),
            completion: CompleteOnBody::new(),
            max_wait: None,
            startup_grace: Duration::ZERO,
        }
    }
}

impl<K, P, C> BusyBalance<K, P, C> {
    /// Tells refusals and failed connections by `policy`, a
    /// [`Classify`](super::Classify).
    pub fn policy<Q>(self, policy: Q) -> BusyBalance<K, Q, C> {
        BusyBalance {
            set: self.set,
            policy,
            completion: self.completion,
            max_wait: self.max_wait,
            startup_grace: self.startup_grace,
        }
    }

    /// When a request is over, for the balancer's count and for leases: a
    /// [`TrackCompletion`](tower::load::TrackCompletion).
    pub fn completion<T>(self, completion: T) -> BusyBalance<K, P, T> {
        BusyBalance {
            set: self.set,
            policy: self.policy,
            completion,
            max_wait: self.max_wait,
            startup_grace: self.startup_grace,
        }
    }

    /// See [`BusyFilterLayer::max_wait`].
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// See [`BusyFilterLayer::startup_grace`].
    pub fn startup_grace(mut self, grace: Duration) -> Self {
        self.startup_grace = grace;
        self
    }

    /// Builds the stack over the workers that `discover` finds.
    pub fn build<D, Req>(self, discover: D) -> Balanced<D, Req, P, C>
    where
        K: WorkerId,
        D: Discover<Key = K>,
        D::Error: Into<BoxError>,
        P: Clone,
        C: Clone,
        Endpoint<D::Service, P, C>: Service<Req, Error = BoxError>,
        C: tower::load::TrackCompletion<
                tower::load::pending_requests::Handle,
                <Endpoint<D::Service, P, C> as Service<Req>>::Response,
            >,
    {
        let model: Box<str> = self.set.model().into();
        let prefix = self.set.prefix().clone();
        let discover = BusyDiscover::with(discover, self.set, self.policy, self.completion.clone());
        let mut filter = BusyFilterLayer::new(discover.members())
            .startup_grace(self.startup_grace)
            .model(model)
            .metrics_prefix(prefix);
        if let Some(max_wait) = self.max_wait {
            filter = filter.max_wait(max_wait);
        }
        let discover = PendingRequestsDiscover::new::<Req>(discover, self.completion);
        filter.layer(Balance::new(discover))
    }
}
