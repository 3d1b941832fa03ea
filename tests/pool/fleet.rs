//! A pool with the handles to everything in it, and what requests get from it.

use crate::support::{Client, Id, REFUSED, Worker, secs};
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use std::{collections::HashMap, error::Error, future::Future, time::Duration};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tower::{Service, ServiceExt};
use tower_overload::{
    BoxError, BusySet, OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason,
    Unreachable,
    busy::{Roster, RosterChanges, roster},
    pool::{WorkerPool, WorkerPoolBuilder},
};

pub type Pool = WorkerPool<RosterChanges<Id, Client>, Request<()>>;
pub type Builder = WorkerPoolBuilder<Id, Request<()>>;

/// A pool with the handles to everything in it.
pub struct Fleet {
    pub set: BusySet<Id>,
    pub roster: Roster<Id, Client>,
    pub pool: Pool,
    workers: HashMap<Id, Worker>,
}

impl Fleet {
    pub fn of(workers: impl IntoIterator<Item = Worker>) -> Self {
        Self::with(workers, |pool| pool)
    }

    pub fn with(
        workers: impl IntoIterator<Item = Worker>,
        configure: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let set = BusySet::new();
        let (roster, changes) = roster();
        let pool = configure(WorkerPoolBuilder::new(set.clone())).build(changes);
        let mut fleet = Self {
            set,
            roster,
            pool,
            workers: HashMap::new(),
        };
        workers.into_iter().for_each(|worker| fleet.add(worker));
        fleet
    }

    pub fn add(&mut self, worker: Worker) {
        self.roster.insert(worker.id, worker.client());
        self.workers.insert(worker.id, worker);
    }

    pub fn worker(&self, id: Id) -> &Worker {
        &self.workers[id]
    }

    pub fn call(&self) -> <Pool as Service<Request<()>>>::Future {
        self.pool.clone().call(Request::new(()))
    }

    pub async fn send(&self) -> Got {
        send(self.pool.clone()).await
    }

    /// Sends a request from a task of its own.
    pub fn spawn(&self) -> JoinHandle<(Got, Duration)> {
        tokio::spawn(timed(send(self.pool.clone())))
    }

    /// Makes the worker suspect: it fails once, and its mark has ended.
    pub async fn suspect(&self, id: Id) {
        let others: Vec<_> = self.workers.keys().filter(|other| **other != id).collect();
        let drains: Vec<_> = others.iter().map(|other| self.set.drain(other)).collect();
        self.worker(id).script(REFUSED);
        assert_eq!(self.send().await, Got::Unreachable);
        drop(drains);
        sleep(secs(1)).await;
    }

    /// Nothing is taken that a request could have.
    pub fn assert_idle(&self) {
        assert_eq!((self.pool.in_flight(), self.pool.waiting()), (0, 0));
    }
}

/// What a request got: a worker's status, or the kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Got {
    Served(u16),
    Overloaded(OverloadReason),
    Unavailable(UnavailableReason),
    Unreachable,
    Other,
}

pub const OK: Got = Got::Served(200);
pub const ALL_BUSY: Got = Got::Overloaded(OverloadReason::AllWorkersBusy);
pub const AT_CAPACITY: Got = Got::Overloaded(OverloadReason::WorkerAtCapacity);
pub const TOO_MANY: Got = Got::Overloaded(OverloadReason::TooManyWaiting);
pub const TOO_LONG: Got = Got::Unavailable(UnavailableReason::WaitedTooLong);
pub const NO_WORKERS: Got = Got::Unavailable(UnavailableReason::NoWorkers);
pub const NONE_REACHABLE: Got = Got::Unavailable(UnavailableReason::NoneReachable);

pub fn got<B>(result: &Result<Response<B>, BoxError>) -> Got {
    match result {
        Ok(response) => Got::Served(response.status().as_u16()),
        Err(error) => error_got(&**error),
    }
}

pub fn error_got(error: &(dyn Error + 'static)) -> Got {
    if let Some(overloaded) = ServiceOverloaded::find_in(error) {
        Got::Overloaded(overloaded.reason())
    } else if let Some(unavailable) = Unavailable::find_in(error) {
        Got::Unavailable(unavailable.reason())
    } else if Unreachable::find_in(error).is_some() {
        Got::Unreachable
    } else {
        Got::Other
    }
}

/// The worker that answered.
pub fn by<B>(response: &Response<B>) -> &str {
    response.headers()["worker"].to_str().unwrap()
}

/// Sends one request and reads the whole answer.
pub async fn send<S, B>(service: S) -> Got
where
    S: Service<Request<()>, Response = Response<B>, Error = BoxError>,
    B: Body,
{
    let result = service.oneshot(Request::new(())).await;
    let got = got(&result);
    if let Ok(response) = result {
        let _ = response.into_body().collect().await;
    }
    got
}

/// How long it took, by tokio's clock.
pub async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    let output = future.await;
    (output, start.elapsed())
}
