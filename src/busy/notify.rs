//! Those who wait for a change, and how they hear of it.
//!
//! A change counts up the *epoch* before it wakes anybody. Who waits reads the
//! epoch, looks, leaves its waker, and reads the epoch again: if it is another
//! one, it looks again, so no change falls between.

use crate::{
    sync::{Arc, AtomicU64, Mutex, Ordering, lock},
    unwind::FirstPanic,
};
use std::{collections::HashMap, fmt, sync, task::Wake, task::Waker};

/// Wakes everybody who waits for a change. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Notifier {
    inner: Arc<Inner>,
}

struct Inner {
    /// Counts every change that could make another answer right.
    epoch: AtomicU64,
    observers: Mutex<Observers>,
}

#[derive(Default)]
struct Observers {
    next: u64,
    wakers: HashMap<u64, sync::Arc<Observer>>,
}

impl Notifier {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::new(Inner {
                epoch: AtomicU64::new(1),
                observers: Mutex::new(Observers::default()),
            }),
        }
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.inner.epoch.load(Ordering::Acquire)
    }

    /// Something changed: whoever waits looks again.
    pub(crate) fn notify(&self) {
        self.inner.epoch.fetch_add(1, Ordering::AcqRel);
        let wakers: Vec<Waker> = {
            let observers = lock(&self.inner.observers);
            let observers = observers.wakers.values();
            observers.filter_map(|one| lock(&one.task).take()).collect()
        };
        let mut panics = FirstPanic::default();
        for waker in wakers {
            panics.catch(|| waker.wake());
        }
        panics.resume();
    }

    /// Registers one that waits on behalf of a task.
    pub(crate) fn observe(&self) -> Observation {
        let observer = sync::Arc::new(Observer {
            notifier: self.clone(),
            task: Mutex::new(None),
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

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

/// Stands between what changes and the task that waits for it: its wake is
/// remembered as a change before it is passed on.
struct Observer {
    notifier: Notifier,
    task: Mutex<Option<Waker>>,
}

impl Wake for Observer {
    fn wake(self: sync::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &sync::Arc<Self>) {
        self.notifier.inner.epoch.fetch_add(1, Ordering::AcqRel);
        let task = lock(&self.task).take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// A registration with a [`Notifier`], ended by its drop.
pub(crate) struct Observation {
    observer: sync::Arc<Observer>,
    waker: Waker,
    key: u64,
}

impl Observation {
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.observer.notifier.epoch()
    }

    /// The waker to poll workers with.
    #[inline]
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The task that changes wake, from now on.
    pub(crate) fn register(&self, task: &Waker) {
        let mut registered = lock(&self.observer.task);
        let old = match &*registered {
            Some(old) if old.will_wake(task) => return,
            _ => registered.replace(task.clone()),
        };
        drop(registered);
        drop(old);
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let observers = &self.observer.notifier.inner.observers;
        let gone = lock(observers).wakers.remove(&self.key);
        drop(gone);
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").finish_non_exhaustive()
    }
}
