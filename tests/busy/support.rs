//! Fake workers behind the real stack.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::sync::mpsc;
use tower::{
    Layer, Service, ServiceExt, balance::p2c::Balance, buffer::Buffer, discover::Discover,
    load::PendingRequestsDiscover, util::BoxCloneSyncService,
};
use tower_overload::{
    BoxError, OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason, Unreachable,
    WorkerId,
    busy::{
        BusyDiscover, BusyFilter, BusyFilterLayer, BusySet, Members, Roster, RosterChanges, roster,
    },
    completion::CompleteOnBody,
};

pub type Id = &'static str;
pub type ResponseBody = BoxBody<Bytes, Infallible>;

/// What a worker does with a request.
#[derive(Clone, Debug)]
pub enum Script {
    Serve,
    ServeAfter(Duration),
    /// Answers at once; the body ends when the test says so.
    Stream,
    Status(u16, Option<u64>),
    RefuseByError,
    FailAfter(Duration),
    Never,
}

/// One worker, as the test sees it.
#[derive(Clone)]
pub struct Worker {
    pub id: Id,
    shared: Arc<Shared>,
}

struct Shared {
    calls: AtomicUsize,
    script: Mutex<Script>,
    readiness: Mutex<Readiness>,
    streams: Mutex<Vec<OpenStream>>,
}

/// A streaming response ends when it is dropped.
type OpenStream = mpsc::Sender<Result<Frame<Bytes>, Infallible>>;

enum Readiness {
    Ready,
    Connecting(Option<Waker>),
    Broken,
}

impl Worker {
    pub fn new(id: Id) -> Self {
        Self {
            id,
            shared: Arc::new(Shared {
                calls: AtomicUsize::new(0),
                script: Mutex::new(Script::Serve),
                readiness: Mutex::new(Readiness::Ready),
                streams: Mutex::new(Vec::new()),
            }),
        }
    }

    pub fn connecting(id: Id) -> Self {
        let worker = Self::new(id);
        *worker.shared.readiness.lock().unwrap() = Readiness::Connecting(None);
        worker
    }

    pub fn connect(&self) {
        let mut readiness = self.shared.readiness.lock().unwrap();
        if let Readiness::Connecting(Some(waker)) =
            std::mem::replace(&mut *readiness, Readiness::Ready)
        {
            waker.wake();
        }
    }

    pub fn break_service(&self) {
        *self.shared.readiness.lock().unwrap() = Readiness::Broken;
    }

    pub fn script(&self, script: Script) {
        *self.shared.script.lock().unwrap() = script;
    }

    pub fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// Ends the bodies of all its streaming responses.
    pub fn end_streams(&self) {
        self.shared.streams.lock().unwrap().clear();
    }
}

impl Service<Request<()>> for Worker {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match &mut *self.shared.readiness.lock().unwrap() {
            Readiness::Ready => Poll::Ready(Ok(())),
            Readiness::Broken => Poll::Ready(Err("broken service".into())),
            Readiness::Connecting(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let shared = self.shared.clone();
        shared.calls.fetch_add(1, Ordering::SeqCst);
        let script = shared.script.lock().unwrap().clone();
        let id = self.id;
        Box::pin(async move {
            match script {
                Script::Serve => Ok(full(200, id, None)),
                Script::ServeAfter(time) => {
                    tokio::time::sleep(time).await;
                    Ok(full(200, id, None))
                }
                Script::Stream => {
                    let (tx, rx) = mpsc::channel(4);
                    shared.streams.lock().unwrap().push(tx);
                    let frames = futures::stream::unfold(rx, |mut rx| async {
                        rx.recv().await.map(|frame| (frame, rx))
                    });
                    let body =
                        BodyExt::boxed(SyncBody(Mutex::new(Box::pin(StreamBody::new(frames)))));
                    Ok(Response::builder().header("worker", id).body(body).unwrap())
                }
                Script::Status(status, retry_after) => Ok(full(status, id, retry_after)),
                Script::RefuseByError => {
                    Err(ServiceOverloaded::new(OverloadReason::WorkerAtCapacity).into())
                }
                Script::FailAfter(time) => {
                    tokio::time::sleep(time).await;
                    Err(io::Error::from(io::ErrorKind::ConnectionRefused).into())
                }
                Script::Never => std::future::pending().await,
            }
        })
    }
}

type Frames = std::pin::Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>;

/// Makes a boxed body `Sync`, which `BoxBody` asks for.
struct SyncBody(Mutex<Frames>);

impl Body for SyncBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.lock().unwrap().as_mut().poll_frame(cx)
    }
}

fn full(status: u16, id: Id, retry_after: Option<u64>) -> Response<ResponseBody> {
    let mut response = Response::builder().status(status).header("worker", id);
    if let Some(seconds) = retry_after {
        response = response.header("retry-after", seconds);
    }
    response
        .body(http_body_util::Full::new(Bytes::from_static(b"{}")).boxed())
        .unwrap()
}

