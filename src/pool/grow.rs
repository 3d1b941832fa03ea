//! A table that only grows, and is read without a lock.

use std::sync::OnceLock;

/// Rows in chunks, each as long as all before it: a row never moves, so it can
/// be read while others are added.
pub(super) struct Grow<T> {
    /// The chunk that most pools need no more than.
    first: Box<[T]>,
    more: [OnceLock<Box<[T]>>; CHUNKS],
}

const FIRST_BITS: u32 = 8;
const FIRST: u32 = 1 << FIRST_BITS;
const CHUNKS: usize = (u32::BITS - FIRST_BITS) as usize;

/// The chunk of a row beyond the first ones, the row's place in it, and the
/// chunk's length.
#[inline]
const fn locate(row: u32) -> (usize, usize, usize) {
    let bits = row.ilog2();
    let length = 1 << bits;
    ((bits - FIRST_BITS) as usize, row as usize - length, length)
}

impl<T: Default> Grow<T> {
    pub(super) fn new() -> Self {
        Self {
            first: chunk(FIRST as usize),
            more: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// The row, if there is a place for it.
    #[inline]
    pub(super) fn get(&self, row: u32) -> Option<&T> {
        if row < FIRST {
            return self.first.get(row as usize);
        }
        let (chunk, at, _) = locate(row);
        self.more.get(chunk)?.get()?.get(at)
    }

    /// The row, for which a place is made if there is none.
    pub(super) fn ensure(&self, row: u32) -> &T {
        if row < FIRST {
            return &self.first[row as usize];
        }
        let (at_chunk, at, length) = locate(row);
        &self.more[at_chunk].get_or_init(|| chunk(length))[at]
    }
}

fn chunk<T: Default>(length: usize) -> Box<[T]> {
    (0..length).map(|_| T::default()).collect()
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn every_row_has_a_place_of_its_own_and_stays_there() {
        let table = Grow::<AtomicU32>::new();
        assert!(table.get(FIRST).is_none());
        let first: *const AtomicU32 = table.ensure(0);
        for row in 0..10_000 {
            table.ensure(row).store(row, Relaxed);
        }
        for row in 0..10_000 {
            assert_eq!(table.get(row).map(|it| it.load(Relaxed)), Some(row));
        }
        assert!(std::ptr::eq(first, table.ensure(0)));
        assert!(table.get(1 << 20).is_none() && table.get(u32::MAX).is_none());
    }
}
