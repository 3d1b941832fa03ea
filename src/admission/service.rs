//! The two services.

use super::{
    EngineAdmissionFuture, Permit, QueuePolicy, Refusal,
    gate::{Decision, Ended, Entry, Gate, Place, Waiter},
    layer::{AlwaysQueue, UntilBodyEnd},
    shared::{Admission, Shared},
};
use crate::BoxError;
use std::task::{Context, Poll, ready};
use tower::load::{Load, TrackCompletion};
use tower_service::Service;

/// Sheds what has no room: the service of
/// [`EngineAdmissionLayer`](super::EngineAdmissionLayer).
///
/// It is always ready, and being ready holds nothing: an idle clone costs no
/// capacity. A place is taken in `call`, before it returns, so in the order
/// of the calls. A clone of the engine is made ready once the request owns a
/// slot, so a slow engine does not delay a refusal.
///
/// # Errors
///
/// `poll_ready` never fails. The response future fails with
/// [`ServiceOverloaded`](crate::ServiceOverloaded) when there is no room or
/// the request has waited too long, with [`Unavailable`](crate::Unavailable)
/// when the gate is closed, and with the engine's own errors.
#[derive(Clone, Debug)]
pub struct EngineAdmission<S, C = UntilBodyEnd, W = AlwaysQueue> {
    inner: S,
    shared: Shared<C, W>,
}

impl<S, C, W> EngineAdmission<S, C, W> {
    pub(super) const fn new(inner: S, shared: Shared<C, W>) -> Self {
        Self { inner, shared }
    }

    /// The engine.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The engine, to be changed: requests to come use it as it is then.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Gives the engine back.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, R, C, W> Service<R> for EngineAdmission<S, C, W>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    C: TrackCompletion<Permit, S::Response>,
    W: QueuePolicy<R>,
{
    type Response = C::Output;
    type Error = BoxError;
    type Future = EngineAdmissionFuture<S, R, C>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (shared, engine) = (&self.shared, &self.inner);
        let may_queue = shared.queueing.may_queue(&request);
        let completion = shared.completion.clone();
        let Some(gate) = &shared.gate else {
            return EngineAdmissionFuture::start(Permit::empty(), engine, request, completion);
        };
        // The common ways are kept short, without a detour over the others.
        match gate.enter(may_queue) {
            Entry::Admitted { sampled } => {
                let permit = Permit::new(gate, sampled, false);
                EngineAdmissionFuture::start(permit, engine, request, completion)
            }
            Entry::Full => {
                EngineAdmissionFuture::refuse(shared.refuse(Refusal::AtCapacity), completion)
            }
            Entry::Undecided => {
                let admission = shared.arrive(may_queue);
                EngineAdmissionFuture::new(admission, engine, request, completion)
            }
        }
    }
}

/// The requests in the engine and waiting, of all services that share the
/// gate; 0 without a cap.
impl<S, C, W> Load for EngineAdmission<S, C, W> {
    type Metric = usize;

    fn load(&self) -> usize {
        self.shared.load()
    }
}

/// Makes callers wait instead of refusing them: the service of
/// [`EngineBackpressureLayer`](super::EngineBackpressureLayer).
///
/// `poll_ready` reserves one of the places there are, in the engine or in the
/// queue, and is `Pending` while there is none. The reservation is used by
/// the next `call` and given up by a drop; a clone starts without one. Those
/// that wait in `poll_ready` hold no place, and get one in the order in which
/// they came.
///
/// A reservation takes a place from everybody else, so this service must not
/// stand below anything that keeps ready services, such as a balancer: there
/// use [`EngineAdmission`], or a buffer of one's own in between.
///
/// # Errors
///
/// `poll_ready` never fails; the response future fails as that of
/// [`EngineAdmission`] does. A request that must not queue is refused when
/// all that is reserved for it is a place in the queue.
#[derive(Debug)]
pub struct EngineBackpressure<S, C = UntilBodyEnd, W = AlwaysQueue> {
    inner: S,
    shared: Shared<C, W>,
    reservation: Reservation,
}

#[derive(Debug)]
enum Reservation {
    None,
    Parked(Waiter),
    Queue(Waiter),
    Slot(Permit),
    /// The gate is closed. The call will say so: an error here would be final.
    Closed,
}

impl<S, C, W> EngineBackpressure<S, C, W> {
    pub(super) const fn new(inner: S, shared: Shared<C, W>) -> Self {
        Self {
            inner,
            shared,
            reservation: Reservation::None,
        }
    }

    /// The engine.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The engine, to be changed: requests to come use it as it is then.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Gives the engine back, and the reservation up.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, C: Clone, W: Clone> Clone for EngineBackpressure<S, C, W> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.shared.clone())
    }
}

impl<S, R, C, W> Service<R> for EngineBackpressure<S, C, W>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    C: TrackCompletion<Permit, S::Response>,
    W: QueuePolicy<R>,
{
    type Response = C::Output;
    type Error = BoxError;
    type Future = EngineAdmissionFuture<S, R, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let Some(gate) = &self.shared.gate else {
            return Poll::Ready(Ok(()));
        };
        if let Reservation::None = self.reservation {
            self.reservation = match Gate::reserve(gate, cx.waker()) {
                Decision::Admitted(permit) => Reservation::Slot(permit),
                Decision::Waits(waiter) => Reservation::Parked(waiter),
                Decision::Full | Decision::Closed => Reservation::Closed,
            };
        }
        if let Reservation::Parked(waiter) = &mut self.reservation {
            let place = ready!(waiter.poll_reserved(cx));
            let parked = std::mem::replace(&mut self.reservation, Reservation::Closed);
            match (place, parked) {
                (Place::Slot(permit), _) => self.reservation = Reservation::Slot(permit),
                (Place::Queue, Reservation::Parked(waiter)) => {
                    self.reservation = Reservation::Queue(waiter);
                }
                _ => {}
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Without a preceding `poll_ready` it takes a place itself or refuses,
    /// as [`EngineAdmission`] does.
    fn call(&mut self, request: R) -> Self::Future {
        let may_queue = self.shared.queueing.may_queue(&request);
        let admission = match std::mem::replace(&mut self.reservation, Reservation::None) {
            Reservation::Slot(permit) => Admission::Start(permit),
            Reservation::Queue(waiter) if may_queue => self.shared.wait(waiter),
            Reservation::Queue(mut waiter) => match waiter.give_up() {
                Ended::Granted(permit) => Admission::Start(permit),
                Ended::Left => Admission::Refuse(self.shared.refuse(Refusal::AtCapacity)),
                Ended::Closed => Admission::Refuse(self.shared.refuse(Refusal::ShuttingDown)),
            },
            Reservation::Closed => Admission::Refuse(self.shared.refuse(Refusal::ShuttingDown)),
            Reservation::None | Reservation::Parked(_) => self.shared.arrive(may_queue),
        };
        let completion = self.shared.completion.clone();
        EngineAdmissionFuture::new(admission, &self.inner, request, completion)
    }
}

/// The requests in the engine and waiting, of all services that share the
/// gate, reservations included; 0 without a cap.
impl<S, C, W> Load for EngineBackpressure<S, C, W> {
    type Metric = usize;

    fn load(&self) -> usize {
        self.shared.load()
    }
}
