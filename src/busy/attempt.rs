//! A request on its way to a worker, and what its outcome says of the worker.

use super::{
    policy::{Classify, Fault, Refusal},
    probation::Probe,
    seat::{Flight, Seat},
    worker::Claim,
};
use crate::{BoxError, OverloadReason, ServiceOverloaded, Unreachable, completion::ObserveFrame};
use http_body::Frame;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::time::Instant;
use tower::load::TrackCompletion;

/// A request on its way to the worker, until its outcome is known.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// `None` once the outcome is known.
    flight: Option<Flight>,
    /// Others wait for the outcome of this one.
    probe: Option<Probe>,
    /// When it left, if the worker is watched.
    since: Option<Instant>,
}

impl Attempt {
    fn new(flight: Flight) -> Self {
        Self {
            flight: Some(flight),
            probe: None,
            since: None,
        }
    }

    /// Sends a request to the worker, whatever its marks say.
    pub(crate) fn send(flight: Flight) -> Self {
        let mut attempt = Self::new(flight);
        if let Some(seat) = attempt.seat() {
            let claim = seat.worker().dispatched(seat.id());
            attempt.has(claim);
        }
        attempt
    }

    fn has(&mut self, claim: Claim) -> bool {
        match claim {
            Claim::Open { probe, since } => {
                (self.probe, self.since) = (probe, since);
                true
            }
            Claim::Closed => false,
        }
    }

    /// Claims the worker for a request that enters it; `None` if it has closed.
    #[inline(always)]
    pub(crate) fn claim(flight: Flight) -> Option<Self> {
        // The attempt is there first: whatever comes, it gives the probe up.
        let mut attempt = Self::new(flight);
        let claim = {
            let seat = attempt.flight.as_ref()?.seat();
            seat.worker().claim(seat)
        };
        attempt.has(claim).then_some(attempt)
    }

    /// The seat of the worker, until the outcome is known.
    pub(crate) fn seat(&self) -> Option<&Seat> {
        self.flight.as_ref().map(Flight::seat)
    }

    /// The request is over. What it has found out is said first: a probe that
    /// has not found out about a mark is given up.
    fn end<R>(&mut self, say: impl FnOnce(&Flight, &Seat) -> R) -> Option<R> {
        let flight = self.flight.take()?;
        let seat = flight.seat();
        let said = say(&flight, seat);
        if let Some(probe) = self.probe.take() {
            seat.worker().probe_abandoned(seat.id(), probe);
        }
        Some(said)
    }

    fn refused(&mut self, refusal: Refusal) -> BoxError {
        let overloaded = ServiceOverloaded::new(OverloadReason::WorkerAtCapacity);
        let said = self.end(|flight, seat| {
            let worker = seat.worker();
            let retry_after = worker.bounded(refusal.retry_after);
            let witness = (!refusal.only_this_request).then(|| flight.witness());
            worker.refused(seat.id(), retry_after, witness);
            (retry_after, worker.label().clone())
        });
        match said {
            Some((retry_after, label)) => overloaded
                .with_retry_after(retry_after)
                .with_worker(label)
                .into(),
            None => overloaded.into(),
        }
    }

    fn unreachable(&mut self, error: BoxError) -> BoxError {
        let said = self.end(|_, seat| {
            seat.worker().failed_to_connect(seat.id());
            seat.worker().label().clone()
        });
        match said {
            Some(label) => Unreachable::new(error).with_worker(label).into(),
            None => error,
        }
    }

    /// One connection of many may be lost for reasons of its own.
    fn lost(&mut self, error: BoxError) -> BoxError {
        let since = self.since;
        let said = self.end(|flight, seat| {
            let took = since.map(|since| since.elapsed());
            let counts = seat.worker().lost(seat.id(), flight.is_alone(), took);
            if let Some(until) = counts {
                seat.handicap(until);
            }
            seat.worker().label().clone()
        });
        match said {
            Some(label) => Unreachable::lost(error).with_worker(label).into(),
            None => error,
        }
    }

    /// The request has failed at the worker.
    fn failed(&mut self) {
        let since = self.since;
        self.end(|_, seat| {
            seat.worker().answered(seat.id());
            fail(seat, since);
        });
    }

    /// It ends without saying anything of the worker.
    fn give_up(&mut self) {
        self.end(|_, _| ());
    }

