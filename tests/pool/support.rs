//! Fake workers behind a pool.

pub use crate::fleet::*;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame};
use std::{
    future::Future,
    io, mem,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    sync::{Notify, oneshot},
    time::sleep,
};
use tower::Service;
use tower_overload::BoxError;

pub type Id = &'static str;

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// What a worker does with a request.
#[derive(Clone, Debug)]
pub enum Script {
    Serve,
    ServeAfter(Duration),
    /// Answers at once; the body ends when the test says so.
    Stream,
    /// A status, and the seconds of its `Retry-After`.
    Status(u16, Option<u64>),
    /// A head, a frame, and then an error.
    Breaks,
    /// A status, after a while.
    Late(Duration, u16),
    /// The connection fails in this way, after a while.
    Fail(io::ErrorKind, Duration),
    /// An error that says nothing about the worker.
    Other,
    Never,
    /// Serves after a while, if the worker is not killed before.
    Killable(Duration),
    PanicInCall,
    PanicInFuture,
}

pub const REFUSED: Script = Script::Fail(io::ErrorKind::ConnectionRefused, Duration::ZERO);

enum Readiness {
    Ready,
    Not(Vec<Waker>),
    /// Not ready, and this happens while it says so.
    NotAnd(Box<dyn FnMut() + Send>),
    Broken,
    Panics,
}

/// One worker, as the test sees it.
#[derive(Clone)]
pub struct Worker {
    pub id: Id,
    shared: Arc<Shared>,
    /// Each service of it has one.
    token: Arc<()>,
}

struct Shared {
    calls: AtomicUsize,
    script: Mutex<Script>,
    readiness: Mutex<Readiness>,
    clone_panics: Mutex<bool>,
    streams: Mutex<Vec<oneshot::Sender<()>>>,
    killed: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    pub fn new(id: Id) -> Self {
        Self {
            id,
            shared: Arc::new(Shared {
                calls: AtomicUsize::new(0),
                script: Mutex::new(Script::Serve),
                readiness: Mutex::new(Readiness::Ready),
                clone_panics: Mutex::new(false),
                streams: Mutex::new(Vec::new()),
                killed: Notify::new(),
            }),
            token: Arc::new(()),
        }
    }

    pub fn doing(id: Id, script: Script) -> Self {
        let worker = Self::new(id);
        worker.script(script);
        worker
    }

    /// A service of the worker, which is counted.
    pub fn client(&self) -> Client {
        Client {
            id: self.id,
            shared: self.shared.clone(),
            token: self.token.clone(),
        }
    }

    pub fn script(&self, script: Script) {
        *lock(&self.shared.script) = script;
    }

    pub fn calls(&self) -> usize {
        self.shared.calls.load(SeqCst)
    }

    /// How many services of it exist.
    pub fn clients(&self) -> usize {
        Arc::strong_count(&self.token) - 1
    }

    pub fn unready(&self) {
        self.be(Readiness::Not(Vec::new()));
    }

    pub fn unready_and(&self, then: impl FnMut() + Send + 'static) {
        self.be(Readiness::NotAnd(Box::new(then)));
    }

    pub fn ready(&self) {
        self.be(Readiness::Ready);
    }

    pub fn break_service(&self) {
        self.be(Readiness::Broken);
    }

    pub fn panic_when_polled(&self) {
        self.be(Readiness::Panics);
    }

    pub fn panic_when_cloned(&self, yes: bool) {
        *lock(&self.shared.clone_panics) = yes;
    }

    fn be(&self, readiness: Readiness) {
        let before = mem::replace(&mut *lock(&self.shared.readiness), readiness);
        if let Readiness::Not(wakers) = before {
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// All that it has is lost, and it can be connected to no more.
    pub fn kill(&self) {
        self.script(REFUSED);
        self.shared.killed.notify_waiters();
    }

    /// Ends the bodies of all its streaming responses.
    pub fn end_streams(&self) {
        lock(&self.shared.streams).clear();
    }
}

pub struct Client {
    id: Id,
    shared: Arc<Shared>,
    token: Arc<()>,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        assert!(!*lock(&self.shared.clone_panics), "clone panics");
        Self {
            id: self.id,
            shared: self.shared.clone(),
            token: self.token.clone(),
        }
    }
}

impl Service<Request<()>> for Client {
    type Response = Response<TestBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match &mut *lock(&self.shared.readiness) {
            Readiness::Ready => Poll::Ready(Ok(())),
            Readiness::Broken => Poll::Ready(Err("broken service".into())),
            Readiness::Panics => panic!("poll_ready panics"),
            Readiness::NotAnd(then) => {
                then();
                Poll::Pending
            }
            Readiness::Not(wakers) => {
                wakers.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.shared.calls.fetch_add(1, SeqCst);
        let script = lock(&self.shared.script).clone();
        if matches!(script, Script::PanicInCall) {
            panic!("call panics");
        }
        let (id, shared) = (self.id, self.shared.clone());
        Box::pin(async move {
            match script {
                Script::Serve => Ok(answer(id, 200, None)),
                Script::ServeAfter(time) => {
                    sleep(time).await;
                    Ok(answer(id, 200, None))
                }
                Script::Stream => {
                    let (tx, rx) = oneshot::channel();
                    lock(&shared.streams).push(tx);
                    Ok(answer(id, 200, None).map(|_| TestBody {
                        end: Some(rx),
                        breaks: Breaks::Never,
                    }))
                }
                Script::Status(status, retry_after) => Ok(answer(id, status, retry_after)),
                Script::Breaks => Ok(answer(id, 200, None).map(|_| TestBody {
                    end: None,
                    breaks: Breaks::AfterAFrame,
                })),
                Script::Late(time, status) => {
                    sleep(time).await;
                    Ok(answer(id, status, None))
                }
                Script::Fail(kind, time) => {
                    sleep(time).await;
                    Err(io::Error::from(kind).into())
                }
                Script::Other => Err("something else".into()),
                Script::Killable(time) => tokio::select! {
                    () = sleep(time) => Ok(answer(id, 200, None)),
                    () = shared.killed.notified() => {
                        Err(io::Error::from(io::ErrorKind::ConnectionReset).into())
                    }
                },
                Script::Never => std::future::pending().await,
                Script::PanicInCall | Script::PanicInFuture => panic!("the future panics"),
            }
        })
    }
}

fn answer(id: Id, status: u16, retry_after: Option<u64>) -> Response<TestBody> {
    let mut response = Response::builder().status(status).header("worker", id);
    if let Some(seconds) = retry_after {
        response = response.header("retry-after", seconds);
    }
    response.body(TestBody::default()).unwrap()
}

/// Has no data, and ends at once or when the test says so.
#[derive(Debug, Default)]
pub struct TestBody {
    end: Option<oneshot::Receiver<()>>,
    breaks: Breaks,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Breaks {
    #[default]
    Never,
    AfterAFrame,
    Now,
}

impl Body for TestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.breaks {
            Breaks::Never => {}
            Breaks::AfterAFrame => {
                self.breaks = Breaks::Now;
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))));
            }
            Breaks::Now => {
                return Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into())));
            }
        }
        match &mut self.end {
            Some(end) => Pin::new(end).poll(cx).map(|_| None),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.end.is_none() && self.breaks == Breaks::Never
    }
}
