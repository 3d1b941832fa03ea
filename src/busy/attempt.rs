//! A request on its way to a worker, and what its outcome says of the worker.

use super::{
    marks::Probe,
    policy::{Classify, Fault, Refusal},
    seat::{Flight, Seat},
    worker::Claim,
};
use crate::{BoxError, OverloadReason, ServiceOverloaded, Unreachable};
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::load::TrackCompletion;

/// A request on its way to the worker, until its outcome is known.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// `None` once the outcome is known.
    flight: Option<Flight>,
    /// Others wait for the outcome of this one.
    probe: Option<Probe>,
}

impl Attempt {
    pub(crate) fn new(flight: Flight, probe: Option<Probe>) -> Self {
        let flight = Some(flight);
        Self { flight, probe }
    }

    /// Claims the worker for a request that enters it; `None` if it has closed.
    #[inline(always)]
    pub(crate) fn claim(flight: Flight) -> Option<Self> {
        // The attempt is there first: whatever comes, it gives the probe up.
        let mut attempt = Self::new(flight, None);
        let seat = attempt.flight.as_ref()?.seat();
        match seat.worker().claim(seat.id()) {
            Claim::Open => {}
            Claim::Probe(probe) => attempt.probe = Some(probe),
            Claim::Closed => return None,
        }
        Some(attempt)
    }

    /// The seat of the worker, until the outcome is known.
    pub(crate) fn seat(&self) -> Option<&Seat> {
        self.flight.as_ref().map(Flight::seat)
    }

    fn refused(&mut self, refusal: Refusal) -> BoxError {
        let mut overloaded = ServiceOverloaded::new(OverloadReason::WorkerAtCapacity);
        if let Some(flight) = self.flight.take() {
            let (seat, worker) = (flight.seat().id(), flight.seat().worker());
            let retry_after = worker.bounded(refusal.retry_after);
            worker.refused(seat, retry_after, !refusal.only_this_request);
            overloaded = overloaded
                .with_retry_after(retry_after)
                .with_worker(worker.label().clone());
        }
        overloaded.into()
    }

    fn failed(&mut self, error: BoxError, wrap: fn(BoxError) -> Unreachable) -> BoxError {
        let Some(flight) = self.flight.take() else {
            return error;
        };
        let worker = flight.seat().worker();
        worker.failed(flight.seat().id());
        wrap(error).with_worker(worker.label().clone()).into()
    }

    /// It ends without saying anything of the worker.
    fn give_up(&mut self) {
        if let (Some(flight), Some(probe)) = (self.flight.take(), self.probe) {
            let seat = flight.seat();
            seat.worker().probe_abandoned(seat.id(), probe);
        }
    }

    fn answered(&mut self) -> Completion {
        let flight = self.flight.take();
        if let Some(flight) = &flight {
            flight.seat().worker().answered(flight.seat().id());
        }
        Completion { flight }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Lives as long as a response of a worker. Its drop ends the worker's lease,
/// and the request in flight.
#[derive(Debug)]
pub struct Completion {
    flight: Option<Flight>,
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(flight) = &self.flight {
            flight.seat().worker().completed(flight.seat().id());
        }
    }
}

pin_project! {
    /// The response of a worker.
    ///
    /// Dropping it gives the request up and marks nothing.
    #[derive(Debug)]
    pub struct WorkerFuture<F, P, C> {
        #[pin]
        future: F,
        attempt: Attempt,
        policy: P,
        completion: C,
    }
}

impl<F, P, C> WorkerFuture<F, P, C> {
    pub(crate) fn new(future: F, attempt: Attempt, policy: P, completion: C) -> Self {
        Self {
            future,
            attempt,
            policy,
            completion,
        }
    }
}

impl<F, P, C, Res, E> Future for WorkerFuture<F, P, C>
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
                    Fault::Other => {
                        attempt.give_up();
                        error
                    }
                })
            }
        })
    }
}
