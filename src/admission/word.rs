//! The packed word that the gate decides on.

/// The highest number of slots, and of places in the queue: 2²⁷ − 1.
pub(super) const MAX: u32 = (1 << 27) - 1;

/// Free slots and free places of the queue in one word, with two flags and
/// the clock's divider.
///
/// Both counts are signed: after a limit was lowered below what is in use
/// they are negative, so that a changed limit is an addition, and no limit is
/// loaded apart from the count that it is compared with.
///
/// ```text
///  63    58 57        30 29         2   1      0
/// │ tick   │ free slots │ free places│closed│contended│
/// ```
///
/// The counts are biased by [`BIAS`], so that no sum of one borrows from the
/// other; neither leaves ±[`MAX`]. The tick counts admissions and wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u64);

const CONTENDED: u64 = 1;
const CLOSED: u64 = 1 << 1;
const PLACE: u64 = 1 << 2;
const SLOT: u64 = 1 << 30;
const TICK: u64 = 1 << 58;
const COUNT: u64 = (1 << 28) - 1;
const BIAS: u64 = 1 << 27;

impl Word {
    pub(super) const CONTENDED: u64 = CONTENDED;

    pub(super) const fn new(slots: u32, places: u32) -> Self {
        Self(((slots as u64 + BIAS) * SLOT) | ((places as u64 + BIAS) * PLACE))
    }

    #[inline]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// The slots that are free; negative while more are in use than there are.
    #[inline]
    pub(super) const fn slots(self) -> i64 {
        (((self.0 / SLOT) & COUNT) as i64) - BIAS as i64
    }

    /// The places that are free; negative while more wait than may.
    #[inline]
    pub(super) const fn places(self) -> i64 {
        (((self.0 / PLACE) & COUNT) as i64) - BIAS as i64
    }

    /// Admissions and releases must take the lock.
    #[inline]
    pub(super) const fn contended(self) -> bool {
        self.0 & CONTENDED != 0
    }

    #[inline]
    pub(super) const fn closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    /// Neither contended nor closed: a free slot is there for the taking.
    #[inline]
    pub(super) const fn open(self) -> bool {
        self.0 & (CONTENDED | CLOSED) == 0
    }

    /// The next admission is one of the few that read the clock: the first,
    /// and then one in 64.
    #[inline]
    pub(super) const fn sampled(self) -> bool {
        self.0 < TICK
    }

    /// Admits one.
    #[inline]
    pub(super) const fn take_slot(self) -> Self {
        Self(self.0.wrapping_add(TICK - SLOT))
    }

    #[inline]
    pub(super) const fn add_slots(self, n: i64) -> Self {
        Self(self.0.wrapping_add((n as u64).wrapping_mul(SLOT)))
    }

    pub(super) const fn add_places(self, n: i64) -> Self {
        Self(self.0.wrapping_add((n as u64).wrapping_mul(PLACE)))
    }

    pub(super) const fn set_contended(self, contended: bool) -> Self {
        Self((self.0 & !CONTENDED) | contended as u64)
    }

    pub(super) const fn close(self) -> Self {
        Self(self.0 | CLOSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_counts_do_not_disturb_each_other(
            slots in 0..=MAX,
            places in 0..=MAX,
            less_slots in 0..=2 * i64::from(MAX),
            less_places in 0..=2 * i64::from(MAX),
            contended: bool,
        ) {
            let less_slots = less_slots.min(i64::from(slots) + i64::from(MAX));
            let less_places = less_places.min(i64::from(places) + i64::from(MAX));
            let word = Word::new(slots, places)
                .set_contended(contended)
                .add_places(-less_places)
                .add_slots(-less_slots);
            prop_assert_eq!(word.slots(), i64::from(slots) - less_slots);
            prop_assert_eq!(word.places(), i64::from(places) - less_places);
            prop_assert_eq!(word.contended(), contended);
            prop_assert!(!word.closed());
            let back = word.add_slots(less_slots).add_places(less_places).close();
            prop_assert_eq!(back, Word::new(slots, places).set_contended(contended).close());
            prop_assert!(back.closed() && !back.open());
        }
    }

    #[test]
    fn one_admission_in_sixty_four_reads_the_clock() {
        let mut word = Word::new(1, 0);
        let mut sampled = Vec::new();
        for n in 0..200 {
            if word.sampled() {
                sampled.push(n);
            }
            word = word.take_slot();
            assert_eq!((word.slots(), word.places()), (0, 0));
            word = word.add_slots(1);
        }
        assert_eq!(sampled, [0, 64, 128, 192]);
    }
}
