//! A retry policy: what one worker refused may have room at another.

use crate::{BoxError, OverloadReason, ServiceOverloaded, Unavailable, Unreachable};
use std::{
    fmt,
    future::{Ready, ready},
    sync::Arc,
    time::Duration,
};
use tower::retry::{
    Policy,
    budget::{Budget, TpsBudget},
};

/// A [`Policy`] for tower's `Retry` that sends a request again which no worker
/// has answered.
///
/// | the error | sent again |
/// |---|---|
/// | [`ServiceOverloaded`]: *worker at capacity*, *busy at dispatch* | at most `times`, within the budget |
/// | [`Unreachable`]: the connection could not be made | until a worker is reached, at most 16 times |
/// | [`Unreachable`]: the connection was lost before any byte of a response | as a refusal; [not at all](Self::resend_lost) if you say so |
/// | with the feature `upstream`, a `Fault` of the kind *lost reused* | once, at no cost |
/// | any other | never |
///
/// Once a response head has come, nothing that happens to its body is a matter
/// of this policy. A worker that was lost may have begun on the request, which
/// is therefore done twice at most `times`.
///
/// The worker is leased or marked by then, so the balancer below picks another
/// one. It is a service of clones, so the policy goes above the `Buffer`, and
/// requests have to be `Clone`: read their bodies into memory first.
///
/// When no worker is left after a connection failed, the answer is that
/// failure, not the emptiness that followed from it.
pub struct RetryRefused<B = TpsBudget> {
    budget: Arc<B>,
    refused: usize,
    unreachable: usize,
    resend_lost: bool,
    failure: Option<Unreachable>,
    named: Option<Duration>,
    #[cfg(feature = "upstream")]
    met_idle_close: bool,
}

/// Every failed attempt marks its worker, so even many end soon.
const UNREACHABLE_TIMES: usize = 16;

impl RetryRefused {
    /// Sends a request again at most `times` times after refusals, within
    /// tower's default budget: over ten seconds no more than a fifth of the
    /// requests, and ten a second in any case.
    ///
    /// What could not be sent at all costs no budget: it has cost no worker
    /// anything, and each failure takes its worker out of the choice.
    pub fn new(times: usize) -> Self {
        Self::with_budget(times, Arc::new(TpsBudget::default()))
    }
}

impl<B> RetryRefused<B> {
    /// As [`new`](RetryRefused::new), within a budget that may be shared.
    pub fn with_budget(times: usize, budget: Arc<B>) -> Self {
        Self {
            budget,
            refused: times,
            unreachable: UNREACHABLE_TIMES,
            resend_lost: true,
            failure: None,
            named: None,
            #[cfg(feature = "upstream")]
            met_idle_close: false,
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
}

impl<B> RetryRefused<B> {
    /// Whether a request is sent again whose connection was lost before any
    /// byte of a response (default: yes). The worker may have begun on it.
    #[must_use]
    pub fn resend_lost(mut self, yes: bool) -> Self {
        self.resend_lost = yes;
        self
    }
}

fn was_not_taken(overloaded: &ServiceOverloaded) -> bool {
    matches!(
        overloaded.reason(),
        OverloadReason::WorkerAtCapacity | OverloadReason::BusyAtDispatch
    )
}

impl<B> RetryRefused<B> {
    /// Makes the last error tell what the attempts before it have found.
    fn tell(&mut self, error: &mut BoxError) {
        if Unavailable::find_in(&**error).is_some() {
            if let Some(failure) = self.failure.take() {
                *error = failure.into();
            }
        } else if let Some(overloaded) = ServiceOverloaded::find_in(&**error) {
            if overloaded.retry_after().is_none() && self.named.is_some() {
                *error = overloaded.with_retry_after(self.named).into();
            }
        }
    }
}

impl<Req, Res, B> Policy<Req, Res, BoxError> for RetryRefused<B>
where
    Req: Clone,
    B: Budget,
{
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, BoxError>) -> Option<Self::Future> {
        let Err(error) = result else {
            self.budget.deposit();
            return None;
        };
        // The end of an idle connection is nobody's fault, and met once.
        #[cfg(feature = "upstream")]
        if !self.met_idle_close && crate::upstream::is_lost_reused(&**error) {
            self.met_idle_close = true;
            return Some(ready(()));
        }
        let failure = Unreachable::find_in(&**error);
        if let Some(failure) = failure.filter(|failure| !failure.may_have_been_sent()) {
            self.failure = Some(failure.clone());
            self.unreachable = self.unreachable.checked_sub(1)?;
            return Some(ready(()));
        }
        let refused = ServiceOverloaded::find_in(&**error);
        if let Some(lost) = failure.filter(|_| self.resend_lost) {
            self.failure = Some(lost.clone());
        } else if let Some(refused) = refused.filter(|refused| was_not_taken(refused)) {
            let times = [self.named, refused.retry_after()];
            self.named = times.into_iter().flatten().min();
        } else {
            self.tell(error);
            return None;
        }
        self.refused = self.refused.checked_sub(1)?;
        self.budget.withdraw().then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        (self.refused > 0 || self.unreachable > 0).then(|| request.clone())
    }
}

impl<B> Clone for RetryRefused<B> {
    fn clone(&self) -> Self {
        Self {
            budget: self.budget.clone(),
            refused: self.refused,
            unreachable: self.unreachable,
            resend_lost: self.resend_lost,
            failure: self.failure.clone(),
            named: self.named,
            #[cfg(feature = "upstream")]
            met_idle_close: self.met_idle_close,
        }
    }
}

impl<B> fmt::Debug for RetryRefused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryRefused")
            .field("refused", &self.refused)
            .field("unreachable", &self.unreachable)
            .finish_non_exhaustive()
    }
}
