//! When a rank is busy, and until when its evidence says so. Pure rules: the
//! time is an argument.

use super::{LoadEvent, Thresholds};
use std::{num::NonZeroU64, time::Duration};
use tokio::time::Instant;

/// Nanoseconds since a [`Clock`] was made: half the size of an `Instant`, for
/// the state that every event reads.
///
/// As the end of something it is the first moment at which that is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

impl Moment {
    /// The end of what never was: over at any time.
    pub(super) const NEVER: Self = Self(0);
    /// The end of what has no end: over at no time.
    pub(super) const FOREVER: Self = Self(u64::MAX);

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The end of what lasts this long from here; without end if there is no
    /// limit, or no moment that late.
    pub(super) fn plus(self, limit: Option<Duration>) -> Self {
        let nanos = limit.and_then(|limit| u64::try_from(limit.as_nanos()).ok());
        nanos.map_or(Self::FOREVER, |nanos| Self(self.0.saturating_add(nanos)))
    }

    pub(super) fn is_over(self, now: Self) -> bool {
        self <= now
    }
}

/// Tells moments and instants from each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    pub(super) fn starting(start: Instant) -> Self {
        Self { start }
    }

    /// The moment of an instant; the first one for all before the start.
    pub(super) fn moment(&self, instant: Instant) -> Moment {
        let nanos = instant.saturating_duration_since(self.start).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        // The last one is for what has no end.
        Moment(nanos.min(u64::MAX - 1))
    }

    /// The instant of a moment; `None` for [`Moment::FOREVER`].
    pub(super) fn instant(&self, moment: Moment) -> Option<Instant> {
        let finite = Some(moment).filter(|moment| *moment != Moment::FOREVER)?;
        self.start.checked_add(Duration::from_nanos(finite.0))
    }
}

/// What each rank of a worker can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) kv_total_blocks: Option<NonZeroU64>,
    pub(super) max_num_batched_tokens: Option<NonZeroU64>,
}

/// The last reported value of one count and how long it is good; 0 that
/// never was if none was reported.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    value: u64,
    good_until: Moment,
}

impl Count {
    fn report(&mut self, value: Option<u64>, good_until: Moment) {
        if let Some(value) = value {
            *self = Self { value, good_until };
        }
    }

    fn fresh(self, now: Moment) -> Option<u64> {
        (!self.good_until.is_over(now)).then_some(self.value)
    }

