//! What the clones of a pool share, and how they choose.

use super::{
    grow::Grow,
    member::{Entry, LoadOf},
    membership::{Membership, Settled},
    pick::{Candidate, OpenWorkers, Pick, Table, two_of},
    rows::Rows,
    waiting::Places,
};
use crate::{
    BoxError, OverloadReason, UnavailableReason,
    busy::{Answer, Answers, Attempt, Notifier, Seat, Trail, Verdict, WorkerFuture},
    load::WorkerLoad,
    metrics::WORKER_SERVICE_ERRORS,
    sync::{Arc, Mutex, lock},
};
use ::metrics::Counter;
use std::{sync, time::Duration};
use tokio::time::Instant;
use tower::discover::Discover;
use tower_service::Service;

/// A worker that a request goes to, once its own service is ready.
pub(super) struct Chosen<S, Req> {
    pub(super) service: S,
    pub(super) attempt: Attempt,
    load: LoadOf<Req>,
    row: u32,
}

pub(super) enum Choice<S, Req> {
    Chosen(Chosen<S, Req>),
    Answer(Answer),
    /// Something may change: look again when it has.
    Wait,
}

type Services<S, Req> = Grow<Mutex<Option<Entry<S, Req>>>>;

pub(super) struct Core<D: Discover, Req, P, C> {
    pub(super) rows: sync::Arc<Rows>,
    services: Services<D::Service, Req>,
    pub(super) membership: Membership<D>,
    pub(super) places: sync::Arc<Places>,
    pub(super) options: Options<D::Key, Req, P, C>,
    pub(super) answers: Answers,
    errors: Counter,
    /// Until then requests wait for the first word of the discovery.
    grace_until: Option<Instant>,
}

type ByWorker<K, T> = Option<Box<dyn Fn(&K) -> T + Send + Sync>>;

pub(super) struct Options<K, Req, P, C> {
    pub(super) set: crate::busy::BusySet<K>,
    pub(super) policy: P,
    pub(super) completion: C,
    pub(super) pick: Option<Box<dyn Pick<Req>>>,
    pub(super) load: ByWorker<K, sync::Arc<dyn WorkerLoad<Req>>>,
    pub(super) weight: ByWorker<K, u64>,
    pub(super) trail: fn(&Req) -> Option<&Trail>,
    pub(super) max_wait: Duration,
    pub(super) max_waiting: usize,
    pub(super) max_in_flight: u64,
    pub(super) startup_grace: Duration,
    pub(super) slow_start: Duration,
}

impl<K, Req, P, C> Options<K, Req, P, C> {
    pub(super) fn with_policy<P2>(self, policy: P2) -> Options<K, Req, P2, C> {
        Options {
            policy,
            set: self.set,
            completion: self.completion,
            pick: self.pick,
            load: self.load,
            weight: self.weight,
            trail: self.trail,
            max_wait: self.max_wait,
            max_waiting: self.max_waiting,
            max_in_flight: self.max_in_flight,
            startup_grace: self.startup_grace,
            slow_start: self.slow_start,
        }
    }

    pub(super) fn with_completion<C2>(self, completion: C2) -> Options<K, Req, P, C2> {
        Options {
            completion,
            set: self.set,
            policy: self.policy,
            pick: self.pick,
            load: self.load,
            weight: self.weight,
            trail: self.trail,
            max_wait: self.max_wait,
            max_waiting: self.max_waiting,
            max_in_flight: self.max_in_flight,
            startup_grace: self.startup_grace,
            slow_start: self.slow_start,
        }
    }
}

/// How often a choice whose worker has closed meanwhile is made again at once.
const ROUNDS: usize = 16;

impl<D: Discover, Req, P, C> Core<D, Req, P, C> {
    pub(super) fn new(discover: D, options: Options<D::Key, Req, P, C>) -> Self {
        let members = crate::busy::Members::new();
        let (prefix, model) = (options.set.prefix(), options.set.model());
        let grace = options.startup_grace;
        Self {
            answers: Answers::new(prefix, model),
            errors: WORKER_SERVICE_ERRORS.counter(prefix, &[model]),
            membership: Membership::new(discover, members.notifier().clone(), prefix, model),
            rows: sync::Arc::new(Rows::new(
                members,
                options.max_in_flight,
                options.slow_start,
            )),
            services: Grow::new(),
            places: sync::Arc::new(Places::new(options.max_waiting)),
            grace_until: (!grace.is_zero()).then(|| Instant::now() + grace),
            options,
        }
    }

