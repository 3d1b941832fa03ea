//! When a refused request may find room: an estimate from the recent time
//! that a slot is held.

use std::{
    // Statistics only: they decide nothing, so loom need not know of them.
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The weight of a new sample is one part in this many.
const SMOOTHING: i64 = 8;

/// A running mean of the time that a slot is held, in nanoseconds; 0 while
/// nothing is known.
///
/// Updates may overwrite each other: a lost sample is the price of not paying
/// for an atomic read-modify-write.
#[derive(Debug, Default)]
pub(super) struct HoldTime {
    mean: AtomicU64,
    /// The mean over the number of slots: the time between two releases when
    /// all are in use. Kept, so that a refusal need not divide.
    between_releases: AtomicU64,
}

impl HoldTime {
    /// One of `slots` slots was held for this long.
    pub(super) fn record(&self, held: Duration, slots: u32) {
        let held = i64::try_from(held.as_nanos()).unwrap_or(i64::MAX).max(1);
        let mean = self.mean.load(Relaxed) as i64;
        let mean = match mean {
            0 => held,
            // Rounded down, so that it comes down all the way.
            _ => mean + (held - mean).div_euclid(SMOOTHING),
        };
        self.mean.store(mean as u64, Relaxed);
        self.set_slots(slots);
    }

    /// There are `slots` slots from now on.
    pub(super) fn set_slots(&self, slots: u32) {
        let mean = self.mean.load(Relaxed);
        if mean > 0 {
            let between = (mean / u64::from(slots.max(1))).max(1);
            self.between_releases.store(between, Relaxed);
        }
    }

    /// How long it takes until one more request behind `waiting` others gets
    /// a slot: in whole seconds, at least one and at most `cap`. `None` while
    /// no slot was ever seen to be released.
    #[inline]
    pub(super) fn retry_after(&self, waiting: u64, cap: Duration) -> Option<Duration> {
        let between = self.between_releases.load(Relaxed);
        if between == 0 {
            return None;
        }
        let nanos = between.saturating_mul(waiting.saturating_add(1));
        let seconds = nanos.div_ceil(1_000_000_000).max(1);
        Some(Duration::from_secs(seconds).min(cap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Duration = Duration::from_secs(60);

    fn after(held: Duration, waiting: u64, slots: u32) -> u64 {
        let hold = HoldTime::default();
        hold.record(held, slots);
        hold.retry_after(waiting, CAP).unwrap().as_secs()
    }

    #[test]
    fn nothing_is_said_while_nothing_is_known() {
        let hold = HoldTime::default();
        hold.set_slots(3);
        assert_eq!(hold.retry_after(9, CAP), None);
    }

    #[test]
    fn it_is_the_time_until_the_queue_has_passed_rounded_up_and_capped() {
        assert_eq!(after(Duration::ZERO, 0, 4), 1, "at least a second");
        assert_eq!(after(Duration::from_millis(10), 3, 2), 1);
        assert_eq!(after(Duration::from_secs(4), 3, 2), 8);
        assert_eq!(after(Duration::from_millis(4_001), 3, 2), 9, "rounded up");
        assert_eq!(after(Duration::from_secs(4), 0, 8), 1);
        assert_eq!(after(Duration::from_secs(4), 1000, 2), 60, "capped");
        assert_eq!(after(Duration::MAX, u64::MAX, 0), 60, "no overflow");
    }

    #[test]
    fn it_follows_the_recent_times_and_the_number_of_slots() {
        let hold = HoldTime::default();
        hold.record(Duration::from_secs(40), 1);
        for _ in 0..300 {
            hold.record(Duration::from_secs(2), 1);
        }
        assert_eq!(hold.retry_after(7, CAP), Some(Duration::from_secs(16)));
        hold.set_slots(4);
        assert_eq!(hold.retry_after(7, CAP), Some(Duration::from_secs(4)));
        for _ in 0..300 {
            hold.record(Duration::MAX, 4);
        }
        assert_eq!(hold.retry_after(0, CAP), Some(CAP));
    }
}
