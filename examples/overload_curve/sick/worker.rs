//! A worker that becomes sick: a real one behind a front that is well at first.

use super::kind::Kind;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use http_body::Frame;
use overload_examples::{
    serve::{Server, listen},
    worker::{Worker, WorkerConfig},
};
use std::{
    future::pending,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower::ServiceExt;
use tower_overload::{
    BoxError,
    upstream::{HttpWorker, HttpWorkerBuilder, forward::Forwarding},
};

/// How long a worker that flaps is dead, and well.
const TURN: Duration = Duration::from_secs(1);

/// What stands before the worker.
#[derive(Debug)]
struct Front {
    kind: Kind,
    sick: AtomicBool,
    /// Requests that came while it was sick.
    asked: AtomicU64,
    behind: HttpWorker,
}

/// A worker that is well until a given moment. Dropping it ends it.
#[derive(Debug)]
pub struct SickWorker {
    front: Arc<Front>,
    _life: JoinSet<()>,
}

impl SickWorker {
    /// Starts it, and has it registered at the gateway of `config`.
    pub async fn start(kind: Kind, config: WorkerConfig, onset: Instant) -> io::Result<Self> {
        let listener = listen(config.listen).await?;
        let address = listener.local_addr()?;
        let advertise = format!("http://{address}").parse();
        let worker = Worker::start(WorkerConfig {
            advertise: Some(advertise.map_err(io::Error::other)?),
            ..config
        })
        .await?;
        let behind = HttpWorkerBuilder::new()
            // Not the gateway's name, which is that of the process: no loop.
            .forwarding(Forwarding::new().without_via())
            .build(&format!("http://{}", worker.address()));
        let front = Arc::new(Front {
            kind,
            sick: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            behind: behind.map_err(io::Error::other)?,
        });
        let server = Server::on(listener, app(&front))?;
        let mut life = JoinSet::new();
        let front_of_it = front.clone();
        life.spawn(async move {
            sleep_until(onset).await;
            front_of_it.sick.store(true, Ordering::Relaxed);
            if let Err(error) = fall_sick(front_of_it, worker, server, address).await {
                eprintln!("the sick worker is not sick as it should be: {error}");
            }
        });
        Ok(Self { front, _life: life })
    }

    /// The requests that came to it while it was sick, where they can be
    /// counted.
    pub fn asked(&self) -> Option<u64> {
        let asked = self.front.asked.load(Ordering::Relaxed);
        self.front.kind.is_reached().then_some(asked)
    }
}

fn app(front: &Arc<Front>) -> Router {
    Router::new().fallback(answer).with_state(front.clone())
}

/// What its process and its host do about it; never completes.
async fn fall_sick(
    front: Arc<Front>,
    worker: Worker,
    mut server: Server,
    address: SocketAddr,
) -> io::Result<()> {
    match front.kind {
        Kind::Dead => {
            drop(server);
            // Nobody else gets its port.
            let _port = bound(address).await?;
            drop(worker);
            pending().await
        }
        Kind::Flaps => loop {
            drop(server);
            let port = bound(address).await?;
            sleep(TURN).await;
            front.sick.store(false, Ordering::Relaxed);
            server = Server::on(port.listen(1024)?, app(&front))?;
            sleep(TURN).await;
            front.sick.store(true, Ordering::Relaxed);
        },
        Kind::Connects => {
            // Idle connections close, those in use stay open and are silent.
            let mut silent = JoinSet::new();
            silent.spawn(server.drain());
            // Whoever has no place in the backlog is not answered.
            let _full = bound(address).await?.listen(0)?;
            let mut fillers: JoinSet<io::Result<TcpStream>> = JoinSet::new();
            for _ in 0..4 {
                fillers.spawn(TcpStream::connect(address));
            }
            let mut held = Vec::new();
            while let Some(filler) = fillers.join_next().await {
                held.push(filler);
            }
            pending().await
        }
        _ => pending().await,
    }
}

/// A socket that has the port, and does not listen: connections are refused.
async fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..100 {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        match socket.bind(address) {
            Ok(()) => return Ok(socket),
            Err(error) => last = error,
        }
        // The listener before it is dropped by its task.
        sleep(Duration::from_millis(1)).await;
    }
    Err(last)
}

async fn answer(State(front): State<Arc<Front>>, request: Request) -> Response {
    let is_sick = || front.sick.load(Ordering::Relaxed);
    if is_sick() {
        front.asked.fetch_add(1, Ordering::Relaxed);
        match front.kind {
            Kind::Hangs | Kind::Connects => pending().await,
            Kind::Heads => {
                return Response::builder()
                    .header("content-type", "text/event-stream")
                    .body(Body::new(Silence))
                    .unwrap_or_default();
            }
            Kind::Fails => return status(StatusCode::INTERNAL_SERVER_ERROR),
            Kind::Refuses => {
                let mut refusal = status(StatusCode::from_u16(529).unwrap_or_default());
                let second = http::HeaderValue::from_static("1");
                refusal.headers_mut().insert("retry-after", second);
                return refusal;
            }
            Kind::Stalls | Kind::Dead | Kind::Flaps => {}
        }
    }
    let answer = front.behind.clone().oneshot(request).await;
    if is_sick() && front.kind.frames_left() == Some(0) {
        pending::<()>().await;
    }
    match answer {
        Ok(answer) => answer.map(|body| {
            let front = front.clone();
            Body::new(Stalling {
                body: Body::new(body),
                left: front.kind.frames_left(),
                is_over: false,
                front,
            })
        }),
        Err(_) => status(StatusCode::BAD_GATEWAY),
    }
}

fn status(status: StatusCode) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

/// Nothing ever comes.
struct Silence;

impl http_body::Body for Silence {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Pending
    }
}

/// A body of which nothing comes after so many more frames once the worker is
/// sick.
struct Stalling {
    body: Body,
    left: Option<u32>,
    is_over: bool,
    front: Arc<Front>,
}

impl http_body::Body for Stalling {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.is_over {
            return Poll::Pending;
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let is_sick = self.front.sick.load(Ordering::Relaxed);
        if let Some(left) = self.left.filter(|_| is_sick) {
            if left == 0 {
                self.is_over = true;
                return Poll::Pending;
            }
            self.left = Some(left - 1);
        }
        Poll::Ready(frame)
    }
}