    /// Until when the check holds by this count.
    fn holds(self, now: Moment, check: impl FnOnce(u64) -> bool) -> Moment {
        match self.fresh(now) {
            Some(value) if check(value) => self.good_until,
            _ => Moment::NEVER,
        }
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
    pub(super) fn report<K>(&mut self, event: &LoadEvent<K>, good_until: Moment) {
        self.active_decode_blocks
            .report(event.active_decode_blocks, good_until);
        self.kv_used_blocks.report(event.kv_used_blocks, good_until);
        self.active_prefill_tokens
            .report(event.active_prefill_tokens, good_until);
    }

    pub(super) fn fresh(&self, now: Moment) -> FreshCounts {
        FreshCounts {
            active_decode_blocks: self.active_decode_blocks.fresh(now),
            kv_used_blocks: self.kv_used_blocks.fresh(now),
            active_prefill_tokens: self.active_prefill_tokens.fresh(now),
        }
    }

    /// The counts as last reported, stale or not; 0 if never.
    pub(super) fn last_reported(&self) -> [u64; 3] {
        [
            self.active_decode_blocks,
            self.kv_used_blocks,
            self.active_prefill_tokens,
        ]
        .map(|count| count.value)
    }

    /// Until when the rank is busy by what is known now: as long as any count
    /// stays good that holds a check.
    pub(super) fn busy_until(
        &self,
        thresholds: &Thresholds,
        capacity: &Capacity,
        now: Moment,
    ) -> Moment {
        let mut busy = Moment::NEVER;
        if let (Some(threshold), Some(total)) =
            (thresholds.active_decode_blocks(), capacity.kv_total_blocks)
        {
            // A quotient, because 0.29 × 100 is a little below 29.
            let above = |blocks: u64| blocks as f64 / total.get() as f64 > threshold;
            busy = busy
                .max(self.active_decode_blocks.holds(now, above))
                .max(self.kv_used_blocks.holds(now, above));
        }
        if let Some(threshold) = thresholds.active_prefill_tokens() {
            let above = |tokens| tokens > threshold;
            busy = busy.max(self.active_prefill_tokens.holds(now, above));
        }
        if let (Some(threshold), Some(batch)) = (
            thresholds.active_prefill_tokens_frac(),
            capacity.max_num_batched_tokens,
        ) {
            let above = |tokens: u64| tokens as f64 > threshold * batch.get() as f64;
            busy = busy.max(self.active_prefill_tokens.holds(now, above));
        }
        busy
    }
}

/// Until when a worker with these ranks is busy: as long as all of them are.
///
/// Exact without another look until the next event, because thresholds and
/// capacities only change with one, and time can only end evidence.
pub(super) fn worker_busy_until<'a>(
    ranks: impl IntoIterator<Item = &'a RankLoad>,
    thresholds: &Thresholds,
    capacity: &Capacity,
    now: Moment,
) -> Moment {
    let ranks = ranks.into_iter();
    let ends = ranks.map(|rank| rank.busy_until(thresholds, capacity, now));
    ends.min().unwrap_or(Moment::NEVER)
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
                && !(self.blocks && capacity.kv_total_blocks.is_some()),
            thresholds.active_prefill_tokens().is_some() && !self.prefill,
            thresholds.active_prefill_tokens_frac().is_some()
                && !(self.prefill && capacity.max_num_batched_tokens.is_some()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::ThresholdUpdate;

    const CAPACITY: Capacity = Capacity {
        kv_total_blocks: NonZeroU64::new(100),
        max_num_batched_tokens: NonZeroU64::new(1000),
    };

    fn decode_above(threshold: f64) -> Thresholds {
        let update = ThresholdUpdate::new().active_decode_blocks(threshold);
        Thresholds::default().updated(update).unwrap()
    }

    fn rank(event: LoadEvent<()>, good_until: Moment) -> RankLoad {
        let mut rank = RankLoad::default();
        rank.report(&event, good_until);
        rank
    }

    #[test]
    fn a_rank_is_busy_until_the_last_count_that_holds_a_check_expires() {
        let event = || LoadEvent::new((), 0);
        let mut load = rank(event().active_decode_blocks(60), Moment(10));
        load.report(&event().kv_used_blocks(60), Moment(20));
        load.report(&event().active_prefill_tokens(9999), Moment(30));
        let until = |now| load.busy_until(&decode_above(0.5), &CAPACITY, Moment(now));
        assert_eq!(until(0), Moment(20));
        assert_eq!(until(15), Moment(20));
        assert_eq!(until(19), Moment(20));
        assert_eq!(until(20), Moment::NEVER);
    }

    #[test]
    fn a_worker_is_busy_until_its_first_rank_is_free() {
        let busy = |until| rank(LoadEvent::new((), 0).active_decode_blocks(60), until);
        let until =
            |ranks: &[RankLoad]| worker_busy_until(ranks, &decode_above(0.5), &CAPACITY, Moment(5));
        let (soon, late) = (busy(Moment(6)), busy(Moment(9)));
        assert_eq!(until(&[late, soon]), Moment(6));
        assert_eq!(until(&[busy(Moment::FOREVER), late]), Moment(9));
        assert_eq!(until(&[busy(Moment::FOREVER)]), Moment::FOREVER);
        assert_eq!(until(&[late, RankLoad::default()]), Moment::NEVER);
        assert_eq!(until(&[]), Moment::NEVER);
    }

    #[test]
    fn the_largest_numbers_neither_overflow_nor_divide_by_zero() {
        let load = rank(
            LoadEvent::new((), 0)
                .active_decode_blocks(u64::MAX)
                .active_prefill_tokens(u64::MAX),
            Moment(7).plus(Some(Duration::MAX)),
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
                kv_total_blocks: NonZeroU64::new(blocks),
                max_num_batched_tokens: NonZeroU64::new(batch),
            };
            load.busy_until(&thresholds, &capacity, Moment(7))
        };
        assert_eq!(until(u64::MAX, u64::MAX), Moment::NEVER);
        assert_eq!(until(0, 0), Moment::NEVER);
        assert_eq!(until(1, 0), Moment::FOREVER);
    }

    #[test]
    fn moments_and_instants_are_exact_from_the_start_to_the_end_of_time() {
        let start = Instant::now() + Duration::from_secs(9);
        let clock = Clock::starting(start);
        for nanos in [0, 1, 29_999_999_999, 30_000_000_000] {
            let instant = start + Duration::from_nanos(nanos);
            assert_eq!(clock.moment(instant), Moment(nanos));
            assert_eq!(clock.instant(Moment(nanos)), Some(instant));
        }
        assert_eq!(clock.moment(start - Duration::from_secs(1)), Moment(0));
        assert_eq!(clock.instant(Moment::FOREVER), None);
        assert!(!Moment::FOREVER.is_over(clock.moment(start + Duration::from_secs(1 << 36))));
        assert!(Moment::NEVER.is_over(clock.moment(start)));
        assert_eq!(Moment(5).plus(Some(Duration::ZERO)), Moment(5));
        assert_eq!(Moment(5).plus(None), Moment::FOREVER);
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
