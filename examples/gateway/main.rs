//! A gateway that keeps requests away from busy workers, with two mock workers
//! in the process:
//!
//! ```text
//! cargo run --release --example gateway
//! ```
//!
//! What clients send is read and checked by the [`front`], and then passes the
//! [`stack`] of its model, at whose end is the client of a [`worker`]:
//!
//! ```text
//! clients ─▶ Front                 413, 400, 404; the model, the cost, the key
//!              │   a stack for each model
//!              ▼
//!            OverloadStatusLayer   a refusal becomes 529, no worker 503
//!            EventStreamLayer      a stream that breaks off ends with an error
//!            RetryLayer            what was refused or lost goes to another worker
//!            WorkerPool            picks a worker that is not busy, or waits
//!              │   a client for each worker
//!              ▼
//!            TrackLoad             counts what was sent, with --router-track-load
//!            TimeLimit             gives up on a worker that hangs
//!            HttpWorker ─▶ workers
//! ```
//!
//! Who the workers are, and what they are loaded with, the [`fleet`] hears from
//! its [`sources`], and tells the pools:
//!
//! ```text
//! --worker, known from the start ──┐
//! FleetApi: registrations, load ───┤
//! --nats: the same, of a fleet ────┼─▶ Fleet ─▶ monitor ─▶ busy marks ─▶ pools
//! --scrape: the workers' metrics ──┤
//! --router-track-load: TrackLoad ──┤
//! --health-path: who is back ──────┘
//! ```
//!
//! Clients reach the front, and operators and workers the [`admin`] API on an
//! address of its own. SIGTERM or ctrl-c drains the gateway; a second one ends
//! it at once.

mod admin;
mod balance;
mod config;
mod metrics;
mod observer;
mod running;
mod worker;

pub use balance::Balance;
pub use config::{GatewayConfig, WorkerLimits};
pub use observer::Observer;
pub use running::Gateway;

use axum::body::Body;
use balance::Loads;
use http::{Request, Response};
use metrics::Metrics;
use overload_examples::{
    cli::{self, UsageError},
    serve::listen,
};
use std::{convert::Infallible, io, process::ExitCode, sync::Arc, time::Duration};
use tokio::task::JoinSet;
use tower::{Layer, ServiceBuilder, retry::RetryLayer, util::BoxCloneSyncService};
use tower_overload::{
    BoxError,
    busy::{BusySet, Members, RetryBudget, RetryRefused},
    fleet::{Compose, Connect, FleetBuilder, Id, Origin, Registration},
    front::{Front, FrontBuilder, Problem, WholeBody},
    metrics::Prefix,
    nats::FleetSource,
    pool::WorkerPoolBuilder,
    status::{AnswerAll, OverloadStatusLayer},
    upstream::{HttpWorkerBuilder, forward::Forwarding, sse::EventStreamLayer},
};
use worker::{Tracker, Worker};

/// A request on its way to a worker: its body is in memory, so that it can be
/// sent again.
type Upstream = Request<WholeBody>;

/// What a request passes once its model is known. It never fails, since the
/// status layer answers.
type Stack = BoxCloneSyncService<Upstream, Response<Body>, Infallible>;

/// The workers that are there, and the stack of each model.
type Fleet = tower_overload::fleet::Fleet<Worker, Stack>;

#[tokio::main]
async fn main() -> io::Result<ExitCode> {
    let config: GatewayConfig = cli::parse();
    let config = config
        .with_environment(&cli::environment)
        .unwrap_or_else(|error| error.exit());
    cli::init_logging();

    let mut shutdown = cli::Shutdown::install()?;
    let (address, admin_address) = (config.listen, config.admin_listen);
    let public = listen(address)
        .await
        .unwrap_or_else(|error| UsageError::new("--listen", address, error).exit());
    let admin = listen(admin_address)
        .await
        .unwrap_or_else(|error| UsageError::new("--admin-listen", admin_address, error).exit());
    let gateway = Gateway::on(public, admin, config).await?;
    cli::announce("", gateway.address());
    cli::announce("admin ", gateway.admin_address());

    shutdown.requested().await;
    tracing::info!("draining");
    tokio::select! {
        () = gateway.drain() => Ok(ExitCode::SUCCESS),
        () = shutdown.requested() => Ok(ExitCode::FAILURE),
    }
}

/// What reads and checks the requests of clients.
fn front(config: &GatewayConfig, forwarding: &Forwarding, fleet: &Fleet) -> Front<Worker, Stack> {
    let forwarding = forwarding.clone();
    let mut front = FrontBuilder::new()
        .check(move |parts| forwarding.check(parts).map_err(Problem::from))
        .max_body_bytes(config.max_body_bytes)
        .body_silence(config.body_silence);
    if config.tracks_load() || config.balance.reads_prompts() {
        front = front.costs(config.router_block_size);
    }
    if config.balance == Balance::Affinity {
        front = front.keys(config.affinity_header.clone());
    }
    front.build(fleet.clone())
}

