use super::{
    builder::WorkerPoolBuilder,
    core::{Choice, Chosen, Core},
    driver::Driver,
    future::{ResponseFuture, Unsent},
};
use crate::{
    BoxError, BusySet, WorkerId,
    busy::{Classify, Completion, JudgeBody, Members, RefusalPolicy},
    completion::CompleteOnBody,
};
use http::Request;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
};
use tower::{discover::Discover, load::TrackCompletion};
use tower_service::Service;

/// Sends each request to one of many workers, or says why none takes it.
///
/// `poll_ready` is always `Ready` and reserves nothing. `call` sees the
/// request, chooses a worker among those without a mark, and sends it there. If
/// none is open, the response future waits or fails: see the [module](super)
/// for which. Clones are the same pool.
///
/// Workers come from any [`Discover`]; their services have to be `Clone`, as
/// clients are, and are cloned under a short lock of their own.
///
/// The pool ends with its last clone. Requests on their way go on, and those
/// that wait as well.
pub struct WorkerPool<D: Discover, Req, P = RefusalPolicy, C = CompleteOnBody<JudgeBody>> {
    core: Arc<Core<D, Req, P, C>>,
}

impl<D: Discover, B> WorkerPool<D, Request<B>> {
    /// HTTP workers, with the defaults of the [builder](WorkerPoolBuilder).
    pub fn new(discover: D, set: BusySet<D::Key>) -> Self {
        WorkerPoolBuilder::new(set).build(discover)
    }
}

impl<D: Discover, Req, P, C> WorkerPool<D, Req, P, C> {
    pub(super) fn with(core: Core<D, Req, P, C>) -> Self {
        let core = Arc::new(core);
        Self { core }
    }

    /// The handle to the membership.
    pub fn members(&self) -> Members {
        self.core.rows.members().clone()
    }

    /// The requests that workers have, and those that wait for their own worker
    /// to become ready. A response is in flight until its body has ended.
    ///
    /// Costs a look at each worker, under the lock that marks take: not for
    /// every request.
    pub fn in_flight(&self) -> u64 {
        self.core.rows.in_flight()
    }

    /// The requests that wait now, at most `max_waiting`.
    pub fn waiting(&self) -> usize {
        self.core.places.taken()
    }

    /// A future that applies changes of the discovery, and ends marks, while
    /// no request comes that would. Spawn it:
    ///
    /// ```
    /// # use tower_overload::{BusySet, busy::roster, pool::WorkerPool};
    /// # #[derive(Clone)] struct Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let (roster, changes) = roster::<&str, Client>();
    /// let pool = WorkerPool::<_, http::Request<()>>::new(changes, BusySet::new());
    /// tokio::spawn(pool.driver());
    /// # }
    /// ```
    ///
    /// Without it, a worker that was removed stays, with its connections, until
    /// the next request. It ends when the last clone of the pool is dropped.
    pub fn driver(&self) -> Driver<D, Req, P, C> {
        Driver::new(&self.core)
    }
}

impl<D, Req, P, C> Service<Req> for WorkerPool<D, Req, P, C>
where
    D: Discover,
    D::Key: WorkerId,
    D::Service: Service<Req> + Clone,
    D::Error: Into<BoxError>,
    <D::Service as Service<Req>>::Error: Into<BoxError>,
    P: Classify<<D::Service as Service<Req>>::Response> + Clone,
    C: TrackCompletion<Completion, <D::Service as Service<Req>>::Response> + Clone,
{
    type Response = C::Output;
    type Error = BoxError;
    type Future = ResponseFuture<D, Req, P, C>;

    /// Is always `Ready`.
    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    /// Chooses a worker and sends it the request, at once if its service is
    /// ready at once, and otherwise in the response future.
    ///
    /// # Panics
    ///
    /// Passes on the panics of the [`Pick`](super::pick::Pick), the discovery
    /// and the worker's service, and keeps nothing of a request that they end.
    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        match self.core.choose_at_once(&request) {
            Some(chosen) => self.send(chosen, request),
            None => self.call_thoroughly(request),
        }
    }
}

impl<D, Req, P, C> WorkerPool<D, Req, P, C>
where
    D: Discover,
    D::Key: WorkerId,
    D::Service: Service<Req> + Clone,
    D::Error: Into<BoxError>,
    <D::Service as Service<Req>>::Error: Into<BoxError>,
    P: Clone,
    C: Clone,
{
    /// As `call`, for what needs more than a glance. Apart, so that it costs
    /// the others nothing.
    #[inline(never)]
    fn call_thoroughly(&self, request: Req) -> ResponseFuture<D, Req, P, C> {
        match self.core.choose(&request) {
            Choice::Chosen(chosen) => self.send(chosen, request),
            Choice::Answer(answer) => {
                self.core.answers.count(answer);
                ResponseFuture::answered(answer)
            }
            Choice::Wait => ResponseFuture::unsent(Unsent::new(&self.core, request, None)),
        }
    }

    /// Sends the request if the worker's own service is ready at once.
    #[inline(always)]
    fn send(
        &self,
        mut chosen: Chosen<D::Service, Req>,
        request: Req,
    ) -> ResponseFuture<D, Req, P, C> {
        // Its waker is that of the response future, if it has to wait.
        let mut cx = Context::from_waker(Waker::noop());
        let core = &self.core;
        let chosen = match chosen.service.poll_ready(&mut cx) {
            Poll::Ready(Ok(())) => return ResponseFuture::running(core.dispatch(chosen, request)),
            Poll::Ready(Err(error)) => {
                core.broken(&chosen, &error.into());
                None
            }
            Poll::Pending => Some(chosen),
        };
        ResponseFuture::unsent(Unsent::new(core, request, chosen))
    }
}

impl<D: Discover, Req, P, C> Clone for WorkerPool<D, Req, P, C> {
    fn clone(&self) -> Self {
        let core = self.core.clone();
        Self { core }
    }
}

impl<D: Discover, Req, P, C> fmt::Debug for WorkerPool<D, Req, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPool")
            .field("members", self.core.rows.members())
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}
