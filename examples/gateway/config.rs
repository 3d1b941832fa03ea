//! What the gateway is asked for, on the command line or by a test.

use super::{balance::Balance, observer::Observer};
use clap::{Args, Parser};
use http::{HeaderName, Uri, uri::PathAndQuery};
use overload_examples::{
    cli::{
        self, DAY_MS, Limit, Lookup, MOST, UsageError, address, at_least_0, base_url, flag_or_env,
        millis, name, nats_servers, rate, unless_off, whole,
    },
    engine::Timing,
    worker::WorkerConfig,
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroU64,
    time::Duration,
};
use tower_overload::{
    admission::{Limits, MAX_LIMIT, MIN_QUEUE_LIMIT_IN_ENV},
    limits::TimeLimitLayer,
    load::ThresholdUpdate,
    nats::Servers,
    status::{DEFAULT_OVERLOAD_STATUS, OVERLOAD_STATUS_VARIABLE, parse_overload_status},
};

/// How a [`Gateway`](super::Gateway) is set up. What is documented here is the
/// help of its options.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "gateway",
    about = "A gateway that keeps requests away from busy workers",
    long_about = None
)]
pub struct GatewayConfig {
    /// Where clients connect; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDR", value_parser = address)]
    pub listen: SocketAddr,

    /// Where operators and workers connect; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDR", value_parser = address)]
    pub admin_listen: SocketAddr,

    /// The model whose thresholds the flags set; known from the start
    #[arg(long, default_value = "tiny", value_parser = name)]
    pub model: String,

    /// A worker that is there from the start and never expires (repeatable)
    #[arg(long = "worker", value_name = "ID=URL", value_parser = worker)]
    pub workers: Vec<(String, Uri)>,

    /// KV blocks of each rank of a --worker [default: not known]
    #[arg(long, value_name = "BLOCKS", value_parser = whole(1..=MOST.get()))]
    pub worker_kv_total_blocks: Option<u64>,

    /// Prompt tokens that each rank of a --worker takes in one step [default: not known]
    #[arg(long, value_name = "TOKENS", value_parser = whole(1..=MOST.get()))]
    pub worker_max_num_batched_tokens: Option<u64>,

    /// Hear of the workers of a fleet over NATS: URLs of its servers,
    /// separated by commas
    #[arg(long, value_name = "URLS", value_parser = nats_servers)]
    pub nats: Option<Servers>,

    /// Mock workers in this process [default: 2, or 0 with --worker or --nats]
    #[arg(long, value_name = "K", value_parser = whole(0..=256_usize))]
    pub embedded_workers: Option<usize>,

    /// Start without workers and wait for registrations
    #[arg(long, conflicts_with = "embedded_workers")]
    pub no_embedded_workers: bool,

    #[command(flatten)]
    pub embedded_options: EmbeddedOptions,

    // What the options above come to. Ids, addresses and the gateway are
    // filled in for each worker.
    #[arg(skip)]
    pub embedded: WorkerConfig,

    /// A rank is busy above this share of its KV blocks, from 0 to 1
    /// [env: DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD] [default: none]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub active_decode_blocks_threshold: Option<f64>,

    /// A rank is busy above this many prompt tokens in prefill
    /// [env: DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD] [default: none]
    #[arg(long, value_name = "TOKENS", value_parser = whole(0..=u64::MAX))]
    pub active_prefill_tokens_threshold: Option<u64>,

    /// A rank is busy above this many times its batch in prefill
    /// [env: DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC] [default: none]
    #[arg(long, value_name = "TIMES", value_parser = at_least_0)]
    pub active_prefill_tokens_threshold_frac: Option<f64>,

    // What the three above come to.
    #[arg(skip = ThresholdUpdate::new())]
    pub thresholds: ThresholdUpdate,

    // Of the environment only.
    #[arg(skip = DEFAULT_OVERLOAD_STATUS)]
    pub overload_status: u16,

    /// How long a worker that refused a request gets no other, in ms
    #[arg(long = "lease-ms", default_value = "1000", value_name = "MS", value_parser = millis(0..=DAY_MS))]
    pub lease: Duration,

    /// How long a reported load is good, in ms; 0 is for ever
    #[arg(long = "stale-after-ms", default_value = "30000", value_name = "MS", value_parser = unless_off)]
    pub stale_after: Limit,

    /// A registered worker that sends nothing for this long is removed, in ms
    #[arg(long = "registration-ttl-ms", default_value = "10000", value_name = "MS", value_parser = millis(1..=DAY_MS))]
    pub registration_ttl: Duration,

