//! A pool over connections that do as they are told, and a plain one that is
//! told the same.

use crate::{
    plain::{
        COOLDOWN, Connection, LEASE, MAX_COOLDOWN, MAX_LEASE, MAX_WAIT, MAX_WAITING, PROBE_TIMEOUT,
        Phase, Plain, Seen, Verdict,
    },
    support::{Got, error_got, ms},
};
use futures::future::BoxFuture;
use http::Request;
use std::{
    error::Error,
    num::NonZeroU64,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{sync::oneshot, task::yield_now, time::Instant};
use tokio_test::task::Spawn;
use tower::{Service, load::TrackCompletion};
use tower_overload::{
    BoxError, BusySet, OverloadReason, UnavailableReason,
    busy::{
        BusyMark, Classify, Completion, DrainMark, ErrorsOnly, Fault, Refusal, Roster,
        RosterChanges, roster,
    },
    pool::{WorkerPool, WorkerPoolBuilder, pick::LeastLoaded},
};

pub const IDS: u8 = 3;

#[derive(Debug)]
pub enum Reply {
    Answer,
    Refusal(Option<u64>),
    Failure,
}

#[derive(Clone, Copy)]
pub struct ByReply;

impl Classify<Reply> for ByReply {
    fn response(&self, reply: &Reply) -> Option<Fault> {
        match reply {
            Reply::Answer => None,
            Reply::Failure => Some(Fault::Failed),
            Reply::Refusal(named) => Some(Fault::Refused(Refusal {
                retry_after: named.map(ms),
                only_this_request: false,
            })),
        }
    }

    fn error(&self, error: &(dyn Error + 'static)) -> Fault {
        Classify::<Reply>::error(&ErrorsOnly, error)
    }
}

/// A response is over when its completion is dropped.
#[derive(Clone, Copy)]
pub struct Keep;

impl TrackCompletion<Completion, Reply> for Keep {
    type Output = Completion;

    fn track_completion(&self, completion: Completion, _: Reply) -> Completion {
        completion
    }
}

pub type Outcome = oneshot::Sender<Result<Reply, BoxError>>;

/// What all workers have done.
#[derive(Default)]
pub struct Log {
    chosen: Vec<Connection>,
    sent: Vec<(Connection, Outcome)>,
}

/// A connection whose clones are those that were chosen.
pub struct Client {
    pub connection: Connection,
    pub state: Arc<Mutex<State>>,
    pub log: Arc<Mutex<Log>>,
}

#[derive(Default)]
pub struct State {
    pub unready: bool,
    pub broken: bool,
    pub wakers: Vec<Waker>,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        self.log.lock().unwrap().chosen.push(self.connection);
        Self {
            connection: self.connection,
            state: self.state.clone(),
            log: self.log.clone(),
        }
    }
}

impl Service<Request<()>> for Client {
    type Response = Reply;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Reply, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let mut state = self.state.lock().unwrap();
        if state.broken {
            return Poll::Ready(Err("broken".into()));
        }
        if state.unready {
            state.wakers.push(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let (outcome, received) = oneshot::channel();
        let sent = (self.connection, outcome);
        self.log.lock().unwrap().sent.push(sent);
        Box::pin(async move { received.await.unwrap() })
    }
}

pub type Pool = WorkerPool<RosterChanges<u8, Client>, Request<()>, ByReply, Keep>;

type Response = <Pool as Service<Request<()>>>::Future;

pub struct Real {
    pub set: BusySet<u8>,
    pub roster: Roster<u8, Client>,
    pub pool: Pool,
    pub has_driver: bool,
    pub start: Instant,
    pub busy: Vec<BusyMark>,
    pub drains: Vec<Vec<DrainMark>>,
    /// The last connection of each id.
    pub current: Vec<(u32, Arc<Mutex<State>>)>,
    pub log: Arc<Mutex<Log>>,
    pub asking: Vec<Option<Spawn<Response>>>,
    pub outcomes: Vec<Option<Outcome>>,
    pub responses: Vec<Option<Completion>>,
}

impl Real {
    pub fn new(limit: Option<u64>, of_all: bool, has_driver: bool) -> Self {
        let set = BusySet::<u8>::builder()
            .lease(ms(LEASE))
            .max_lease(ms(MAX_LEASE))
            .cooldown(ms(COOLDOWN))
            .max_cooldown(ms(MAX_COOLDOWN))
            .probe_timeout(ms(PROBE_TIMEOUT))
            .probe_after(None);
        let set: BusySet<u8> = set.build().unwrap();
        let (roster, changes) = roster();
        let mut pool = WorkerPoolBuilder::new(set.clone())
            .policy(ByReply)
            .completion(Keep)
            .max_wait(ms(MAX_WAIT))
            .max_waiting(MAX_WAITING)
            .slow_start(Duration::ZERO);
        if let Some(limit) = limit.and_then(NonZeroU64::new) {
            pool = pool.max_in_flight(limit);
        }
        if of_all {
            pool = pool.pick(LeastLoaded::of_all());
        }
        let pool: Pool = pool.build(changes);
        if has_driver {
            tokio::spawn(pool.driver());
        }
        Self {
            busy: (0..IDS).map(|id| set.busy_mark(id)).collect(),
            drains: (0..IDS).map(|_| Vec::new()).collect(),
            current: (0..IDS).map(|_| Default::default()).collect(),
            set,
            roster,
            pool,
            has_driver,
            start: Instant::now(),
            log: Arc::default(),
            asking: Vec::new(),
            outcomes: Vec::new(),
            responses: Vec::new(),
        }
    }

    pub fn instant(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    /// Polls a request, and has the plain one do the same.
    pub fn poll(&mut self, plain: &mut Plain, request: usize) {
        let polled = self.asking[request].as_mut().unwrap().poll();
        let log = std::mem::take(&mut *self.log.lock().unwrap());
        let mut seen = Seen {
            chosen: log.chosen.into(),
            sent: log.sent.iter().map(|(connection, _)| *connection).collect(),
        };
        if let Some((_, outcome)) = log.sent.into_iter().next_back() {
            self.outcomes[request] = Some(outcome);
        }
        let told = plain.look(request, &mut seen);
        assert!(seen.chosen.is_empty() && seen.sent.is_empty(), "{seen:?}");
        let polled = match polled {
            Poll::Pending => None,
            Poll::Ready(Ok(_)) => panic!("{request} was answered by nobody"),
            Poll::Ready(Err(error)) => Some(error_got(&*error)),
        };
        assert_eq!(
            polled,
            told.map(as_got),
            "request {request} at {} ms",
            plain.now
        );
        if polled.is_some() {
            self.asking[request] = None;
        }
    }

    /// Polls those that were woken until none is; those that have something
    /// to do are among them.
    pub async fn settle(&mut self, plain: &mut Plain) {
        yield_now().await;
        yield_now().await;
        if self.has_driver {
            plain.apply();
        }
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for request in 0..self.asking.len() {
                let Some(asking) = &mut self.asking[request] else {
                    continue;
                };
                let is_looking = matches!(
                    plain.requests[request].phase,
                    Phase::Parked | Phase::Chosen(_)
                );
                if asking.is_woken() && is_looking {
                    self.poll(plain, request);
                    changed = true;
                } else if is_looking {
                    let due = plain.is_due(request);
                    assert!(!due, "{request} sleeps at {} ms: {plain:?}", plain.now);
                }
            }
        }
        if self.has_driver {
            yield_now().await;
            self.assert_counts(plain);
        }
        assert_eq!(self.pool.in_flight() as usize, plain.in_flight());
        assert_eq!(self.pool.waiting(), plain.waiting());
    }

    pub fn assert_counts(&self, plain: &Plain) {
        let members = self.pool.members();
        let counts = (members.alive(), members.usable(), members.eligible());
        assert_eq!(counts, plain.counts(), "at {} ms: {plain:?}", plain.now);
    }
}

fn as_got(verdict: Verdict) -> Got {
    match verdict {
        Verdict::AllBusy => Got::Overloaded(OverloadReason::AllWorkersBusy),
        Verdict::NoWorkers => Got::Unavailable(UnavailableReason::NoWorkers),
        Verdict::NoneReachable => Got::Unavailable(UnavailableReason::NoneReachable),
        Verdict::TooLong => Got::Unavailable(UnavailableReason::WaitedTooLong),
        Verdict::TooMany => Got::Overloaded(OverloadReason::TooManyWaiting),
    }
}
