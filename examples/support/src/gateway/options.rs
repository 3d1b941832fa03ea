use super::{Balance, GatewayConfig, HealthChecks, RouterTracking, WorkerLimits, embedded_id};
use crate::{
    cli::{Lookup, UsageError, address, base_url, flag_or_env, name, nats_servers, rate, whole},
    engine::Timing,
    worker::WorkerConfig,
};
use clap::Parser;
use http::{HeaderName, Uri, uri::PathAndQuery};
use std::{net::SocketAddr, num::NonZeroU64, time::Duration};
use tower_overload::{
    admission::{Limits, MAX_LIMIT, MIN_QUEUE_LIMIT_IN_ENV},
    load::ThresholdUpdate,
    nats::Servers,
    status::{DEFAULT_OVERLOAD_STATUS, OVERLOAD_STATUS_VARIABLE, parse_overload_status},
};

/// The options of the gateway.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "gateway",
    about = "A gateway that keeps requests away from busy workers"
)]
pub struct GatewayArgs {
    /// Where clients connect; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDR", value_parser = address)]
    listen: SocketAddr,

    /// Where operators and workers connect; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDR", value_parser = address)]
    admin_listen: SocketAddr,

    /// The model whose thresholds the flags set; known from the start
    #[arg(long, default_value = "tiny", value_parser = name)]
    model: String,

    /// A worker that is there from the start and never expires (repeatable)
    #[arg(long = "worker", value_name = "ID=URL", value_parser = worker)]
    workers: Vec<(String, Uri)>,

    /// KV blocks of each rank of a --worker [default: not known]
    #[arg(long, value_name = "BLOCKS", value_parser = whole(1..=MOST))]
    worker_kv_total_blocks: Option<u64>,

    /// Prompt tokens that each rank of a --worker takes in one step [default: not known]
    #[arg(long, value_name = "TOKENS", value_parser = whole(1..=MOST))]
    worker_max_num_batched_tokens: Option<u64>,

    /// Hear of the workers of a fleet over NATS: URLs of its servers,
    /// separated by commas
    #[arg(long, value_name = "URLS", value_parser = nats_servers)]
    nats: Option<Servers>,

    /// Mock workers in this process [default: 2, or 0 with --worker or --nats]
    #[arg(long, value_name = "K", value_parser = whole(0..=256_usize))]
    embedded_workers: Option<usize>,

    /// Start without workers and wait for registrations
    #[arg(long, conflicts_with = "embedded_workers")]
    no_embedded_workers: bool,

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
    #[arg(long, default_value = "4096", value_name = "BLOCKS", value_parser = whole(1..=MOST))]
    embedded_kv_total_blocks: u64,

    /// Tokens of a KV block of an embedded worker
    #[arg(long, default_value = "16", value_name = "TOKENS", value_parser = whole(NonZeroU64::MIN..=NonZeroU64::new(MOST).unwrap()))]
    embedded_kv_block_size: NonZeroU64,

    /// Prompt tokens that a rank of an embedded worker takes in one step
    #[arg(long, default_value = "8192", value_name = "TOKENS", value_parser = whole(1..=MOST))]
    embedded_max_num_batched_tokens: u64,

    /// Data-parallel ranks of an embedded worker
    #[arg(long, default_value = "1", value_name = "RANKS", value_parser = whole(1..=1024_u32))]
    embedded_dp_ranks: u32,

    /// A rank is busy above this share of its KV blocks, from 0 to 1
    /// [env: DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD] [default: none]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    active_decode_blocks_threshold: Option<f64>,

    /// A rank is busy above this many prompt tokens in prefill
    /// [env: DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD] [default: none]
    #[arg(long, value_name = "TOKENS", value_parser = whole(0..=u64::MAX))]
    active_prefill_tokens_threshold: Option<u64>,

    /// A rank is busy above this many times its batch in prefill
    /// [env: DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC] [default: none]
    #[arg(long, value_name = "TIMES", value_parser = fraction)]
    active_prefill_tokens_threshold_frac: Option<f64>,

