//! What all connections to one worker share: its marks behind one atomic word,
//! and who waits for them to fall.
//!
//! The word is what the free path reads. Everything else happens under the
//! lock: a change applies to the marks, the word and every [`Watch`], and takes
//! the wakers of those who wait; they are woken after the lock is released. One
//! that finds itself excluded looks again under the same lock before it leaves
//! its waker, so no change falls between.

use super::{
    marks::{Mark, Marks, Outlook, SUSPECT, Standing, TROUBLED, Times, Witness},
    probation::Probe,
    seat::Seat,
    shared::{Shared, Transition},
    state::{Effects, Seated, State},
};
use crate::{
    random,
    sync::{Arc, AtomicU64, Mutex, Ordering, lock},
    unwind::FirstPanic,
};
use std::{fmt, sync, task::Waker, time::Duration};
use tokio::time::Instant;

/// A connection here, or all, are of a worker that has left.
const RETIRED: u64 = 1 << 7;

/// Follows where a worker stands, for one membership.
pub(crate) trait Watch: Send + Sync {
    /// The worker joined, stands elsewhere, changes by itself earlier than
    /// thought, or left. Called under the worker's lock: it wakes nobody.
    fn moved(&self, from: Option<Outlook>, to: Option<Outlook>);

    /// Something has moved; called without the lock.
    fn touched(&self);
}

/// Tells the living connections to one worker from each other. Half a word, so
/// that a seat is small.
pub(crate) type SeatId = u32;

/// Forgets a worker that nobody needs any more.
pub(crate) trait Tidy: Send + Sync {
    fn tidy(&self);
}

/// The state of one worker of a set.
pub(crate) struct WorkerState {
    word: AtomicU64,
    state: Mutex<State>,
    /// How the worker is called in logs and errors.
    label: sync::Arc<str>,
    shared: Arc<Shared>,
}

/// What one that found a bit set may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Open,
    /// Parked: the waker is woken by the next change; by time, the caller
    /// wakes itself at the instant.
    Parked(Option<Instant>),
}

/// The worker has left: the caller looks for its current state.
#[derive(Debug)]
pub(crate) struct Retired;

