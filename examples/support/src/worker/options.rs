use crate::{
    cli::{self, Lookup, MOST, UsageError, address, base_url, millis, name, nats_servers, whole},
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

/// How a [`Worker`](super::Worker) is set up. What is documented here is the
/// help of its options.
#[derive(Clone, Debug, Parser, PartialEq)]
#[command(
    name = "worker",
    about = "A mock inference worker: an engine that generates words, behind the real admission of \
             tower-overload, with the OpenAI API",
    long_about = None
)]
pub struct WorkerConfig {
    /// Where to listen; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:8100", value_name = "ADDR:PORT", value_parser = address)]
    pub listen: SocketAddr,

    /// What the worker is called [default: the listen address]
    #[arg(long, value_parser = name)]
    pub id: Option<String>,

    /// The model that it serves
    #[arg(long, default_value = "tiny", value_parser = name)]
    pub model: String,

    /// At most N requests in the engine [env: DYN_ENGINE_REQUEST_LIMIT]
    /// [default: no cap]
    #[arg(long, value_name = "N", value_parser = whole(1..=MAX_LIMIT))]
    pub engine_request_limit: Option<usize>,

    /// At most Q requests waiting, if there is a cap
    /// [env: DYN_DYNAMO_REQUEST_QUEUE_LIMIT] [default: 16]
    #[arg(long, value_name = "Q", value_parser = whole(MIN_QUEUE_LIMIT_IN_ENV..=MAX_LIMIT))]
    pub request_queue_limit: Option<usize>,

    /// What the two above come to; `None` for no cap.
    #[arg(skip)]
    pub limits: Option<Limits>,

    /// How fast the engine is.
    #[command(flatten)]
    pub timing: Timing,

    /// How many requests of a rank have that speed; beyond, they share the
    /// throughput that so many have [default: any number]
    #[arg(long, value_name = "REQUESTS", value_parser = whole(NonZeroUsize::MIN..=NonZeroUsize::MAX))]
    pub batch: Option<NonZeroUsize>,

    /// Tokens of a stream that come at a time, after the first one
    #[arg(long, default_value = "1", value_name = "TOKENS", value_parser = whole(NonZeroU32::MIN..=NonZeroU32::MAX))]
    pub stream_interval: NonZeroU32,

    /// KV blocks of each rank
    #[arg(long, default_value = "4096", value_name = "BLOCKS", value_parser = whole(1..=MOST.get()))]
    pub kv_total_blocks: u64,

    /// Tokens of a KV block
    #[arg(long, default_value = "16", value_name = "TOKENS", value_parser = whole(NonZeroU64::MIN..=MOST))]
    pub kv_block_size: NonZeroU64,

    /// Prompt tokens that a rank takes in one step
    #[arg(long, default_value = "8192", value_name = "TOKENS", value_parser = whole(1..=MOST.get()))]
    pub max_num_batched_tokens: u64,

    /// Data-parallel ranks; requests go to them in turn
    #[arg(long, default_value = "1", value_name = "RANKS", value_parser = whole(1..=1024_u32))]
    pub dp_ranks: u32,

    /// The admin address of a gateway to register with
    #[arg(long, value_name = "URL", value_parser = base_url)]
    pub register: Option<Uri>,

    /// Tell the gateways of a fleet over NATS, instead: URLs of its servers,
    /// separated by commas
    #[arg(long, value_name = "URLS", value_parser = nats_servers, conflicts_with = "register")]
    pub nats: Option<Servers>,

    /// A fleet forgets this worker when it hears nothing for this long, in ms
    #[arg(long = "nats-ttl-ms", default_value = "10000", value_name = "MS", value_parser = millis(SHORTEST_TTL_MS..=LONGEST_TTL_MS))]
    pub nats_ttl: Duration,

    /// Where the gateway reaches this worker [default: http:// and the listen
    /// address, or where that is all addresses, the one by which this machine
    /// reaches the gateway]
    #[arg(long, value_name = "URL", value_parser = base_url)]
    pub advertise: Option<Uri>,

    /// The address at which the gateway reaches it, if it listens on all.
    #[arg(skip)]
    pub reached_at: Option<IpAddr>,
}

const SHORTEST_TTL_MS: u64 = Registration::MIN_TTL.as_millis() as u64;
const LONGEST_TTL_MS: u64 = Registration::MAX_TTL.as_millis() as u64;

/// What the options default to: no cap, no gateway, and nothing that comes from
/// the environment.
impl Default for WorkerConfig {
    fn default() -> Self {
        cli::defaults()
    }
}

impl WorkerConfig {
    /// Adds what the environment says where no flag does, and checks what has
    /// to go together.
    ///
    /// # Errors
    ///
    /// If a variable that is read has a value that is not allowed, or nobody
    /// could reach the worker.
    pub fn with_environment(mut self, environment: Lookup<'_>) -> Result<Self, UsageError> {
        let value = |flag: Option<usize>, variable: &str| {
            flag.map(|number| OsString::from(number.to_string()))
                .or_else(|| environment(variable))
        };
        let slots = value(self.engine_request_limit, ENGINE_REQUEST_LIMIT);
        let queue = value(self.request_queue_limit, REQUEST_QUEUE_LIMIT);
        self.limits = Limits::parse(slots.as_deref(), queue.as_deref())?;
        let is_told = self.register.is_some() || self.nats.is_some();
        let is_known = self.advertise.is_some() || !self.listen.ip().is_unspecified();
        self.reached_at = match &self.register {
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
        Ok(self)
    }
}

/// The address by which this machine reaches the gateway, for a worker that
/// listens on all of them: there the gateway reaches the worker, unless
/// something between them translates addresses.
fn reached_at(listen: SocketAddr, gateway: &Uri) -> io::Result<IpAddr> {
    let host = gateway.host().unwrap_or_default();
    let host = host.trim_matches(['[', ']']);
    let mut addresses = (host, gateway.port_u16().unwrap_or(80)).to_socket_addrs()?;
    let any = listen.ip();
    let is_heard = |address: &SocketAddr| any.is_ipv6() || address.is_ipv4();
    let address = addresses.find(is_heard);
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