    /// How long a worker that refused a request gets no other, in ms
    #[arg(long, default_value = "1000", value_name = "MS", value_parser = whole(0..=DAY_MS))]
    lease_ms: u64,

    /// How long a reported load is good, in ms; 0 is for ever
    #[arg(long, default_value = "30000", value_name = "MS", value_parser = whole(0..=DAY_MS))]
    stale_after_ms: u64,

    /// A registered worker that sends nothing for this long is removed, in ms
    #[arg(long, default_value = "10000", value_name = "MS", value_parser = whole(1..=DAY_MS))]
    registration_ttl_ms: u64,

    /// Read the load of workers that do not report it, such as vLLM and
    /// SGLang, from their /metrics
    #[arg(long)]
    scrape: bool,

    /// How long after one reading of a worker's metrics the next one is, in ms;
    /// at most half of --stale-after-ms
    #[arg(long, default_value = "1000", value_name = "MS", value_parser = whole(1..=DAY_MS))]
    scrape_interval_ms: u64,

    /// How a worker is chosen among those that take requests
    #[arg(long, value_enum, default_value_t, value_name = "CHOICE")]
    balance: Balance,

    /// With --balance affinity: requests with the same value of this header go
    /// to the same worker; those without it by the head of the prompt
    #[arg(long, value_name = "NAME", value_parser = header_name)]
    affinity_header: Option<HeaderName>,

    /// At most N requests at once at each worker [default: any number]
    #[arg(long, value_name = "N", value_parser = whole(NonZeroU64::MIN..=NonZeroU64::new(MOST).unwrap()))]
    max_in_flight: Option<NonZeroU64>,

    /// At most N requests wait for a worker at once; the next one is refused
    #[arg(long, default_value = "1024", value_name = "N", value_parser = whole(0..=MAX_LIMIT))]
    max_waiting: usize,

    /// How long a request that finds out whether a worker is back holds the
    /// others back, in ms
    #[arg(long, default_value = "1000", value_name = "MS", value_parser = whole(1..=DAY_MS))]
    probe_timeout_ms: u64,

    /// How long a worker is busy by counts that stay the same before a request
    /// asks it whether it still is, in ms; 0 is for ever
    #[arg(long, default_value = "10000", value_name = "MS", value_parser = whole(0..=DAY_MS))]
    probe_after_ms: u64,

    /// Ask every worker for this path, such as /health: an answer ends its
    /// mark as unreachable [default: no worker is asked]
    #[arg(long, value_name = "PATH", value_parser = path)]
    health_path: Option<PathAndQuery>,

    /// How often each is asked, and how long its answer may take, in ms
    #[arg(long, default_value = "2000", value_name = "MS", value_parser = whole(1..=DAY_MS))]
    health_interval_ms: u64,

    /// How long a request waits at most for a worker that takes it, in ms
    #[arg(long, default_value = "3000", value_name = "MS", value_parser = whole(0..=DAY_MS))]
    max_wait_ms: u64,

    /// How long a connection to a worker may take, in ms; 0 is any time
    #[arg(long, default_value = "1000", value_name = "MS", value_parser = whole(0..=DAY_MS))]
    connect_timeout_ms: u64,

    /// How long the head of an answer may take that is streamed, in ms; 0 is
    /// any time
    #[arg(long, default_value = "60000", value_name = "MS", value_parser = whole(0..=DAY_MS))]
    head_timeout_ms: u64,

    /// How long the head of any other answer may take, which comes with the
    /// last token, in ms; 0 is any time
    #[arg(long, default_value = "0", value_name = "MS", value_parser = whole(0..=DAY_MS))]
    whole_head_timeout_ms: u64,

    /// How long the first frame of an answer may take after the head, in ms; 0
    /// is any time
    #[arg(long, default_value = "60000", value_name = "MS", value_parser = whole(0..=DAY_MS))]
    first_frame_timeout_ms: u64,