    /// Read the load of workers that do not report it, such as vLLM and
    /// SGLang, from their /metrics
    #[arg(long)]
    pub scrape: bool,

    /// How long after one reading of a worker's metrics the next one is, in ms;
    /// at most half of --stale-after-ms
    #[arg(long = "scrape-interval-ms", default_value = "1000", value_name = "MS", value_parser = millis(1..=DAY_MS))]
    pub scrape_interval: Duration,

    /// How a worker is chosen among those that take requests
    #[arg(long, value_enum, default_value_t, value_name = "CHOICE")]
    pub balance: Balance,

    /// With --balance affinity: requests with the same value of this header go
    /// to the same worker; those without it by the head of the prompt
    #[arg(long, value_name = "NAME", value_parser = header_name)]
    pub affinity_header: Option<HeaderName>,

    /// At most N requests at once at each worker [default: any number]
    #[arg(long, value_name = "N", value_parser = whole(NonZeroU64::MIN..=MOST))]
    pub max_in_flight: Option<NonZeroU64>,

    /// At most N requests wait for a worker at once; the next one is refused
    #[arg(long, default_value = "1024", value_name = "N", value_parser = whole(0..=MAX_LIMIT))]
    pub max_waiting: usize,

    /// How long a request that finds out whether a worker is back holds the
    /// others back, in ms
    #[arg(long = "probe-timeout-ms", default_value = "1000", value_name = "MS", value_parser = millis(1..=DAY_MS))]
    pub probe_timeout: Duration,

    /// How long a worker is busy by counts that stay the same before a request
    /// asks it whether it still is, in ms; 0 is for ever
    #[arg(long = "probe-after-ms", default_value = "10000", value_name = "MS", value_parser = unless_off)]
    pub probe_after: Limit,

    /// Ask every worker for this path, such as /health: an answer ends its
    /// mark as unreachable [default: no worker is asked]
    #[arg(long, value_name = "PATH", value_parser = path)]
    pub health_path: Option<PathAndQuery>,

    /// How often each is asked, and how long its answer may take, in ms
    #[arg(long = "health-interval-ms", default_value = "2000", value_name = "MS", value_parser = millis(1..=DAY_MS))]
    pub health_interval: Duration,

    /// How long a request waits at most for a worker that takes it, in ms
    #[arg(long = "max-wait-ms", default_value = "3000", value_name = "MS", value_parser = millis(0..=DAY_MS))]
    pub max_wait: Duration,

    #[command(flatten)]
    pub limits: WorkerLimits,

    /// How often a request that a worker refused is offered to another
    #[arg(long, default_value = "1", value_name = "N", value_parser = whole(0..=64_usize))]
    pub retry_refused: usize,

    /// Offer refused requests to others up to this share of all requests, in
    /// percent, and ten a second in any case
    #[arg(long, default_value = "20", value_name = "PERCENT", value_parser = whole(0..=1000_u32))]
    pub retry_budget_percent: u32,

    /// Send requests again that were lost with their worker up to this share
    /// of those in flight, in percent, and ten in any case
    #[arg(long, default_value = "50", value_name = "PERCENT", value_parser = whole(0..=100_u64))]
    pub retry_lost_percent: u64,

    /// The longest body of a request; longer ones are answered with 413
    #[arg(long, default_value = "10485760", value_name = "BYTES", value_parser = whole(1..=1_usize << 30))]
    pub max_body_bytes: usize,

    /// How long a client may send nothing of a body that it has begun, in ms
    #[arg(long = "body-silence-ms", default_value = "30000", value_name = "MS", value_parser = millis(1..=DAY_MS))]
    pub body_silence: Duration,

    /// How long a client's connection is kept without a request, in ms; longer
    /// than the load balancer before it keeps its own
    #[arg(long = "client-idle-ms", default_value = "75000", value_name = "MS", value_parser = millis(1..=DAY_MS))]
    pub client_idle: Duration,

    /// Count the load of workers by the requests that were sent to them, in
    /// place of the prefill tokens and decode blocks that they report
    #[arg(long)]
    pub router_track_load: bool,

    /// As --router-track-load, and count the blocks of the output as it streams
    #[arg(long)]
    pub router_track_output_blocks: bool,

    /// Tokens of a KV block of the workers, for --router-track-load
    #[arg(long, default_value = "16", value_name = "TOKENS", value_parser = whole(NonZeroU64::MIN..=MOST))]
    pub router_block_size: NonZeroU64,

