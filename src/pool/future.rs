//! The response of a pool: from the worker that was chosen, or from whoever is
//! found while the request waits.

use super::{
    core::{Choice, Chosen, Core, TOO_MANY_WAITING},
    membership::unconstrained_poll,
    waiting::{Parked, Waiting},
};
use crate::{
    BoxError, WorkerId,
    busy::{Answer, Classify, Completion, Seat, WorkerFuture},
};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::time::Instant;
use tower::{discover::Discover, load::TrackCompletion};
use tower_service::Service;

pin_project! {
    /// The response of a [`WorkerPool`](super::WorkerPool): the worker's, or
    /// the error that says why none got the request.
    ///
    /// Dropping it gives the request up, waiting or on its way, and marks
    /// nothing.
    pub struct ResponseFuture<D, Req, P, C>
    where
        D: Discover,
        D::Service: Service<Req>,
    {
        #[pin]
        state: State<D, Req, P, C>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<D, Req, P, C>
    where
        D: Discover,
        D::Service: Service<Req>,
    {
        Running { #[pin] future: WorkerFuture<<D::Service as Service<Req>>::Future, P, C> },
        Unsent { unsent: Box<Unsent<D, Req, P, C>> },
        Answered { answer: Answer },
    }
}

/// A request that no worker has yet.
pub(super) struct Unsent<D: Discover, Req, P, C> {
    core: Arc<Core<D, Req, P, C>>,
    /// `None` once it is sent.
    request: Option<Req>,
    /// The worker that gets it, once its own service is ready.
    chosen: Option<Chosen<D::Service, Req>>,
    waiting: Waiting,
}

impl<D, Req, P, C> ResponseFuture<D, Req, P, C>
where
    D: Discover,
    D::Service: Service<Req>,
{
    pub(super) fn running(
        future: WorkerFuture<<D::Service as Service<Req>>::Future, P, C>,
    ) -> Self {
        Self {
            state: State::Running { future },
        }
    }

    pub(super) fn answered(answer: Answer) -> Self {
        Self {
            state: State::Answered { answer },
        }
    }

    pub(super) fn unsent(unsent: Unsent<D, Req, P, C>) -> Self {
        let unsent = Box::new(unsent);
        Self {
            state: State::Unsent { unsent },
        }
    }
}

impl<D: Discover, Req, P, C> Unsent<D, Req, P, C> {
    pub(super) fn new(
        core: &Arc<Core<D, Req, P, C>>,
        request: Req,
        chosen: Option<Chosen<D::Service, Req>>,
    ) -> Self {
        let trail = (core.options.trail)(&request);
        let arrival = trail.and_then(|trail| trail.arrival());
        let deadline = arrival.unwrap_or_else(Instant::now) + core.options.max_wait;
        let waiting = Waiting::new(core.rows.members().notifier(), deadline);
        let mut unsent = Self {
            core: core.clone(),
            request: Some(request),
            chosen: None,
            waiting,
        };
        if let Some(chosen) = chosen {
            unsent.wait_for(chosen);
        }
        unsent
    }

    /// Waits for the worker's own service from now on, unless the worker has
    /// just left.
    fn wait_for(&mut self, chosen: Chosen<D::Service, Req>) {
        if let Some(own) = self.core.notifier_of(&chosen) {
            let said = self.core.membership.said();
            self.waiting.follow(Some((&own, said)));
            self.chosen = Some(chosen);
        }
    }

    fn look_elsewhere(&mut self) {
        self.chosen = None;
        self.waiting.follow(None);
    }
}

/// A request, and the worker that is ready for it.
type ToSend<D, Req> = (Chosen<<D as Discover>::Service, Req>, Req);

/// How often one that finds changes looks again before others have their turn.
const ROUNDS: usize = 16;

impl<D, Req, P, C> Unsent<D, Req, P, C>
where
    D: Discover,
    D::Key: WorkerId,
    D::Service: Service<Req> + Clone,
    D::Error: Into<BoxError>,
    <D::Service as Service<Req>>::Error: Into<BoxError>,
{
    /// Waits for a worker that takes the request now, or for an answer.
    fn poll_chosen(&mut self, cx: &mut Context<'_>) -> Poll<Result<ToSend<D, Req>, Answer>> {
        for _ in 0..ROUNDS {
            let epoch = self.waiting.epoch();
            let core = &self.core;
            if self.chosen.is_some() && core.membership.is_unsettled() {
                // The worker may have left. If another one is applying that,
                // the worker's own notifier tells.
                core.settle();
            }
            let is_excluded = |chosen: &Chosen<_, _>| {
                let seat = chosen.attempt.seat();
                seat.is_none_or(Seat::is_excluded)
            };
            if self.chosen.as_ref().is_some_and(is_excluded) {
                self.look_elsewhere();
                continue;
            }
            let parked = if let Some(chosen) = &mut self.chosen {
                match poll_worker(&mut chosen.service, cx) {
                    Poll::Ready(Ok(())) => {
                        let request = self.request.take().expect(POLLED_AGAIN);
                        let chosen = self.chosen.take().expect("it was just asked");
                        return Poll::Ready(Ok((chosen, request)));
                    }
                    Poll::Ready(Err(error)) => {
                        core.broken(chosen, &error.into());
                        self.look_elsewhere();
                        continue;
                    }
                    Poll::Pending => self.waiting.park(cx, epoch, &core.places, || None),
                }
            } else {
                match core.choose(self.request.as_ref().expect(POLLED_AGAIN)) {
                    Choice::Chosen(chosen) => {
                        self.wait_for(chosen);
                        continue;
                    }
                    Choice::Answer(answer) => return Poll::Ready(Err(answer)),
                    Choice::Wait => {
                        let until = || core.next_end();
                        self.waiting.park(cx, epoch, &core.places, until)
                    }
                }
            };
            match parked {
                Parked::Asleep => return Poll::Pending,
                Parked::LookAgain => {}
                Parked::TooLong => return Poll::Ready(Err(Answer::WAITED_TOO_LONG)),
                Parked::NoPlace => return Poll::Ready(Err(TOO_MANY_WAITING)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Asks outside of tokio's cooperative budget: that the task has used it up
/// does not mean that the request has to wait.
fn poll_worker<S: Service<Req>, Req>(
    service: &mut S,
    cx: &mut Context<'_>,
) -> Poll<Result<(), S::Error>> {
    unconstrained_poll(|cx| service.poll_ready(cx), cx)
}

const POLLED_AGAIN: &str = "polled after completion";

impl<D, Req, P, C> Future for ResponseFuture<D, Req, P, C>
where
    D: Discover,
    D::Key: WorkerId,
    D::Service: Service<Req> + Clone,
    D::Error: Into<BoxError>,
    <D::Service as Service<Req>>::Error: Into<BoxError>,
    P: Classify<<D::Service as Service<Req>>::Response> + Clone,
    C: TrackCompletion<Completion, <D::Service as Service<Req>>::Response> + Clone,
{
    type Output = Result<C::Output, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match self.as_mut().project().state.project() {
                StateProj::Running { future } => return future.poll(cx),
                StateProj::Answered { answer } => return Poll::Ready(Err(answer.into_error())),
                StateProj::Unsent { unsent } => match ready!(unsent.poll_chosen(cx)) {
                    Ok((chosen, request)) => {
                        let future = unsent.core.dispatch(chosen, request);
                        State::Running { future }
                    }
                    Err(answer) => {
                        unsent.core.answers.count(answer);
                        State::Answered { answer }
                    }
                },
            };
            self.as_mut().project().state.set(next);
        }
    }
}

impl<D, Req, P, C> fmt::Debug for ResponseFuture<D, Req, P, C>
where
    D: Discover,
    D::Service: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Running { .. } => "running",
            State::Unsent { .. } => "unsent",
            State::Answered { .. } => "answered",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
