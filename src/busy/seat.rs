//! One living connection to a worker, and the requests that it has.

use super::worker::{SeatId, WorkerState};
use crate::sync::{Arc, AtomicU64, Ordering};
use std::{fmt, sync};

/// Counts the requests in flight on one connection.
#[derive(Debug)]
pub(crate) struct InFlight(AtomicU64);

impl InFlight {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Where connections are counted that are looked at together: each has a row.
pub(crate) trait Rows: Send + Sync {
    /// The requests in flight on a row, if they are counted, and as many as may
    /// be at once, or `u64::MAX`.
    fn in_flight(&self, row: u32) -> Option<(&InFlight, u64)>;

    /// The requests in flight on a row have reached the limit, or fallen below
    /// it.
    fn limit_crossed(&self, row: u32);

    /// The connection of a row is gone, and so are its requests.
    fn vacated(&self, row: u32);
}

/// Connections that nobody counts.
struct Uncounted;

impl Rows for Uncounted {
    fn in_flight(&self, _: u32) -> Option<(&InFlight, u64)> {
        None
    }

    fn limit_crossed(&self, _: u32) {}

    fn vacated(&self, _: u32) {}
}

/// A connection's seat among those that share the state of its worker. It is
/// taken while the connection or a request of it lives.
///
/// Each request touches it: with the counts of an `Arc` it fits into a cache
/// line.
pub(crate) struct Seat {
    worker: Arc<WorkerState>,
    id: SeatId,
    rows: sync::Arc<dyn Rows>,
    row: u32,
}

impl Seat {
    /// A seat whose requests are counted in a row.
    pub(crate) fn counted(
        (worker, id): (Arc<WorkerState>, SeatId),
        rows: sync::Arc<dyn Rows>,
        row: u32,
    ) -> Self {
        Self {
            worker,
            id,
            rows,
            row,
        }
    }

    pub(crate) fn uncounted(seat: (Arc<WorkerState>, SeatId)) -> Self {
        Self::counted(seat, sync::Arc::new(Uncounted), 0)
    }

    pub(crate) fn worker(&self) -> &Arc<WorkerState> {
        &self.worker
    }

    pub(crate) fn id(&self) -> SeatId {
        self.id
    }

    /// Whether a mark keeps requests away, or the worker has left.
    pub(crate) fn is_excluded(&self) -> bool {
        self.worker.is_excluded(self.id)
    }

    /// Begins a request, unless there are as many as there may be.
    #[inline(always)]
    pub(crate) fn enter(seat: Arc<Self>) -> Option<Flight> {
        if let Some((InFlight(count), limit)) = seat.rows.in_flight(seat.row) {
            if limit == u64::MAX {
                count.fetch_add(1, Ordering::AcqRel);
            } else {
                let below = |n: u64| (n < limit).then_some(n + 1);
                let before = count
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, below)
                    .ok()?;
                if before + 1 == limit {
                    seat.rows.limit_crossed(seat.row);
                }
            }
        }
        Some(Flight(seat))
    }

    #[inline]
    fn leave(&self) {
        if let Some((InFlight(count), limit)) = self.rows.in_flight(self.row) {
            let before = count.fetch_sub(1, Ordering::AcqRel);
            if before == limit {
                self.rows.limit_crossed(self.row);
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.worker.detach(self.id);
        self.rows.vacated(self.row);
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat")
            .field("worker", &self.worker)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A request in flight; its drop ends it.
pub(crate) struct Flight(Arc<Seat>);

impl Flight {
    #[inline]
    pub(crate) fn seat(&self) -> &Seat {
        &self.0
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Flight").field(&self.0).finish()
    }
}
