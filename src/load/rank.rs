//! When a rank is busy, and until when its evidence says so. Pure rules: the
//! time is an argument.

use super::{LoadEvent, Thresholds};
use std::time::Duration;
use tokio::time::Instant;

/// Until when something is so. `At` is the first instant at which it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Until {
    At(Instant),
    // Last, so that it orders after every instant.
    Forever,
}

impl Until {
    /// For this long from now; without end if there is no limit or no
    /// instant that far away.
    pub(super) fn after(now: Instant, limit: Option<Duration>) -> Self {
        match limit.and_then(|limit| now.checked_add(limit)) {
            Some(end) => Self::At(end),
            None => Self::Forever,
        }
    }

    pub(super) fn is_over(self, now: Instant) -> bool {
        match self {
            Self::At(end) => end <= now,
            Self::Forever => false,
        }
    }

    pub(super) fn instant(self) -> Option<Instant> {
        match self {
            Self::At(end) => Some(end),
            Self::Forever => None,
        }
    }
}

/// What each rank of a worker can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) kv_total_blocks: Option<u64>,
    pub(super) max_num_batched_tokens: Option<u64>,
}

impl Capacity {
    pub(super) fn blocks(&self) -> Option<u64> {
        self.kv_total_blocks.filter(|blocks| *blocks > 0)
    }

    pub(super) fn batch(&self) -> Option<u64> {
        self.max_num_batched_tokens.filter(|tokens| *tokens > 0)
    }
}

/// The last reported value of one count, if there is one, and how long it is good.
#[derive(Clone, Copy, Debug, Default)]
struct Count(Option<(u64, Until)>);

impl Count {
    fn report(&mut self, value: Option<u64>, good_until: Until) {
        if let Some(value) = value {
            self.0 = Some((value, good_until));
        }
    }

    fn fresh(self, now: Instant) -> Option<(u64, Until)> {
        self.0.filter(|(_, until)| !until.is_over(now))
    }

    fn value(self, now: Instant) -> Option<u64> {
        self.fresh(now).map(|(value, _)| value)
    }

    fn holds(self, now: Instant, check: impl FnOnce(u64) -> bool) -> Option<Until> {
        let (value, until) = self.fresh(now)?;
        check(value).then_some(until)
    }
}

/// The counts of a rank that are fresh at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FreshCounts {
    pub(super) active_decode_blocks: Option<u64>,
    pub(super) kv_used_blocks: Option<u64>,
    pub(super) active_prefill_tokens: Option<u64>,
}

/// What is known about the load of one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankLoad {
    active_decode_blocks: Count,
    kv_used_blocks: Count,
    active_prefill_tokens: Count,
}

impl RankLoad {
    /// Takes the counts that the event names; they are good until `good_until`.
    pub(super) fn report<K>(&mut self, event: &LoadEvent<K>, good_until: Until) {
        self.active_decode_blocks
            .report(event.active_decode_blocks, good_until);
        self.kv_used_blocks.report(event.kv_used_blocks, good_until);
        self.active_prefill_tokens
            .report(event.active_prefill_tokens, good_until);
    }

    pub(super) fn fresh(&self, now: Instant) -> FreshCounts {
        FreshCounts {
            active_decode_blocks: self.active_decode_blocks.value(now),
            kv_used_blocks: self.kv_used_blocks.value(now),
            active_prefill_tokens: self.active_prefill_tokens.value(now),
        }
    }

    /// The counts as last reported, stale or not; 0 if never.
    pub(super) fn last_reported(&self) -> [u64; 3] {
        [
            self.active_decode_blocks,
            self.kv_used_blocks,
            self.active_prefill_tokens,
        ]
        .map(|count| count.0.map_or(0, |(value, _)| value))
    }

    /// Until when the rank is busy by what is known now, or `None` if it is
    /// free: as long as any count stays good that holds a check.
    pub(super) fn busy_until(
        &self,
        thresholds: &Thresholds,
        capacity: &Capacity,
        now: Instant,
    ) -> Option<Until> {
        let mut busy = None;
        if let (Some(threshold), Some(total)) =
            (thresholds.active_decode_blocks(), capacity.blocks())
        {
            // A quotient, because 0.29 × 100 is a little below 29.
            let above = |blocks: u64| blocks as f64 / total as f64 > threshold;
            busy = busy
                .max(self.active_decode_blocks.holds(now, above))
                .max(self.kv_used_blocks.holds(now, above));
        }
        if let Some(threshold) = thresholds.active_prefill_tokens() {
            let above = |tokens| tokens > threshold;
            busy = busy.max(self.active_prefill_tokens.holds(now, above));
        }
        if let (Some(threshold), Some(batch)) =
            (thresholds.active_prefill_tokens_frac(), capacity.batch())
        {
            let above = |tokens: u64| tokens as f64 > threshold * batch as f64;
            busy = busy.max(self.active_prefill_tokens.holds(now, above));
        }
        busy
    }
}

/// Until when a worker with these ranks is busy, or `None` if it is free: as
/// long as all of them are.
///
/// Exact without another look until the next event, because thresholds and
/// capacities only change with one, and time can only end evidence.
pub(super) fn worker_busy_until<'a>(
    ranks: impl IntoIterator<Item = &'a RankLoad>,
    thresholds: &Thresholds,
    capacity: &Capacity,
    now: Instant,
) -> Option<Until> {
    let mut earliest: Option<Until> = None;
    for rank in ranks {
        let until = rank.busy_until(thresholds, capacity, now)?;
        earliest = Some(earliest.map_or(until, |earliest| earliest.min(until)));
    }
    earliest
}

