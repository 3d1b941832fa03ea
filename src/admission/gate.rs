//! The core of the admission: slots, a queue, and who gets what, when.
//!
//! No I/O, no task and no clock. Everything is decided on one packed
//! [`Word`]:
//!
//! - While nobody waits, admitting and releasing are one compare-and-swap
//!   each, and refusing is a read.
//! - Whoever must wait takes the lock and sets the word's *contended* flag.
//!   From then on the word belongs to the holder of the lock (see
//!   [`Frozen`]): a release that comes before the flag is seen by the arrival
//!   when it decides again, one that comes after it takes the lock and finds
//!   the waiter. Nothing falls between.
//!
//! Whenever the lock is free:
//!
//! - a slot is free (and there is room under the first-token limit) only if
//!   nobody waits,
//! - a place is free only if nobody is parked, and
//! - the contended flag is set if and only if somebody waits or a first-token
//!   limit is in force.
//!
//! Wakers are taken under the lock, and woken and dropped after it.

use super::{
    estimate::HoldTime,
    metrics::Metrics,
    permit::Permit,
    waiters::{Key, State, Waiters},
    word::Word,
};
use crate::{
    metrics::Prefix,
    sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, lock},
    unwind::FirstPanic,
};
use std::{
    collections::VecDeque,
    sync::{OnceLock, atomic},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct Gate {
    word: AtomicU64,
    state: Mutex<Inner>,
    /// On a cache line of its own: it is read by all, and rarely written.
    quiet: Box<Quiet>,
}

#[derive(Debug)]
struct Quiet {
    /// Slots and queue limit, changed under the lock only. Whoever reads them
    /// without it gets an estimate.
    limits: atomic::AtomicU64,
    hold: HoldTime,
    epoch: Instant,
    metrics: OnceLock<Metrics>,
}

#[derive(Debug)]
struct Inner {
    first_token_limit: Option<u32>,
    /// Requests in the engine that count as awaiting their first token.
    awaiting: u32,
    waiters: Waiters,
    /// Taken from their entries, and to be woken once the lock is free.
    wakers: VecDeque<Waker>,
}

/// What an arrival gets without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It owns a slot, for which there is no permit yet.
    Admitted {
        /// The time that the slot is held is to be measured.
        sampled: bool,
    },
    Full,
    /// [`Gate::arrive`] decides.
    Undecided,
}

/// What an arrival gets.
#[derive(Debug)]
pub(super) enum Decision {
    Admitted(Permit),
    /// Holds a place, or is parked if it asked to be.
    Waits(Waiter),
    Full,
    Closed,
}

/// What a parked caller has got.
#[derive(Debug)]
pub(super) enum Place {
    Slot(Permit),
    Queue,
    Closed,
}

/// How the wait of one that gave up has ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// It was granted a slot before.
    Granted(Permit),
    /// It was sent away before.
    Closed,
    /// It left.
    Left,
}

/// The gate has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// What an arrival does if there is neither a slot nor a place for it.
#[derive(Clone, Copy, Debug)]
enum Arrival<'a> {
    /// It takes a slot or nothing.
    WithoutQueue,
    /// It takes a slot, a place or nothing.
    MayQueue,
    /// It waits for a place, and is woken when it has got one.
    MayPark(&'a Waker),
}

/// The state of a gate at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The most requests in the engine.
    pub slots: usize,
    /// Requests in the engine: those that own a slot, whether or not they
    /// have noticed yet. Above `slots` only after that was lowered.
    pub in_engine: usize,
    /// The most requests waiting.
    pub queue_limit: usize,
    /// Requests that wait. Above `queue_limit` only after that was lowered.
    pub queued: usize,
    /// The most requests that may await their first token, if limited.
    pub first_token_limit: Option<usize>,
    /// Requests in the engine that await their first token; those admitted
    /// while there was no such limit are not counted.
    pub awaiting_first_token: usize,
    /// Nothing is admitted any more.
    pub closed: bool,
}

