use std::time::Duration;
use tokio::time::Instant;

/// Which ranks of a worker have something to report: those whose load has
/// changed since it was last reported, and all of them every now and then, so
/// that nobody takes silence for a worker that is idle.
///
/// A rule without a clock: the caller says what time it is, and how often it
/// asks is how often a rank reports at most.
///
/// ```
/// use std::time::Duration;
/// use tower_overload::load::ReportSchedule;
///
/// let now = tokio::time::Instant::now();
/// let mut schedule = ReportSchedule::new(2, Duration::from_secs(1), now);
/// let due: Vec<_> = schedule.due([5, 7], now).collect();
/// assert_eq!(due, [(0, 5), (1, 7)]);
/// let due: Vec<_> = schedule.due([5, 8], now + Duration::from_millis(10)).collect();
/// assert_eq!(due, [(1, 8)]);
/// let due: Vec<_> = schedule.due([5, 8], schedule.next_full()).collect();
/// assert_eq!(due, [(0, 5), (1, 8)]);
/// ```
#[derive(Debug)]
pub struct ReportSchedule<L> {
    reported: Vec<Option<L>>,
    every: Duration,
    next_full: Instant,
}

impl<L: Clone + PartialEq> ReportSchedule<L> {
    /// Nothing is reported yet. All ranks are to be heard of at least `every`
    /// so often.
    pub fn new(ranks: usize, every: Duration, now: Instant) -> Self {
        Self {
            reported: vec![None; ranks],
            every,
            next_full: now,
        }
    }

    /// When all ranks are due, changed or not.
    pub fn next_full(&self) -> Instant {
        self.next_full
    }

    /// What was reported did not arrive: all ranks are due.
    pub fn forget(&mut self) {
        self.reported.fill(None);
    }

    /// Which ranks are due, by their place in `loads`, and with what load. Each
    /// that is yielded counts as reported.
    pub fn due<I>(&mut self, loads: I, now: Instant) -> impl Iterator<Item = (usize, L)>
    where
        I: IntoIterator<Item = L>,
    {
        if now >= self.next_full {
            self.forget();
            self.next_full = now + self.every;
        }
        let ranks = self.reported.iter_mut().zip(loads).enumerate();
        ranks.filter_map(|(rank, (reported, load))| {
            if reported.as_ref() == Some(&load) {
                return None;
            }
            *reported = Some(load.clone());
            Some((rank, load))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn a_rank_reports_when_it_changes_and_once_in_a_while() {
        let start = Instant::now();
        let mut schedule = ReportSchedule::new(2, Duration::from_secs(1), start);
        let mut due = |loads, ms| -> Vec<_> { schedule.due(loads, after(start, ms)).collect() };
        assert_eq!(due([1, 2], 0), [(0, 1), (1, 2)]);
        assert_eq!(due([1, 2], 10), []);
        assert_eq!(due([1, 3], 20), [(1, 3)]);
        assert_eq!(due([1, 3], 999), []);
        assert_eq!(due([1, 3], 1000), [(0, 1), (1, 3)]);
        assert_eq!(due([1, 3], 1999), []);
        assert_eq!(due([1, 3], 2000).len(), 2);
    }

    #[test]
    fn what_was_lost_is_reported_again() {
        let start = Instant::now();
        let mut schedule = ReportSchedule::new(1, Duration::from_secs(1), start);
        assert_eq!(schedule.due([1], start).count(), 1);
        schedule.forget();
        assert_eq!(schedule.due([1], start).count(), 1);
        assert_eq!(schedule.due([1], start).count(), 0);
    }
}
