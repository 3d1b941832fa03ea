use crate::{
    cli::{Lookup, UsageError, address, base_url, name, nats_servers, rate, whole},
    engine::Timing,
};
use clap::Parser;
use http::Uri;
use std::{
    ffi::OsString,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket},
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    time::Duration,
};
use tower_overload::{
    admission::{
        ENGINE_REQUEST_LIMIT, Limits, MAX_LIMIT, MIN_QUEUE_LIMIT_IN_ENV, REQUEST_QUEUE_LIMIT,
    },
    nats::{Registration, Servers},
};

/// How a [`Worker`](super::Worker) is set up.
///
/// The default is that of the example's options: no cap, no gateway. Nothing
/// here comes from the environment.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerConfig {
    /// Where it listens; port 0 is any free one.
    pub listen: SocketAddr,
    /// What it is called; by default the address that it listens on.
    pub id: Option<String>,
    /// The one model that it serves.
    pub model: String,
    /// How many requests may be in the engine and how many may wait; `None`
    /// for no cap.
    pub limits: Option<Limits>,
    /// How fast the engine is.
    pub timing: Timing,
    /// How many requests of a rank have that speed; beyond, they share it
    /// ([`Batch`](crate::engine::Batch)). `None` for any number.
    pub batch: Option<NonZeroUsize>,
    /// How many tokens of a stream come at a time, after the first one.
    pub stream_interval: NonZeroU32,
    /// The KV blocks of each rank, as told to the gateway.
    pub kv_total_blocks: u64,
    /// The tokens of a KV block.
    pub kv_block_size: NonZeroU64,
    /// The prompt tokens of one step, as told to the gateway.
    pub max_num_batched_tokens: u64,
    /// The data-parallel ranks, from 1.
    pub dp_ranks: u32,
    /// The admin address of the gateway that it registers with.
    pub register: Option<Uri>,
    /// Where it tells a fleet's gateways of itself.
    pub nats: Option<Servers>,
    /// How long those remember it when they hear nothing.
    pub nats_ttl: Duration,
    /// Where the gateway reaches it; by default the address that it listens on.
    pub advertise: Option<Uri>,
    /// The address at which the gateway reaches it, if it listens on all.
    pub reached_at: Option<IpAddr>,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8100).into(),
            id: None,
            model: "tiny".into(),
            limits: None,
            timing: Timing {
                prefill_tokens_per_second: 8000.0,
                decode_tokens_per_second: 50.0,
            },
            batch: None,
            stream_interval: NonZeroU32::MIN,
            kv_total_blocks: 4096,
            kv_block_size: const { NonZeroU64::new(16).unwrap() },
            max_num_batched_tokens: 8192,
            dp_ranks: 1,
            register: None,
            nats: None,
            nats_ttl: Registration::DEFAULT_TTL,
            advertise: None,
            reached_at: None,
        }
    }
}

/// A mock inference worker: an engine that generates words, behind the real
/// admission of tower-overload, with the OpenAI API.
#[derive(Clone, Debug, Parser)]
#[command(name = "worker")]
pub struct WorkerArgs {
    /// Where to listen; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:8100", value_name = "ADDR:PORT", value_parser = address)]
    listen: SocketAddr,

    /// What the worker is called [default: the listen address]
    #[arg(long, value_parser = name)]
    id: Option<String>,

    /// The model that it serves
    #[arg(long, default_value = "tiny", value_parser = name)]
    model: String,

    /// At most N requests in the engine [env: DYN_ENGINE_REQUEST_LIMIT]
    /// [default: no cap]
    #[arg(long, value_name = "N", value_parser = whole(1..=MAX_LIMIT))]
    engine_request_limit: Option<usize>,

    /// At most Q requests waiting, if there is a cap
    /// [env: DYN_DYNAMO_REQUEST_QUEUE_LIMIT] [default: 16]
    #[arg(long, value_name = "Q", value_parser = whole(MIN_QUEUE_LIMIT_IN_ENV..=MAX_LIMIT))]
    request_queue_limit: Option<usize>,

    /// Prompt tokens a second of each request; 0 is infinitely fast
    #[arg(long, default_value = "8000", value_name = "RATE", value_parser = rate)]
    prefill_tokens_per_second: f64,

    /// Generated tokens a second of each request; 0 is infinitely fast
    #[arg(long, default_value = "50", value_name = "RATE", value_parser = rate)]
    decode_tokens_per_second: f64,

    /// How many requests of a rank have that speed; beyond, they share the
    /// throughput that so many have [default: any number]
    #[arg(long, value_name = "REQUESTS", value_parser = whole(NonZeroUsize::MIN..=NonZeroUsize::MAX))]
    batch: Option<NonZeroUsize>,

    /// Tokens of a stream that come at a time, after the first one
    #[arg(long, default_value = "1", value_name = "TOKENS", value_parser = whole(NonZeroU32::MIN..=NonZeroU32::MAX))]
    stream_interval: NonZeroU32,

