//! The workers that are tracked, and the guard of each request.

use super::{
    Cost,
    account::{Account, Share},
    report::Reports,
};
use crate::{
    WorkerId,
    load::{
        LoadEvent, WorkerCounts, WorkerMonitor,
        rank::{Clock, Moment},
    },
    sync::{Mutex, lock},
    unwind::FirstPanic,
};
use std::{
    collections::HashMap,
    fmt,
    num::NonZeroU64,
    ptr,
    sync::{Arc, Weak},
};
use tokio::time::Instant;

/// All workers that are tracked for one monitor. A worker is here for as long
/// as a layer, a service or a request of it is.
pub(super) struct Fleet<K> {
    pub(super) monitor: WorkerMonitor<K>,
    workers: Mutex<HashMap<K, Weak<dyn Worker>>>,
}

/// One worker, erased so that services and bodies need not name its id.
pub(super) trait Worker: Send + Sync {
    /// Changes the account, and has the monitor know before this returns,
    /// unless another thread is telling it and will tell of this as well. A
    /// panic of a waker is left in `panic`.
    fn change(&self, change: &mut dyn FnMut(&mut Account), panic: &mut FirstPanic);

    /// What the account adds up to.
    fn counts(&self) -> &WorkerCounts;
}

struct Member<K: WorkerId> {
    id: K,
    fleet: Arc<Fleet<K>>,
    reports: Reports<K>,
    counts: WorkerCounts,
}

impl<K: WorkerId> Worker for Member<K> {
    fn change(&self, change: &mut dyn FnMut(&mut Account), panic: &mut FirstPanic) {
        let tell = |event: &LoadEvent<K>| {
            // If the worker is not registered (any more), the monitor counts
            // that, and the next report says all of the sum again.
            let _ = self.fleet.monitor.observe(event);
        };
        let change = |account: &mut Account| {
            change(account);
            let sum = account.sum();
            self.counts
                .report(sum.prefill_tokens, sum.decode_blocks, Moment::FOREVER);
        };
        self.reports.change(change, tell, panic);
    }

    fn counts(&self) -> &WorkerCounts {
        &self.counts
    }
}

impl<K: WorkerId> Drop for Member<K> {
    fn drop(&mut self) {
        let mut workers = lock(&self.fleet.workers);
        // Another one may have taken its place already.
        let gone = match workers.get(&self.id) {
            Some(member) if ptr::addr_eq(member.as_ptr(), self) => workers.remove_entry(&self.id),
            _ => None,
        };
        drop(workers);
        drop(gone);
    }
}

impl<K> Fleet<K> {
    pub(super) fn new(monitor: WorkerMonitor<K>) -> Self {
        Self {
            monitor,
            workers: Mutex::new(HashMap::new()),
        }
    }

    /// All workers of now.
    pub(super) fn all(&self) -> Vec<Weak<dyn Worker>> {
        lock(&self.workers).values().cloned().collect()
    }
}

impl<K: WorkerId> Fleet<K> {
    pub(super) fn get(&self, id: &K) -> Option<Arc<dyn Worker>> {
        lock(&self.workers).get(id).and_then(Weak::upgrade)
    }

    /// The worker of this id. It is one however often it is asked for, as
    /// long as something holds it.
    pub(super) fn join(self: &Arc<Self>, id: K) -> Arc<dyn Worker> {
        let mut workers = lock(&self.workers);
        if let Some(member) = workers.get(&id).and_then(Weak::upgrade) {
            return member;
        }
        let member: Arc<dyn Worker> = Arc::new(Member {
            id: id.clone(),
            fleet: self.clone(),
            reports: Reports::new(id.clone()),
            counts: WorkerCounts::new(Clock::starting(Instant::now()), None),
        });
        let old = workers.insert(id, Arc::downgrade(&member));
        drop(workers);
        drop(old);
        member
    }
}

/// Reports again what runs on a worker.
pub(super) fn refresh(worker: &dyn Worker, panic: &mut FirstPanic) {
    worker.change(&mut Account::refresh, panic);
}

/// A request as its worker's load. Dropping it takes all of that off.
///
/// Made by the services of this module only, and carried by the response body
/// until its end.
#[derive(Default)]
pub struct Tracked(Option<Held>);

struct Held {
    worker: Arc<dyn Worker>,
    share: Share,
}

impl Tracked {
    pub(super) fn begin(worker: &Arc<dyn Worker>, cost: Cost) -> Self {
        let mut panic = FirstPanic::default();
        let mut share = None;
        worker.change(&mut |account| share = Some(account.begin(cost)), &mut panic);
        let tracked = Self(share.map(|share| Held {
            worker: worker.clone(),
            share,
        }));
        // Now that it would be taken off again.
        panic.resume();
        tracked
    }

    pub(super) fn is_in_prefill(&self) -> bool {
        let share = self.0.as_ref().map(|held| &held.share);
        share.is_some_and(Share::is_in_prefill)
    }

    /// A frame of the response has arrived, with so many tokens in blocks of
    /// this size, and the prefill is over or not.
    pub(super) fn frame(&mut self, output: Option<(u64, NonZeroU64)>, has_begun: bool) {
        let Some(Held { worker, share }) = &mut self.0 else {
            return;
        };
        let blocks = output.map_or(0, |(tokens, size)| share.generated(tokens, size));
        let ends_prefill = has_begun && share.is_in_prefill();
        if blocks == 0 && !ends_prefill {
            return;
        }
        let mut panic = FirstPanic::default();
        let mut change = |account: &mut Account| {
            if ends_prefill {
                account.end_prefill(share);
            }
            account.grow(share, blocks);
        };
        worker.change(&mut change, &mut panic);
        panic.resume();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut panic = FirstPanic::default();
        let share = &self.share;
        self.worker
            .change(&mut |account| account.end(share), &mut panic);
        panic.resume();
    }
}

impl fmt::Debug for Tracked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.0.as_ref().map(|held| &held.share);
        f.debug_tuple("Tracked").field(&share).finish()
    }
}