impl Gate {
    pub(super) fn new(slots: u32, queue_limit: u32) -> Self {
        Self {
            word: AtomicU64::new(Word::new(slots, queue_limit).bits()),
            state: Mutex::new(Inner {
                first_token_limit: None,
                awaiting: 0,
                waiters: Waiters::default(),
                wakers: VecDeque::new(),
            }),
            quiet: Box::new(Quiet {
                limits: atomic::AtomicU64::new(pack(slots, queue_limit)),
                hold: HoldTime::default(),
                epoch: Instant::now(),
                metrics: OnceLock::new(),
            }),
        }
    }

    /// Reports under `prefix` from now on, unless it reports already.
    pub(super) fn report(&self, prefix: &Prefix) {
        self.quiet.metrics.get_or_init(|| Metrics::new(prefix));
    }

    #[inline]
    pub(super) fn metrics(&self) -> Option<&Metrics> {
        self.quiet.metrics.get()
    }

    /// The time now, on the gate's own scale: nanoseconds, never 0.
    pub(super) fn now(&self) -> u64 {
        let nanos = self.quiet.epoch.elapsed().as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX).max(1)
    }

    /// A slot was held since then.
    #[cold]
    pub(super) fn record_held(&self, since: u64) {
        let (slots, _) = self.limits();
        let held = Duration::from_nanos(self.now().saturating_sub(since));
        self.quiet.hold.record(held, slots);
    }

    /// Decides without the lock, where that is possible.
    #[inline]
    pub(super) fn enter(&self, may_queue: bool) -> Entry {
        let mut word = Word::from_bits(self.word.load(Ordering::Acquire));
        loop {
            if word.slots() > 0 {
                if !word.open() {
                    return Entry::Undecided;
                }
                match self.word.compare_exchange_weak(
                    word.bits(),
                    word.take_slot().bits(),
                    Ordering::Acquire,
                    Ordering::Acquire,
                ) {
                    Ok(_) => {
                        if let Some(metrics) = self.metrics() {
                            metrics.engine.increment(1.0);
                        }
                        let sampled = word.sampled();
                        return Entry::Admitted { sampled };
                    }
                    Err(bits) => word = Word::from_bits(bits),
                }
            } else if !word.closed() && (word.places() <= 0 || !may_queue) {
                return Entry::Full;
            } else {
                return Entry::Undecided;
            }
        }
    }

    /// Takes a slot, or else a place in the queue if the request `may_queue`.
    pub(super) fn arrive(gate: &Arc<Self>, may_queue: bool) -> Decision {
        match gate.enter(may_queue) {
            Entry::Admitted { sampled } => Decision::Admitted(Permit::new(gate, sampled, false)),
            Entry::Full => Decision::Full,
            Entry::Undecided => Self::arrive_locked(
                gate,
                match may_queue {
                    true => Arrival::MayQueue,
                    false => Arrival::WithoutQueue,
                },
            ),
        }
    }

    /// Takes a slot, or else a place in the queue, or else parks until one of
    /// them is free; `waker` is woken then.
    pub(super) fn reserve(gate: &Arc<Self>, waker: &Waker) -> Decision {
        match Self::arrive(gate, true) {
            Decision::Full => Self::arrive_locked(gate, Arrival::MayPark(waker)),
            decision => decision,
        }
    }

    #[cold]
    #[inline(never)]
    fn arrive_locked(gate: &Arc<Self>, arrival: Arrival<'_>) -> Decision {
        let waker = match arrival {
            Arrival::MayPark(waker) => Some(waker.clone()),
            _ => None,
        };
        let mut frozen = gate.freeze();
        let waits = |key| {
            Decision::Waits(Waiter {
                gate: gate.clone(),
                key: Some(key),
            })
        };
        if frozen.word.closed() {
            Decision::Closed
        } else if frozen.room() {
            let sampled = frozen.word.sampled();
            let counted = frozen.admit();
            drop(frozen);
            Decision::Admitted(Permit::new(gate, sampled, counted))
        } else if !matches!(arrival, Arrival::WithoutQueue) && frozen.word.places() > 0 {
            frozen.word = frozen.word.add_places(-1);
            frozen.queued += 1;
            waits(frozen.inner.waiters.insert(State::Queued, None))
        } else if let Arrival::MayPark(_) = arrival {
            waits(frozen.inner.waiters.insert(State::Parked, waker))
        } else {
            Decision::Full
        }
    }

    /// Gives a slot back, to the oldest waiter if there is one.
    #[inline]
    pub(super) fn release(&self) {
        if let Some(metrics) = self.metrics() {
            metrics.engine.decrement(1.0);
        }
        let mut word = Word::from_bits(self.word.load(Ordering::Relaxed));
        while !word.contended() {
            match self.word.compare_exchange_weak(
                word.bits(),
                word.add_slots(1).bits(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(bits) => word = Word::from_bits(bits),
            }
        }
        self.release_locked();
    }

    #[cold]
    #[inline(never)]
    fn release_locked(&self) {
        let mut frozen = self.freeze();
        frozen.word = frozen.word.add_slots(1);
        frozen.settle();
        frozen.finish();
    }

    /// A counted request has produced its first token, or never will.
    pub(super) fn first_token(&self) {
        let mut frozen = self.freeze();
        frozen.inner.awaiting -= 1;
        frozen.settle();
        frozen.finish();
    }

    pub(super) fn set_slots(&self, slots: u32) {
        let mut frozen = self.freeze();
        let (old, queue_limit) = self.limits();
        self.quiet
            .limits
            .store(pack(slots, queue_limit), atomic::Ordering::Relaxed);
        self.quiet.hold.set_slots(slots);
        let more = i64::from(slots) - i64::from(old);
        frozen.word = frozen.word.add_slots(more);
        frozen.settle();
        frozen.finish();
    }

    pub(super) fn set_queue_limit(&self, queue_limit: u32) {
        let mut frozen = self.freeze();
        let (slots, old) = self.limits();
        self.quiet
            .limits
            .store(pack(slots, queue_limit), atomic::Ordering::Relaxed);
        let more = i64::from(queue_limit) - i64::from(old);
        frozen.word = frozen.word.add_places(more);
        frozen.settle();
        frozen.finish();
    }

    pub(super) fn set_first_token_limit(&self, limit: Option<u32>) {
        let mut frozen = self.freeze();
        frozen.inner.first_token_limit = limit;
        frozen.settle();
        frozen.finish();
    }

    /// Sends away all that wait, and everybody who comes from now on.
    pub(super) fn close(&self) {
        let mut frozen = self.freeze();
        frozen.word = frozen.word.close();
        while let Some(key) = frozen.inner.waiters.first_queued() {
            frozen.leave_queue();
            frozen.change(key, State::Closed);
        }
        while let Some(key) = frozen.inner.waiters.first_parked() {
            frozen.change(key, State::Closed);
        }
        frozen.finish();
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let inner = lock(&self.state);
        let word = Word::from_bits(self.word.load(Ordering::Acquire));
        let (slots, queue_limit) = self.limits();
        Snapshot {
            slots: slots as usize,
            in_engine: used(slots, word.slots()),
            queue_limit: queue_limit as usize,
            queued: used(queue_limit, word.places()),
            first_token_limit: inner.first_token_limit.map(|limit| limit as usize),
            awaiting_first_token: inner.awaiting as usize,
            closed: word.closed(),
        }
    }

    /// How many are in the engine or wait. An estimate while limits change.
    pub(super) fn load(&self) -> usize {
        let word = Word::from_bits(self.word.load(Ordering::Relaxed));
        let (slots, queue_limit) = self.limits();
        used(slots, word.slots()) + used(queue_limit, word.places())
    }

    /// When a request that comes now may get a slot; see
    /// [`HoldTime::retry_after`].
    #[inline]
    pub(super) fn retry_after(&self, cap: Duration) -> Option<Duration> {
        let word = Word::from_bits(self.word.load(Ordering::Relaxed));
        let (_, queue_limit) = self.limits();
        let waiting = used(queue_limit, word.places());
        self.quiet.hold.retry_after(waiting as u64, cap)
    }

    #[inline]
    fn limits(&self) -> (u32, u32) {
        let limits = self.quiet.limits.load(atomic::Ordering::Relaxed);
        ((limits >> 32) as u32, limits as u32)
    }

    /// Takes the lock and makes the word the holder's own.
    fn freeze(&self) -> Frozen<'_> {
        let inner = lock(&self.state);
        let bits = self.word.fetch_or(Word::CONTENDED, Ordering::AcqRel);
        Frozen {
            gate: self,
            word: Word::from_bits(bits),
            queued: 0,
            admitted: 0,
            inner,
        }
    }
}