/// What a request of `model` passes, and the workers that it can come to.
///
/// It needs a runtime, where the pool's driver runs until the stack is dropped.
fn stack(
    config: &GatewayConfig,
    loads: &Loads,
    status: &OverloadStatusLayer<AnswerAll>,
    model: Compose<'_, Worker>,
) -> (Stack, Members) {
    let mut pool = WorkerPoolBuilder::new(model.set)
        .max_wait(config.max_wait)
        .max_waiting(config.max_waiting);
    if let Some(limit) = config.max_in_flight {
        pool = pool.max_in_flight(limit);
    }
    let pool = loads.balance(config.balance, pool).build(model.changes);
    tokio::spawn(pool.driver());
    let members = pool.members();
    let in_flight = pool.clone();
    let budget = RetryBudget::with_rate(10, config.retry_budget_percent as f32 / 100.0)
        .in_flight(move || in_flight.in_flight())
        .lost_percent(config.retry_lost_percent);
    let stack = ServiceBuilder::new()
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(status.clone())
        // Below, so that the gateway's own answers do not go through it.
        .layer(EventStreamLayer::new())
        .layer(RetryLayer::new(RetryRefused::with_budget(
            config.retry_refused,
            budget,
        )))
        .service(pool);
    (BoxCloneSyncService::new(stack), members)
}

/// What sends the requests of a pool to one worker.
fn connect(
    config: &GatewayConfig,
    forwarding: &Forwarding,
    tracker: Option<&Tracker>,
    worker: &Connect<'_>,
) -> Result<Worker, BoxError> {
    let signs = worker.signs.clone();
    let client = HttpWorkerBuilder::new()
        .connect_limit(config.limits.connect)
        .on_connect(move || signs.reached())
        .forwarding(forwarding.clone())
        .build(&worker.url.to_string())?;
    let client = config.limits.layer(worker.id).layer(client);
    Ok(Worker::new(client, tracker, worker.id))
}

/// A fleet with the workers that are known from the start.
fn fleet(
    config: &GatewayConfig,
    metrics: &Metrics,
    tracker: Option<&Tracker>,
    forwarding: &Forwarding,
) -> io::Result<Fleet> {
    let status = OverloadStatusLayer::builder()
        .overload_status(config.overload_status)
        .strip_reason_from_upstream(true);
    let status = metrics.recorded(|| status.build());
    let status = status.map_err(io::Error::other)?.infallible();
    let marks = BusySet::<Id>::builder()
        .lease(config.lease)
        .max_lease(config.lease.max(Duration::from_secs(30)))
        .probe_timeout(config.probe_timeout)
        .probe_after(config.probe_after);
    let mut fleet = FleetBuilder::new()
        .monitor(metrics.monitor().clone())
        .sets(marks)
        .known_models(status.models().clone())
        .recorder(metrics.recorder())
        .default_model(&*config.model)
        .ttl(config.registration_ttl);
    if let Some(tracker) = tracker {
        fleet = fleet.tracker(tracker.clone());
    }
    let loads = Loads::new(metrics.monitor(), tracker);
    let shared = Arc::new(config.clone());
    let for_workers = (Arc::clone(&shared), forwarding.clone(), tracker.cloned());
    let fleet = fleet.build(
        move |worker: &Connect<'_>| {
            let (config, forwarding, tracker) = &for_workers;
            connect(config, forwarding, tracker.as_ref(), worker)
        },
        move |model: Compose<'_, Worker>| Ok::<_, BoxError>(stack(&shared, &loads, &status, model)),
    );
    let fleet = fleet.map_err(io::Error::other)?;

    let thresholds = fleet.thresholds().get(&config.model);
    let thresholds = thresholds.ok_or_else(|| io::Error::other("the model is gone"))?;
    thresholds
        .update(config.thresholds)
        .map_err(io::Error::other)?;
    for (id, url) in &config.workers {
        let worker = Registration::at(url.to_string())
            .kv_total_blocks(config.worker_kv_total_blocks)
            .max_num_batched_tokens(config.worker_max_num_batched_tokens);
        let registered = fleet.register(id, worker, Origin::Static);
        registered.map_err(|refused| io::Error::other(format!("worker {id}: {refused}")))?;
    }
    Ok(fleet)
}

/// What keeps the fleet up to date, beside its admin API, until it is dropped.
async fn sources(
    config: &GatewayConfig,
    metrics: &Metrics,
    tracker: Option<&Tracker>,
    fleet: &Fleet,
) -> io::Result<JoinSet<()>> {
    let mut sources = JoinSet::new();
    sources.spawn(fleet.expiry());
    if config.scrape {
        let every = config.scrape_interval;
        sources
            .spawn(metrics.recorded(|| fleet.scrape::<_, _, WholeBody, _>(every, Worker::client)));
    }
    if let Some(path) = config.health_path.clone() {
        let every = config.health_interval;
        sources.spawn(fleet.health_checks::<_, _, WholeBody, _>(path, every, Worker::client));
    }
    if let Some(tracker) = tracker {
        let fresh = tracker.keep_fresh();
        sources.spawn(async { match fresh.await {} });
    }
    if let Some(servers) = &config.nats {
        let options = metrics.recorded(|| servers.connect_options(&Prefix::default()));
        let nats = options.connect(servers).await.map_err(io::Error::other)?;
        let source = metrics.recorded(|| FleetSource::subscribe(&nats));
        sources.spawn(fleet.follow(source));
    }
    Ok(sources)
}
