//! A gateway: new requests go to workers that are not busy, over HTTP.
//!
//! ```text
//! clients ─▶ front: read, find the model ──▶ stack of the model ─▶ workers
//! workers ─▶ admin:  registrations, load ──▶ fleet ─▶ pools, monitor, marks
//!         or NATS:   the same ───────────────┘
//! ```
//!
//! The stack of a model is `stack` in `stack.rs`, a few lines, and the fleet is
//! made in [`Gateway::on`]. The admin API is on an address of its own.

mod admin;
mod balance;
mod limits;
mod metrics;
mod observer;
mod options;
mod stack;
mod worker;

pub use balance::Balance;
pub use limits::WorkerLimits;
pub use observer::Observer;
pub use options::GatewayArgs;
pub use stack::Id;
pub use worker::RouterTracking;

use crate::{
    serve::{Server, listen},
    worker::{Worker, WorkerConfig},
};
use axum::Router;
use balance::Loads;
use http::{HeaderName, Uri, uri::PathAndQuery};
use metrics::Metrics;
use stack::{Stack, StackOptions, stack};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroU64,
    time::Duration,
};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_overload::{
    BoxError,
    busy::{BusySet, BusySetBuilder},
    fleet::{Compose, Connect, FleetBuilder, Origin, Registration},
    front::{FrontBuilder, Problem, WholeBody},
    load::ThresholdUpdate,
    metrics::Prefix,
    nats::{self, FleetSource},
    status::OverloadStatusLayer,
    upstream::forward::{Forwarding, XForwarded},
};
use worker::{Tracker, Worker as WorkerService};

/// The workers that are there, and the stack of each model.
type Fleet = tower_overload::fleet::Fleet<WorkerService, Stack>;

/// How workers are asked whether they are there, beside the requests that they
/// get.
#[derive(Clone, Debug)]
pub struct HealthChecks {
    /// What is asked for: an answer with a status of success is a sign of life.
    pub path: PathAndQuery,
    /// How often, and how long an answer may take.
    pub interval: Duration,
}

/// How a [`Gateway`] is set up; the default is that of the example's options,
/// without embedded workers and on free ports.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Where clients connect; port 0 is any free one.
    pub listen: SocketAddr,
    /// Where operators and workers connect; port 0 is any free one.
    pub admin_listen: SocketAddr,
    /// The model of requests and registrations that name none.
    pub model: String,
    /// Workers that are there from the start and never expire.
    pub workers: Vec<(String, Uri)>,
    /// KV blocks of each of them.
    pub worker_kv_total_blocks: Option<u64>,
    /// Prompt tokens that each of them takes in one step.
    pub worker_max_num_batched_tokens: Option<u64>,
    /// Where the workers of a fleet are heard of, if there is one.
    pub nats: Option<nats::Servers>,
    /// How many mock workers run in this process.
    pub embedded_workers: usize,
    /// How they are set up; their ids, addresses and gateway are filled in.
    pub embedded: WorkerConfig,
    /// The thresholds of `model`.
    pub thresholds: ThresholdUpdate,
    /// The status of overload.
    pub overload_status: u16,
    /// How long a worker that refused a request gets no other.
    pub lease: Duration,
    /// How long a reported load is good; `None` for ever.
    pub stale_after: Option<Duration>,
    /// A registered worker that is silent for this long is removed.
    pub registration_ttl: Duration,
    /// How often the metrics of each worker are read for its load; `None` for
    /// never.
    pub scrape: Option<Duration>,
    /// How a worker is chosen.
    pub balance: Balance,
    /// Requests with the same value of this header go to the same worker.
    pub affinity_header: Option<HeaderName>,
    /// How long a request waits at most for a worker that takes it.
    pub max_wait: Duration,
    /// How many requests wait at once.
    pub max_waiting: usize,
    /// How many requests a worker has at once; `None` for any number.
    pub max_in_flight: Option<NonZeroU64>,
    /// How long a request that probes a worker holds the others back.
    pub probe_timeout: Duration,
    /// How long a worker is busy by the same counts before a request asks it;
    /// `None` for ever.
    pub probe_after: Option<Duration>,
    /// How workers are asked whether they are there, if they are.
    pub health: Option<HealthChecks>,
    /// How long a worker may take.
    pub limits: WorkerLimits,
    /// How often a request that a worker refused is offered to another.
    pub retry_refused: usize,
    /// Retries of refused requests, in percent of all requests.
    pub retry_budget_percent: u32,
    /// Retries of requests that were lost with their worker, in percent of
    /// those in flight.
    pub retry_lost_percent: u64,
    /// The longest body of a request, also when it is decoded.
    pub max_body_bytes: usize,
    /// How long a client may send nothing of a body that it has begun.
    pub body_silence: Duration,
    /// How long a client's connection is kept without a request.
    pub client_idle: Duration,
    /// How load is counted by the requests that were sent, in place of the
    /// same counts that workers report; `None`: it is not.
    pub router_tracking: Option<RouterTracking>,
    /// Is told of every answer to a client, and how long it took.
    pub observer: Option<Observer>,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        let any_port = (Ipv4Addr::LOCALHOST, 0).into();
        Self {
            listen: any_port,
            admin_listen: any_port,
            model: "tiny".into(),
            workers: Vec::new(),
            worker_kv_total_blocks: None,
            worker_max_num_batched_tokens: None,
            nats: None,
            embedded_workers: 0,
            embedded: WorkerConfig::default(),
            thresholds: ThresholdUpdate::new(),
            overload_status: 529,
            lease: Duration::from_secs(1),
            stale_after: Some(Duration::from_secs(30)),
            registration_ttl: Duration::from_secs(10),
            scrape: None,
            balance: Balance::default(),
            affinity_header: None,
            max_wait: Duration::from_secs(3),
            max_waiting: 1024,
            max_in_flight: None,
            probe_timeout: Duration::from_secs(1),
            probe_after: Some(Duration::from_secs(10)),
            health: None,
            limits: WorkerLimits::default(),
            retry_refused: 1,
            retry_budget_percent: 20,
            retry_lost_percent: 50,
            max_body_bytes: 10 * 1024 * 1024,
            body_silence: Duration::from_secs(30),
            client_idle: Duration::from_secs(75),
            router_tracking: None,
            observer: None,
        }
    }
}

