//! A request that waits: its place among those that may, its timer, and who
//! wakes it.

use crate::busy::{Notifier, Observation};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};
use tokio::time::{Instant, Sleep, sleep_until};

/// How many requests may wait at once, and do.
#[derive(Debug)]
pub(super) struct Places {
    taken: AtomicUsize,
    limit: usize,
}

impl Places {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            limit,
        }
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    fn take(places: &Arc<Self>) -> Option<Place> {
        let below = |taken: usize| (taken < places.limit).then_some(taken + 1);
        let taken = &places.taken;
        taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, below)
            .ok()?;
        Some(Place(places.clone()))
    }
}

/// One of the places; its drop gives it back.
#[derive(Debug)]
struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The wait of one request, over all the times that it looks again.
///
/// It is woken by every change of the pool, and of the worker whose own service
/// it waits for; by the next end of a mark; and at its deadline.
pub(super) struct Waiting {
    pool: Observation,
    /// The worker that it waits for, and the discovery, which may say that it
    /// has left.
    worker: Option<(Observation, Observation)>,
    deadline: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    place: Option<Place>,
}

/// What a request that found nothing to do does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parked {
    /// It sleeps, and will be woken.
    Asleep,
    /// Something has changed since it looked.
    LookAgain,
    /// It has waited for as long as it may.
    TooLong,
    /// As many wait as may.
    NoPlace,
}

impl Waiting {
    pub(super) fn new(pool: &Notifier, deadline: Instant) -> Self {
        Self {
            pool: pool.observe(),
            worker: None,
            deadline,
            timer: None,
            place: None,
        }
    }

    /// What it looks at from here on: the pool as a whole, or one worker and
    /// the discovery.
    pub(super) fn follow(&mut self, worker: Option<(&Notifier, &Notifier)>) {
        self.worker = worker.map(|(own, said)| (own.observe(), said.observe()));
    }

    /// To be read before looking, for [`park`](Self::park).
    pub(super) fn epoch(&self) -> u64 {
        match &self.worker {
            Some((own, said)) => own.epoch().wrapping_add(said.epoch()),
            None => self.pool.epoch(),
        }
    }

    /// Parks the task, unless something has changed since `epoch`. It is woken
    /// no later than at `until`, which is looked up once changes are seen.
    pub(super) fn park(
        &mut self,
        cx: &mut Context<'_>,
        epoch: u64,
        places: &Arc<Places>,
        until: impl FnOnce() -> Option<Instant>,
    ) -> Parked {
        if Instant::now() >= self.deadline {
            return Parked::TooLong;
        }
        match &self.worker {
            Some((own, said)) => {
                own.register(cx.waker());
                said.register(cx.waker());
            }
            None => self.pool.register(cx.waker()),
        }
        if self.epoch() != epoch {
            return Parked::LookAgain;
        }
        if self.place.is_none() {
            match Places::take(places) {
                Some(place) => self.place = Some(place),
                None => return Parked::NoPlace,
            }
        }
        let until = until().map_or(self.deadline, |until| until.min(self.deadline));
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Parked::LookAgain,
            Poll::Pending => Parked::Asleep,
        }
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
