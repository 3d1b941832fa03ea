//! Whether a worker that answers answers well: a pure rule.

/// As many failures in a row, whatever was before, are a failing worker.
///
/// Envoy's outlier detection and linkerd's failure accrual have 5 and 7 there:
/// fewer would exclude a worker for one bad request that its client repeats.
pub(super) const IN_A_ROW: u32 = 5;

/// As many failures of the last 32 outcomes are a failing worker.
pub(super) const OF_RECENT: u32 = 16;

/// The last outcomes of a worker's requests; 32 successes are forgotten
/// failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcomes {
    /// One bit each, the latest is the lowest: set if it was a failure.
    recent: u32,
}

impl Outcomes {
    pub(super) fn succeeded(&mut self) {
        self.recent <<= 1;
    }

    /// Whether there are too many failures now.
    pub(super) fn failed(&mut self) -> bool {
        self.recent = self.recent << 1 | 1;
        self.in_a_row() >= IN_A_ROW || self.of_recent() >= OF_RECENT
    }

    /// The failures since the last success, at most 32.
    pub(super) fn in_a_row(self) -> u32 {
        self.recent.trailing_ones()
    }

    /// The failures among the last 32 outcomes.
    pub(super) fn of_recent(self) -> u32 {
        self.recent.count_ones()
    }

    /// Whether none of the last 32 was a failure.
    pub(super) fn is_clean(self) -> bool {
        self.recent == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn too_many_are_five_in_a_row_or_half_of_the_last_32(
            outcomes in prop::collection::vec(any::<bool>(), 1..200)
        ) {
            let mut health = Outcomes::default();
            let mut all = Vec::new();
            for failed in outcomes {
                all.push(failed);
                let is_failing = if failed {
                    health.failed()
                } else {
                    health.succeeded();
                    false
                };
                let in_a_row = all.iter().rev().take_while(|failed| **failed).count();
                let of_recent = all.iter().rev().take(32).filter(|failed| **failed).count();
                let expected = failed && (in_a_row >= 5 || of_recent >= 16);
                prop_assert_eq!(is_failing, expected);
                prop_assert_eq!(health.of_recent() as usize, of_recent);
                prop_assert_eq!(health.in_a_row() as usize, in_a_row.min(32));
            }
        }
    }

    #[test]
    fn a_worker_that_fails_one_in_three_is_not_failing_and_is_forgiven() {
        let mut health = Outcomes::default();
        for _ in 0..100 {
            assert!(!health.failed());
            health.succeeded();
            health.succeeded();
        }
        (0..32).for_each(|_| health.succeeded());
        assert!(health.is_clean());
    }
}
