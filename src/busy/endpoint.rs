//! One worker as the balancer sees it.

use super::{
    cell::{Cell, Check},
    marks::Probe,
    members::Members,
    policy::{Classify, Fault, Refusal},
    set::Place,
};
use crate::{
    BoxError, OverloadReason, ServiceOverloaded, Unreachable, completion::CompleteOnBody, sync::Arc,
};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep};
use tower::load::{Load, TrackCompletion};
use tower_service::Service;

/// A worker's service that is ready only while the worker has no mark, and
/// that marks the worker by what it answers.
///
/// * While a mark is on, `poll_ready` is `Pending`; it is woken when the mark
///   falls, by a change or by a timer of its own.
/// * A refusal leases the worker and becomes an
///   [`ServiceOverloaded`] error: *worker at capacity*.
/// * A failed connection marks the worker unreachable and becomes an
///   [`Unreachable`] error. Afterwards one request at a time is sent until
///   one is answered.
/// * Every other answer passes, with a guard in its body that ends the lease
///   when the body ends.
///
/// Without a mark, `poll_ready` costs one atomic load over the inner
/// service's. Requests on their way are never cut.
pub struct Endpoint<S, P, C = CompleteOnBody> {
    inner: S,
    token: Token,
    policy: P,
    completion: C,
    /// Armed while the worker is excluded.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The longest that an endpoint sleeps at once.
const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// A living endpoint; its drop is what takes the worker off the membership.
struct Token {
    cell: Arc<Cell>,
    seat: u64,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.cell.detach(self.seat);
    }
}

impl<S, P, C> Endpoint<S, P, C> {
    pub(crate) fn new(
        inner: S,
        place: &Place,
        members: &Members,
        policy: P,
        completion: C,
    ) -> Self {
        let (cell, seat) = place.attach(members);
        Self {
            inner,
            token: Token { cell, seat },
            policy,
            completion,
            timer: None,
        }
    }

    pub(crate) fn cell(&self) -> &Arc<Cell> {
        &self.token.cell
    }

    /// The id of the worker, as it is displayed.
    pub fn worker(&self) -> &str {
        self.token.cell.label()
    }

    /// The wrapped service.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let now = Instant::now();
            match self.token.cell.check(self.token.seat, now, cx.waker()) {
                Check::Open => {
                    self.timer = None;
                    return Poll::Ready(());
                }
                Check::Parked(None) => {
                    self.timer = None;
                    return Poll::Pending;
                }
                Check::Parked(Some(until)) => {
                    // Far ends are looked at again in between.
                    let until = until.min(now + LONGEST_SLEEP);
                    let timer = self
                        .timer
                        .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
                    if timer.deadline() != until {
                        timer.as_mut().reset(until);
                    }
                    ready!(timer.as_mut().poll(cx));
                }
            }
        }
    }
}

impl<S, P, C, Req> Service<Req> for Endpoint<S, P, C>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    P: Classify<S::Response> + Clone,
    C: TrackCompletion<Completion, S::Response>,
{
    type Response = C::Output;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, P, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        loop {
            if !self.token.cell.is_open() {
                ready!(self.poll_open(cx));
            } else if self.timer.is_some() {
                self.timer = None;
            }
            let ready = self.inner.poll_ready(cx).map_err(Into::into);
            // A mark that comes while it waits has to find it, to arm its timer.
            let token = &self.token;
            if ready.is_ready() || token.cell.watch(token.seat, cx.waker()) {
                return ready;
            }
        }
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let Token { cell, seat } = &self.token;
        let mut attempt = Attempt {
            cell: Some(cell.clone()),
            seat: *seat,
            probe: None,
        };
        // The attempt is there first: whatever comes, it gives the probe up.
        attempt.probe = cell.dispatched(*seat);
        ResponseFuture {
            future: self.inner.call(request),
            attempt,
            policy: self.policy.clone(),
            completion: self.completion.clone(),
        }
    }
}

impl<S: Load, P, C> Load for Endpoint<S, P, C> {
    type Metric = S::Metric;

    fn load(&self) -> Self::Metric {
        self.inner.load()
    }
}

impl<S, P, C> fmt::Debug for Endpoint<S, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("worker", &self.worker())
            .finish_non_exhaustive()
    }
}

/// A request on its way to the worker, until its outcome is known.
#[derive(Debug)]
struct Attempt {
    /// `None` once the outcome is known.
    cell: Option<Arc<Cell>>,
    seat: u64,
    /// Others wait for the outcome of this one.
    probe: Option<Probe>,
}

impl Attempt {
    fn refused(&mut self, refusal: Refusal) -> BoxError {
        let mut retry_after = refusal.retry_after;
        if let Some(cell) = self.cell.take() {
            retry_after = cell.bounded(retry_after);
            cell.refused(self.seat, retry_after, !refusal.only_this_request);
        }
        ServiceOverloaded::new(OverloadReason::WorkerAtCapacity)
            .with_retry_after(retry_after)
            .into()
    }

    fn failed(&mut self, error: BoxError, wrap: fn(BoxError) -> Unreachable) -> BoxError {
        if let Some(cell) = self.cell.take() {
            cell.failed(self.seat);
        }
        if Unreachable::find_in(&*error).is_some() {
            error
        } else {
            wrap(error).into()
        }
    }

    fn answered(&mut self) -> Completion {
        let cell = self.cell.take();
        if let Some(cell) = &cell {
            cell.answered(self.seat);
        }
        let seat = self.seat;
        Completion { cell, seat }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let (Some(cell), Some(probe)) = (&self.cell, self.probe) {
            cell.probe_abandoned(self.seat, probe);
        }
    }
}

/// Lives as long as a response of a worker; its drop ends the worker's lease.
#[derive(Debug)]
pub struct Completion {
    cell: Option<Arc<Cell>>,
    seat: u64,
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(cell) = &self.cell {
            cell.completed(self.seat);
        }
    }
}

pin_project! {
    /// The response of an [`Endpoint`].
    ///
    /// Dropping it gives the request up and marks nothing.
    #[derive(Debug)]
    pub struct ResponseFuture<F, P, C> {
        #[pin]
        future: F,
        attempt: Attempt,
        policy: P,
        completion: C,
    }
}

impl<F, P, C, Res, E> Future for ResponseFuture<F, P, C>
where
    F: Future<Output = Result<Res, E>>,
    E: Into<BoxError>,
    P: Classify<Res>,
    C: TrackCompletion<Completion, Res>,
{
    type Output = Result<C::Output, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let attempt = this.attempt;
        Poll::Ready(match ready!(this.future.poll(cx)) {
            Ok(response) => match this.policy.response(&response) {
                Some(refusal) => Err(attempt.refused(refusal)),
                None => {
                    let completion = attempt.answered();
                    Ok(this.completion.track_completion(completion, response))
                }
            },
            Err(error) => {
                let error = error.into();
                Err(match this.policy.error(&*error) {
                    Fault::Refused(refusal) => attempt.refused(refusal),
                    Fault::Unreachable => attempt.failed(error, Unreachable::new),
                    Fault::Lost => attempt.failed(error, Unreachable::lost),
                    Fault::Other => error,
                })
            }
        })
    }
}
