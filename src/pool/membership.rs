//! Who is in a pool: the changes of a discovery, and who applies them.
//!
//! The discovery is polled with the pool's own waker. Its wake is remembered;
//! the next caller, or the driver, polls it before it chooses. It is taken out
//! of the lock for that, since it is foreign code; whoever comes meanwhile
//! waits until it is back, so that no choice is made by an older membership.

use super::{
    core::Core,
    member::{Entry, Member},
    pick::hash_key,
    watch::RowWatch,
};
use crate::{
    BoxError, WorkerId,
    busy::{Notifier, Seat, Watch},
    metrics::{DISCOVERY_ERRORS, Prefix},
    sync::{Arc, AtomicU64, Mutex, Ordering, lock},
    unwind::FirstPanic,
};
use ::metrics::Counter;
use std::{
    collections::HashMap,
    mem,
    pin::Pin,
    sync,
    task::{Context, Poll, Wake, Waker},
};
use tower::discover::{Change, Discover};

pub(super) struct Membership<D: Discover> {
    phase: Mutex<Phase<D>>,
    signal: sync::Arc<Signal>,
    errors: Counter,
}

enum Phase<D: Discover> {
    Idle(Box<Discovery<D>>),
    /// Somebody is applying its changes.
    Taken,
    /// It has ended; the members stay.
    Ended,
}

struct Discovery<D: Discover> {
    discover: Pin<Box<D>>,
    seated: HashMap<D::Key, Seated>,
}

struct Seated {
    row: u32,
    seat: Arc<Seat>,
}

/// Whether the members are those that the discovery last said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Yes,
    /// Another one is applying changes, and wakes those who wait when it has.
    ByAnother,
}

/// The discovery has something to say.
const DIRTY: u64 = 1;
/// Somebody is applying it.
const APPLYING: u64 = 2;

struct Signal {
    state: AtomicU64,
    /// Wakes those who wait, and the driver.
    waiting: Notifier,
    /// Wakes those who wait for one worker, which may have left.
    said: Notifier,
}

impl Wake for Signal {
    fn wake(self: sync::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &sync::Arc<Self>) {
        self.state.fetch_or(DIRTY, Ordering::AcqRel);
        let mut panics = FirstPanic::default();
        panics.catch(|| self.waiting.notify());
        panics.catch(|| self.said.notify());
        panics.resume();
    }
}

/// As many changes are applied by one caller before others have their turn.
const CHANGES_A_TURN: usize = 1 << 17;

/// A discovery that is woken while it is asked is asked again as often: one
/// that only yields must not keep the thread.
const YIELDS: usize = 4;

impl<D: Discover> Membership<D> {
    pub(super) fn new(discover: D, waiting: Notifier, prefix: &Prefix, model: &str) -> Self {
        Self {
            phase: Mutex::new(Phase::Idle(Box::new(Discovery {
                discover: Box::pin(discover),
                seated: HashMap::new(),
            }))),
            signal: sync::Arc::new(Signal {
                state: AtomicU64::new(DIRTY),
                waiting,
                said: Notifier::new(),
            }),
            errors: DISCOVERY_ERRORS.counter(prefix, &[model]),
        }
    }

    #[inline]
    pub(super) fn is_unsettled(&self) -> bool {
        self.signal.state.load(Ordering::Acquire) != 0
    }

    /// Wakes those who wait for one worker when the discovery speaks.
    pub(super) fn said(&self) -> &Notifier {
        &self.signal.said
    }

    /// Takes the discovery, to apply what it says.
    fn take(&self) -> Result<Taken<'_, D>, Settled> {
        let mut phase = lock(&self.phase);
        match mem::replace(&mut *phase, Phase::Taken) {
            Phase::Idle(discovery) => {
                self.signal.state.store(APPLYING, Ordering::Release);
                Ok(Taken {
                    membership: self,
                    discovery: Some(discovery),
                })
            }
            Phase::Taken => Err(Settled::ByAnother),
            Phase::Ended => {
                *phase = Phase::Ended;
                self.signal.state.store(0, Ordering::Release);
                Err(Settled::Yes)
            }
        }
    }
}

/// The discovery, in the hands of who applies its changes.
struct Taken<'a, D: Discover> {
    membership: &'a Membership<D>,
    discovery: Option<Box<Discovery<D>>>,
}

impl<D: Discover> Taken<'_, D> {
    /// Gives the discovery back, unless it has more to say.
    fn give_back(&mut self) -> bool {
        let signal = &self.membership.signal;
        let mut phase = lock(&self.membership.phase);
        let settled =
            signal
                .state
                .compare_exchange(APPLYING, 0, Ordering::AcqRel, Ordering::Acquire);
        if settled.is_err() {
            signal.state.store(APPLYING, Ordering::Release);
            return false;
        }
        if let Some(discovery) = self.discovery.take() {
            *phase = Phase::Idle(discovery);
        }
        drop(phase);
        signal.waiting.notify();
        true
    }

    /// Gives it back although it has more to say: others have their turn.
    fn interrupt(&mut self) {
        let signal = &self.membership.signal;
        if let Some(discovery) = self.discovery.take() {
            let mut phase = lock(&self.membership.phase);
            *phase = Phase::Idle(discovery);
            signal.state.store(DIRTY, Ordering::Release);
        }
        signal.wake_by_ref();
    }
}