fn pack(slots: u32, queue_limit: u32) -> u64 {
    (u64::from(slots) << 32) | u64::from(queue_limit)
}

#[inline]
fn used(limit: u32, free: i64) -> usize {
    usize::try_from(i64::from(limit) - free).unwrap_or(0)
}

/// The gate under its lock. Nobody else changes the word until the drop
/// publishes it.
struct Frozen<'a> {
    gate: &'a Gate,
    word: Word,
    /// By how much the number of waiting requests has changed.
    queued: i32,
    /// How many slots were given out.
    admitted: u32,
    inner: MutexGuard<'a, Inner>,
}

impl Frozen<'_> {
    fn room(&self) -> bool {
        let limit = self.inner.first_token_limit;
        self.word.slots() > 0 && limit.is_none_or(|limit| self.inner.awaiting < limit)
    }

    /// Takes a slot; says whether it counts as awaiting its first token.
    fn admit(&mut self) -> bool {
        let counted = self.inner.first_token_limit.is_some();
        self.word = self.word.take_slot();
        self.inner.awaiting += u32::from(counted);
        self.admitted += 1;
        counted
    }

    fn leave_queue(&mut self) {
        self.word = self.word.add_places(1);
        self.queued -= 1;
    }

    fn change(&mut self, key: Key, state: State) {
        let waker = self.inner.waiters.change(key, state);
        self.inner.wakers.extend(waker);
    }

    /// Gives what is free to whom it is due, the oldest first.
    fn settle(&mut self) {
        loop {
            let waiters = &self.inner.waiters;
            let (queued, parked) = (waiters.first_queued(), waiters.first_parked());
            if self.room() {
                let Some(key) = queued.or(parked) else { return };
                if queued.is_some() {
                    self.leave_queue();
                }
                let counted = self.admit();
                self.change(key, State::Granted { counted });
            } else if self.word.places() > 0 {
                let Some(key) = parked else { return };
                self.word = self.word.add_places(-1);
                self.queued += 1;
                self.change(key, State::Queued);
            } else {
                return;
            }
        }
    }

    /// Publishes, frees the lock, and wakes whom it concerns: all of them,
    /// whichever waker panics.
    fn finish(mut self) {
        let gate = self.gate;
        let mut waker = self.inner.wakers.pop_front();
        let mut more = !self.inner.wakers.is_empty();
        drop(self);
        let mut panic = FirstPanic::default();
        while let Some(next) = waker.take() {
            panic.catch(|| next.wake());
            if more {
                let mut inner = lock(&gate.state);
                waker = inner.wakers.pop_front();
                more = !inner.wakers.is_empty();
            }
        }
        panic.resume();
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        // Before the word is, so that no gauge ever exceeds its limit.
        if let Some(metrics) = self.gate.metrics() {
            if self.queued != 0 {
                metrics.queued.increment(f64::from(self.queued));
            }
            if self.admitted != 0 {
                metrics.engine.increment(f64::from(self.admitted));
            }
        }
        let contended = !self.inner.waiters.is_empty() || self.inner.first_token_limit.is_some();
        let word = self.word.set_contended(contended);
        self.gate.word.store(word.bits(), Ordering::Release);
    }
}

