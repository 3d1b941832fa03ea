//! Connections to a worker: name, TCP, TLS, within a time.

use super::{
    BoxError, Fault, FaultKind, Limit, LimitPassed, Protocol,
    base::Base,
    io::{Io, Socket},
    tls::Tls,
};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpStream, lookup_host},
    time::{Instant, timeout, timeout_at},
};

/// What is needed to connect to a worker.
pub(super) struct Connector {
    pub(super) base: Base,
    pub(super) tls: Option<Tls>,
    pub(super) protocol: Protocol,
    pub(super) limit: Option<Duration>,
    pub(super) nodelay: bool,
    /// Is told of every connection that was made.
    pub(super) on_connect: Option<OnConnect>,
}

pub(super) type OnConnect = Arc<dyn Fn() + Send + Sync>;

impl Connector {
    pub(super) fn fault(&self, kind: FaultKind, source: impl Into<BoxError>) -> Fault {
        Fault::new(kind, &self.base.name, source)
    }

    /// Connects, within the limit.
    pub(super) async fn connect(&self) -> Result<Io, Fault> {
        // One that never ends is none.
        let until = self.limit.and_then(|limit| {
            let until = Instant::now().checked_add(limit)?;
            Some((limit, until))
        });
        let connected = match until {
            None => self.connect_within(None).await,
            Some((limit, until)) => {
                match timeout_at(until, self.connect_within(Some(until))).await {
                    Ok(connected) => connected,
                    Err(_) => {
                        let passed = LimitPassed::new(Limit::Connect, limit);
                        return Err(self.fault(FaultKind::Limit(Limit::Connect), passed));
                    }
                }
            }
        };
        let io = connected.map_err(|error| self.fault(FaultKind::NotConnected, error))?;
        if let Some(on_connect) = &self.on_connect {
            on_connect();
        }
        Ok(io)
    }

    async fn connect_within(&self, until: Option<Instant>) -> Result<Io, BoxError> {
        let host = (&*self.base.host, self.base.port);
        let addresses: Vec<_> = lookup_host(host).await?.collect();
        let stream = first_of(&addresses, until).await?;
        if self.nodelay {
            stream.set_nodelay(true)?;
        }
        let socket = Socket::new(stream);
        let Some(tls) = &self.tls else {
            return Ok(Io::plain(socket));
        };
        let stream = tls.connector.connect(tls.name.clone(), socket).await?;
        let agreed = stream.get_ref().1.alpn_protocol();
        // A server without ALPN speaks HTTP/1.1.
        if agreed != Some(self.protocol.alpn()) && self.protocol != Protocol::Http1 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the worker does not offer HTTP/2 over TLS",
            )
            .into());
        }
        Ok(Io::tls(stream))
    }
}

/// Tries one address after another, so that one that does not answer leaves
/// time for those after it.
async fn first_of(addresses: &[SocketAddr], until: Option<Instant>) -> io::Result<TcpStream> {
    let mut failed = None;
    for (n, address) in addresses.iter().enumerate() {
        let connecting = TcpStream::connect(address);
        let left = u32::try_from(addresses.len() - n).unwrap_or(u32::MAX);
        let connected = match until {
            // The last one has what is left of the whole limit.
            Some(until) if left > 1 => {
                let share = until.saturating_duration_since(Instant::now()) / left;
                match timeout(share, connecting).await {
                    Ok(connected) => connected,
                    Err(_) => Err(io::ErrorKind::TimedOut.into()),
                }
            }
            _ => connecting.await,
        };
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed
        .unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address")))
}
