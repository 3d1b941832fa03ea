//! What all endpoints of one worker share: its marks behind one atomic word,
//! and who waits for them to fall.
//!
//! The word is what the free path reads. Everything else happens under the
//! lock: a change applies to the marks, the word and the counts of every
//! membership, and takes the wakers of those who wait; they are woken after
//! the lock is released. An endpoint that finds itself excluded looks again
//! under the same lock before it leaves its waker, so no change falls between.

use super::{
    marks::{Class, Gate, Mark, Marks, Probe, SUSPECT},
    members::Members,
    set::{Place, Shared},
};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::unwind::FirstPanic;
use std::{fmt, task::Waker, time::Duration};
use tokio::time::Instant;

/// Some endpoint here, or all, are of a worker that has left.
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
    /// No endpoint is seated here any more, and none will be.
    retired: bool,
}

/// One living endpoint.
struct Seat {
    id: u64,
    /// Its worker has left: it counts no more, gets nothing, and is not heard.
    retired: bool,
    members: Members,
    /// Kept here and not in the endpoint, which balancers move about.
    place: Place,
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
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.word.load(Ordering::Acquire) == 0
    }

    #[inline]
    fn has(&self, bits: u64) -> bool {
        self.word.load(Ordering::Acquire) & bits != 0
    }

    /// Applies `change` to the marks and everything that follows from them.
    fn change<R>(&self, change: impl FnOnce(&mut Marks) -> R) -> Result<R, Retired> {
        self.change_if(|state| !state.retired, change)
            .ok_or(Retired)
    }

    /// As [`change`](Self::change), for what an endpoint has seen: it is not
    /// heard any more once its worker has left.
    fn heard<R>(&self, seat: u64, change: impl FnOnce(&mut Marks) -> R) -> Option<R> {
        self.change_if(|state| state.seated(seat).is_some(), change)
    }

    fn change_if<R>(
        &self,
        may: impl FnOnce(&mut State) -> bool,
        change: impl FnOnce(&mut Marks) -> R,
    ) -> Option<R> {
        let mut state = lock(&self.state);
        if !may(&mut state) {
            return None;
        }
        let (result, effects) = self.apply(&mut state, change);
        drop(state);
        self.finish(effects);
        Some(result)
    }

    /// Changes the marks and publishes them: the word and the counts of every
    /// membership. What runs foreign code is left to
    /// [`finish`](Self::finish), without the lock.
    fn apply<R>(&self, state: &mut State, change: impl FnOnce(&mut Marks) -> R) -> (R, Effects) {
        let (old, gate) = (state.marks.bits(), state.marks.gate());
        let result = change(&mut state.marks);
        let (new, new_gate) = (state.marks.bits(), state.marks.gate());
        let mut effects = Effects::default();
        if old != new {
            let live = state.seats.iter().any(|seat| !seat.retired);
            effects.transition = Some((old, new, live));
            let (from, to) = (Class::of(old), Class::of(new));
            for seat in state.seats.iter_mut().filter(|seat| !seat.retired) {
                seat.members.moved(from, to);
            }
            self.publish(state);
        }
        // Those who sleep until the old end have to know, and those who
        // thought it open.
        let closes = gate == Gate::Open && new_gate != Gate::Open;
        if old != new || closes || new_gate.opens_before(gate) {
            state.seats.iter_mut().for_each(|seat| effects.wake(seat));
        }
        (result, effects)
    }

    fn publish(&self, state: &State) {
        let retired = state.retired || state.seats.iter().any(|seat| seat.retired);
        let word = if retired { RETIRED } else { 0 };
        self.word
            .store(word | state.marks.bits(), Ordering::Release);
    }

    /// Logs, counts and wakes; the lock is free.
    pub(crate) fn finish(&self, effects: Effects) {
        if let Some((old, new, live)) = effects.transition {
            self.shared.transition(&self.label, old, new, live);
        }
        if let Some((bits, live)) = effects.live {
            self.shared.live(bits, live);
        }
        let mut panics = FirstPanic::default();
        for (waker, members) in effects.first.into_iter().chain(effects.rest) {
            if let Some(waker) = waker {
                panics.catch(|| waker.wake());
            }
            panics.catch(|| members.touch());
        }
        panics.resume();
    }

    /// Takes a seat for a new endpoint of `members`; `place` leads here.
    pub(crate) fn attach(&self, members: &Members, place: &Place) -> Result<u64, Retired> {
        let mut state = lock(&self.state);
        if state.retired {
            return Err(Retired);
        }
        let id = state.next_seat;
        state.next_seat += 1;
        let bits = state.marks.bits();
        members.joined(Class::of(bits));
        let is_first = state.seats.iter().all(|seat| seat.retired);
        state.seats.push(Seat {
            id,
            retired: false,
            members: members.clone(),
            place: place.clone(),
            waker: None,
        });
        drop(state);
        if is_first {
            self.shared.live(bits, true);
        }
        members.touch();
        Ok(id)
    }

    /// The endpoint is gone.
    pub(crate) fn detach(&self, seat: u64) {
        let mut state = lock(&self.state);
        let Some(at) = state.seats.iter().position(|other| other.id == seat) else {
            return;
        };
        let gone = state.seats.swap_remove(at);
        let bits = state.marks.bits();
        let was_last = state.seats.iter().all(|seat| seat.retired);
        let is_vacant = state.seats.is_empty();
        if gone.retired {
            self.publish(&state);
        } else {
            gone.members.left(Class::of(bits));
        }
        drop(state);
        if was_last && !gone.retired {
            self.shared.live(bits, false);
        }
        gone.members.touch();
        if is_vacant {
            gone.place.tidy();
        }
    }

    /// Leaves `waker` in the seat if the endpoint has to wait.
    pub(crate) fn check(&self, seat: u64, now: Instant, waker: &Waker) -> Check {
        let mut state = lock(&self.state);
        if state.seated(seat).is_none() {
            return Check::Parked(None);
        }
        let ((), mut effects) = self.apply(&mut state, |marks| marks.expire(now));
        let (check, old) = match state.marks.gate() {
            Gate::Open => (Check::Open, None),
            Gate::Closed(until) => (Check::Parked(until), state.park(seat, waker)),
        };
        drop(state);
        drop(old);
        effects.forget(waker);
        self.finish(effects);
        check
    }

    /// Leaves `waker` in the seat of an endpoint that waits for its own
    /// service, so that a mark gets its attention. Whether it may go on
    /// waiting: not if a mark has come in between.
    pub(crate) fn watch(&self, seat: u64, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        let is_open = state.marks.gate() == Gate::Open && state.seated(seat).is_some();
        let old = is_open.then(|| state.park(seat, waker));
        drop(state);
        drop(old);
        is_open
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

    /// A request was refused, as somebody says who has no endpoint.
    pub(crate) fn leased(&self, named: Option<Duration>) -> Result<(), Retired> {
        let times = &self.shared.times;
        self.change(|marks| {
            let now = Instant::now();
            marks.expire(now);
            marks.refused(now, named, times);
        })
    }

    /// A request was refused, and with it perhaps only this one.
    pub(crate) fn refused(&self, seat: u64, named: Option<Duration>, lease: bool) {
        let times = &self.shared.times;
        self.heard(seat, |marks| {
            let now = Instant::now();
            marks.answered();
            marks.expire(now);
            if lease {
                marks.refused(now, named, times);
            }
        });
    }

    /// What a worker may name as the time to come again.
    pub(crate) fn bounded(&self, named: Option<Duration>) -> Option<Duration> {
        let named = named.filter(|named| !named.is_zero());
        named.map(|named| named.min(self.shared.times.max_lease))
    }

    /// A connection failed before any byte of a response.
    pub(crate) fn failed(&self, seat: u64) {
        let times = &self.shared.times;
        self.heard(seat, |marks| {
            let now = Instant::now();
            marks.expire(now);
            marks.failed(now, times);
        });
    }

    /// The worker answered something that is no refusal.
    #[inline]
    pub(crate) fn answered(&self, seat: u64) {
        if self.has(Mark::Unreachable.bit() | SUSPECT) {
            self.heard(seat, Marks::answered);
        }
    }

    /// A response that was no refusal has ended.
    #[inline]
    pub(crate) fn completed(&self, seat: u64) {
        if self.has(Mark::Leased.bit()) {
            self.heard(seat, Marks::completed);
        }
    }

    /// As [`completed`](Self::completed), as somebody says who has no endpoint.
    pub(crate) fn has_completed(&self) {
        let _ = self.change(Marks::completed);
    }

    /// A request leaves; `Some` if it is a probe, whose end the caller reports.
    #[inline]
    pub(crate) fn dispatched(&self, seat: u64) -> Option<Probe> {
        if self.has(SUSPECT) {
            self.heard(seat, |marks| marks.dispatched(Instant::now()))?
        } else {
            None
        }
    }

    pub(crate) fn probe_abandoned(&self, seat: u64, probe: Probe) {
        self.heard(seat, |marks| marks.probe_abandoned(probe));
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

    /// Whether nobody needs the cell at `now`: no endpoint, no mark. If so it
    /// is retired, and the caller forgets it.
    pub(crate) fn retire_if_vacant(&self, now: Instant) -> (bool, Effects) {
        let mut state = lock(&self.state);
        if state.retired || !state.seats.is_empty() {
            return (state.retired, Effects::default());
        }
        let ((), effects) = self.apply(&mut state, |marks| marks.expire(now));
        state.retired = state.marks.bits() == 0;
        self.publish(&state);
        (state.retired, effects)
    }

    /// The worker has left, or another one under its id takes its place: the
    /// endpoints of `from`, or all, get nothing more and are not heard.
    ///
    /// If none is left, the cell is retired, and the marks are given that its
    /// successor starts with. Otherwise others still have the worker; that it
    /// was `replaced` voids what their connections said too.
    pub(crate) fn retire(
        &self,
        from: Option<&Members>,
        replaced: bool,
        now: Instant,
    ) -> (Option<Marks>, Effects) {
        let mut state = lock(&self.state);
        if state.retired {
            return (None, Effects::default());
        }
        let leaves = |seat: &Seat| from.is_none_or(|from| seat.members.same(from));
        let stays = state
            .seats
            .iter()
            .any(|seat| !seat.retired && !leaves(seat));
        let ((), mut effects) = self.apply(&mut state, |marks| {
            marks.expire(now);
            if stays && replaced {
                marks.forget_connections();
            }
        });
        let bits = state.marks.bits();
        let mut left = false;
        for seat in state.seats.iter_mut().filter(|seat| !seat.retired) {
            if leaves(seat) {
                seat.retired = true;
                seat.members.left(Class::of(bits));
                effects.wake(seat);
                left = true;
            }
        }
        if left && !stays {
            effects.live = Some((bits, false));
        }
        state.retired = !stays;
        self.publish(&state);
        let marks = (!stays).then(|| state.marks.for_successor());
        (marks, effects)
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

impl State {
    /// The seat of an endpoint whose worker has not left.
    fn seated(&mut self, id: u64) -> Option<&mut Seat> {
        let mut seats = self.seats.iter_mut();
        seats.find(|seat| seat.id == id && !seat.retired)
    }

    /// Leaves a waker, and gives back the one to drop without the lock.
    fn park(&mut self, id: u64, waker: &Waker) -> Option<Waker> {
        match &mut self.seated(id)?.waker {
            Some(old) if old.will_wake(waker) => None,
            slot => slot.replace(waker.clone()),
        }
    }
}

/// What is to do once the lock is released: it runs foreign code. Nearly
/// always a worker has one endpoint, so the first needs no allocation.
#[derive(Default)]
#[must_use]
pub(crate) struct Effects {
    transition: Option<(u64, u64, bool)>,
    live: Option<(u64, bool)>,
    first: Option<(Option<Waker>, Members)>,
    rest: Vec<(Option<Waker>, Members)>,
}

impl Effects {
    fn wake(&mut self, seat: &mut Seat) {
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
}
