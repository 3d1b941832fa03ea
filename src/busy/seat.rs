//! One living connection to a worker, and the requests that it has.

use super::{
    marks::Witness,
    members::Members,
    worker::{SeatId, WorkerState},
};
use crate::sync::{Arc, AtomicU64, Ordering};
use std::{fmt, sync};
use tokio::time::Instant;

/// Counts the requests in flight on one connection, in the lower half, and
/// those that have completed, in the upper one.
#[derive(Debug)]
pub(crate) struct InFlight(AtomicU64);

/// One that completes.
const COMPLETED: u64 = 1 << 32;
const IN_FLIGHT: u64 = COMPLETED - 1;

impl InFlight {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire) & IN_FLIGHT
    }

    /// How many have completed, modulo 2³².
    fn completed(&self) -> u32 {
        (self.0.load(Ordering::Acquire) >> 32) as u32
    }
}

/// Where connections are counted that are looked at together: each has a row.
pub(crate) trait Rows: Send + Sync {
    /// The requests in flight on a row, and as many as may be at once, or
    /// `u64::MAX`.
    fn in_flight(&self, row: u32) -> Option<(&InFlight, u64)>;

    /// The requests in flight on a row have reached the limit, or fallen below
    /// it.
    fn limit_crossed(&self, row: u32);

    /// The connection of a row is gone, and so are its requests.
    fn vacated(&self, row: u32);

    /// Whether most are failing, so that this is no reason to pass one over.
    fn ignores_failing(&self) -> bool;

    /// A request that has failed counts as load on a row until then.
    fn handicap(&self, row: u32, until: Instant);
}

/// A connection that a stock balancer chooses by its own count.
struct Alone {
    in_flight: InFlight,
    members: Members,
}

impl Rows for Alone {
    fn in_flight(&self, _: u32) -> Option<(&InFlight, u64)> {
        Some((&self.in_flight, u64::MAX))
    }

    fn limit_crossed(&self, _: u32) {}

    fn vacated(&self, _: u32) {}

    fn ignores_failing(&self) -> bool {
        self.members.ignores_failing()
    }

    fn handicap(&self, _: u32, _: Instant) {}
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

    pub(crate) fn alone(seat: (Arc<WorkerState>, SeatId), members: Members) -> Self {
        let in_flight = InFlight::new();
        Self::counted(seat, sync::Arc::new(Alone { in_flight, members }), 0)
    }

    pub(crate) fn worker(&self) -> &Arc<WorkerState> {
        &self.worker
    }

    pub(crate) fn id(&self) -> SeatId {
        self.id
    }

    /// Whether a mark keeps requests away, or the worker has left.
    pub(crate) fn is_excluded(&self) -> bool {
        self.worker.is_excluded(self.id, self.ignores_failing())
    }

    pub(crate) fn ignores_failing(&self) -> bool {
        self.rows.ignores_failing()
    }

    /// The requests in flight on this connection.
    pub(crate) fn in_flight(&self) -> u64 {
        let counts = self.rows.in_flight(self.row);
        counts.map_or(0, |(in_flight, _)| in_flight.get())
    }

    /// A request that has failed counts as load until then.
    pub(crate) fn handicap(&self, until: Instant) {
        self.rows.handicap(self.row, until);
    }

    /// Begins a request, unless there are as many as there may be.
    #[inline(always)]
    pub(crate) fn enter(seat: Arc<Self>) -> Option<Flight> {
        let mut completed = 0;
        if let Some((InFlight(count), limit)) = seat.rows.in_flight(seat.row) {
            let before = if limit == u64::MAX {
                count.fetch_add(1, Ordering::AcqRel)
            } else {
                let below = |n: u64| (n & IN_FLIGHT < limit).then_some(n + 1);
                count
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, below)
                    .ok()?
            };
            if (before & IN_FLIGHT) + 1 == limit {
                seat.rows.limit_crossed(seat.row);
            }
            completed = (before >> 32) as u32;
        }
        Some(Flight {
            seat,
            before: completed,
            completed: false,
        })
    }

    #[inline]
    fn leave(&self, completed: bool) {
        if let Some((InFlight(count), limit)) = self.rows.in_flight(self.row) {
            let up = if completed { COMPLETED } else { 0 };
            // One up and one down, in one step.
            let change = up.wrapping_sub(1);
            let before = count.fetch_add(change, Ordering::AcqRel);
            if before & IN_FLIGHT == limit {
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
pub(crate) struct Flight {
    seat: Arc<Seat>,
    /// How many had completed on the connection when this one came.
    before: u32,
    completed: bool,
}

impl Flight {
    #[inline]
    pub(crate) fn seat(&self) -> &Seat {
        &self.seat
    }

    /// It ends as one that was served.
    pub(crate) fn complete(&mut self) {
        self.completed = true;
    }

    /// What is known beside it of the worker that has refused it.
    pub(crate) fn witness(&self) -> Witness {
        let counts = self.seat.rows.in_flight(self.seat.row);
        let now = counts.map_or(0, |(in_flight, _)| in_flight.completed());
        Witness {
            completed_since: now != self.before,
            idle: self.is_alone(),
        }
    }

    /// Whether no other request is on the connection.
    pub(crate) fn is_alone(&self) -> bool {
        self.seat.in_flight() <= 1
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.seat.leave(self.completed);
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Flight").field(&self.seat).finish()
    }
}