    /// When something may change by itself.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let is_ahead = |until: &Instant| *until > Instant::now();
        let grace = self.grace_until.filter(is_ahead);
        let grace = grace.filter(|_| !self.rows.members().discovered());
        [self.rows.next_end(), grace].into_iter().flatten().min()
    }

    /// Ends the marks whose time has come.
    #[inline]
    pub(super) fn end_marks(&self) {
        if let Some(end) = self.rows.next_end() {
            let now = Instant::now();
            if end <= now {
                self.end_due(now);
            }
        }
    }

    #[cold]
    fn end_due(&self, now: Instant) {
        for row in self.rows.take_due(now) {
            if let Some(seat) = self.seat(row) {
                self.rows.arm(row, seat.worker().expire(now));
            }
        }
    }

    fn seat(&self, row: u32) -> Option<Arc<Seat>> {
        let entry = lock(self.services.get(row)?);
        entry.as_ref().map(|entry| entry.seat.clone())
    }

    /// Puts a worker's service into its row, and returns what was there.
    pub(super) fn seat_service(
        &self,
        row: u32,
        entry: Option<Entry<D::Service, Req>>,
    ) -> Option<Entry<D::Service, Req>> {
        std::mem::replace(&mut *lock(self.services.ensure(row)), entry)
    }

    /// The entry of the worker that was chosen, unless it has left meanwhile.
    fn with_entry<R>(
        &self,
        chosen: &Chosen<D::Service, Req>,
        with: impl FnOnce(&mut Option<Entry<D::Service, Req>>) -> R,
    ) -> Option<R> {
        let seat = chosen.attempt.seat()?;
        let mut entry = lock(self.services.get(chosen.row)?);
        let is_its = |entry: &Entry<_, _>| std::ptr::eq(&*entry.seat, seat);
        entry.as_ref().is_some_and(is_its).then(|| with(&mut entry))
    }

    /// Wakes those who wait for the own service of the worker that was chosen;
    /// `None` if it has left.
    pub(super) fn notifier_of(&self, chosen: &Chosen<D::Service, Req>) -> Option<Notifier> {
        let watch = |entry: &mut Option<Entry<_, Req>>| {
            entry.as_ref().map(|entry| entry.member.watch.clone())
        };
        let watch = self.with_entry(chosen, watch)??;
        Some(watch.own())
    }

    /// A worker's own service has failed for good: nothing is sent to it until
    /// the discovery inserts it again. Requests that it has go on.
    pub(super) fn broken(&self, chosen: &Chosen<D::Service, Req>, error: &BoxError) {
        let Some(seat) = chosen.attempt.seat() else {
            return;
        };
        let worker = &**seat.worker().label();
        let model = self.options.set.model();
        tracing::warn!(model, worker, %error, "removed: its service failed");
        self.errors.increment(1);
        let gone = self.with_entry(chosen, Option::take);
        seat.worker().detach(seat.id());
        drop(gone);
    }

    /// What a request gets while no worker is open, if that is settled.
    fn verdict(&self) -> Option<Answer> {
        let verdict = self.rows.members().verdict();
        let no_workers = Verdict::Unavailable(UnavailableReason::NoWorkers);
        if verdict == no_workers
            && !self.rows.members().discovered()
            && self.grace_until.is_some_and(|until| Instant::now() < until)
        {
            return None;
        }
        Answer::due(verdict)
    }
}