/// Which kinds of counts have ever been above 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signals {
    blocks: bool,
    prefill: bool,
}

impl Signals {
    pub(super) fn report<K>(&mut self, event: &LoadEvent<K>) {
        let some = |count: Option<u64>| count.is_some_and(|count| count > 0);
        self.blocks |= some(event.active_decode_blocks) || some(event.kv_used_blocks);
        self.prefill |= some(event.active_prefill_tokens);
    }

    /// For each threshold, whether it is set and these signals could never
    /// have made its check hold: decode, prefill tokens, prefill fraction.
    pub(super) fn missing(&self, thresholds: &Thresholds, capacity: &Capacity) -> [bool; 3] {
        [
            thresholds.active_decode_blocks().is_some()
                && !(self.blocks && capacity.blocks().is_some()),
            thresholds.active_prefill_tokens().is_some() && !self.prefill,
            thresholds.active_prefill_tokens_frac().is_some()
                && !(self.prefill && capacity.batch().is_some()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::ThresholdUpdate;

    const CAPACITY: Capacity = Capacity {
        kv_total_blocks: Some(100),
        max_num_batched_tokens: Some(1000),
    };

    fn decode_above(threshold: f64) -> Thresholds {
        let update = ThresholdUpdate::new().active_decode_blocks(threshold);
        Thresholds::default().updated(update).unwrap()
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn rank(event: LoadEvent<()>, good_until: Until) -> RankLoad {
        let mut rank = RankLoad::default();
        rank.report(&event, good_until);
        rank
    }

    #[test]
    fn a_rank_is_busy_until_the_last_count_that_holds_a_check_expires() {
        let now = Instant::now();
        let mut load = rank(
            LoadEvent::new((), 0).active_decode_blocks(60),
            Until::At(now + secs(10)),
        );
        load.report(
            &LoadEvent::new((), 0).kv_used_blocks(60),
            Until::At(now + secs(20)),
        );
        load.report(
            &LoadEvent::new((), 0).active_prefill_tokens(9999),
            Until::At(now + secs(30)),
        );
        let until = |now| load.busy_until(&decode_above(0.5), &CAPACITY, now);
        assert_eq!(until(now), Some(Until::At(now + secs(20))));
        assert_eq!(until(now + secs(15)), Some(Until::At(now + secs(20))));
        assert_eq!(until(now + secs(20)), None);
    }

    #[test]
    fn a_worker_is_busy_until_its_first_rank_is_free() {
        let now = Instant::now();
        let busy = |until| rank(LoadEvent::new((), 0).active_decode_blocks(60), until);
        let until =
            |ranks: &[RankLoad]| worker_busy_until(ranks, &decode_above(0.5), &CAPACITY, now);
        let (soon, late) = (Until::At(now + secs(1)), Until::At(now + secs(9)));
        assert_eq!(until(&[busy(late), busy(soon)]), Some(soon));
        assert_eq!(until(&[busy(Until::Forever), busy(late)]), Some(late));
        assert_eq!(until(&[busy(Until::Forever)]), Some(Until::Forever));
        assert_eq!(until(&[busy(late), RankLoad::default()]), None);
        assert_eq!(until(&[]), None);
    }

    #[test]
    fn the_largest_numbers_neither_overflow_nor_divide_by_zero() {
        let now = Instant::now();
        let load = rank(
            LoadEvent::new((), 0)
                .active_decode_blocks(u64::MAX)
                .active_prefill_tokens(u64::MAX),
            Until::after(now, Some(Duration::MAX)),
        );
        let thresholds = Thresholds::default()
            .updated(
                ThresholdUpdate::new()
                    .active_decode_blocks(1.0)
                    .active_prefill_tokens(u64::MAX)
                    .active_prefill_tokens_frac(f64::MAX),
            )
            .unwrap();
        let until = |blocks, batch| {
            let capacity = Capacity {
                kv_total_blocks: blocks,
                max_num_batched_tokens: batch,
            };
            load.busy_until(&thresholds, &capacity, now)
        };
        assert_eq!(until(Some(u64::MAX), Some(u64::MAX)), None);
        assert_eq!(until(Some(0), Some(0)), None);
        assert_eq!(until(Some(1), None), Some(Until::Forever));
    }

    #[test]
    fn a_signal_is_missing_where_a_set_threshold_could_not_be_reached_by_it() {
        let all = Thresholds::default()
            .updated(
                ThresholdUpdate::new()
                    .active_decode_blocks(0.5)
                    .active_prefill_tokens(1)
                    .active_prefill_tokens_frac(0.5),
            )
            .unwrap();
        let mut signals = Signals::default();
        signals.report(
            &LoadEvent::new((), 0)
                .active_decode_blocks(0)
                .active_prefill_tokens(0),
        );
        assert_eq!(
            signals.missing(&Thresholds::default(), &CAPACITY),
            [false; 3]
        );
        assert_eq!(signals.missing(&all, &CAPACITY), [true; 3]);
        signals.report(&LoadEvent::new((), 0).kv_used_blocks(1));
        assert_eq!(signals.missing(&all, &CAPACITY), [false, true, true]);
        signals.report(&LoadEvent::new((), 0).active_prefill_tokens(1));
        assert_eq!(signals.missing(&all, &CAPACITY), [false; 3]);
        assert_eq!(
            signals.missing(&all, &Capacity::default()),
            [true, false, true]
        );
    }
}