    // Is told of every answer to a client, and how long it took.
    #[arg(skip)]
    pub observer: Option<Observer>,
}

/// The workers in the process of the gateway.
#[derive(Clone, Debug, Args)]
pub struct EmbeddedOptions {
    /// At most N requests in the engine of an embedded worker
    #[arg(long, default_value = "4", value_name = "N", value_parser = whole(1..=MAX_LIMIT))]
    embedded_engine_request_limit: usize,

    /// At most Q requests waiting in an embedded worker
    #[arg(long, default_value = "4", value_name = "Q", value_parser = whole(MIN_QUEUE_LIMIT_IN_ENV..=MAX_LIMIT))]
    embedded_request_queue_limit: usize,

    /// Prompt tokens a second of each request; 0 is infinitely fast
    #[arg(long, default_value = "8000", value_name = "RATE", value_parser = rate)]
    embedded_prefill_tokens_per_second: f64,

    /// Generated tokens a second of each request; 0 is infinitely fast
    #[arg(long, default_value = "50", value_name = "RATE", value_parser = rate)]
    embedded_decode_tokens_per_second: f64,

    /// KV blocks of each rank of an embedded worker
    #[arg(long, default_value = "4096", value_name = "BLOCKS", value_parser = whole(1..=MOST.get()))]
    embedded_kv_total_blocks: u64,

    /// Tokens of a KV block of an embedded worker
    #[arg(long, default_value = "16", value_name = "TOKENS", value_parser = whole(NonZeroU64::MIN..=MOST))]
    embedded_kv_block_size: NonZeroU64,

    /// Prompt tokens that a rank of an embedded worker takes in one step
    #[arg(long, default_value = "8192", value_name = "TOKENS", value_parser = whole(1..=MOST.get()))]
    embedded_max_num_batched_tokens: u64,

    /// Data-parallel ranks of an embedded worker
    #[arg(long, default_value = "1", value_name = "RANKS", value_parser = whole(1..=1024_u32))]
    embedded_dp_ranks: u32,
}

/// How long a worker may take; `None` is any time.
#[derive(Clone, Copy, Debug, Parser)]
pub struct WorkerLimits {
    /// How long a connection to a worker may take, in ms; 0 is any time
    #[arg(long = "connect-timeout-ms", default_value = "1000", value_name = "MS", value_parser = unless_off)]
    pub connect: Limit,

    /// How long the head of an answer may take that is streamed, in ms; 0 is
    /// any time
    #[arg(long = "head-timeout-ms", default_value = "60000", value_name = "MS", value_parser = unless_off)]
    pub head: Limit,

    /// How long the head of any other answer may take, which comes with the
    /// last token, in ms; 0 is any time
    #[arg(long = "whole-head-timeout-ms", default_value = "0", value_name = "MS", value_parser = unless_off)]
    pub whole_head: Limit,

    /// How long the first frame of an answer may take after the head, in ms; 0
    /// is any time
    #[arg(long = "first-frame-timeout-ms", default_value = "60000", value_name = "MS", value_parser = unless_off)]
    pub first_frame: Limit,

    /// How long each frame of an answer may take after the one before it, in
    /// ms; 0 is any time
    #[arg(long = "frame-timeout-ms", default_value = "30000", value_name = "MS", value_parser = unless_off)]
    pub frame: Limit,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        cli::defaults()
    }
}

impl WorkerLimits {
    /// The layer around a worker, which is called as it is here.
    pub fn layer(&self, worker: &str) -> TimeLimitLayer {
        TimeLimitLayer::new()
            .worker(worker)
            .head(self.head)
            .whole_head(self.whole_head)
            .first_frame(self.first_frame)
            .frame(self.frame)
    }
}

impl Default for GatewayConfig {
    /// What the options default to, but without embedded workers and on free
    /// ports.
    fn default() -> Self {
        let any_port = (Ipv4Addr::LOCALHOST, 0).into();
        Self {
            listen: any_port,
            admin_listen: any_port,
            no_embedded_workers: true,
            ..cli::defaults()
        }
    }
}

