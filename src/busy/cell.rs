//! What all endpoints of one worker share: its marks behind one atomic word,
//! and who waits for them to fall.
//!
//! The word is what the free path reads. Everything else happens under the
//! lock: a change applies to the marks, the word and the counts of every
//! membership, and takes the wakers of those who wait; they are woken after
//! the lock is released. An endpoint that finds itself excluded looks again
//! under the same lock before it leaves its waker, so no change falls between.

use super::{
    marks::{Class, Gate, Mark, Marks, SUSPECT},
    members::Members,
    set::Shared,
};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use std::{fmt, task::Waker, time::Duration};
use tokio::time::Instant;

/// The worker has left under this id: its endpoints get nothing any more.
const RETIRED: u64 = 1 << 5;

pub(crate) struct Cell {
    word: AtomicU64,
    state: Mutex<State>,
    /// How the worker is called in logs.
    label: Box<str>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct State {
    marks: Marks,
    seats: Vec<Seat>,
    next_seat: u64,
    retired: bool,
}

/// One living endpoint.
struct Seat {
    id: u64,
    members: Members,
    waker: Option<Waker>,
}

/// What an endpoint that found a bit set may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Open,
    /// Parked: the waker is woken by the next change; by time, the caller
    /// wakes itself at the instant.
    Parked(Option<Instant>),
}

/// The worker has left: the caller looks for the current cell.
#[derive(Debug)]
pub(crate) struct Retired;

impl Cell {
    pub(crate) fn new(label: Box<str>, shared: Arc<Shared>, marks: Marks) -> Self {
        Self {
            word: AtomicU64::new(marks.bits()),
            state: Mutex::new(State {
                marks,
                ..State::default()
            }),
            label,
            shared,
        }
    }

    /// Whether nothing stands in the way of a request: one load.
    pub(crate) fn is_open(&self) -> bool {
        self.word.load(Ordering::Acquire) == 0
    }

    fn has(&self, bits: u64) -> bool {
        self.word.load(Ordering::Acquire) & bits != 0
    }

    /// Applies `change` to the marks and everything that follows from them.
    fn change<R>(&self, change: impl FnOnce(&mut Marks) -> R) -> Result<R, Retired> {
        let mut state = lock(&self.state);
        if state.retired {
            return Err(Retired);
        }
        let (result, wakes) = self.apply(&mut state, change);
        drop(state);
        wakes.wake();
        Ok(result)
    }

    /// Changes the marks and publishes them: the word, the counts of every
    /// membership, and the wakers that the caller wakes without the lock.
    fn apply<R>(&self, state: &mut State, change: impl FnOnce(&mut Marks) -> R) -> (R, Wakes) {
        let gate = state.marks.gate();
        let result = change(&mut state.marks);
        let old = self.word.load(Ordering::Relaxed);
        let new = state.marks.bits();
        let mut wakes = Wakes::default();
        if old != new {
            self.word.store(new, Ordering::Release);
            let live = !state.seats.is_empty();
            self.shared.transition(&self.label, old, new, live);
            let (from, to) = (Class::of(old), Class::of(new));
            for seat in &mut state.seats {
                seat.members.moved(from, to);
                wakes.add(seat);
            }
        } else if state.marks.gate().opens_before(gate) {
            // Those who sleep until the old end have to know.
            state.seats.iter_mut().for_each(|seat| wakes.add(seat));
        }
        (result, wakes)
    }

    /// Takes a seat for a new endpoint of `members`.
    pub(crate) fn attach(&self, members: &Members) -> Result<u64, Retired> {
        let mut state = lock(&self.state);
        if state.retired {
            return Err(Retired);
        }
        let id = state.next_seat;
        state.next_seat += 1;
        let bits = self.word.load(Ordering::Relaxed);
        members.joined(Class::of(bits));
        if state.seats.is_empty() {
            self.shared.live(bits, true);
        }
        state.seats.push(Seat {
            id,
            members: members.clone(),
            waker: None,
        });
        drop(state);
        members.touch();
        Ok(id)
    }

    /// The endpoint is gone. Whether nothing is left that needs the cell.
    pub(crate) fn detach(&self, seat: u64) -> bool {
        let mut state = lock(&self.state);
        let Some(at) = state.seats.iter().position(|other| other.id == seat) else {
            return false;
        };
        let gone = state.seats.swap_remove(at);
        let vacant = state.seats.is_empty();
        if !state.retired {
            let bits = state.marks.bits();
            gone.members.left(Class::of(bits));
            if vacant {
                self.shared.live(bits, false);
            }
        }
        drop(state);
        gone.members.touch();
        vacant
    }

    /// Leaves `waker` in the seat if the endpoint has to wait.
    pub(crate) fn check(&self, seat: u64, now: Instant, waker: &Waker) -> Check {
        let mut state = lock(&self.state);
        if state.retired {
            return Check::Parked(None);
        }
        let ((), mut wakes) = self.apply(&mut state, |marks| marks.expire(now));
        let (check, old) = match state.marks.gate() {
            Gate::Open => (Check::Open, None),
            Gate::Closed(until) => {
                let seat = state.seats.iter_mut().find(|other| other.id == seat);
                let old = seat.and_then(|seat| match &mut seat.waker {
                    Some(old) if old.will_wake(waker) => None,
                    slot => slot.replace(waker.clone()),
                });
                (Check::Parked(until), old)
            }
        };
        drop(state);
        drop(old);
        wakes.forget(waker);
        wakes.wake();
        check
    }

