use super::inbox::Drops;
use crate::{metrics::Prefix, nats::message::Reason};
use async_nats::{Client, ConnectError, ConnectOptions, Event, ServerAddr, ToServerAddrs};
use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    str::FromStr,
    time::Duration,
};

/// The pause before the first attempt to connect again, and the longest one:
/// it doubles in between. Of each, a random half is left out.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(4));

/// After a server is back, each client should be, too, when its longest pause
/// is over.
pub(super) const RECONNECTS_WITHIN: Duration = Duration::from_secs(5);

/// A connection on which nothing comes is tried this often; after three times
/// without an answer it counts as lost. That is sooner than the default time
/// to live of a registration, so that a dead network is not taken for a fleet
/// that fell silent.
const PING_EVERY: Duration = Duration::from_secs(2);

/// The servers of a NATS cluster, as on a command line:
/// `nats://10.0.0.1:4222,nats://10.0.0.2:4222`.
///
/// A URL may have a name and a password, `nats://NAME:PASSWORD@HOST`, or a
/// token, `nats://TOKEN@HOST`, percent-encoded where need be. A client has the
/// same ones for every server that it finds, so all URLs with any have to have
/// the same.
///
/// Displayed without names and passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct Servers {
    addresses: Vec<ServerAddr>,
    credentials: Option<Credentials>,
}

#[derive(Clone, PartialEq, Eq)]
enum Credentials {
    Password { name: String, password: String },
    Token(String),
}

impl Servers {
    /// The most servers.
    pub const MAX: usize = 64;

    /// [`connect_options`], with the credentials that the URLs have: the client
    /// does not take them from there by itself.
    pub fn connect_options(&self, prefix: &Prefix) -> ConnectOptions {
        let options = connect_options(prefix);
        match self.credentials.clone() {
            None => options,
            Some(Credentials::Password { name, password }) => {
                options.user_and_password(name, password)
            }
            Some(Credentials::Token(token)) => options.token(token),
        }
    }
}

impl FromStr for Servers {
    type Err = InvalidServers;

    /// Reads URLs with the scheme `nats` or `tls`, separated by commas. The
    /// port is 4222 if there is none.
    fn from_str(text: &str) -> Result<Self, InvalidServers> {
        let servers = text.split(',').map(|url| {
            let url = url.trim();
            let server = url.parse::<ServerAddr>().map_err(|_| InvalidServers)?;
            let parts = server.clone().into_inner();
            let is_server = ["nats", "tls"].contains(&server.scheme())
                && url.contains("://")
                && !server.host().is_empty()
                && ["", "/"].contains(&parts.path())
                && parts.query().is_none()
                && parts.fragment().is_none()
                && parts.port() != Some(0);
            is_server.then_some(server).ok_or(InvalidServers)
        });
        let addresses = servers.collect::<Result<Vec<_>, _>>()?;
        if addresses.len() > Self::MAX {
            return Err(InvalidServers);
        }
        let mut credentials = None;
        for server in &addresses {
            let next = Credentials::of(server)?;
            if credentials.is_some() && next.is_some() && credentials != next {
                return Err(InvalidServers);
            }
            credentials = credentials.or(next);
        }
        Ok(Self {
            addresses,
            credentials,
        })
    }
}

impl Credentials {
    fn of(server: &ServerAddr) -> Result<Option<Self>, InvalidServers> {
        Ok(match (server.username(), server.password()) {
            (None, None) => None,
            (None, Some(_)) => return Err(InvalidServers),
            (Some(token), None) => Some(Self::Token(percent_decoded(token)?)),
            (Some(name), Some(password)) => Some(Self::Password {
                name: percent_decoded(name)?,
                password: percent_decoded(password)?,
            }),
        })
    }
}

fn percent_decoded(text: &str) -> Result<String, InvalidServers> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let (byte, rest) = part.split_at_checked(2).ok_or(InvalidServers)?;
        if !byte.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(InvalidServers);
        }
        bytes.push(u8::from_str_radix(byte, 16).map_err(|_| InvalidServers)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| InvalidServers)
}

/// A text that names no servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidServers;

impl fmt::Display for InvalidServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expected 1 to {} URLs of the form nats://HOST:PORT or tls://HOST:PORT, separated by \
             commas; those with NAME:PASSWORD@ or TOKEN@ before HOST have the same",
            Servers::MAX
        )
    }
}

impl std::error::Error for InvalidServers {}

impl ToServerAddrs for Servers {
    type Iter = std::vec::IntoIter<ServerAddr>;

