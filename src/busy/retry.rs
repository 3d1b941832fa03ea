//! A retry policy: what one worker refused may have room at another.

mod budget;

pub use budget::RetryBudget;

use super::trail::{AnyRequest, Carry, InExtensions};
use crate::{
    BoxError, Limit, LimitPassed, OverloadReason, ServiceOverloaded, Unavailable, Unreachable,
};
use budget::Resending;
use std::{
    fmt,
    future::{Ready, ready},
    time::Duration,
};
use tokio::time::Instant;
use tower::retry::Policy;

/// A [`Policy`] for tower's `Retry` that sends a request again which no worker
/// has answered.
///
/// | the error | sent again |
/// |---|---|
/// | [`ServiceOverloaded`]: *worker at capacity*, *busy at dispatch* | at most `times`, within the [budget](RetryBudget) |
/// | [`Unreachable`]: the connection could not be made | until a worker is reached, at most 16 times |
/// | [`Unreachable`]: the connection was lost before any byte of a response | at most `times`, within the budget for lost requests; [not at all](Self::resend_lost) if you say so |
/// | [`LimitPassed`] on the time to the head or to the first frame | as one that was lost |
/// | with the feature `upstream`, a `Fault` of the kind *lost reused* | once, at no cost |
/// | any other | never |
///
/// Once a response head has come, nothing that happens to its body is a matter
/// of this policy. A worker that was lost, or that took too long, may have begun
/// on the request, which is therefore begun twice at most `times`.
///
/// A request that is sent again carries its [`Trail`](super::Trail): a
/// [`WorkerPool`](crate::pool::WorkerPool) then chooses a worker that it has
/// not been to, and bounds the waits of all attempts together. Requests that
/// are no [`http::Request`] have nowhere to carry it: see
/// [`any_request`](Self::any_request).
///
/// Requests have to be `Clone`: read their bodies into memory first. Under a
/// `Buffer`, the policy goes above it.
///
/// When no worker is left after a connection failed or a worker took too long,
/// the answer is that failure, not the emptiness that followed from it.
pub struct RetryRefused<T = InExtensions> {
    budget: RetryBudget,
    refused: usize,
    lost: usize,
    unreachable: usize,
    resend_lost: bool,
    carry: T,
    failure: Option<Failure>,
    named: Option<Duration>,
    /// When the request came.
    since: Option<Instant>,
    /// This request is one that was lost and sent again.
    resending: Option<Resending>,
    #[cfg(feature = "upstream")]
    met_idle_close: bool,
}

/// Why an attempt before has no answer.
#[derive(Clone)]
enum Failure {
    Unreachable(Unreachable),
    TookTooLong(LimitPassed),
}

impl From<Failure> for BoxError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(unreachable) => unreachable.into(),
            Failure::TookTooLong(passed) => passed.into(),
        }
    }
}

/// Every failed attempt marks its worker, so even many end soon.
const UNREACHABLE_TIMES: usize = 16;

impl RetryRefused {
    /// Sends a request again at most `times` times after refusals, within the
    /// default [budget](RetryBudget::new).
    ///
    /// What could not be sent at all costs no budget: it has cost no worker
    /// anything, and each failure takes its worker out of the choice.
    pub fn new(times: usize) -> Self {
        Self::with_budget(times, RetryBudget::new())
    }

    /// As [`new`](RetryRefused::new), within a budget that may be shared.
    pub fn with_budget(times: usize, budget: RetryBudget) -> Self {
        Self {
            budget,
            refused: times,
            lost: times,
            unreachable: UNREACHABLE_TIMES,
            resend_lost: true,
            carry: InExtensions,
            failure: None,
            named: None,
            #[cfg(feature = "upstream")]
            met_idle_close: false,
            since: None,
            resending: None,
        }
    }
}

impl<T> RetryRefused<T> {
    /// Sends requests of any type again, which carry no [`Trail`](super::Trail).
    pub fn any_request(self) -> RetryRefused<AnyRequest> {
        RetryRefused {
            budget: self.budget,
            refused: self.refused,
            lost: self.lost,
            unreachable: self.unreachable,
            resend_lost: self.resend_lost,
            carry: AnyRequest,
            failure: self.failure,
            named: self.named,
            since: self.since,
            resending: self.resending,
            #[cfg(feature = "upstream")]
            met_idle_close: self.met_idle_close,
        }
    }

    /// How often a request is sent again because its worker could not be
    /// reached (default: 16). This is apart from the refusals: a dead worker
    /// says nothing about the room of the others.
    #[must_use]
    pub fn unreachable_times(mut self, times: usize) -> Self {
        self.unreachable = times;
        self
    }