impl GatewayConfig {
    /// A fleet with the workers of the configuration.
    fn fleet(
        &self,
        metrics: &Metrics,
        tracker: Option<&Tracker>,
        forwarding: &Forwarding,
    ) -> io::Result<Fleet> {
        let status = OverloadStatusLayer::builder()
            .overload_status(self.overload_status)
            .strip_reason_from_upstream(true);
        let status = metrics.recorded(|| status.build());
        let status = status.map_err(io::Error::other)?.infallible();
        let mut fleet = FleetBuilder::new()
            .monitor(metrics.monitor().clone())
            .sets(self.sets())
            .known_models(status.models().clone())
            .recorder(metrics.recorder())
            .default_model(&*self.model)
            .ttl(self.registration_ttl);
        if let Some(tracker) = tracker {
            fleet = fleet.tracker(tracker.clone());
        }
        let (limits, of_worker) = (self.limits, tracker.cloned());
        let forwarding = forwarding.clone();
        let connect = move |worker: &Connect<'_>| {
            let tracker = of_worker.as_ref();
            WorkerService::connect(worker, &forwarding, &limits, tracker).map_err(BoxError::from)
        };
        let loads = Loads::new(metrics.monitor(), tracker);
        let options = self.stack();
        let compose = move |model: Compose<'_, WorkerService>| {
            Ok::<_, BoxError>(stack(model, &loads, &options, &status))
        };
        let fleet = fleet.build(connect, compose).map_err(io::Error::other)?;

        let thresholds = fleet.thresholds().get(&self.model);
        let thresholds = thresholds.ok_or_else(|| io::Error::other("the model is gone"))?;
        thresholds
            .update(self.thresholds)
            .map_err(io::Error::other)?;
        for (id, url) in &self.workers {
            let worker = Registration::at(url.to_string())
                .kv_total_blocks(self.worker_kv_total_blocks)
                .max_num_batched_tokens(self.worker_max_num_batched_tokens);
            let registered = fleet.register(id, worker, Origin::Static);
            registered.map_err(|refused| io::Error::other(format!("worker {id}: {refused}")))?;
        }
        Ok(fleet)
    }

    /// What reads the requests of clients.
    fn front(&self, forwarding: Forwarding) -> FrontBuilder {
        let front = FrontBuilder::new()
            .check(move |parts| forwarding.check(parts).map_err(Problem::from))
            .max_body_bytes(self.max_body_bytes)
            .body_silence(self.body_silence);
        let tracked = self.router_tracking.map(|how| how.block_size);
        let front = match tracked {
            None if !self.balance.reads_prompts() => front,
            block_size => front.costs(block_size.unwrap_or(DEFAULT_BLOCK_SIZE)),
        };
        match self.balance {
            Balance::Affinity => front.keys(self.affinity_header.clone()),
            _ => front,
        }
    }

    fn sets(&self) -> BusySetBuilder {
        BusySet::<Id>::builder()
            .lease(self.lease)
            .max_lease(self.lease.max(Duration::from_secs(30)))
            .probe_timeout(self.probe_timeout)
            .probe_after(self.probe_after)
    }

    fn stack(&self) -> StackOptions {
        StackOptions {
            balance: self.balance,
            max_wait: self.max_wait,
            max_waiting: self.max_waiting,
            max_in_flight: self.max_in_flight,
            retry_refused: self.retry_refused,
            retry_budget_percent: self.retry_budget_percent,
            retry_lost_percent: self.retry_lost_percent,
        }
    }
}

/// What sends requests to a worker that are not of a client.
fn client(worker: &WorkerService) -> worker::Client {
    worker.client.clone()
}

