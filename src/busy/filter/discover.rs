//! Discovery on its way to the balancer: every worker's service becomes an
//! [`Endpoint`], and the end of the discovery is never the balancer's end.

use super::endpoint::Endpoint;
use crate::{
    BoxError, WorkerId,
    busy::{
        attempt::JudgeBody,
        members::Members,
        policy::RefusalPolicy,
        set::BusySet,
        worker::{SeatId, WorkerState},
    },
    completion::CompleteOnBody,
    metrics::DISCOVERY_ERRORS,
    sync::Arc,
};
use futures::Stream;
use metrics::Counter;
use pin_project_lite::pin_project;
use std::{
    collections::HashMap,
    convert::Infallible,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::discover::{Change, Discover};

pin_project! {
    /// Wraps any [`Discover`]: its services come out as [`Endpoint`]s that
    /// share the marks of a [`BusySet`].
    ///
    /// The stream is fused, and it never fails: stock `Balance` returns a
    /// discovery error from `poll_ready`, and is dead from then on. Here the
    /// error is logged and counted and ends the changes; the members stay.
    ///
    /// An `Insert` for a worker that is already there replaces it: the old
    /// endpoint gets nothing more, and the new one starts without its lease
    /// and its failures. So a discovery must not insert again for a mere
    /// change of configuration.
    pub struct BusyDiscover<D: Discover, P = RefusalPolicy, C = CompleteOnBody<JudgeBody>> {
        #[pin]
        discover: Option<D>,
        set: BusySet<D::Key>,
        members: Members,
        seated: HashMap<D::Key, (Arc<WorkerState>, SeatId)>,
        policy: P,
        completion: C,
        errors: Counter,
    }
}

impl<D: Discover> BusyDiscover<D> {
    /// HTTP workers, with the default policy.
    pub fn new(discover: D, set: BusySet<D::Key>) -> Self {
        Self::with(
            discover,
            set,
            RefusalPolicy::new(),
            CompleteOnBody::observing(JudgeBody),
        )
    }
}

impl<D: Discover, P, C> BusyDiscover<D, P, C> {
    /// Workers of any kind: `policy` tells refusals (a
    /// [`Classify`](crate::busy::Classify)), `completion` when a response is over (a
    /// [`TrackCompletion`](tower::load::TrackCompletion)).
    pub fn with(discover: D, set: BusySet<D::Key>, policy: P, completion: C) -> Self {
        let errors = DISCOVERY_ERRORS.counter(set.prefix(), &[set.model()]);
        Self {
            discover: Some(discover),
            set,
            members: Members::new(),
            seated: HashMap::new(),
            policy,
            completion,
            errors,
        }
    }

    /// The handle to the membership.
    pub fn members(&self) -> Members {
        self.members.clone()
    }
}

impl<D, P, C> Stream for BusyDiscover<D, P, C>
where
    D: Discover,
    D::Key: WorkerId,
    D::Error: Into<BoxError>,
    P: Clone,
    C: Clone,
{
    type Item = Result<Change<D::Key, Endpoint<D::Service, P, C>>, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        let Some(discover) = this.discover.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        let change = ready!(discover.poll_discover(cx));
        this.members.set_discovered();
        let change = match change {
            Some(Ok(change)) => change,
            ended => {
                this.discover.set(None);
                if let Some(Err(error)) = ended {
                    this.errors.increment(1);
                    let model = this.set.model();
                    let error: BoxError = error.into();
                    tracing::error!(model, %error, "discovery failed; the workers stay as they are");
                }
                return Poll::Ready(None);
            }
        };
        Poll::Ready(Some(Ok(match change {
            Change::Insert(worker, service) => {
                if let Some((old, seat)) = this.seated.remove(&worker) {
                    this.set.retire(&worker, &old, Some(seat), true);
                }
                let endpoint = Endpoint::new(
                    service,
                    &this.set.place(worker.clone()),
                    this.members,
                    this.policy.clone(),
                    this.completion.clone(),
                );
                this.seated.insert(worker.clone(), endpoint.seat());
                Change::Insert(worker, endpoint)
            }
            Change::Remove(worker) => {
                if let Some((old, seat)) = this.seated.remove(&worker) {
                    this.set.retire(&worker, &old, Some(seat), false);
                }
                Change::Remove(worker)
            }
        })))
    }
}

impl<D: Discover, P, C> fmt::Debug for BusyDiscover<D, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusyDiscover")
            .field("members", &self.members)
            .field("ended", &self.discover.is_none())
            .finish_non_exhaustive()
    }
}