    /// Whether a request is sent again whose connection was lost before any
    /// byte of a response, or whose worker took longer than it may to the head
    /// or to the first frame (default: yes). The worker may have begun on it.
    #[must_use]
    pub fn resend_lost(mut self, yes: bool) -> Self {
        self.resend_lost = yes;
        self
    }

    /// Makes the last error tell what the attempts before it have found.
    fn tell(&mut self, error: &mut BoxError) {
        if Unavailable::find_in(&**error).is_some() {
            if let Some(failure) = self.failure.take() {
                *error = failure.into();
            }
        } else if let Some(overloaded) = ServiceOverloaded::find_in(&**error) {
            if overloaded.retry_after().is_none() && self.named.is_some() {
                *error = overloaded.clone().with_retry_after(self.named).into();
            }
        }
    }

    /// Has the request know the worker that it has just been to.
    fn note<Req>(&self, request: &mut Req, worker: Option<&str>)
    where
        T: Carry<Req>,
    {
        let mut trail = self.carry.trail(request).cloned().unwrap_or_default();
        if let (None, Some(since)) = (trail.arrival(), self.since) {
            trail = trail.since(since);
        }
        if let Some(worker) = worker {
            trail.add(worker);
        }
        self.carry.set_trail(request, trail);
    }
}

fn was_not_taken(overloaded: &ServiceOverloaded) -> bool {
    matches!(
        overloaded.reason(),
        OverloadReason::WorkerAtCapacity | OverloadReason::BusyAtDispatch
    )
}

fn nothing_came(passed: &LimitPassed) -> bool {
    matches!(passed.limit(), Limit::Head | Limit::FirstFrame)
}

impl<Req, Res, T> Policy<Req, Res, BoxError> for RetryRefused<T>
where
    Req: Clone,
    T: Carry<Req>,
{
    type Future = Ready<()>;

    fn retry(
        &mut self,
        request: &mut Req,
        result: &mut Result<Res, BoxError>,
    ) -> Option<Self::Future> {
        let Err(error) = result else {
            self.budget.deposit();
            return None;
        };
        // The end of an idle connection is nobody's fault, and met once.
        #[cfg(feature = "upstream")]
        if !self.met_idle_close && crate::upstream::is_lost_reused(&**error) {
            self.met_idle_close = true;
            self.note(request, None);
            return Some(ready(()));
        }
        let failure = Unreachable::find_in(&**error);
        if let Some(failure) = failure.filter(|failure| !failure.may_have_been_sent()) {
            self.note(request, failure.worker());
            self.failure = Some(Failure::Unreachable(failure.clone()));
            self.unreachable = self.unreachable.checked_sub(1)?;
            return Some(ready(()));
        }
        let lost = failure.map(|lost| (lost.worker(), Failure::Unreachable(lost.clone())));
        let lost = lost.or_else(|| {
            let passed = LimitPassed::find_in(&**error).filter(|passed| nothing_came(passed))?;
            Some((passed.worker(), Failure::TookTooLong(passed.clone())))
        });
        if let Some((worker, failure)) = lost.filter(|_| self.resend_lost) {
            self.note(request, worker);
            self.failure = Some(failure);
            self.lost = self.lost.checked_sub(1)?;
            self.resending = None;
            self.resending = Some(self.budget.resend()?);
            return Some(ready(()));
        }
        let refused = ServiceOverloaded::find_in(&**error);
        if let Some(refused) = refused.filter(|refused| was_not_taken(refused)) {
            self.note(request, refused.worker());
            let times = [self.named, refused.retry_after()];
            self.named = times.into_iter().flatten().min();
            self.refused = self.refused.checked_sub(1)?;
            return self.budget.withdraw().then(|| ready(()));
        }
        self.tell(error);
        None
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        if self.refused == 0 && self.lost == 0 && self.unreachable == 0 {
            return None;
        }
        self.since = Some(Instant::now());
        Some(request.clone())
    }
}

impl<T: Clone> Clone for RetryRefused<T> {
    fn clone(&self) -> Self {
        Self {
            budget: self.budget.clone(),
            refused: self.refused,
            lost: self.lost,
            unreachable: self.unreachable,
            resend_lost: self.resend_lost,
            carry: self.carry.clone(),
            failure: self.failure.clone(),
            named: self.named,
            since: self.since,
            resending: None,
            #[cfg(feature = "upstream")]
            met_idle_close: self.met_idle_close,
        }
    }
}

impl<T> fmt::Debug for RetryRefused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryRefused")
            .field("refused", &self.refused)
            .field("unreachable", &self.unreachable)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}