/// A filter over tower's balancer over the workers of `D`.
pub type Stock<D> =
    BusyFilter<Balance<PendingRequestsDiscover<BusyDiscover<D>, CompleteOnBody>, Request<()>>>;

pub type Stack = Stock<RosterChanges<Id, Worker>>;

pub fn stock<D, B>(discover: D, set: BusySet<D::Key>) -> Stock<D>
where
    D: Discover<Key: WorkerId, Error: Into<BoxError>>,
    D::Service: Service<Request<()>, Response = Response<B>, Error: Into<BoxError>>,
    B: Body,
{
    stock_with(discover, set, |layer| layer)
}

pub fn stock_with<D, B>(
    discover: D,
    set: BusySet<D::Key>,
    configure: impl FnOnce(BusyFilterLayer) -> BusyFilterLayer,
) -> Stock<D>
where
    D: Discover<Key: WorkerId, Error: Into<BoxError>>,
    D::Service: Service<Request<()>, Response = Response<B>, Error: Into<BoxError>>,
    B: Body,
{
    let discover = BusyDiscover::new(discover, set);
    let layer = configure(BusyFilterLayer::new(discover.members()));
    let discover = PendingRequestsDiscover::new::<Request<()>>(discover, CompleteOnBody::new());
    layer.layer(Balance::new(discover))
}

/// A stack with the handles to everything in it.
pub struct Fleet {
    pub set: BusySet<Id>,
    pub roster: Roster<Id, Worker>,
    pub members: Members,
    pub workers: HashMap<Id, Worker>,
}

impl Fleet {
    pub fn new(workers: impl IntoIterator<Item = Worker>) -> (Self, Stack) {
        Self::with(workers, |balance| balance)
    }

    pub fn with(
        workers: impl IntoIterator<Item = Worker>,
        configure: impl FnOnce(BusyFilterLayer) -> BusyFilterLayer,
    ) -> (Self, Stack) {
        Self::on(BusySet::new(), workers, configure)
    }

    /// With marks that end by what they are said to end by, and by no probe.
    pub fn unasked(ids: &[Id]) -> (Self, Stack) {
        let set = BusySet::<Id>::builder().probe_after(None).build().unwrap();
        Self::on(set, ids.iter().map(|id| Worker::new(id)), |layer| layer)
    }

    fn on(
        set: BusySet<Id>,
        workers: impl IntoIterator<Item = Worker>,
        configure: impl FnOnce(BusyFilterLayer) -> BusyFilterLayer,
    ) -> (Self, Stack) {
        let (roster, changes) = roster();
        let stack = stock_with(changes, set.clone(), configure);
        let mut fleet = Self {
            set,
            roster,
            members: stack.members().clone(),
            workers: HashMap::new(),
        };
        for worker in workers {
            fleet.add(worker);
        }
        (fleet, stack)
    }

    pub fn of(ids: &[Id]) -> (Self, Stack) {
        Self::new(ids.iter().map(|id| Worker::new(id)))
    }

    pub fn add(&mut self, worker: Worker) {
        self.roster.insert(worker.id, worker.clone());
        self.workers.insert(worker.id, worker);
    }

    pub fn remove(&mut self, id: Id) {
        self.roster.remove(&id);
        self.workers.remove(id);
    }

    pub fn worker(&self, id: Id) -> &Worker {
        &self.workers[id]
    }
}

/// What a request got: a worker's status, or the kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    Served(u16),
    Overloaded(OverloadReason),
    Unavailable(UnavailableReason),
    Unreachable,
    Other,
}

pub const ALL_BUSY: Got = Got::Overloaded(OverloadReason::AllWorkersBusy);
pub const AT_CAPACITY: Got = Got::Overloaded(OverloadReason::WorkerAtCapacity);
pub const OK: Got = Got::Served(200);

pub fn got<B>(result: &Result<Response<B>, BoxError>) -> Got {
    match result {
        Ok(response) => Got::Served(response.status().as_u16()),
        Err(error) => {
            if let Some(overloaded) = ServiceOverloaded::find_in(&**error) {
                Got::Overloaded(overloaded.reason())
            } else if let Some(unavailable) = Unavailable::find_in(&**error) {
                Got::Unavailable(unavailable.reason())
            } else if Unreachable::find_in(&**error).is_some() {
                Got::Unreachable
            } else {
                Got::Other
            }
        }
    }
}

/// Sends one request and reads the whole answer.
pub async fn send<S, B>(service: &mut S) -> Got
where
    S: Service<Request<()>, Response = Response<B>, Error = BoxError>,
    B: Body,
{
    let result = match service.ready().await {
        Ok(service) => service.call(Request::new(())).await,
        Err(error) => Err(error),
    };
    let got = got(&result);
    if let Ok(response) = result {
        let _ = response.into_body().collect().await;
    }
    got
}

pub type Buffered =
    BoxCloneSyncService<Request<()>, <Stack as Service<Request<()>>>::Response, BoxError>;

pub fn buffered(stack: Stack) -> Buffered {
    BoxCloneSyncService::new(Buffer::new(stack, 64))
}
