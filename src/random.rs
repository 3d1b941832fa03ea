//! Random positions: cheap, one generator a thread, and not for secrets.

use std::{
    cell::Cell,
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish());
}

/// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators" (2014).
pub(crate) const fn mix(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[inline]
fn next() -> u64 {
    STATE.with(|state| {
        let next = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(next);
        mix(next)
    })
}

/// A number below `n`, or 0 if `n` is 0.
#[inline]
pub(crate) fn below(n: u32) -> u32 {
    // The upper bits of a product: the bias is below one in 2³² / n.
    (((next() >> 32) * u64::from(n)) >> 32) as u32
}

/// Two different numbers below `n`, which is at least 2.
#[inline]
pub(crate) fn two_below(n: u32) -> (u32, u32) {
    let first = below(n);
    let second = below(n - 1);
    (first, if second >= first { second + 1 } else { second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_range_and_all_of_them_come() {
        let mut seen = [0_u32; 5];
        for _ in 0..5_000 {
            let (a, b) = two_below(5);
            assert_ne!(a, b);
            seen[a as usize] += 1;
            seen[b as usize] += 1;
        }
        // 2,000 are expected of each, with a standard deviation of 35.
        assert!(seen.iter().all(|n| (1_700..2_300).contains(n)), "{seen:?}");
        assert_eq!((below(0), below(1)), (0, 0));
        assert!(matches!(two_below(2), (0, 1) | (1, 0)));
    }
}