    fn to_server_addrs(&self) -> std::io::Result<Self::Iter> {
        Ok(self.addresses.clone().into_iter())
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, server) in self.addresses.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            let host = server.host();
            let (open, close) = if host.contains(':') {
                ("[", "]")
            } else {
                ("", "")
            };
            let (scheme, port) = (server.scheme(), server.port());
            write!(f, "{comma}{scheme}://{open}{host}{close}:{port}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Servers({self})")
    }
}

/// Connects with [`Servers::connect_options`], and returns at once: whether the servers
/// can be reached or not, the client tries on for ever.
///
/// # Errors
///
/// None that a value of `Servers` can bring about, at present.
pub async fn connect(servers: &Servers) -> Result<Client, ConnectError> {
    let options = servers.connect_options(&Prefix::default());
    options.connect(servers).await
}

/// The options that suit a fleet: a client that does not wait for its first
/// connection, tries for ever, at times that no other client has, soon notices
/// a connection that died in silence, and counts what it had to drop.
///
/// Add credentials and certificates to them. The callback for the client's
/// events is taken for the counter `…_frontend_load_messages_dropped_total`
/// with the reason `client_overrun`, whose name starts with `prefix`; an
/// application may set its own instead. The client's queue for each
/// subscription is as it is by default, 65,536 messages: sources empty it at
/// once.
pub fn connect_options(prefix: &Prefix) -> ConnectOptions {
    let drops = Drops::new(prefix);
    ConnectOptions::new()
        .name("tower-overload")
        .retry_on_initial_connect()
        .ping_interval(PING_EVERY)
        .reconnect_delay_callback(|attempt| pause(attempt, random()))
        .event_callback(move |event| {
            match event {
                Event::SlowConsumer(_) => drops.count(Reason::ClientOverrun),
                Event::ServerError(error) => tracing::warn!(%error, "the NATS server complains"),
                _ => {}
            }
            std::future::ready(())
        })
}

/// The pause before an attempt, counted from 1; `random` is from 0 to 1.
fn pause(attempt: usize, random: f64) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
    let whole = BACKOFF
        .0
        .saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX))
        .min(BACKOFF.1);
    whole.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

/// A number from 0 to 1 that no other process has at this moment.
fn random() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    bits as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_a_random_half_is_left_out() {
        let ms = |attempt, random| pause(attempt, random).as_millis();
        assert_eq!(
            [1, 2, 3, 7, 8, 33, 34, usize::MAX].map(|n| ms(n, 1.0)),
            [50, 100, 200, 3200, 4000, 4000, 4000, 4000]
        );
        assert_eq!([0, 1, 2, 99].map(|n| ms(n, 0.0)), [25, 25, 50, 2000]);
        assert!((0..100).map(|_| random()).all(|n| (0.0..=1.0).contains(&n)));
        assert!(random() != random());
    }

    #[test]
    fn servers_are_read_and_shown_without_their_secrets() {
        let servers: Servers = "nats://me:secret@a, tls://[::1]:4444".parse().unwrap();
        assert_eq!(servers.to_string(), "nats://a:4222,tls://[::1]:4444");
        assert!(!format!("{servers:?}").contains("secret"));
        assert_eq!(servers.to_server_addrs().unwrap().count(), 2);
    }

    #[test]
    fn credentials_are_those_of_any_url() {
        let read = |text: &str| text.parse::<Servers>().unwrap().credentials;
        assert!(read("nats://a,nats://b").is_none());
        let token = Some(Credentials::Token("s:3".into()));
        assert!(read("nats://s%3a3@a,nats://s%3A3@b") == token);
        let (name, password) = ("mé".into(), "p w/@".into());
        let password = Some(Credentials::Password { name, password });
        assert!(read("nats://a,nats://m%C3%A9:p%20w%2F%40@b") == password);
    }

    #[test]
    fn what_is_no_list_of_servers_is_refused() {
        for bad in [
            "",
            ",",
            "nats://",
            "nats://a,",
            "http://a",
            "a:4222",
            "nats://a/x",
            "nats://a?x",
            "nats://a:99999",
            "nats://a:0",
            "ws://a",
            "nats://a b",
            "nats://:secret@a",
            "nats://%zz@a",
            "nats://%ff@a",
            "nats://me:secret@a,nats://me:other@b",
            "nats://me:secret@a,nats://token@b",
        ] {
            assert_eq!(bad.parse::<Servers>(), Err(InvalidServers), "{bad}");
        }
        let many = ["nats://a"; Servers::MAX + 1].join(",");
        assert_eq!(many.parse::<Servers>(), Err(InvalidServers));
    }
}
