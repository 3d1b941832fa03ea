//! Who is alive behind one balancer, how many of them could take a request,
//! and who wants to know when that changes.

use super::marks::Class;
use crate::{
    UnavailableReason,
    sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock},
    unwind::FirstPanic,
};
use futures::task::AtomicWaker;
use std::{collections::HashMap, fmt, sync, task::Wake, task::Waker};

/// The membership of one [`BusyDiscover`](super::BusyDiscover): its living
/// endpoints, counted by whether they can take a request.
///
/// It is the handle that [`BusyFilterLayer`](super::BusyFilterLayer) and
/// [`PreCheckLayer`](super::PreCheckLayer) take, and it can be read at any
/// time. Clones share the membership.
///
/// An endpoint counts while it lives. One that a balancer dropped because it
/// failed counts as gone, without any event of the discovery.
#[derive(Clone)]
pub struct Members {
    inner: Arc<Inner>,
}

struct Inner {
    /// Usable members (neither unreachable nor draining) in the upper half,
    /// eligible ones (without any mark) in the lower: read together.
    counts: AtomicU64,
    alive: AtomicU64,
    /// Counts every change that could make another answer right.
    epoch: AtomicU64,
    /// Counts the endpoints that ever joined.
    joins: AtomicU64,
    /// The epoch in which a filter last found nothing ready.
    settled: AtomicU64,
    discovered: AtomicBool,
    observers: Mutex<Observers>,
}

#[derive(Default)]
struct Observers {
    next: u64,
    wakers: HashMap<u64, sync::Arc<Observer>>,
}

const USABLE: u64 = 1 << 32;
const ELIGIBLE: u64 = 1;

/// What a request gets when no worker is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some usable worker has no mark and is only not ready yet: wait for it.
    Wait,
    /// There are usable workers, and every one is busy or leased.
    Overloaded,
    /// There is no usable worker.
    Unavailable(UnavailableReason),
}

impl Members {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::new(Inner {
                counts: AtomicU64::new(0),
                alive: AtomicU64::new(0),
                epoch: AtomicU64::new(1),
                joins: AtomicU64::new(0),
                settled: AtomicU64::new(0),
                discovered: AtomicBool::new(false),
                observers: Mutex::new(Observers::default()),
            }),
        }
    }

    /// The endpoints that are alive.
    #[inline]
    pub fn alive(&self) -> u64 {
        self.inner.alive.load(Ordering::Acquire)
    }

    /// The endpoints that are neither unreachable nor draining.
    pub fn usable(&self) -> u64 {
        self.inner.counts.load(Ordering::Acquire) / USABLE
    }

    /// The endpoints without any mark.
    pub fn eligible(&self) -> u64 {
        self.inner.counts.load(Ordering::Acquire) % USABLE
    }

    /// What a request gets while no worker is ready, by the counts alone.
    ///
    /// A mark whose time is over counts until its endpoint has noticed, which
    /// its timer makes it do.
    #[inline]
    pub fn verdict(&self) -> Verdict {
        let counts = self.inner.counts.load(Ordering::Acquire);
        if counts % USABLE != 0 {
            Verdict::Wait
        } else if counts / USABLE != 0 {
            Verdict::Overloaded
        } else if self.alive() == 0 {
            Verdict::Unavailable(UnavailableReason::NoWorkers)
        } else {
            Verdict::Unavailable(UnavailableReason::NoneReachable)
        }
    }

    /// The verdict, if nothing has happened since a filter last found that no
    /// worker is ready.
    #[inline]
    pub(crate) fn settled_verdict(&self) -> Option<Verdict> {
        let settled = self.inner.settled.load(Ordering::Acquire);
        (settled == self.epoch()).then(|| self.verdict())
    }

    #[inline]
    pub(crate) fn settle(&self, epoch: u64) {
        self.inner.settled.store(epoch, Ordering::Release);
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.inner.epoch.load(Ordering::Acquire)
    }

    /// How many endpoints ever joined: another number is another chance.
    pub(crate) fn joins(&self) -> u64 {
        self.inner.joins.load(Ordering::Acquire)
    }

    /// Whether the discovery has answered at all.
    pub(crate) fn discovered(&self) -> bool {
        self.inner.discovered.load(Ordering::Acquire)
    }

    pub(crate) fn set_discovered(&self) {
        if !self.inner.discovered.swap(true, Ordering::AcqRel) {
            self.touch();
        }
    }

    pub(crate) fn joined(&self, class: Class) {
        self.inner.joins.fetch_add(1, Ordering::AcqRel);
        self.inner.alive.fetch_add(1, Ordering::AcqRel);
        self.inner.counts.fetch_add(weight(class), Ordering::AcqRel);
    }

    pub(crate) fn left(&self, class: Class) {
        self.inner.counts.fetch_sub(weight(class), Ordering::AcqRel);
        self.inner.alive.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn moved(&self, from: Class, to: Class) {
        if from != to {
            // Both halves change in one step; the sum never borrows across them
            // for longer than this one operation.
            let change = weight(to).wrapping_sub(weight(from));
            self.inner.counts.fetch_add(change, Ordering::AcqRel);
        }
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Something changed: whoever waits for a worker looks again.
    pub(crate) fn touch(&self) {
        self.inner.epoch.fetch_add(1, Ordering::AcqRel);
        let wakers: Vec<Waker> = {
            let observers = lock(&self.inner.observers);
            let observers = observers.wakers.values();
            observers.filter_map(|one| one.task.take()).collect()
        };
        let mut panics = FirstPanic::default();
        for waker in wakers {
            panics.catch(|| waker.wake());
        }
        panics.resume();
    }

    /// Registers one that waits for workers on behalf of a task.
    pub(crate) fn observe(&self) -> Observation {
        let observer = sync::Arc::new(Observer {
            members: self.clone(),
            task: AtomicWaker::new(),
        });
        let mut observers = lock(&self.inner.observers);
        let key = observers.next;
        observers.next += 1;
        observers.wakers.insert(key, observer.clone());
        drop(observers);
        Observation {
            waker: Waker::from(observer.clone()),
            observer,
            key,
        }
    }
}

const fn weight(class: Class) -> u64 {
    match class {
        Class::Eligible => USABLE + ELIGIBLE,
        Class::Shed => USABLE,
        Class::Unusable => 0,
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members")
            .field("alive", &self.alive())
            .field("usable", &self.usable())
            .field("eligible", &self.eligible())
            .finish()
    }
}

/// Stands between the endpoints and the task that waits for them: its wake is
/// remembered as a change before it is passed on.
struct Observer {
    members: Members,
    task: AtomicWaker,
}

impl Wake for Observer {
    fn wake(self: sync::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &sync::Arc<Self>) {
        self.members.inner.epoch.fetch_add(1, Ordering::AcqRel);
        self.task.wake();
    }
}

/// A registration with [`Members`], ended by its drop.
pub(crate) struct Observation {
    observer: sync::Arc<Observer>,
    waker: Waker,
    key: u64,
}

impl Observation {
    #[inline]
    pub(crate) fn members(&self) -> &Members {
        &self.observer.members
    }

    /// The waker to poll workers with.
    #[inline]
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The task that changes are to wake, from now on.
    pub(crate) fn register(&self, task: &Waker) {
        self.observer.task.register(task);
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let observers = &self.observer.members.inner.observers;
        let gone = lock(observers).wakers.remove(&self.key);
        drop(gone);
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").finish_non_exhaustive()
    }
}
