//! What the two services have in common: one gate, and how to use it.

use super::{
    Refusal,
    gate::{Decision, Ended, Gate, Waiter},
    permit::Permit,
};
use crate::{
    BoxError, OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason, sync::Arc,
};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep};

#[derive(Clone, Debug)]
pub(super) struct Shared<C, W> {
    /// `None`: no cap.
    pub(super) gate: Option<Arc<Gate>>,
    pub(super) timing: Timing,
    pub(super) completion: C,
    pub(super) queueing: W,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    pub(super) max_queue_wait: Option<Duration>,
    pub(super) max_retry_after: Duration,
}

/// What a request that has arrived does next.
#[derive(Debug)]
pub(super) enum Admission {
    Start(Permit),
    Wait(Box<Wait>),
    /// With the answer.
    Refuse(BoxError),
}

impl<C, W> Shared<C, W> {
    pub(super) fn load(&self) -> usize {
        self.gate.as_ref().map_or(0, |gate| gate.load())
    }

    /// Takes a place for a request that has none yet.
    pub(super) fn arrive(&self, may_queue: bool) -> Admission {
        let Some(gate) = &self.gate else {
            return Admission::Start(Permit::empty());
        };
        match Gate::arrive(gate, may_queue) {
            Decision::Admitted(permit) => Admission::Start(permit),
            Decision::Waits(waiter) => self.wait(waiter),
            Decision::Full => Admission::Refuse(self.refuse(Refusal::AtCapacity)),
            Decision::Closed => Admission::Refuse(self.refuse(Refusal::ShuttingDown)),
        }
    }

    pub(super) fn wait(&self, waiter: Waiter) -> Admission {
        Admission::Wait(Box::new(Wait {
            waiter,
            since: Instant::now(),
            timer: None,
            timing: self.timing,
        }))
    }

    /// Counts a refusal and makes its error.
    #[inline]
    pub(super) fn refuse(&self, refusal: Refusal) -> BoxError {
        reject(self.gate.as_deref(), refusal, self.timing)
    }
}

#[inline]
fn reject(gate: Option<&Gate>, refusal: Refusal, timing: Timing) -> BoxError {
    if let Some(metrics) = gate.and_then(Gate::metrics) {
        metrics.refuse(refusal);
    }
    let reason = match refusal {
        Refusal::AtCapacity => OverloadReason::WorkerAtCapacity,
        Refusal::WaitedTooLong => OverloadReason::WaitedTooLong,
        Refusal::ShuttingDown => return Unavailable::new(UnavailableReason::ShuttingDown).into(),
    };
    let retry_after = gate.and_then(|gate| gate.retry_after(timing.max_retry_after));
    ServiceOverloaded::new(reason)
        .with_retry_after(retry_after)
        .into()
}

/// A request in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct Wait {
    waiter: Waiter,
    since: Instant,
    /// Made when the request is first found to wait.
    timer: Option<Pin<Box<Sleep>>>,
    timing: Timing,
}

impl Wait {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, BoxError>> {
        // A slot that was granted in time is taken, however late the poll.
        match self.waiter.poll_slot(cx) {
            Poll::Ready(Ok(permit)) => return Poll::Ready(Ok(permit)),
            Poll::Ready(Err(_)) => return Poll::Ready(Err(self.reject(Refusal::ShuttingDown))),
            Poll::Pending => {}
        }
        if self.timer.is_none() {
            let deadline = self
                .timing
                .max_queue_wait
                .and_then(|wait| self.since.checked_add(wait));
            self.timer = deadline.map(|at| Box::pin(tokio::time::sleep_until(at)));
        }
        let Some(timer) = &mut self.timer else {
            return Poll::Pending;
        };
        if timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(match self.waiter.give_up() {
            Ended::Granted(permit) => Ok(permit),
            Ended::Closed => Err(self.reject(Refusal::ShuttingDown)),
            Ended::Left => Err(self.reject(Refusal::WaitedTooLong)),
        })
    }

    fn reject(&self, refusal: Refusal) -> BoxError {
        reject(Some(self.waiter.gate()), refusal, self.timing)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(metrics) = self.waiter.gate().metrics() {
            metrics.queue_wait.record(self.since.elapsed());
        }
    }
}
