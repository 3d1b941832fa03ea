//! Who is seated at a worker, behind its lock, and what is left to do for them
//! once that is released.

use super::{
    marks::{Mark, Marks},
    shared::Transition,
    worker::{SeatId, Tidy, Watch},
};
use std::{sync, task::Waker};
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct State {
    pub(super) marks: Marks,
    /// Since when each mark is on.
    pub(super) since: [Option<Instant>; 5],
    pub(super) seats: Vec<Seated>,
    pub(super) next_seat: SeatId,
    /// No connection is seated here any more, and none will be.
    pub(super) retired: bool,
}

/// One living connection.
pub(super) struct Seated {
    pub(super) id: SeatId,
    /// Its worker has left: it counts no more, gets nothing, and is not heard.
    pub(super) retired: bool,
    pub(super) watch: sync::Arc<dyn Watch>,
    pub(super) tidy: sync::Arc<dyn Tidy>,
    pub(super) waker: Option<Waker>,
}

impl State {
    /// Keeps since when the marks are on.
    pub(super) fn remember(&mut self, old: u64, new: u64) {
        for mark in Mark::ALL {
            let since = &mut self.since[mark as usize];
            match (old & mark.bit() != 0, new & mark.bit() != 0) {
                (false, true) => *since = Some(Instant::now()),
                (true, false) => *since = None,
                _ => {}
            }
        }
    }

    /// A number that no seat has.
    pub(super) fn free_seat(&mut self) -> SeatId {
        loop {
            let id = self.next_seat;
            self.next_seat = id.wrapping_add(1);
            if self.seats.iter().all(|seat| seat.id != id) {
                return id;
            }
        }
    }

    /// The seat of a connection whose worker has not left.
    pub(super) fn seated(&mut self, id: SeatId) -> Option<&mut Seated> {
        let mut seats = self.seats.iter_mut();
        seats.find(|seat| seat.id == id && !seat.retired)
    }

    /// Leaves a waker, and gives back the one to drop without the lock.
    pub(super) fn park(&mut self, id: SeatId, waker: &Waker) -> Option<Waker> {
        match &mut self.seated(id)?.waker {
            Some(old) if old.will_wake(waker) => None,
            slot => slot.replace(waker.clone()),
        }
    }
}

/// What is to do once the lock is released: it runs foreign code. Nearly
/// always a worker has one connection, so the first needs no allocation.
#[derive(Default)]
#[must_use]
pub(crate) struct Effects {
    pub(super) transition: Option<Transition>,
    pub(super) live: Option<(u64, bool)>,
    pub(super) first: Option<Wake>,
    pub(super) rest: Vec<Wake>,
}

pub(super) type Wake = (Option<Waker>, sync::Arc<dyn Watch>);

impl Effects {
    pub(super) fn wake(&mut self, seat: &mut Seated) {
        let wake = (seat.waker.take(), seat.watch.clone());
        if self.first.is_none() {
            self.first = Some(wake);
        } else {
            self.rest.push(wake);
        }
    }

    /// The caller is awake: `waker` is its own.
    pub(super) fn forget(&mut self, waker: &Waker) {
        for (other, _) in self.first.iter_mut().chain(&mut self.rest) {
            if other.as_ref().is_some_and(|other| other.will_wake(waker)) {
                *other = None;
            }
        }
    }
}
