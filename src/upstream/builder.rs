//! How a worker is reached.

use super::{
    HttpWorker, InvalidSetting,
    base::Base,
    connect::{Connector, OnConnect},
    forward::Forwarding,
    pool::{Keep, Pool},
    tls::Tls,
    worker::Shared,
};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONNECTION, CONTENT_LENGTH, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE},
};
use std::{fmt, sync::Arc, time::Duration};

/// What is spoken with a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// HTTP/1.1: a connection for each request at a time.
    #[default]
    Http1,
    /// HTTP/2, as gRPC needs it: agreed on over TLS by ALPN, and without TLS
    /// taken for granted.
    Http2,
}

impl Protocol {
    pub(super) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// Builds an [`HttpWorker`].
#[derive(Clone)]
pub struct HttpWorkerBuilder {
    protocol: Protocol,
    connect_limit: Option<Duration>,
    idle: Option<Duration>,
    max_idle: usize,
    nodelay: bool,
    on_connect: Option<OnConnect>,
    ca: Option<Vec<u8>>,
    headers: Vec<(String, HeaderValue)>,
    aliases: Vec<(String, String)>,
    alias_limit: usize,
    forwarding: Forwarding,
}

impl HttpWorkerBuilder {
    /// Makes a builder with the defaults that its methods name.
    pub fn new() -> Self {
        Self {
            protocol: Protocol::default(),
            connect_limit: Some(Duration::from_secs(5)),
            idle: None,
            max_idle: 1024,
            nodelay: true,
            on_connect: None,
            ca: None,
            headers: Vec::new(),
            aliases: Vec::new(),
            alias_limit: 16 * 1024 * 1024,
            forwarding: Forwarding::new(),
        }
    }

    /// Sets what is spoken with the worker (default: HTTP/1.1).
    #[must_use]
    pub const fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// Sets how long it may take to connect, the name and TLS included
    /// (default: 5 s); `None` is as long as the system waits.
    #[must_use]
    pub const fn connect_limit(mut self, limit: Option<Duration>) -> Self {
        self.connect_limit = limit;
        self
    }

    /// Sets how long a connection is kept that nobody uses, at most.
    ///
    /// By default it is kept for 4 s, since most servers close it after 5 s,
    /// or for a second less than the worker's `Keep-Alive: timeout=` says, and
    /// 90 s at most. With 0, every request gets a connection of its own.
    #[must_use]
    pub const fn idle_limit(mut self, limit: Duration) -> Self {
        self.idle = Some(limit);
        self
    }

    /// Sets how many connections are kept that nobody uses (default: 1,024).
    #[must_use]
    pub const fn max_idle(mut self, connections: usize) -> Self {
        self.max_idle = connections;
        self
    }

    /// Sets `TCP_NODELAY` (default: on). Without it, the second small write of
    /// an exchange may wait some 40 ms for the first to be acknowledged.
    #[must_use]
    pub const fn nodelay(mut self, yes: bool) -> Self {
        self.nodelay = yes;
        self
    }

    /// Calls `told` each time that a connection to the worker was made, before
    /// anything is sent on it.
    ///
    /// A request that finds out whether a worker is back may be answered in a
    /// minute. That it was connected shows at once that the worker is there:
    ///
    /// ```
    /// # use tower_overload::{BusySet, upstream::HttpWorkerBuilder};
    /// let set = BusySet::new();
    /// let marks = set.clone();
    /// let worker = HttpWorkerBuilder::new()
    ///     .on_connect(move || marks.reached(&"worker-0"))
    ///     .build("http://10.0.0.7:8000")?;
    /// # Ok::<_, tower_overload::upstream::InvalidSetting>(())
    /// ```
    #[must_use]
    pub fn on_connect(mut self, told: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_connect = Some(Arc::new(told));
        self
    }

    /// Sets the certificates, in PEM, of those who may vouch for the worker.
    /// Nobody else is trusted then; by default, those whom the system trusts
    /// are.
    #[must_use]
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// Adds a header to every request for this worker, in place of what the
    /// client has sent: an API key, for example. It is marked as sensitive.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, mut value: HeaderValue) -> Self {
        value.set_sensitive(true);
        self.headers.push((name.into(), value));
        self
    }

    /// Replaces the name of a model: a request whose JSON body has `name` as
    /// its `model` goes to the worker with `at_worker` instead.
    ///
    /// With an alias, bodies are read whole before they are sent on, up to a
    /// [limit](Self::alias_limit). Multipart forms, compressed bodies and
    /// answers are left as they are.
    #[must_use]
    pub fn alias(mut self, name: impl Into<String>, at_worker: impl Into<String>) -> Self {
        self.aliases.push((name.into(), at_worker.into()));
        self
    }

    /// Sets how long a body may be that is read for its alias (default:
    /// 16 MiB). A longer one is refused with a 413.
    #[must_use]
    pub const fn alias_limit(mut self, bytes: usize) -> Self {
        self.alias_limit = bytes;
        self
    }

    /// Sets the rules for what is forwarded. All workers of a gateway have the
    /// same.
    #[must_use]
    pub fn forwarding(mut self, forwarding: Forwarding) -> Self {
        self.forwarding = forwarding;
        self
    }

    /// Builds the service for the worker at `url`: `http://` or `https://`, a
    /// host, perhaps a port, and perhaps a path below which requests go. It
    /// does not connect yet.
    ///
    /// # Errors
    ///
    /// If the URL or a setting is not one; the error names it, and says what is
    /// allowed.
    pub fn build(self, url: &str) -> Result<HttpWorker, InvalidSetting> {
        let base = Base::parse(url)?;
        let tls = match (base.https, &self.ca) {
            (true, ca) => Some(Tls::new(&base.host, self.protocol, ca.as_deref())?),
            (false, None) => None,
            (false, Some(_)) => {
                let allowed = "an https:// URL, since there is a CA";
                return Err(InvalidSetting::new("URL of a worker", &*base.name, allowed));
            }
        };
        let connector = Connector {
            base,
            tls,
            protocol: self.protocol,
            limit: self.connect_limit,
            nodelay: self.nodelay,
            on_connect: self.on_connect,
        };
        let keep = Keep {
            idle: self.idle,
            max_idle: self.max_idle,
        };
        Ok(HttpWorker::new(Shared {
            pool: Pool::new(connector, keep),
            forwarding: self.forwarding,
            headers: headers(self.headers)?,
            aliases: self.aliases,
            alias_limit: self.alias_limit,
        }))
    }
}

fn headers(given: Vec<(String, HeaderValue)>) -> Result<HeaderMap, InvalidSetting> {
    const RESERVED: [HeaderName; 7] = [
        CONNECTION,
        CONTENT_LENGTH,
        HOST,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let valid = HeaderName::try_from(&*name).ok();
        let valid = valid
            .filter(|name| !RESERVED.contains(name))
            .ok_or_else(|| {
                let allowed = "the name of one that does not frame or route the message";
                InvalidSetting::new("header of a worker", name, allowed)
            })?;
        headers.insert(valid, value);
    }
    Ok(headers)
}

impl Default for HttpWorkerBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for HttpWorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpWorkerBuilder")
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}
