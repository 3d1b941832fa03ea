//! A fleet whose workers answer with where they are.

use futures::future::{Ready, ready};
use http::{Request, Response, Uri};
use http_body_util::Full;
use std::{
    any::Any,
    convert::Infallible,
    num::NonZeroU64,
    task::{Context, Poll},
    time::Duration,
};
use tower::{Service, ServiceExt};
use tower_layer::Layer;
use tower_overload::{
    busy::{BusySet, RosterChanges},
    error::{ServiceOverloaded, Unavailable},
    fleet::{Compose, Connect, Fleet, FleetBuilder, Id, Refused, RefusedKind},
    load::{
        WorkerMonitor,
        tracker::{Cost, LoadTracker, TrackLoad},
    },
    pool::{WorkerPool, WorkerPoolBuilder},
};

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Says where it is.
#[derive(Clone, Debug)]
pub struct Echo(Uri);

type Body = Full<bytes::Bytes>;

impl Service<Request<()>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let mut response = Response::new(Body::from("tokens"));
        response.extensions_mut().insert(self.0.clone());
        ready(Ok(response))
    }
}

type CostFn = fn(&Request<()>) -> Cost;
pub type Client = TrackLoad<Echo, CostFn>;
pub type Pool = WorkerPool<RosterChanges<Id, Client>, Request<()>>;
pub type TestFleet = Fleet<Client, Pool>;

/// The prompt of each request.
pub const TOKENS: u64 = 16;

fn cost(_: &Request<()>) -> Cost {
    Cost::of_prompt(TOKENS, NonZeroU64::new(16).unwrap())
}

/// A fleet, and what it keeps in order.
pub struct Setup {
    pub fleet: TestFleet,
    pub monitor: WorkerMonitor<Id>,
    pub tracker: LoadTracker<Id, CostFn>,
}

/// One with these options, whose monitor does not forget and whose busy workers
/// are not probed.
pub fn setup(options: impl FnOnce(FleetBuilder) -> FleetBuilder) -> Setup {
    let monitor = WorkerMonitor::<()>::builder().stale_after(None).build();
    let tracker = LoadTracker::new(monitor.clone(), cost as CostFn);
    let layers = tracker.clone();
    let builder = FleetBuilder::new()
        .monitor(monitor.clone())
        .sets(BusySet::<Id>::builder().probe_after(None))
        .tracker(tracker.clone());
    let connect = move |worker: &Connect<'_>| {
        if worker.url.host() == Some("none") {
            return Err("no such host".into());
        }
        Ok(layers
            .layer(worker.id.clone())
            .layer(Echo(worker.url.clone())))
    };
    let compose = |model: Compose<'_, Client>| {
        let pool = WorkerPoolBuilder::new(model.set)
            .slow_start(Duration::ZERO)
            .build(model.changes);
        tokio::spawn(pool.driver());
        let members = pool.members();
        Ok((pool, members))
    };
    let fleet = options(builder).build(connect, compose).unwrap();
    Setup {
        fleet,
        monitor,
        tracker,
    }
}

pub fn fleet() -> TestFleet {
    setup(|builder| builder.default_model("tiny")).fleet
}

/// What a request came to.
pub enum Answer {
    /// Where the worker is, and the response: the request runs until that is
    /// dropped.
    From(Uri, Box<dyn Any>),
    Overloaded,
    Unavailable,
}

/// Sends a request to a model that is known.
pub async fn request(fleet: &TestFleet, model: &str) -> Answer {
    let model = fleet.model(model).expect("the model is known");
    match model.service().clone().oneshot(Request::new(())).await {
        Ok(response) => {
            let url = response.extensions().get::<Uri>().unwrap().clone();
            Answer::From(url, Box::new(response))
        }
        Err(error) if ServiceOverloaded::find_in(&*error).is_some() => Answer::Overloaded,
        Err(error) if Unavailable::find_in(&*error).is_some() => Answer::Unavailable,
        Err(error) => panic!("{error}"),
    }
}

/// Where a request for the model goes to.
pub async fn goes_to(fleet: &TestFleet, model: &str) -> Option<String> {
    match request(fleet, model).await {
        Answer::From(url, _) => Some(url.to_string()),
        Answer::Overloaded | Answer::Unavailable => None,
    }
}

pub fn ids(fleet: &TestFleet) -> Vec<String> {
    let workers = fleet.workers().into_iter();
    workers.map(|worker| worker.id.to_string()).collect()
}

/// Has everything run that was woken.
pub async fn settled() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

pub fn kind<T>(result: Result<T, Refused>) -> Option<RefusedKind> {
    result.err().map(|refused| refused.kind())
}