impl<D, Req, P, C> Core<D, Req, P, C>
where
    D: Discover,
    D::Key: crate::WorkerId,
    D::Service: Clone,
    D::Error: Into<BoxError>,
{
    /// Chooses by the default, if nothing has to be done first and nothing
    /// comes in between. It is all that most requests need.
    #[inline(always)]
    pub(super) fn choose_at_once(&self, request: &Req) -> Option<Chosen<D::Service, Req>> {
        if self.membership.is_unsettled() || self.options.pick.is_some() {
            return None;
        }
        if self.asked_before(request).is_some() {
            return None;
        }
        self.end_marks();
        // Those whose marks have just ended are among them.
        let open = self.rows.open();
        if open == 0 {
            return None;
        }
        self.enter(self.of_two(open)?, None)
    }

    /// Chooses a worker for the request. What was marked, and who came or
    /// left, before this is called is honoured.
    pub(super) fn choose(&self, request: &Req) -> Choice<D::Service, Req> {
        for round in 1..=ROUNDS {
            if self.membership.is_unsettled() && self.settle() == Settled::ByAnother {
                return Choice::Wait;
            }
            self.end_marks();
            let joins = self.rows.members().joins();
            // A choice that insists on one that has closed is not heard.
            let is_heard = round < ROUNDS;
            let Some((row, member)) = self.pick(request, is_heard) else {
                match self.verdict() {
                    // A worker that was just replaced was not there for a
                    // moment.
                    Some(_) if self.has_changed(joins) => continue,
                    Some(answer) => return Choice::Answer(answer),
                    // Somebody opened while it was looked at.
                    None if self.rows.open() > 0 => continue,
                    None => return Choice::Wait,
                }
            };
            if let Some(chosen) = self.enter(row, member.as_ref()) {
                return Choice::Chosen(chosen);
            }
        }
        // It changes faster than it can be looked at.
        if self.rows.open() == 0 {
            if let Some(answer) = self.verdict() {
                return Choice::Answer(answer);
            }
        }
        Choice::Wait
    }

    /// Whether the membership changes, or somebody joined after there were so
    /// many `joins`.
    fn has_changed(&self, joins: u64) -> bool {
        self.membership.is_unsettled() || self.rows.members().joins() != joins
    }

    /// A row to try, and who has to be there; `None` if none is open.
    fn pick(&self, request: &Req, is_heard: bool) -> Option<(u32, Option<Candidate<Req>>)> {
        let open = self.rows.open();
        if open == 0 {
            return None;
        }
        let trail = self.asked_before(request);
        if is_heard && (trail.is_some() || self.options.pick.is_some()) {
            if let Some(candidate) = self.pick_by(request, trail) {
                return Some((candidate.member.watch.row(), Some(candidate)));
            }
        }
        Some((self.of_two(open)?, None))
    }

    /// The lesser loaded of two open rows.
    #[inline(always)]
    fn of_two(&self, open: u32) -> Option<u32> {
        let facts = |position| {
            let row = self.rows.at(position)?;
            let facts = self.rows.facts(row)?;
            Some((row, facts.load(), facts.weight()))
        };
        two_of(open, facts)
    }

    /// Where the request has been, if it has been anywhere.
    #[inline(always)]
    fn asked_before<'a>(&self, request: &'a Req) -> Option<&'a Trail> {
        (self.options.trail)(request).filter(|trail| trail.asked().len() > 0)
    }

    fn pick_by(&self, request: &Req, trail: Option<&Trail>) -> Option<Candidate<Req>> {
        let workers = match trail {
            Some(trail) => OpenWorkers::unasked(self, trail),
            None => OpenWorkers::all(self),
        };
        if workers.is_empty() {
            return None;
        }
        let picked = match &self.options.pick {
            Some(pick) => pick.pick(request, &workers),
            None => None,
        };
        picked.or_else(|| super::pick::LeastLoaded::of(2).pick(request, &workers))
    }

    /// Takes a place with the worker of a row, if it is still open.
    #[inline(always)]
    fn enter(
        &self,
        row: u32,
        expected: Option<&Candidate<Req>>,
    ) -> Option<Chosen<D::Service, Req>> {
        let (service, seat, load) = {
            let entry = lock(self.services.get(row)?);
            let entry = entry.as_ref()?;
            if expected.is_some_and(|it| !sync::Arc::ptr_eq(&it.member, &entry.member)) {
                return None;
            }
            (
                entry.service.clone(),
                entry.seat.clone(),
                entry.has_load.then(|| entry.member.load.clone()).flatten(),
            )
        };
        let attempt = Attempt::claim(Seat::enter(seat)?)?;
        Some(Chosen {
            service,
            attempt,
            load,
            row,
        })
    }
}

impl<D, Req, P, C> Core<D, Req, P, C>
where
    D: Discover,
    D::Service: Service<Req>,
    P: Clone,
    C: Clone,
{
    /// Sends the request to the worker, whose service is ready.
    #[inline(always)]
    pub(super) fn dispatch(
        &self,
        chosen: Chosen<D::Service, Req>,
        request: Req,
    ) -> WorkerFuture<<D::Service as Service<Req>>::Future, P, C> {
        let Chosen {
            mut service,
            attempt,
            load,
            row: _,
        } = chosen;
        if let Some(load) = &load {
            load.sent(&request);
        }
        let future = service.call(request);
        let options = &self.options;
        WorkerFuture::new(
            future,
            attempt,
            options.policy.clone(),
            options.completion.clone(),
        )
    }
}

impl<D: Discover, Req, P, C> Table<Req> for Core<D, Req, P, C> {
    fn open(&self) -> u32 {
        self.rows.open()
    }

    fn candidate(&self, position: u32) -> Option<Candidate<Req>> {
        let row = self.rows.at(position)?;
        let entry = lock(self.services.get(row)?);
        let member = entry.as_ref()?.member.clone();
        Some(Candidate { member })
    }

    fn facts(&self, position: u32) -> Option<(u64, u64, u64)> {
        let facts = self.rows.facts(self.rows.at(position)?)?;
        Some((facts.load(), facts.weight(), facts.key()))
    }
}

/// Nobody waits at a pool that is gone, but its driver has to end.
impl<D: Discover, Req, P, C> Drop for Core<D, Req, P, C> {
    fn drop(&mut self) {
        self.rows.members().notifier().notify();
    }
}

/// An overload that is counted as the pool's own.
pub(super) const TOO_MANY_WAITING: Answer = Answer::Overloaded(OverloadReason::TooManyWaiting);