/// Whoever had to wait has slept: reading the clock does not matter.
const WAITED_IS_SAMPLED: bool = true;

/// A place in the queue, or a parked caller's position before it.
///
/// Dropping it leaves the queue; if it was granted a slot meanwhile, the slot
/// goes to the next in line.
#[derive(Debug)]
pub(super) struct Waiter {
    gate: Arc<Gate>,
    /// `None` once it has left the gate's lines.
    key: Option<Key>,
}

impl Waiter {
    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Waits for a slot.
    pub(super) fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, Closed>> {
        match self.poll_place(cx.waker(), true) {
            Some(Place::Slot(permit)) => Poll::Ready(Ok(permit)),
            Some(Place::Closed) => Poll::Ready(Err(Closed)),
            Some(Place::Queue) | None => Poll::Pending,
        }
    }

    /// Waits for a slot or a place.
    pub(super) fn poll_reserved(&mut self, cx: &mut Context<'_>) -> Poll<Place> {
        match self.poll_place(cx.waker(), false) {
            Some(place) => Poll::Ready(place),
            None => Poll::Pending,
        }
    }

    /// What it has got, or `None` if `waker` is to be woken for more.
    fn poll_place(&mut self, waker: &Waker, in_queue_too: bool) -> Option<Place> {
        let key = self.key?;
        let mut fresh = None;
        loop {
            let mut inner = lock(&self.gate.state);
            match inner.waiters.state(key) {
                State::Queued if !in_queue_too => return Some(Place::Queue),
                State::Queued | State::Parked => {}
                // Their wakers were taken when they got there.
                State::Granted { counted } => {
                    inner.waiters.remove(key);
                    drop(inner);
                    self.key = None;
                    let permit = Permit::new(&self.gate, WAITED_IS_SAMPLED, counted);
                    return Some(Place::Slot(permit));
                }
                State::Closed => {
                    inner.waiters.remove(key);
                    self.key = None;
                    return Some(Place::Closed);
                }
            }
            let current = inner.waiters.waker(key);
            if current
                .as_ref()
                .is_some_and(|current| current.will_wake(waker))
            {
                return None;
            }
            // Cloning and dropping a waker runs foreign code: not under the lock.
            if let Some(fresh) = fresh.take() {
                let stale = current.replace(fresh);
                drop(inner);
                drop(stale);
                return None;
            }
            drop(inner);
            fresh = Some(waker.clone());
        }
    }

    /// Stops waiting, unless it has an answer already.
    pub(super) fn give_up(&mut self) -> Ended {
        self.leave(WAITED_IS_SAMPLED)
    }

    /// Leaves the lines.
    fn leave(&mut self, sampled: bool) -> Ended {
        let Some(key) = self.key.take() else {
            return Ended::Left;
        };
        let mut frozen = self.gate.freeze();
        let state = frozen.inner.waiters.state(key);
        let waker = frozen.inner.waiters.remove(key);
        if state == State::Queued {
            frozen.leave_queue();
            frozen.settle();
        }
        // Before others are woken: whatever their wakers do, a slot that was
        // granted has an owner.
        let ended = match state {
            State::Granted { counted } => Ended::Granted(Permit::new(&self.gate, sampled, counted)),
            State::Closed => Ended::Closed,
            State::Queued | State::Parked => Ended::Left,
        };
        frozen.finish();
        drop(waker);
        ended
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // A slot that was never used says nothing about how long one is held.
        drop(self.leave(false));
    }
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests;

#[cfg(all(test, tower_overload_loom))]
mod loom;
