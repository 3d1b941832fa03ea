//! An HTTP server on a port of its own, which drains or is cut.

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use std::{io, net::SocketAddr, pin::pin, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// A server that runs in the background, over HTTP/1.1 and HTTP/2.
///
/// Dropping it cuts every connection where it stands, as the end of the
/// process would; [`drain`](Server::drain) lets the requests finish.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    draining: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Serves `app` on `address`, where port 0 is any free one.
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on; the error's text names it.
    pub async fn start(address: SocketAddr, app: Router) -> io::Result<Self> {
        let listener = listen(address).await?;
        Self::on(listener, app)
    }

    /// Serves `app` on a listener that is there already.
    ///
    /// # Errors
    ///
    /// If the listener does not know its address.
    pub fn on(listener: TcpListener, app: Router) -> io::Result<Self> {
        Self::with_idle_limit(listener, app, HEAD_WITHIN)
    }

    /// As [`on`](Self::on), with another limit on connections without a
    /// request, and on the time that a request head takes.
    ///
    /// # Errors
    ///
    /// If the listener does not know its address.
    pub fn with_idle_limit(listener: TcpListener, app: Router, idle: Duration) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (draining, drained) = watch::channel(false);
        let task = tokio::spawn(accept(listener, app, idle, drained));
        Ok(Self {
            address,
            draining,
            task,
        })
    }

    /// The address that it listens on, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no new connection and no new request, lets those that it has
    /// finish, and completes when the last one has.
    ///
    /// Cancelling it cuts what is left.
    pub async fn drain(mut self) {
        self.draining.send_replace(true);
        // A panic of the task has been reported by the panic hook.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection that sends no whole request head in this time is closed, so
/// that half a request cannot hold up a drain. It is also how long an idle
/// connection is kept.
const HEAD_WITHIN: Duration = Duration::from_secs(15);

/// Listens on `address`.
///
/// # Errors
///
/// If that is not possible; the error's text names the address.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
    })
}

/// Completes when `flag` is true, or can never become so.
async fn told(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|told| *told).await;
}

/// Owns the connections, so that they end with it.
async fn accept(
    listener: TcpListener,
    app: Router,
    idle: Duration,
    mut draining: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = told(&mut draining) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, app.clone(), idle, draining.clone()));
                }
                Err(error) => {
                    // A connection that was gone before it was accepted, or
                    // no file descriptor left: the latter needs time.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve(
    stream: TcpStream,
    app: Router,
    idle: Duration,
    mut draining: watch::Receiver<bool>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(idle);
    server
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEAD_WITHIN)
        .keep_alive_timeout(HEAD_WITHIN);
    let mut connection =
        pin!(server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app)));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told(&mut draining) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection broke");
    }
}
