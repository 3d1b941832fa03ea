//! One worker, followed for its row.

use super::rows::{Facts, Rows};
use crate::{
    busy::{Notifier, Outlook, Watch},
    sync::{AtomicBool, Mutex, Ordering, lock},
};
use std::sync;

/// Follows one worker for its row, and wakes those who wait.
pub(super) struct RowWatch {
    rows: sync::Arc<Rows>,
    row: u32,
    /// Wakes those who wait for this worker's own service. Most workers have
    /// nobody who does, and a mark that flips needs not look.
    own: Mutex<Option<Notifier>>,
    has_own: AtomicBool,
}

impl RowWatch {
    pub(super) fn new(rows: sync::Arc<Rows>, row: u32) -> Self {
        Self {
            rows,
            row,
            own: Mutex::new(None),
            has_own: AtomicBool::new(false),
        }
    }

    pub(super) fn row(&self) -> u32 {
        self.row
    }

    /// Wakes those who wait for this worker's own service. Whoever asks for it
    /// looks at the worker, [under its lock](crate::busy::Seat::is_excluded),
    /// afterwards: a change that did not find it yet is seen there.
    pub(super) fn own(&self) -> Notifier {
        let mut own = lock(&self.own);
        let notifier = own.get_or_insert_with(Notifier::new).clone();
        self.has_own.store(true, Ordering::Release);
        notifier
    }

    pub(super) fn in_flight(&self) -> u64 {
        let facts = self.rows.facts(self.row);
        facts.map_or(0, |facts| facts.in_flight.get())
    }

    /// The requests in flight, and those that count as such.
    pub(super) fn load(&self) -> u64 {
        self.rows.facts(self.row).map_or(0, Facts::load)
    }

    /// The latter alone.
    pub(super) fn handicap(&self) -> u64 {
        self.rows.facts(self.row).map_or(0, Facts::handicap)
    }
}

impl Watch for RowWatch {
    fn moved(&self, _: Option<Outlook>, to: Option<Outlook>) {
        self.rows.moved(self.row, to);
    }

    fn touched(&self) {
        if self.has_own.load(Ordering::Acquire) {
            self.own().notify();
        }
        self.rows.members().notifier().notify();
    }
}
