//! One worker as the balancer sees it.

use crate::{
    BoxError,
    busy::{
        attempt::{Attempt, Completion, JudgeBody, WorkerFuture},
        members::Members,
        notify::{Notifier, Observation},
        place::Place,
        policy::Classify,
        seat::Seat,
        worker::{Check, SeatId, Watch, WorkerState},
    },
    completion::CompleteOnBody,
    sync::Arc,
};
use std::{
    fmt,
    pin::Pin,
    sync,
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
///   [`ServiceOverloaded`](crate::ServiceOverloaded) error: *worker at capacity*.
/// * A failed connection marks the worker unreachable and becomes an
///   [`Unreachable`](crate::Unreachable) error. Afterwards one request at a time is sent until
///   one is answered.
/// * Every other answer passes, with a guard in its body that ends the lease
///   when the body ends.
///
/// Without a mark, `poll_ready` costs one atomic load over the inner
/// service's. Requests on their way are never cut.
pub struct Endpoint<S, P, C = CompleteOnBody<JudgeBody>> {
    inner: S,
    seat: Arc<Seat>,
    policy: P,
    completion: C,
    /// Armed while the worker is excluded.
    timer: Option<Pin<Box<Sleep>>>,
    turns: Notifier,
    /// Wakes it while it is excluded, when failing ones are no longer.
    turn: Option<Observation>,
}

/// The longest that an endpoint sleeps at once.
const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 60 * 60);

impl<S, P, C> Endpoint<S, P, C> {
    pub(crate) fn new(
        inner: S,
        place: &Place,
        members: &Members,
        policy: P,
        completion: C,
    ) -> Self {
        let watch: sync::Arc<dyn Watch> = sync::Arc::new(members.clone());
        let seat = Seat::alone(place.attach(&watch), members.clone());
        Self {
            inner,
            seat: Arc::new(seat),
            policy,
            completion,
            timer: None,
            turns: members.turns().clone(),
            turn: None,
        }
    }

    pub(super) fn seat(&self) -> (Arc<WorkerState>, SeatId) {
        (self.seat.worker().clone(), self.seat.id())
    }

    /// The id of the worker, as it is displayed.
    pub fn worker(&self) -> &str {
        self.seat.worker().label()
    }

    /// The wrapped service.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let now = Instant::now();
            // Before it looks: a turn that comes later finds it.
            let turn = self.turn.get_or_insert_with(|| self.turns.observe());
            turn.register(cx.waker());
            let (seat, worker) = (&self.seat, self.seat.worker());
            let ignores_failing = seat.ignores_failing();
            match worker.check(seat.id(), ignores_failing, now, cx.waker()) {
                Check::Open => {
                    self.timer = None;
                    self.turn = None;
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
    type Future = WorkerFuture<S::Future, P, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        loop {
            if !self.seat.worker().is_open() {
                ready!(self.poll_open(cx));
            } else if self.timer.is_some() {
                self.timer = None;
            }
            let ready = self.inner.poll_ready(cx).map_err(Into::into);
            // A mark that comes while it waits has to find it, to arm its timer.
            let seat = &self.seat;
            let ignores_failing = seat.ignores_failing();
            let worker = seat.worker();
            if ready.is_ready() || worker.watch(seat.id(), ignores_failing, cx.waker()) {
                return ready;
            }
        }
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let flight = Seat::enter(self.seat.clone()).expect("an endpoint has no limit");
        // The attempt is there first: whatever comes, it gives the probe up.
        let attempt = Attempt::send(flight);
        let future = self.inner.call(request);
        WorkerFuture::new(
            future,
            attempt,
            self.policy.clone(),
            self.completion.clone(),
        )
    }
}

impl<S, P, C> Drop for Endpoint<S, P, C> {
    /// The worker is off the membership at once; its requests go on.
    fn drop(&mut self) {
        self.seat.worker().detach(self.seat.id());
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