    pub(crate) fn set_busy(&self, until: Option<Instant>) -> Result<(), Retired> {
        self.change(|marks| marks.set_busy(Some(until)))
    }

    pub(crate) fn clear_busy(&self) -> Result<(), Retired> {
        if self.has(Mark::Busy.bit() | RETIRED) {
            self.change(|marks| marks.set_busy(None))
        } else {
            Ok(())
        }
    }

    pub(crate) fn drain(&self) -> Result<(), Retired> {
        self.change(Marks::drain)
    }

    pub(crate) fn undrain(&self) -> Result<(), Retired> {
        self.change(Marks::undrain)
    }

    /// A request was refused. On a retired cell nothing is left to mark.
    pub(crate) fn refused(&self, named: Option<Duration>) {
        let times = &self.shared.times;
        let _ = self.change(|marks| {
            let now = Instant::now();
            marks.answered();
            marks.expire(now);
            marks.refused(now, named, times);
        });
    }

    /// A connection failed before any byte of a response.
    pub(crate) fn failed(&self) {
        let times = &self.shared.times;
        let _ = self.change(|marks| {
            let now = Instant::now();
            marks.expire(now);
            marks.failed(now, times);
        });
    }

    /// The worker answered something that is no refusal.
    pub(crate) fn answered(&self) {
        if self.has(Mark::Unreachable.bit() | SUSPECT) {
            let _ = self.change(Marks::answered);
        }
    }

    /// A response that was no refusal has ended.
    pub(crate) fn completed(&self) {
        if self.has(Mark::Leased.bit()) {
            let _ = self.change(Marks::completed);
        }
    }

    /// A request leaves. Whether it is a probe, whose end the caller reports.
    pub(crate) fn dispatched(&self) -> bool {
        self.has(SUSPECT)
            && self
                .change(|marks| marks.dispatched(Instant::now()))
                .unwrap_or(false)
    }

    pub(crate) fn probe_abandoned(&self) {
        let _ = self.change(Marks::probe_abandoned);
    }

    /// Ends the marks whose time has come, also if nobody asks for the worker.
    pub(crate) fn expire(&self, now: Instant) {
        let _ = self.change(|marks| marks.expire(now));
    }

    /// The marks as they are at `now`.
    pub(crate) fn marks_at(&self, now: Instant) -> Marks {
        let mut marks = lock(&self.state).marks.clone();
        marks.expire(now);
        marks
    }

    /// Whether nobody needs the cell at `now`: no endpoint, no mark.
    /// If so it is retired, and the caller forgets it.
    pub(crate) fn retire_if_vacant(&self, now: Instant) -> bool {
        let mut state = lock(&self.state);
        if !state.seats.is_empty() {
            return false;
        }
        // Without a seat nobody waits, so there is nobody to wake.
        let ((), _) = self.apply(&mut state, |marks| marks.expire(now));
        let vacant = state.marks.bits() == 0;
        if vacant {
            state.retired = true;
            self.word.store(RETIRED, Ordering::Release);
        }
        vacant
    }

    /// Retires the cell; the marks that a new worker under the id starts with.
    /// `None` if it is retired already, or if only one membership lets the
    /// worker go and another still has an endpoint of it.
    pub(crate) fn retire(&self, from: Option<&Members>, now: Instant) -> Option<(Marks, Wakes)> {
        let mut state = lock(&self.state);
        let leaves = |seat: &Seat| from.is_none_or(|from| seat.members.same(from));
        if state.retired || !state.seats.iter().all(leaves) {
            return None;
        }
        let (marks, mut wakes) = self.apply(&mut state, |marks| {
            marks.expire(now);
            marks.for_successor()
        });
        if !state.seats.is_empty() {
            self.shared.live(state.marks.bits(), false);
        }
        // The balancer may keep the endpoints for a while; they count no more.
        let class = Class::of(state.marks.bits());
        for seat in &mut state.seats {
            seat.members.left(class);
            wakes.add(seat);
        }
        state.retired = true;
        self.word.store(RETIRED, Ordering::Release);
        Some((marks, wakes))
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell")
            .field("worker", &self.label)
            .field("bits", &self.word)
            .finish_non_exhaustive()
    }
}

/// The ones to wake once the lock is released. Nearly always a worker has one
/// endpoint, so the first needs no allocation.
#[derive(Default)]
#[must_use]
pub(crate) struct Wakes {
    first: Option<(Option<Waker>, Members)>,
    rest: Vec<(Option<Waker>, Members)>,
}

impl Wakes {
    fn add(&mut self, seat: &mut Seat) {
        let wake = (seat.waker.take(), seat.members.clone());
        if self.first.is_none() {
            self.first = Some(wake);
        } else {
            self.rest.push(wake);
        }
    }

    /// The caller is awake: `waker` is its own.
    fn forget(&mut self, waker: &Waker) {
        for (other, _) in self.first.iter_mut().chain(&mut self.rest) {
            if other.as_ref().is_some_and(|other| other.will_wake(waker)) {
                *other = None;
            }
        }
    }

    pub(crate) fn wake(self) {
        for (waker, members) in self.first.into_iter().chain(self.rest) {
            if let Some(waker) = waker {
                waker.wake();
            }
            members.touch();
        }
    }
}
