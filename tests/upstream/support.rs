//! A worker whose every byte the test says, and a client that shows every byte.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
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
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinHandle},
};
use tower::{ServiceBuilder, ServiceExt};
use tower_overload::{
    BoxError, OverloadStatusLayer,
    upstream::{Fault, HttpWorker, HttpWorkerBuilder, WorkerBody, sse::EventStreamLayer},
};

pub type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is there as a whole.
pub fn full(body: impl Into<Bytes>) -> AnyBody {
    Full::new(body.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

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

pub async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// A listener whose connections the test serves by hand.
pub struct Stub {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Stub {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self { listener, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn worker(&self) -> HttpWorker {
        HttpWorkerBuilder::new().build(&self.url()).unwrap()
    }

    pub async fn accept(&self) -> Connection {
        let (stream, _) = self.listener.accept().await.unwrap();
        Connection::new(stream)
    }

    /// Whether nobody has connected.
    pub async fn is_quiet(&self) -> bool {
        futures::future::poll_immediate(std::pin::pin!(self.listener.accept()))
            .await
            .is_none()
    }

    /// Serves every connection the same, each request with the answer to it.
    pub fn serve<F>(self, answer: F) -> Serving
    where
        F: Fn(&str) -> Vec<u8> + Clone + Send + 'static,
    {
        let address = self.address;
        let task = tokio::spawn(async move {
            loop {
                let mut connection = self.accept().await;
                let answer = answer.clone();
                tokio::spawn(async move {
                    while let Some(message) = connection.try_read_message().await {
                        connection.write(answer(&message)).await;
                    }
                });
            }
        });
        Serving {
            address,
            task: task.abort_handle(),
        }
    }
}

/// A [`Stub`] that runs by itself.
pub struct Serving {
    pub address: SocketAddr,
    task: AbortHandle,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Serving {
    pub fn of(address: SocketAddr, task: AbortHandle) -> Self {
        Self { address, task }
    }
}

/// A client with HTTP/2.
pub async fn http2(address: SocketAddr) -> hyper::client::conn::http2::SendRequest<AnyBody> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    client
}

/// One side of a connection, in bytes.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    pub async fn to(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).await.unwrap())
    }

    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        // The other side may have gone; what it does then is what is tested.
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// More bytes; none at the end, whether it was orderly or not.
    async fn fill(&mut self) -> usize {
        self.stream.read_buf(&mut self.buffer).await.unwrap_or(0)
    }

    /// Reads a head, the empty line included. `None` if there is none before
    /// the end.
    pub async fn try_read_head(&mut self) -> Option<String> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..at + 4).collect();
                return Some(String::from_utf8(head).unwrap());
            }
            if self.fill().await == 0 {
                return None;
            }
        }
    }

    pub async fn read_head(&mut self) -> String {
        self.try_read_head().await.expect("a head")
    }

    pub async fn read_exact(&mut self, length: usize) -> String {
        while self.buffer.len() < length {
            assert!(self.fill().await > 0, "it ended early");
        }
        String::from_utf8(self.buffer.drain(..length).collect()).unwrap()
    }

    /// Reads a request or a response, its body included as it is on the wire.
    pub async fn try_read_message(&mut self) -> Option<String> {
        let mut message = self.try_read_head().await?;
        if let Some(length) = header(&message, "content-length") {
            message += &self.read_exact(length.parse().unwrap()).await;
        } else if header(&message, "transfer-encoding").is_some() {
            while !message.ends_with("\r\n0\r\n\r\n") || message.ends_with("\r\n\r\n\r\n") {
                if self.buffer.is_empty() && self.fill().await == 0 {
                    return None;
                }
                message += std::str::from_utf8(&self.buffer).unwrap();
                self.buffer.clear();
            }
        }
        Some(message)
    }

    pub async fn read_message(&mut self) -> String {
        self.try_read_message().await.expect("a message")
    }

    /// Reads to the end.
    pub async fn read_to_end(&mut self) -> String {
        while self.fill().await > 0 {}
        String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned()
    }

    pub fn close_writing(&self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Closes in a way that the other side is told of as an error.
    pub fn reset(self) {
        socket2::SockRef::from(&self.stream)
            .set_linger(Some(std::time::Duration::ZERO))
            .unwrap();
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// A message whose headers are in an order of their own: those of one name
/// stay as they are.
pub fn sorted(message: &str) -> String {
    let (head, body) = message.split_once("\r\n\r\n").unwrap();
    let mut lines: Vec<_> = head.split("\r\n").collect();
    lines[1..].sort_by_key(|line| line.split(':').next().unwrap().to_lowercase());
    format!("{}\r\n\r\n{body}", lines.join("\r\n"))
}

/// The value of a header in a head as it is on the wire.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let head = head.split("\r\n\r\n").next()?;
    head.split("\r\n").skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
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
        let status = OverloadStatusLayer::builder()
            .build()
            .unwrap();
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

impl Connection {
    /// Writes, and tells whether that was possible.
    pub async fn write_or_end(&mut self, bytes: &str) -> bool {
        self.stream.write_all(bytes.as_bytes()).await.is_ok()
    }
}

impl Connection {
    pub fn into_stream(self) -> TcpStream {
        assert!(self.buffer.is_empty());
        self.stream
    }
}

impl Serving {
    /// Runs to the end of the test, at this address.
    pub fn keep(self) -> SocketAddr {
        let address = self.address;
        std::mem::forget(self);
        address
    }
}