impl WorkerState {
    pub(crate) fn new(label: sync::Arc<str>, shared: Arc<Shared>, marks: Marks) -> Self {
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

    /// Whether anything is held against it by its requests.
    pub(crate) fn is_troubled(&self) -> bool {
        self.has(Mark::Unreachable.bit() | Mark::Failing.bit() | SUSPECT | TROUBLED)
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

    /// As [`change`](Self::change), for what a connection has seen: it is not
    /// heard any more once its worker has left.
    fn heard<R>(&self, seat: SeatId, change: impl FnOnce(&mut Marks) -> R) -> Option<R> {
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

    /// Changes the marks and publishes them: the word and every
    /// watch. What runs foreign code is left to
    /// [`finish`](Self::finish), without the lock.
    fn apply<R>(&self, state: &mut State, change: impl FnOnce(&mut Marks) -> R) -> (R, Effects) {
        let (old, was) = (state.marks.bits(), state.marks.outlook());
        let result = change(&mut state.marks);
        let (new, is) = (state.marks.bits(), state.marks.outlook());
        let mut effects = Effects::default();
        // An end that moved to later is found when the earlier one comes.
        let moved = was.stands != is.stands || is.changes_before(was);
        if moved {
            for seat in state.seats.iter().filter(|seat| !seat.retired) {
                seat.watch.moved(Some(was), Some(is));
            }
        }
        if old != new {
            let live = state.seats.iter().any(|seat| !seat.retired);
            effects.transition = Some(Transition::new(old, new, live, &state.marks));
            state.remember(old, new);
            self.publish(state);
        }
        // Those who sleep until the old end have to know, and those who
        // thought it open.
        if old != new || moved {
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
        if let Some(transition) = &effects.transition {
            self.shared.transition(&self.label, transition);
        }
        if let Some((bits, live)) = effects.live {
            self.shared.live(bits, live);
        }
        let mut panics = FirstPanic::default();
        for (waker, watch) in effects.first.into_iter().chain(effects.rest) {
            if let Some(waker) = waker {
                panics.catch(|| waker.wake());
            }
            panics.catch(|| watch.touched());
        }
        panics.resume();
    }

    /// Takes a seat for a new connection; `tidy` is called when the last one
    /// is gone.
    pub(crate) fn attach(
        &self,
        watch: sync::Arc<dyn Watch>,
        tidy: sync::Arc<dyn Tidy>,
    ) -> Result<SeatId, Retired> {
        let mut state = lock(&self.state);
        if state.retired {
            return Err(Retired);
        }
        let id = state.free_seat();
        let bits = state.marks.bits();
        watch.moved(None, Some(state.marks.outlook()));
        let is_first = state.seats.iter().all(|seat| seat.retired);
        state.seats.push(Seated {
            id,
            retired: false,
            watch: watch.clone(),
            tidy,
            waker: None,
        });
        drop(state);
        if is_first {
            self.shared.live(bits, true);
        }
        watch.touched();
        Ok(id)
    }

    /// The connection is gone.
    pub(crate) fn detach(&self, seat: SeatId) {
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
            gone.watch.moved(Some(state.marks.outlook()), None);
        }
        drop(state);
        if was_last && !gone.retired {
            self.shared.live(bits, false);
        }
        gone.watch.touched();
        if is_vacant {
            gone.tidy.tidy();
        }
    }

    /// Leaves `waker` in the seat if it has to wait.
    pub(crate) fn check(
        &self,
        seat: SeatId,
        ignores_failing: bool,
        now: Instant,
        waker: &Waker,
    ) -> Check {
        let mut state = lock(&self.state);
        if state.seated(seat).is_none() {
            return Check::Parked(None);
        }
        let ((), mut effects) = self.apply(&mut state, |marks| marks.expire(now));
        let outlook = state.marks.outlook();
        let (check, old) = if outlook.stands.at(ignores_failing).is_open() {
            (Check::Open, None)
        } else {
            (Check::Parked(outlook.until), state.park(seat, waker))
        };
        drop(state);
        drop(old);
        effects.forget(waker);
        self.finish(effects);
        check
    }

    /// Leaves `waker` in the seat of one that waits for its own
    /// service, so that a mark gets its attention. Whether it may go on
    /// waiting: not if a mark has come in between.
    pub(crate) fn watch(&self, seat: SeatId, ignores_failing: bool, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        let stands = state.marks.outlook().stands;
        let is_open = stands.at(ignores_failing).is_open() && state.seated(seat).is_some();
        let old = is_open.then(|| state.park(seat, waker));
        drop(state);
        drop(old);
        is_open
    }

    /// Marks the worker busy, by news of it or by what was known.
    pub(crate) fn set_busy(&self, until: Option<Instant>, is_news: bool) -> Result<(), Retired> {
        let probe_after = self.shared.times.probe_after;
        let ask_at = probe_after.map(|after| Instant::now() + jittered(after));
        self.change(|marks| {
            if is_news {
                marks.set_busy(until, ask_at);
            } else {
                marks.keep_busy(until, ask_at);
            }
        })
    }

    pub(crate) fn clear_busy(&self) -> Result<(), Retired> {
        if self.has(Mark::Busy.bit() | RETIRED) {
            self.change(Marks::clear_busy)
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

    /// A request was refused, said by one that has no connection.
    pub(crate) fn leased(&self, named: Option<Duration>) -> Result<(), Retired> {
        let witness = Witness {
            completed_since: false,
            idle: false,
        };
        self.say(|marks, now, times| marks.refused(now, named, witness, times))
    }

    /// What one that has no connection says of the worker.
    pub(crate) fn say<R>(
        &self,
        what: impl FnOnce(&mut Marks, Instant, &Times) -> R,
    ) -> Result<R, Retired> {
        let times = &self.shared.times;
        self.change(|marks| {
            let now = Instant::now();
            marks.expire(now);
            what(marks, now, times)
        })
    }

    /// What a request says of the worker that it was sent to, unless that has
    /// left.
    fn hear<R>(
        &self,
        seat: SeatId,
        what: impl FnOnce(&mut Marks, Instant, &Times) -> R,
    ) -> Option<R> {
        let times = &self.shared.times;
        self.heard(seat, |marks| {
            let now = Instant::now();
            marks.expire(now);
            what(marks, now, times)
        })
    }

    /// A request was refused; `None` if that says nothing about others.
    pub(crate) fn refused(&self, seat: SeatId, named: Option<Duration>, witness: Option<Witness>) {
        self.hear(seat, |marks, now, times| {
            marks.reached();
            if let Some(witness) = witness {
                marks.refused(now, named, witness, times);
            }
        });
    }

    /// What a worker may name as the time to come again.
    pub(crate) fn bounded(&self, named: Option<Duration>) -> Option<Duration> {
        let named = named.filter(|named| !named.is_zero());
        named.map(|named| named.min(self.shared.times.max_lease))
    }

    /// A connection failed before any byte of a response.
    pub(crate) fn failed_to_connect(&self, seat: SeatId) {
        self.hear(seat, Marks::failed_to_connect);
    }

    /// A connection was lost before any byte of a response, `took` after the
    /// request had left. Returns until when that counts as load.
    pub(crate) fn lost(
        &self,
        seat: SeatId,
        is_alone: bool,
        took: Option<Duration>,
    ) -> Option<Instant> {
        self.hear(seat, |marks, now, times| {
            let counts = marks.lost(now, is_alone, took, times)?;
            Some(now + counts)
        })?
    }

    /// A request failed after `took`. Returns until when it counts as load.
    pub(crate) fn failed(&self, seat: SeatId, took: Option<Duration>) -> Option<Instant> {
        self.hear(seat, |marks, now, times| {
            now + marks.failed(now, took, times)
        })
    }

    /// The worker answered something that is no refusal.
    #[inline]
    pub(crate) fn answered(&self, seat: SeatId) {
        if self.has(Mark::Unreachable.bit() | SUSPECT) {
            self.heard(seat, Marks::reached);
        }
    }

    /// It begins to answer well.
    #[inline]
    pub(crate) fn begins_well(&self, seat: SeatId) {
        if self.has(Mark::Failing.bit() | SUSPECT) {
            self.hear(seat, |marks, _, _| marks.begins_well());
        }
    }

    /// It answered well, to the end.
    #[inline]
    pub(crate) fn succeeded(&self, seat: SeatId) {
        if self.has(Mark::Failing.bit() | SUSPECT | TROUBLED) {
            self.hear(seat, |marks, _, _| marks.succeeded());
        }
    }

    /// A good answer took so long in all.
    pub(crate) fn took(&self, seat: SeatId, took: Duration) {
        self.heard(seat, |marks| marks.took(took));
    }

    /// A response that was no refusal has ended.
    #[inline]
    pub(crate) fn completed(&self, seat: SeatId) {
        if self.has(Mark::Leased.bit()) {
            self.heard(seat, Marks::completed);
        }
    }

    /// As [`completed`](Self::completed), said by one that has no connection.
    pub(crate) fn has_completed(&self) {
        let _ = self.change(Marks::completed);
    }

    /// A request leaves, whatever the marks say.
    #[inline]
    pub(crate) fn dispatched(&self, seat: SeatId) -> Claim {
        if self.is_open() {
            return Claim::OPEN;
        }
        let claim = self.hear(seat, |marks, now, times| Claim::Open {
            probe: marks.dispatched(now, times),
            since: Some(now),
        });
        claim.unwrap_or(Claim::OPEN)
    }

    /// Whether a request may leave now; on probation it is the probe, whose
    /// end the caller reports.
    #[inline]
    pub(crate) fn claim(&self, seat: &Seat) -> Claim {
        if self.is_open() {
            return Claim::OPEN;
        }
        self.claim_marked(seat)
    }

    #[cold]
    fn claim_marked(&self, seat: &Seat) -> Claim {
        let ignores_failing = seat.ignores_failing();
        let is_alone = seat.in_flight() <= 1;
        let claim = self.hear(seat.id(), |marks, now, times| {
            if !is_alone {
                marks.at_work(now, times);
            }
            match marks.outlook().stands.at(ignores_failing) {
                Standing::Open | Standing::Suspect => Claim::Open {
                    probe: marks.dispatched(now, times),
                    since: Some(now),
                },
                Standing::Held | Standing::Shed | Standing::Unusable => Claim::Closed,
            }
        });
        claim.unwrap_or(Claim::Closed)
    }

    /// Whether a mark keeps requests away, or the worker has left. Probation
    /// is none.
    ///
    /// Under the lock, for those who are about to wait: a change that is not
    /// seen here comes after it, and finds them.
    pub(crate) fn is_excluded(&self, seat: SeatId, ignores_failing: bool) -> bool {
        let mut state = lock(&self.state);
        let stands = state.marks.outlook().stands.at(ignores_failing);
        matches!(stands, Standing::Shed | Standing::Unusable) || state.seated(seat).is_none()
    }

    pub(crate) fn probe_abandoned(&self, seat: SeatId, probe: Probe) {
        self.heard(seat, |marks| marks.probe_abandoned(probe));
    }

    /// Ends the marks whose time has come, also if nobody asks for the worker.
    /// Returns when the next one ends that keeps requests away.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let ended = self.change(|marks| {
            marks.expire(now);
            marks.outlook().until
        });
        ended.ok().flatten()
    }

    /// The marks as they are at `now`, and since when each is on.
    pub(crate) fn marks_at(&self, now: Instant) -> (Marks, [Option<Instant>; 5]) {
        let state = lock(&self.state);
        let (mut marks, since) = (state.marks.clone(), state.since);
        drop(state);
        marks.expire(now);
        (marks, since)
    }

    /// Whether nobody needs the worker at `now`: no connection, no mark. If so it
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
    /// connection in the seat `from`, or all, get nothing more and are not heard.
    ///
    /// If none is left, the worker is retired, and the marks are given that its
    /// successor starts with. Otherwise others still have the worker; that it
    /// was `replaced` voids what their connections said too.
    pub(crate) fn retire(
        &self,
        from: Option<SeatId>,
        replaced: bool,
        now: Instant,
    ) -> (Option<Marks>, Effects) {
        let mut state = lock(&self.state);
        if state.retired {
            return (None, Effects::default());
        }
        let leaves = |seat: &Seated| from.is_none_or(|from| seat.id == from);
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
        let (bits, outlook) = (state.marks.bits(), state.marks.outlook());
        let mut left = false;
        for seat in state.seats.iter_mut().filter(|seat| !seat.retired) {
            if leaves(seat) {
                seat.retired = true;
                seat.watch.moved(Some(outlook), None);
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

    pub(crate) fn label(&self) -> &sync::Arc<str> {
        &self.label
    }
}

impl fmt::Debug for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerState")
            .field("worker", &self.label)
            .field("bits", &self.word)
            .finish_non_exhaustive()
    }
}

/// Up to a quarter longer, so that what began together is not asked together.
fn jittered(duration: Duration) -> Duration {
    duration + duration / 4 * random::below(1 << 16) / (1 << 16)
}

/// What [`WorkerState::claim`] says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Open {
        /// Others wait for its outcome.
        probe: Option<Probe>,
        /// When it left, if that is asked for.
        since: Option<Instant>,
    },
    Closed,
}

impl Claim {
    const OPEN: Self = Self::Open {
        probe: None,
        since: None,
    };
}
