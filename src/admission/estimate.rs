//! When a refused request may find room: an estimate from the recent time
//! that a slot is held.

use std::{
    // Statistics only: they decide nothing, so loom need not know of them.
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// One admission in this many measures how long its slot is held. Reading the
/// clock costs as much as admitting.
const SAMPLE_EVERY: u64 = 64;

/// The weight of a new sample is one part in this many.
const SMOOTHING: i64 = 8;

/// A running mean of the time that a slot is held.
///
/// Updates may overwrite each other: a lost sample or a lost tick of the
/// sampler is the price of not paying for an atomic read-modify-write.
#[derive(Debug, Default)]
pub(super) struct HoldTime {
    ticks: AtomicU64,
    /// Nanoseconds; 0 while nothing is known.
    mean: AtomicU64,
}

impl HoldTime {
    /// Whether the clock is to be read for this admission: the first one, and
    /// then about one in [`SAMPLE_EVERY`].
    pub(super) fn sample(&self) -> bool {
        let tick = self.ticks.load(Relaxed);
        self.ticks.store(tick.wrapping_add(1), Relaxed);
        tick % SAMPLE_EVERY == 0
    }

    pub(super) fn record(&self, held: Duration) {
        let held = i64::try_from(held.as_nanos()).unwrap_or(i64::MAX).max(1);
        let mean = self.mean.load(Relaxed) as i64;
        let mean = match mean {
            0 => held,
            // Rounded down, so that it comes down all the way.
            _ => mean + (held - mean).div_euclid(SMOOTHING),
        };
        self.mean.store(mean as u64, Relaxed);
    }

    /// How long it takes until one more request behind `waiting` others gets
    /// one of `slots` slots: in whole seconds, at least one and at most
    /// `cap`. `None` while no slot was ever seen to be released.
    pub(super) fn retry_after(&self, waiting: u64, slots: u64, cap: Duration) -> Option<Duration> {
        let mean = self.mean.load(Relaxed);
        if mean == 0 {
            return None;
        }
        let nanos = mean.saturating_mul(waiting.saturating_add(1)) / slots.max(1);
        let seconds = nanos.div_ceil(1_000_000_000).max(1);
        Some(Duration::from_secs(seconds).min(cap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Duration = Duration::from_secs(60);

    fn after(held: Duration, waiting: u64, slots: u64) -> u64 {
        let hold = HoldTime::default();
        hold.record(held);
        hold.retry_after(waiting, slots, CAP).unwrap().as_secs()
    }

    #[test]
    fn nothing_is_said_while_nothing_is_known() {
        assert_eq!(HoldTime::default().retry_after(9, 1, CAP), None);
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
    fn it_follows_the_recent_times() {
        let hold = HoldTime::default();
        hold.record(Duration::from_secs(40));
        for _ in 0..300 {
            hold.record(Duration::from_secs(2));
        }
        assert_eq!(hold.retry_after(0, 1, CAP), Some(Duration::from_secs(2)));
        for _ in 0..100 {
            hold.record(Duration::MAX);
        }
        assert_eq!(hold.retry_after(0, 1, CAP), Some(CAP));
    }

    #[test]
    fn the_first_admission_and_one_in_sixty_four_read_the_clock() {
        let hold = HoldTime::default();
        let sampled: Vec<_> = (0..200).filter(|_| hold.sample()).collect();
        assert_eq!(sampled, [0, 64, 128, 192]);
    }
}