    /// How long each frame of an answer may take after the one before it, in
    /// ms; 0 is any time
    #[arg(long, default_value = "30000", value_name = "MS", value_parser = whole(0..=DAY_MS))]
    frame_timeout_ms: u64,

    /// How often a request that a worker refused is offered to another
    #[arg(long, default_value = "1", value_name = "N", value_parser = whole(0..=64_usize))]
    retry_refused: usize,

    /// Offer refused requests to others up to this share of all requests, in
    /// percent, and ten a second in any case
    #[arg(long, default_value = "20", value_name = "PERCENT", value_parser = whole(0..=1000_u32))]
    retry_budget_percent: u32,

    /// Send requests again that were lost with their worker up to this share
    /// of those in flight, in percent, and ten in any case
    #[arg(long, default_value = "50", value_name = "PERCENT", value_parser = whole(0..=100_u64))]
    retry_lost_percent: u64,

    /// The longest body of a request; longer ones are answered with 413
    #[arg(long, default_value = "10485760", value_name = "BYTES", value_parser = whole(1..=1_usize << 30))]
    max_body_bytes: usize,

    /// How long a client may send nothing of a body that it has begun, in ms
    #[arg(long, default_value = "30000", value_name = "MS", value_parser = whole(1..=DAY_MS))]
    body_silence_ms: u64,

    /// How long a client's connection is kept without a request, in ms; longer
    /// than the load balancer before it keeps its own
    #[arg(long, default_value = "75000", value_name = "MS", value_parser = whole(1..=DAY_MS))]
    client_idle_ms: u64,

    /// Count the load of workers by the requests that were sent to them, in
    /// place of the prefill tokens and decode blocks that they report
    #[arg(long)]
    router_track_load: bool,

    /// As --router-track-load, and count the blocks of the output as it streams
    #[arg(long)]
    router_track_output_blocks: bool,

    /// Tokens of a KV block of the workers, for --router-track-load
    #[arg(long, default_value = "16", value_name = "TOKENS", value_parser = whole(NonZeroU64::MIN..=NonZeroU64::new(MOST).unwrap()))]
    router_block_size: NonZeroU64,
}

const MOST: u64 = (1 << 53) - 1;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn worker(value: &str) -> Result<(String, Uri), String> {
    match value.split_once('=') {
        Some((id, url)) => Ok((name(id)?, base_url(url)?)),
        None => Err("expected ID=URL, such as a=http://127.0.0.1:8100".into()),
    }
}

/// Two workers of one id would be one worker that is configured twice.
fn distinct(workers: &[(String, Uri)], embedded: usize) -> Result<(), UsageError> {
    for (n, (id, url)) in workers.iter().enumerate() {
        let is_before = workers[..n].iter().any(|(other, _)| other == id);
        if is_before || (0..embedded).any(|n| embedded_id(n) == *id) {
            let value = format!("{id}={url}");
            let expected = "expected an id that no other worker has";
            return Err(UsageError::new("--worker", value, expected));
        }
    }
    Ok(())
}

/// A worker that is full would be free from when its load is stale to when it
/// is read again; and readings are not quite regular.
fn stays_fresh(interval_ms: u64, stale_after_ms: u64) -> Result<(), UsageError> {
    if stale_after_ms > 0 && interval_ms > stale_after_ms / 2 {
        let expected = format!("expected at most half of --stale-after-ms, {stale_after_ms}");
        let name = "--scrape-interval-ms";
        return Err(UsageError::new(name, interval_ms, expected));
    }
    Ok(())
}