impl<D: Discover> Drop for Taken<'_, D> {
    /// The discovery has ended, or panicked.
    fn drop(&mut self) {
        if let Some(discovery) = self.discovery.take() {
            let signal = &self.membership.signal;
            let mut phase = lock(&self.membership.phase);
            *phase = Phase::Ended;
            signal.state.store(0, Ordering::Release);
            drop(phase);
            signal.waiting.notify();
            drop(discovery);
        }
    }
}

impl<D, Req, P, C> Core<D, Req, P, C>
where
    D: Discover,
    D::Key: WorkerId,
    D::Error: Into<BoxError>,
{
    /// Applies the changes of the discovery, and ends the marks whose time has
    /// come.
    pub(super) fn catch_up(&self) {
        if self.membership.is_unsettled() {
            self.settle();
        }
        self.end_marks();
    }

    /// Applies what the discovery has to say.
    #[cold]
    pub(super) fn settle(&self) -> Settled {
        let mut taken = match self.membership.take() {
            Ok(taken) => taken,
            Err(settled) => return settled,
        };
        let waker = Waker::from(self.membership.signal.clone());
        let mut cx = Context::from_waker(&waker);
        let mut yields = 0;
        for _ in 0..CHANGES_A_TURN {
            let Some(discovery) = &mut taken.discovery else {
                return Settled::Yes;
            };
            // Outside of the cooperative budget of whoever calls: it would be
            // woken for that at once, and nothing would have changed.
            let discover = &mut discovery.discover;
            let polled = unconstrained_poll(|cx| discover.as_mut().poll_discover(cx), &mut cx);
            let Poll::Ready(change) = polled else {
                if taken.give_back() {
                    return Settled::Yes;
                }
                // It was woken meanwhile, perhaps by itself.
                yields += 1;
                if yields == YIELDS {
                    break;
                }
                continue;
            };
            match change {
                Some(Ok(change)) => {
                    self.apply(&mut discovery.seated, change);
                    self.rows.members().set_discovered();
                }
                ended => {
                    self.rows.members().set_discovered();
                    if let Some(Err(error)) = ended {
                        self.membership.errors.increment(1);
                        let model = self.options.set.model();
                        let error: BoxError = error.into();
                        tracing::error!(model, %error, "discovery failed; the workers stay as they are");
                    }
                    return Settled::Yes;
                }
            }
        }
        taken.interrupt();
        Settled::Yes
    }

    fn apply(&self, seated: &mut HashMap<D::Key, Seated>, change: Change<D::Key, D::Service>) {
        match change {
            Change::Insert(worker, service) => {
                if let Some(old) = seated.remove(&worker) {
                    self.unseat(&worker, &old, true);
                }
                let new = self.seat_new(&worker, service);
                seated.insert(worker, new);
            }
            Change::Remove(worker) => {
                if let Some(old) = seated.remove(&worker) {
                    self.unseat(&worker, &old, false);
                }
            }
        }
    }

    fn seat_new(&self, worker: &D::Key, service: D::Service) -> Seated {
        let options = &self.options;
        let place = options.set.place(worker.clone());
        let weight = options
            .weight
            .as_ref()
            .map_or(1, |weight| weight(worker).max(1));
        let load = options.load.as_ref().map(|load| load(worker));
        let key = hash_key(worker.to_string().as_bytes());
        let row = self.rows.allocate(weight, key);
        let row_watch = sync::Arc::new(RowWatch::new(self.rows.clone(), row));
        let watch: sync::Arc<dyn Watch> = row_watch.clone();
        // It can be chosen from here on, and is not there yet: whoever does
        // chooses again.
        let seat = Arc::new(Seat::counted(place.attach(&watch), self.rows.clone(), row));
        let member = sync::Arc::new(Member {
            seat: seat.clone(),
            watch: row_watch,
            weight,
            key,
            load,
        });
        let entry = Entry {
            service,
            seat: seat.clone(),
            has_load: member.load.is_some(),
            member,
        };
        let none = self.seat_service(row, Some(entry));
        debug_assert!(none.is_none(), "a row is given back when nobody has it");
        Seated { row, seat }
    }

    /// The worker has left, or another one under its id takes its place.
    fn unseat(&self, worker: &D::Key, old: &Seated, replaced: bool) {
        let seat = &old.seat;
        let set = &self.options.set;
        set.retire(worker, seat.worker(), Some(seat.id()), replaced);
        // Its service, which may close its connections now.
        let gone = self.seat_service(old.row, None);
        drop(gone);
    }
}

pub(super) fn unconstrained_poll<T>(
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    cx: &mut Context<'_>,
) -> Poll<T> {
    use std::{future::Future, future::poll_fn, pin::pin};
    pin!(tokio::task::coop::unconstrained(poll_fn(poll))).poll(cx)
}