    fn answered(&mut self) -> Completion {
        let flight = self.flight.take();
        if let Some(flight) = &flight {
            flight.seat().worker().answered(flight.seat().id());
        }
        Completion {
            flight,
            probe: self.probe.take(),
            since: self.since,
            verdict: Verdict::AtItsEnd,
        }
    }
}

/// A request that left at `since` has failed at the worker.
fn fail(seat: &Seat, since: Option<Instant>) {
    let took = since.map(|since| since.elapsed());
    if let Some(until) = seat.worker().failed(seat.id(), took) {
        seat.handicap(until);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Lives as long as a response of a worker. Its drop ends the worker's lease,
/// and the request in flight.
///
/// What it is dropped by says how the worker did: see [`JudgeBody`]. Unless
/// that watches the body, a response that has come is a good one.
#[derive(Debug)]
pub struct Completion {
    flight: Option<Flight>,
    probe: Option<Probe>,
    since: Option<Instant>,
    verdict: Verdict,
}

/// How a worker did on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Well, once it is over.
    AtItsEnd,
    /// Who watches the body has seen nothing of it yet.
    Open,
    /// Well.
    Well,
    /// It failed.
    Failed,
}

impl Completion {
    fn well(&mut self) {
        if matches!(self.verdict, Verdict::Open | Verdict::AtItsEnd) {
            self.verdict = Verdict::Well;
            if let Some(flight) = &self.flight {
                flight.seat().worker().begins_well(flight.seat().id());
            }
        }
    }

    fn failed(&mut self) {
        if self.verdict != Verdict::Failed {
            self.verdict = Verdict::Failed;
            if let Some(flight) = &self.flight {
                fail(flight.seat(), self.since);
            }
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.verdict == Verdict::AtItsEnd {
            self.well();
        }
        let Some(flight) = &mut self.flight else {
            return;
        };
        flight.complete();
        let (worker, seat) = (flight.seat().worker(), flight.seat().id());
        worker.completed(seat);
        if self.verdict == Verdict::Well {
            worker.succeeded(seat);
            if let Some(since) = self.since {
                worker.took(seat, since.elapsed());
            }
        }
        if let (Some(probe), Verdict::Open) = (self.probe, self.verdict) {
            worker.probe_abandoned(seat, probe);
        }
    }
}

/// Judges a worker by the bodies of its responses, as an observer of
/// [`CompleteOnBody`](crate::completion::CompleteOnBody).
///
/// A response begins to be a good one with its first frame, which ends a
/// probation, and is one at its end. One that breaks off is a failure. One that is dropped before its first frame
/// says nothing: its client has left.
#[derive(Clone, Copy, Debug, Default)]
pub struct JudgeBody;

impl<D> ObserveFrame<Completion, D> for JudgeBody {
    fn begun(&mut self, completion: &mut Completion) {
        if completion.verdict == Verdict::AtItsEnd {
            completion.verdict = Verdict::Open;
        }
    }

    fn observe(&mut self, completion: &mut Completion, _: &Frame<D>) {
        completion.well();
    }

    fn ended(&mut self, completion: &mut Completion) {
        completion.well();
    }

    fn failed(&mut self, completion: &mut Completion) {
        completion.failed();
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
        let result = ready!(this.future.poll(cx)).map_err(Into::into);
        let fault = match &result {
            Ok(response) => this.policy.response(response),
            Err(error) => Some(this.policy.error(&**error)),
        };
        Poll::Ready(match (result, fault) {
            (_, Some(Fault::Refused(refusal))) => Err(attempt.refused(refusal)),
            (Ok(response), None | Some(Fault::Other)) => {
                let completion = attempt.answered();
                Ok(this.completion.track_completion(completion, response))
            }
            (Ok(response), Some(Fault::Failed)) => {
                let mut completion = attempt.answered();
                completion.failed();
                Ok(this.completion.track_completion(completion, response))
            }
            (Ok(_), Some(Fault::Unreachable)) => Err(attempt.unreachable(SAYS_SO.into())),
            (Ok(_), Some(Fault::Lost)) => Err(attempt.lost(SAYS_SO.into())),
            (Err(error), Some(Fault::Unreachable)) => Err(attempt.unreachable(error)),
            (Err(error), Some(Fault::Lost)) => Err(attempt.lost(error)),
            (Err(error), Some(Fault::Failed)) => {
                attempt.failed();
                Err(error)
            }
            (Err(error), None | Some(Fault::Other)) => {
                attempt.give_up();
                Err(error)
            }
        })
    }
}

/// The cause of a failed connection that the worker itself has reported.
const SAYS_SO: &str = "its answer says so";