    /// KV blocks of each rank
    #[arg(long, default_value = "4096", value_name = "BLOCKS", value_parser = whole(1..=MOST))]
    kv_total_blocks: u64,

    /// Tokens of a KV block
    #[arg(long, default_value = "16", value_name = "TOKENS", value_parser = block_size)]
    kv_block_size: NonZeroU64,

    /// Prompt tokens that a rank takes in one step
    #[arg(long, default_value = "8192", value_name = "TOKENS", value_parser = whole(1..=MOST))]
    max_num_batched_tokens: u64,

    /// Data-parallel ranks; requests go to them in turn
    #[arg(long, default_value = "1", value_name = "RANKS", value_parser = whole(1..=1024_u32))]
    dp_ranks: u32,

    /// The admin address of a gateway to register with
    #[arg(long, value_name = "URL", value_parser = base_url)]
    register: Option<Uri>,

    /// Tell the gateways of a fleet over NATS, instead: URLs of its servers,
    /// separated by commas
    #[arg(long, value_name = "URLS", value_parser = nats_servers, conflicts_with = "register")]
    nats: Option<Servers>,

    /// A fleet forgets this worker when it hears nothing for this long, in ms
    #[arg(long, default_value = "10000", value_name = "MS", value_parser = whole(SHORTEST_TTL_MS..=LONGEST_TTL_MS))]
    nats_ttl_ms: u64,

    /// Where the gateway reaches this worker [default: http:// and the listen
    /// address, or where that is all addresses, the one by which this machine
    /// reaches the gateway]
    #[arg(long, value_name = "URL", value_parser = base_url)]
    advertise: Option<Uri>,
}

const SHORTEST_TTL_MS: u64 = Registration::MIN_TTL.as_millis() as u64;
const LONGEST_TTL_MS: u64 = Registration::MAX_TTL.as_millis() as u64;

/// What is exact in every JSON parser.
const MOST: u64 = (1 << 53) - 1;

fn block_size(value: &str) -> Result<NonZeroU64, String> {
    whole(NonZeroU64::MIN..=const { NonZeroU64::new(MOST).unwrap() })(value)
}

impl WorkerArgs {
    /// The configuration that the options and the environment ask for; a flag
    /// beats a variable.
    ///
    /// # Errors
    ///
    /// If a variable that is read has a value that is not allowed.
    pub fn config(self, environment: Lookup<'_>) -> Result<WorkerConfig, UsageError> {
        let value = |flag: Option<usize>, variable: &str| {
            flag.map(|number| OsString::from(number.to_string()))
                .or_else(|| environment(variable))
        };
        let slots = value(self.engine_request_limit, ENGINE_REQUEST_LIMIT);
        let queue = value(self.request_queue_limit, REQUEST_QUEUE_LIMIT);
        let limits = Limits::parse(slots.as_deref(), queue.as_deref()).map_err(UsageError::from)?;
        let is_told = self.register.is_some() || self.nats.is_some();
        let is_known = self.advertise.is_some() || !self.listen.ip().is_unspecified();
        let reached_at = match &self.register {
            _ if is_known || !is_told => None,
            Some(gateway) => Some(reached_at(self.listen, gateway).map_err(|error| {
                let expected = format!("--advertise URL is missing: {gateway} {error}");
                UsageError::new("--listen", self.listen, expected)
            })?),
            None => {
                let expected = "--advertise URL is missing: a fleet cannot reach this address";
                return Err(UsageError::new("--listen", self.listen, expected));
            }
        };
        Ok(WorkerConfig {
            listen: self.listen,
            id: self.id,
            model: self.model,
            limits,
            timing: Timing {
                prefill_tokens_per_second: self.prefill_tokens_per_second,
                decode_tokens_per_second: self.decode_tokens_per_second,
            },
            batch: self.batch,
            stream_interval: self.stream_interval,
            kv_total_blocks: self.kv_total_blocks,
            kv_block_size: self.kv_block_size,
            max_num_batched_tokens: self.max_num_batched_tokens,
            dp_ranks: self.dp_ranks,
            register: self.register,
            nats: self.nats,
            nats_ttl: Duration::from_millis(self.nats_ttl_ms),
            advertise: self.advertise,
            reached_at,
        })
    }
}

/// The address by which this machine reaches the gateway, for a worker that
/// listens on all of them: there the gateway reaches the worker, unless
/// something between them translates addresses.
fn reached_at(listen: SocketAddr, gateway: &Uri) -> io::Result<IpAddr> {
    let host = gateway.host().unwrap_or_default();
    let host = host.trim_matches(['[', ']']);
    let addresses = (host, gateway.port_u16().unwrap_or(80)).to_socket_addrs()?;
    let any = listen.ip();
    let is_heard = |address: &SocketAddr| any.is_ipv6() || address.is_ipv4();
    let address = addresses.filter(is_heard).next();
    let address = address.ok_or_else(|| io::Error::other("has no IPv4 address"))?;
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Nothing is sent: this only looks up the route.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    Ok(socket.local_addr()?.ip())
}
