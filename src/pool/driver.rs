use super::core::Core;
use crate::{BoxError, WorkerId, busy::Observation};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};
use tokio::time::{Instant, Sleep, sleep_until};
use tower::discover::Discover;

/// Keeps a pool up to date while no request comes; see
/// [`WorkerPool::driver`](super::WorkerPool::driver).
#[must_use = "futures do nothing unless polled: spawn it"]
pub struct Driver<D: Discover, Req, P, C> {
    core: Weak<Core<D, Req, P, C>>,
    changes: Observation,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<D: Discover, Req, P, C> Driver<D, Req, P, C> {
    pub(super) fn new(core: &Arc<Core<D, Req, P, C>>) -> Self {
        Self {
            core: Arc::downgrade(core),
            changes: core.rows.members().notifier().observe(),
            timer: None,
        }
    }
}

/// How often it looks again at once.
const ROUNDS: usize = 4;

impl<D, Req, P, C> Future for Driver<D, Req, P, C>
where
    D: Discover,
    D::Key: WorkerId,
    D::Error: Into<BoxError>,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        for _ in 0..ROUNDS {
            this.changes.register(cx.waker());
            let epoch = this.changes.epoch();
            let Some(core) = this.core.upgrade() else {
                return Poll::Ready(());
            };
            core.catch_up();
            let until = core.next_end();
            // It may have been the last one: what it held is gone from here on.
            drop(core);
            if this.changes.epoch() == epoch && this.poll_timer(cx, until).is_pending() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<D: Discover, Req, P, C> Driver<D, Req, P, C> {
    fn poll_timer(&mut self, cx: &mut Context<'_>, until: Option<Instant>) -> Poll<()> {
        let Some(until) = until else {
            self.timer = None;
            return Poll::Pending;
        };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(cx)
    }
}

impl<D: Discover, Req, P, C> fmt::Debug for Driver<D, Req, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}