/// A time of 0 switches it off.
fn unless_off(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
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

fn fraction(value: &str) -> Result<f64, String> {
    match value.parse() {
        Ok(fraction) if f64::is_finite(fraction) && fraction >= 0.0 => Ok(fraction),
        _ => Err("expected a number of at least 0".into()),
    }
}

impl GatewayArgs {
    /// The configuration that the options and the environment ask for; a flag
    /// beats a variable.
    ///
    /// # Errors
    ///
    /// If a variable that is read has a value that is not allowed.
    pub fn config(self, environment: Lookup<'_>) -> Result<GatewayConfig, UsageError> {
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
            fraction,
        )?;
        let mut thresholds = ThresholdUpdate::new();
        if let Some(decode) = decode {
            thresholds = thresholds.active_decode_blocks(decode);
        }
        if let Some(prefill) = prefill {
            thresholds = thresholds.active_prefill_tokens(prefill);
        }
        if let Some(frac) = prefill_frac {
            thresholds = thresholds.active_prefill_tokens_frac(frac);
        }
        // A variable that means nothing means 529, so it has no error.
        let overload_status = match environment(OVERLOAD_STATUS_VARIABLE) {
            Some(value) => parse_overload_status(&value.to_string_lossy()).as_u16(),
            None => DEFAULT_OVERLOAD_STATUS,
        };
        let alone = self.workers.is_empty() && self.nats.is_none();
        let default = if alone { 2 } else { 0 };
        let embedded_workers = match self.embedded_workers {
            _ if self.no_embedded_workers => 0,
            workers => workers.unwrap_or(default),
        };
        distinct(&self.workers, embedded_workers)?;
        let has_keys = self.balance == Balance::Affinity;
        if let Some(name) = self.affinity_header.as_ref().filter(|_| !has_keys) {
            let expected = "expected with --balance affinity only";
            return Err(UsageError::new("--affinity-header", name, expected));
        }
        if self.scrape {
            stays_fresh(self.scrape_interval_ms, self.stale_after_ms)?;
        }
        let (slots, queue) = (
            self.embedded_engine_request_limit,
            self.embedded_request_queue_limit,
        );
        let limits = Limits::new(slots, queue)
            .map_err(|error| UsageError::new("--embedded-engine-request-limit", slots, error))?;
        Ok(GatewayConfig {
            listen: self.listen,
            admin_listen: self.admin_listen,
            model: self.model.clone(),
            workers: self.workers,
            worker_kv_total_blocks: self.worker_kv_total_blocks,
            worker_max_num_batched_tokens: self.worker_max_num_batched_tokens,
            nats: self.nats,
            embedded_workers,
            embedded: WorkerConfig {
                model: self.model,
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
            },
            thresholds,
            overload_status,
            lease: Duration::from_millis(self.lease_ms),
            stale_after: unless_off(self.stale_after_ms),
            registration_ttl: Duration::from_millis(self.registration_ttl_ms),
            scrape: self
                .scrape
                .then(|| Duration::from_millis(self.scrape_interval_ms)),
            balance: self.balance,
            affinity_header: self.affinity_header,
            max_wait: Duration::from_millis(self.max_wait_ms),
            max_waiting: self.max_waiting,
            max_in_flight: self.max_in_flight,
            probe_timeout: Duration::from_millis(self.probe_timeout_ms),
            probe_after: unless_off(self.probe_after_ms),
            health: self.health_path.map(|path| HealthChecks {
                path,
                interval: Duration::from_millis(self.health_interval_ms),
            }),
            limits: WorkerLimits {
                connect: unless_off(self.connect_timeout_ms),
                head: unless_off(self.head_timeout_ms),
                whole_head: unless_off(self.whole_head_timeout_ms),
                first_frame: unless_off(self.first_frame_timeout_ms),
                frame: unless_off(self.frame_timeout_ms),
            },
            retry_refused: self.retry_refused,
            retry_budget_percent: self.retry_budget_percent,
            retry_lost_percent: self.retry_lost_percent,
            max_body_bytes: self.max_body_bytes,
            body_silence: Duration::from_millis(self.body_silence_ms),
            client_idle: Duration::from_millis(self.client_idle_ms),
            router_tracking: (self.router_track_load || self.router_track_output_blocks).then_some(
                RouterTracking {
                    block_size: self.router_block_size,
                    output_blocks: self.router_track_output_blocks,
                },
            ),
            observer: None,
        })
    }
}