impl EmbeddedOptions {
    fn worker(&self) -> Result<WorkerConfig, UsageError> {
        let slots = self.embedded_engine_request_limit;
        let limits = Limits::new(slots, self.embedded_request_queue_limit)
            .map_err(|error| UsageError::new("--embedded-engine-request-limit", slots, error))?;
        Ok(WorkerConfig {
            limits: Some(limits),
            timing: Timing {
                prefill_tokens_per_second: self.embedded_prefill_tokens_per_second,
                decode_tokens_per_second: self.embedded_decode_tokens_per_second,
            },
            kv_total_blocks: self.embedded_kv_total_blocks,
            kv_block_size: self.embedded_kv_block_size,
            max_num_batched_tokens: self.embedded_max_num_batched_tokens,
            dp_ranks: self.embedded_dp_ranks,
            ..WorkerConfig::default()
        })
    }
}

impl GatewayConfig {
    /// Adds what the environment says where no flag does, and checks what has
    /// to go together.
    ///
    /// # Errors
    ///
    /// If a variable that is read has a value that is not allowed, or two
    /// options contradict each other.
    pub fn with_environment(mut self, environment: Lookup<'_>) -> Result<Self, UsageError> {
        let decode = flag_or_env(
            self.active_decode_blocks_threshold,
            "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD",
            environment,
            share,
        )?;
        let prefill = flag_or_env(
            self.active_prefill_tokens_threshold,
            "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",
            environment,
            whole(0..=u64::MAX),
        )?;
        let prefill_frac = flag_or_env(
            self.active_prefill_tokens_threshold_frac,
            "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",
            environment,
            at_least_0,
        )?;
        if let Some(decode) = decode {
            self.thresholds = self.thresholds.active_decode_blocks(decode);
        }
        if let Some(prefill) = prefill {
            self.thresholds = self.thresholds.active_prefill_tokens(prefill);
        }
        if let Some(frac) = prefill_frac {
            self.thresholds = self.thresholds.active_prefill_tokens_frac(frac);
        }
        // A variable that means nothing means 529, so it has no error.
        if let Some(value) = environment(OVERLOAD_STATUS_VARIABLE) {
            self.overload_status = parse_overload_status(&value.to_string_lossy()).as_u16();
        }
        self.embedded = self.embedded_options.worker()?;
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), UsageError> {
        // Two workers of one id would be one worker that is configured twice.
        let mut ids: Vec<_> = self.embedded_ids().collect();
        for (id, url) in &self.workers {
            if ids.contains(id) {
                let value = format!("{id}={url}");
                let expected = "expected an id that no other worker has";
                return Err(UsageError::new("--worker", value, expected));
            }
            ids.push(id.clone());
        }
        let has_keys = self.balance == Balance::Affinity;
        if let Some(name) = self.affinity_header.as_ref().filter(|_| !has_keys) {
            let expected = "expected with --balance affinity only";
            return Err(UsageError::new("--affinity-header", name, expected));
        }
        // A worker that is full would be free from when its load is stale to
        // when it is read again; and readings are not quite regular.
        match self.stale_after {
            Some(stale_after) if self.scrape && self.scrape_interval > stale_after / 2 => {
                let stale_after = stale_after.as_millis();
                let expected = format!("expected at most half of --stale-after-ms, {stale_after}");
                let interval = self.scrape_interval.as_millis();
                Err(UsageError::new("--scrape-interval-ms", interval, expected))
            }
            _ => Ok(()),
        }
    }

    /// What the workers in this process are called.
    pub fn embedded_ids(&self) -> impl Iterator<Item = String> + use<> {
        let alone = self.workers.is_empty() && self.nats.is_none();
        let workers = match self.embedded_workers {
            Some(workers) => workers,
            None if alone && !self.no_embedded_workers => 2,
            None => 0,
        };
        (0..workers).map(|n| format!("worker-{n}"))
    }

    /// Whether load is counted by the requests that were sent, in place of the
    /// same counts that workers report.
    pub fn tracks_load(&self) -> bool {
        self.router_track_load || self.router_track_output_blocks
    }
}

fn worker(value: &str) -> Result<(String, Uri), String> {
    match value.split_once('=') {
        Some((id, url)) => Ok((name(id)?, base_url(url)?)),
        None => Err("expected ID=URL, such as a=http://127.0.0.1:8100".into()),
    }
}

fn path(value: &str) -> Result<PathAndQuery, String> {
    let path = value.parse().ok().filter(|_| value.starts_with('/'));
    path.ok_or_else(|| "expected a path that begins with /, such as /health".into())
}

fn header_name(value: &str) -> Result<HeaderName, String> {
    let name = value.parse();
    name.map_err(|_| "expected the name of a header, such as x-session-id".into())
}

fn share(value: &str) -> Result<f64, String> {
    match value.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".into()),
    }
}
