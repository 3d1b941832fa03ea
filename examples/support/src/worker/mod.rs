//! A worker: the mock engine behind the real layers, over HTTP.
//!
//! ```text
//! POST /v1/chat/completions ┐  parse    ┌ OverloadStatusLayer ┐
//! POST /v1/completions      ┴─────────▶ │ EngineAdmissionLayer│ ─▶ Engine
//!                            400, 404   └ 529                 ┘
//! GET  /health, /metrics, /v1/models    outside of the cap
//! ```
//!
//! A request is read and checked before it comes to the layers, so that one
//! that is wrong takes no slot. The stack itself is [`stack`], a few lines.
//!
//! Workers share nothing, so several can live in one process; each has its
//! own metrics on its own `/metrics`, and none touches a recorder that the
//! application has installed. Those of vLLM that tell its load are among them,
//! under vLLM's names.

mod engine;
mod http;
mod options;
mod stack;
mod vllm;

pub use engine::{Engine, EngineBody, EngineFuture};
pub use options::WorkerConfig;
pub use stack::{Stack, stack};
pub use vllm::Exporter;

use crate::{
    engine::{Batch, Ledger, RankLoad},
    report::{Report, Telling},
    serve::{Server, listen},
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::task::JoinSet;
use tower_overload::{
    admin::Reporter,
    admission::{AdmissionHandle, EngineAdmissionLayer},
    fleet::Registration,
    metrics::{Prefix, describe},
    nats::{self, Publisher, Subjects},
    upstream::HttpWorkerBuilder,
};

/// A worker that runs in the background.
///
/// Dropping it is its sudden death: connections are cut where they stand, and
/// no gateway is told. [`drain`](Worker::drain) is the end in good order.
#[derive(Debug)]
pub struct Worker {
    id: String,
    url: String,
    server: Server,
    ledger: Arc<Ledger>,
    admission: Option<AdmissionHandle>,
    /// Tells the gateway, if there is one to tell.
    telling: Option<Telling>,
    /// Keeps the metrics from growing.
    _upkeep: JoinSet<()>,
}

impl Worker {
    /// Listens, serves, and tells the gateway or the fleet of itself if one is
    /// configured.
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on.
    pub async fn start(config: WorkerConfig) -> io::Result<Self> {
        let listener = listen(config.listen).await?;
        let address = listener.local_addr()?;
        let id = config.id.unwrap_or_else(|| address.to_string());
        let url = match (&config.advertise, config.reached_at) {
            (Some(url), _) => url.to_string(),
            (None, Some(ip)) => format!("http://{}", SocketAddr::new(ip, address.port())),
            (None, None) => format!("http://{address}"),
        };
        let ledger = Arc::new(Ledger::new(config.dp_ranks, config.kv_block_size));
        let admission = EngineAdmissionLayer::from_limits(config.limits);
        let handle = admission.handle();

        // The layers make their handles when they make their services, so
        // whatever recorder is the local one then is theirs for good.
        let recorder = PrometheusBuilder::new().build_recorder();
        let stack = metrics::with_local_recorder(&recorder, || {
            describe(&Prefix::default());
            let batch = config.batch.map(|size| Batch::new(config.dp_ranks, size));
            let engine = Engine::new(Arc::clone(&ledger), config.timing)
                .batch(batch.map(Arc::new))
                .stream_interval(config.stream_interval);
            let behind_gateway = config.register.is_some() || config.nats.is_some();
            stack(admission, engine, behind_gateway)
        });
        let own = recorder.handle();
        let vllm = vllm::Exporter {
            ledger: Arc::clone(&ledger),
            admission: handle.clone(),
            model: config.model.clone(),
            kv_total_blocks: config.kv_total_blocks,
            kv_block_size: config.kv_block_size,
        };
        let metrics = move || own.render() + &vllm.render();
        let app = http::router(stack, config.model.clone(), metrics);
        let server = Server::on(listener, app)?;

        let mut report = None;
        if let Some(admin) = &config.register {
            let gateway = HttpWorkerBuilder::new().build(&admin.to_string());
            let worker = Registration::at(&url)
                .dp_ranks(0..config.dp_ranks)
                .kv_total_blocks(config.kv_total_blocks)
                .max_num_batched_tokens(config.max_num_batched_tokens)
                .models([&config.model]);
            let gateway = gateway.map_err(io::Error::other)?;
            report = Some(Report::Http(Reporter::start(gateway, &id, worker)));
        }
        if let Some(servers) = &config.nats {
            let registration = nats::Registration::new(&url, [&config.model])
                .dp_ranks(0..config.dp_ranks)
                .kv_total_blocks(config.kv_total_blocks)
                .max_num_batched_tokens(config.max_num_batched_tokens)
                .ttl(config.nats_ttl);
            let client = nats::connect(servers).await.map_err(io::Error::other)?;
            let publisher = Publisher::start(client, &Subjects::default(), &id, registration);
            report = Some(Report::Nats(publisher.map_err(io::Error::other)?));
        }
        let telling = report.map(|report| Telling::start(report, Arc::clone(&ledger)));
        let mut upkeep = JoinSet::new();
        upkeep.spawn(keep_up(recorder.handle()));
        Ok(Self {
            id,
            url,
            server,
            ledger,
            admission: handle,
            telling,
            _upkeep: upkeep,
        })
    }

    /// What it is called.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The address that it listens on, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Where others reach it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What the requests in its engine occupy, by rank.
    pub fn loads(&self) -> Vec<RankLoad> {
        self.ledger.snapshot().collect()
    }

    /// Its admission, to look at or to change; `None` without a cap.
    pub fn admission(&self) -> Option<&AdmissionHandle> {
        self.admission.as_ref()
    }

    /// Leaves the gateway, then takes no new request, and completes when the
    /// last one that it has, running or queued, has ended.
    ///
    /// Cancelling it cuts what is left.
    pub async fn drain(mut self) {
        if let Some(telling) = self.telling.take() {
            telling.leave().await;
        }
        self.server.drain().await;
    }
}

/// The recorder keeps every sample of a histogram until somebody asks for
/// them, and perhaps nobody does.
async fn keep_up(metrics: PrometheusHandle) {
    let mut interval = tokio::time::interval(Duration::from_secs(5));
    loop {
        interval.tick().await;
        metrics.run_upkeep();
    }
}