/// A gateway that runs in the background.
///
/// Dropping it is its sudden death; [`drain`](Gateway::drain) is the end in
/// good order.
#[derive(Debug)]
pub struct Gateway {
    public: Server,
    admin: Server,
    embedded: Vec<Worker>,
    /// Follows the fleet, removes silent workers and keeps the metrics from
    /// growing.
    _upkeep: JoinSet<()>,
}

/// Tokens of a KV block where nobody says: what engines have by default.
const DEFAULT_BLOCK_SIZE: NonZeroU64 = NonZeroU64::new(16).unwrap();

/// An embedded worker that has not registered after this long never will.
const EMBEDDED_WITHIN: Duration = Duration::from_secs(10);

impl Gateway {
    /// Listens and serves; the embedded workers have registered by then.
    ///
    /// # Errors
    ///
    /// If an address cannot be listened on, or something of the configuration
    /// cannot be used.
    pub async fn start(config: GatewayConfig) -> io::Result<Self> {
        let public = listen(config.listen).await?;
        let admin = listen(config.admin_listen).await?;
        Self::on(public, admin, config).await
    }

    /// As [`start`](Self::start), on listeners that are there already: those
    /// of the configuration do not matter.
    ///
    /// # Errors
    ///
    /// If something of the configuration cannot be used.
    pub async fn on(
        public: TcpListener,
        admin: TcpListener,
        config: GatewayConfig,
    ) -> io::Result<Self> {
        let metrics = Metrics::new(config.stale_after);
        let monitor = metrics.monitor();
        let tracker = config.router_tracking.map(|how| how.tracker(monitor));
        // Who the client is, is for the proxy before this one to say.
        let forwarding = Forwarding::new().x_forwarded(XForwarded::Pass);
        let fleet = config.fleet(&metrics, tracker.as_ref(), &forwarding)?;

        let mut upkeep = JoinSet::new();
        upkeep.spawn(fleet.expiry());
        let small = metrics.clone().keep_small();
        upkeep.spawn(async { match small.await {} });
        if let Some(interval) = config.scrape {
            upkeep.spawn(metrics.recorded(|| fleet.scrape::<_, _, WholeBody, _>(interval, client)));
        }
        if let Some(HealthChecks { path, interval }) = config.health.clone() {
            upkeep.spawn(fleet.health_checks::<_, _, WholeBody, _>(path, interval, client));
        }
        if let Some(tracker) = tracker {
            let fresh = tracker.keep_fresh();
            upkeep.spawn(async { match fresh.await {} });
        }
        if let Some(servers) = &config.nats {
            let options = metrics.recorded(|| servers.connect_options(&Prefix::default()));
            let nats = options.connect(servers).await.map_err(io::Error::other)?;
            let source = metrics.recorded(|| FleetSource::subscribe(&nats));
            upkeep.spawn(fleet.follow(source));
        }

        let admin = Server::on(admin, admin::router(fleet.clone(), metrics))?;
        let admin_url = url_of(admin.address());
        let mut embedded = Vec::new();
        for n in 0..config.embedded_workers {
            let worker = WorkerConfig {
                listen: (Ipv4Addr::LOCALHOST, 0).into(),
                id: Some(embedded_id(n)),
                model: config.model.clone(),
                register: Some(admin_url.clone()),
                advertise: None,
                ..config.embedded.clone()
            };
            embedded.push(Worker::start(worker).await?);
        }
        timeout(EMBEDDED_WITHIN, registered(&fleet, &embedded))
            .await
            .map_err(|_| io::Error::other("the embedded workers do not register"))?;
        let front = config.front(forwarding).build(fleet);
        let mut app = Router::new().fallback_service(front);
        if let Some(observer) = config.observer {
            app = observer.watch(app);
        }
        Ok(Self {
            public: Server::with_idle_limit(public, app, config.client_idle)?,
            admin,
            embedded,
            _upkeep: upkeep,
        })
    }

    /// The address for clients, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.public.address()
    }

    /// Where clients reach it.
    pub fn url(&self) -> Uri {
        url_of(self.address())
    }

    /// Where operators and workers reach it.
    pub fn admin_url(&self) -> Uri {
        url_of(self.admin_address())
    }

    /// The address for operators and workers, with the real port.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin.address()
    }

    /// The workers in this process.
    pub fn embedded(&self) -> &[Worker] {
        &self.embedded
    }

    /// Takes no new request, and completes when the last one has ended.
    ///
    /// Cancelling it cuts what is left.
    pub async fn drain(self) {
        self.public.drain().await;
        for worker in self.embedded {
            worker.drain().await;
        }
        self.admin.drain().await;
    }
}

/// What the `n`th worker in this process is called.
fn embedded_id(n: usize) -> String {
    format!("worker-{n}")
}

fn url_of(address: SocketAddr) -> Uri {
    Uri::builder()
        .scheme("http")
        .authority(address.to_string())
        .path_and_query("/")
        .build()
        .expect("an address and a port are an authority")
}

/// Completes when all of `workers` are in the fleet.
async fn registered(fleet: &Fleet, workers: &[Worker]) {
    while !workers.iter().all(|worker| fleet.knows(worker.id())) {
        sleep(Duration::from_millis(2)).await;
    }
}
