//! Workers, and a gateway with one of them.

pub use crate::sockets::{AnyBody, Connection, Serving, Stub, full, header, http2, sorted, text};
use bytes::Bytes;
use http::{Request, Response};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinHandle},
};
use tower::{ServiceBuilder, ServiceExt};
use tower_overload::{
    OverloadStatusLayer,
    upstream::{Fault, HttpWorker, HttpWorkerBuilder, WorkerBody, sse::EventStreamLayer},
};

pub fn get(path: &str) -> Request<AnyBody> {
    Request::get(path).body(full("")).unwrap()
}

pub fn post(path: &str, body: impl Into<Bytes>) -> Request<AnyBody> {
    Request::post(path).body(full(body)).unwrap()
}

pub fn spawn_call(
    worker: &HttpWorker,
    request: Request<AnyBody>,
) -> JoinHandle<Result<Response<WorkerBody>, Fault>> {
    tokio::spawn(worker.clone().oneshot(request))
}

/// A gateway with one worker: the status layer, and what answers.
pub struct Gateway {
    pub address: SocketAddr,
    task: AbortHandle,
    connections: Arc<AtomicUsize>,
}

impl Gateway {
    pub async fn before(worker: HttpWorker) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, worker)
    }

    pub fn on(listener: TcpListener, worker: HttpWorker) -> Self {
        let address = listener.local_addr().unwrap();
        let status = OverloadStatusLayer::builder().build().unwrap();
        let service = ServiceBuilder::new()
            .layer(EventStreamLayer::new())
            .layer(status.infallible())
            .service(worker);
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = connections.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Relaxed);
                stream.set_nodelay(true).unwrap();
                let service = TowerToHyperService::new(service.clone());
                connections.spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self {
            address,
            task: task.abort_handle(),
            connections,
        }
    }

    /// How many have connected.
    pub fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stub {
    pub fn worker(&self) -> HttpWorker {
        HttpWorkerBuilder::new().build(&self.url()).unwrap()
    }

    /// Whether nobody has connected.
    pub async fn is_quiet(&self) -> bool {
        futures::future::poll_immediate(std::pin::pin!(self.listener.accept()))
            .await
            .is_none()
    }
}

impl Connection {
    pub fn into_stream(self) -> TcpStream {
        assert!(self.buffer.is_empty());
        self.stream
    }

    /// Closes in a way that the other side is told of as an error.
    pub fn reset(self) {
        socket2::SockRef::from(&self.stream)
            .set_linger(Some(std::time::Duration::ZERO))
            .unwrap();
    }
}

impl Serving {
    pub fn of(address: SocketAddr, task: AbortHandle) -> Self {
        Self { address, task }
    }

    /// Runs to the end of the test, at this address.
    pub fn keep(self) -> SocketAddr {
        let address = self.address;
        std::mem::forget(self);
        address
    }
}
