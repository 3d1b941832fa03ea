use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tower::retry::budget::{Budget, TpsBudget};

/// How much may be sent again, so that retries do not become the load.
///
/// | what is sent again | is bounded by |
/// |---|---|
/// | a request that a worker refused | a share of the requests of the last ten seconds, and a number a second in any case |
/// | a request that was lost with its worker | a share of what is [in flight](Self::in_flight), and beyond that as a refused one |
///
/// The two are apart because they come differently: refusals one by one, and
/// the requests of a worker that dies all at once. A rate is too small for
/// those, and they are no sign of overload.
///
/// Clones share the budget.
#[derive(Clone)]
pub struct RetryBudget {
    rate: Arc<TpsBudget>,
    /// Lost requests that were sent again and have no answer yet.
    resending: Arc<AtomicU64>,
    lost_percent: u64,
    in_flight: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
}

/// As many lost requests are under way again in any case.
const RESEND_FLOOR: u64 = 10;
const DEFAULT_LOST_PERCENT: u64 = 50;
const WINDOW: Duration = Duration::from_secs(10);

impl RetryBudget {
    /// Within ten seconds no more retries than a fifth of the requests, and
    /// ten a second in any case, which are the numbers of tower's `TpsBudget`.
    pub fn new() -> Self {
        Self::with_rate(10, 0.2)
    }

    /// At most `share` of the requests of the last ten seconds are sent again,
    /// and `per_second` in any case. A share that is not a number from 0 to
    /// 1,000 is taken as the nearer of the two.
    pub fn with_rate(per_second: u32, share: f32) -> Self {
        let share = if share.is_nan() { 0.0 } else { share };
        let rate = TpsBudget::new(WINDOW, per_second, share.clamp(0.0, 1000.0));
        Self {
            rate: Arc::new(rate),
            resending: Arc::new(AtomicU64::new(0)),
            lost_percent: DEFAULT_LOST_PERCENT,
            in_flight: None,
        }
    }

    /// Bounds lost requests by what is in flight, as `count` says, which is
    /// [`WorkerPool::in_flight`](crate::pool::WorkerPool::in_flight) as a rule.
    ///
    /// At most half of what is in flight may be requests that were lost and
    /// sent again, or [another share](Self::lost_percent), and ten in any
    /// case. So when one of two workers dies with all that it had, the other
    /// one gets it; and a fleet that falls worker by worker is not pushed.
    #[must_use]
    pub fn in_flight(mut self, count: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.in_flight = Some(Arc::new(count));
        self
    }

    /// The share of what is in flight, in percent, that may be lost requests
    /// which were sent again (default: 50; at most 100).
    #[must_use]
    pub fn lost_percent(mut self, percent: u64) -> Self {
        self.lost_percent = percent.min(100);
        self
    }

    /// A request was answered.
    pub(super) fn deposit(&self) {
        self.rate.deposit();
    }

    /// Whether one more refused request may be sent again.
    pub(super) fn withdraw(&self) -> bool {
        self.rate.withdraw()
    }

    /// Allows one more lost request to be sent again, until it is dropped.
    pub(super) fn resend(&self) -> Option<Resending> {
        let before = self.resending.fetch_add(1, Ordering::AcqRel);
        let resending = Resending(self.resending.clone());
        let allowed = self
            .in_flight
            .as_ref()
            .map_or(0, |in_flight| allowed_lost(in_flight(), self.lost_percent));
        (before < allowed || self.withdraw()).then_some(resending)
    }
}

/// How many lost requests may be under way again beside what is in flight.
fn allowed_lost(in_flight: u64, percent: u64) -> u64 {
    (in_flight.saturating_mul(percent) / 100).max(RESEND_FLOOR)
}

/// A lost request that was sent again.
pub(super) struct Resending(Arc<AtomicU64>);

impl Drop for Resending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBudget")
            .field("resending", &self.resending)
            .field("lost_percent", &self.lost_percent)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;

    #[test]
    fn lost_requests_are_bounded_by_what_is_in_flight_and_end_with_their_guard() {
        let budget = RetryBudget::with_rate(0, 0.0).in_flight(|| 100);
        let lost: Vec<_> = std::iter::from_fn(|| budget.resend()).collect();
        assert_eq!(lost.len(), 50);
        drop(lost);
        assert_eq!(std::iter::from_fn(|| budget.resend()).take(60).count(), 60);
    }

    #[test]
    fn a_few_are_sent_again_whatever_is_in_flight() {
        let budget = RetryBudget::with_rate(0, 0.0)
            .in_flight(|| 0)
            .lost_percent(0);
        let lost: Vec<_> = std::iter::from_fn(|| budget.resend()).collect();
        assert_eq!(lost.len(), 10);
    }

    #[test]
    fn without_a_count_lost_requests_are_bounded_as_refused_ones_are() {
        let budget = RetryBudget::with_rate(0, 0.0);
        assert!(budget.resend().is_none());
        let budget = RetryBudget::with_rate(1, 0.0);
        assert!(budget.resend().is_some());
    }

    #[test]
    fn no_count_overflows() {
        assert_eq!(allowed_lost(u64::MAX, 100), u64::MAX / 100);
        assert_eq!(allowed_lost(400, 50), 200);
    }
}
