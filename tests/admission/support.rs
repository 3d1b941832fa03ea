//! An engine whose requests go on until the test says otherwise.

use bytes::Bytes;
use futures::{
    channel::{mpsc, oneshot},
    future::BoxFuture,
    stream::Stream,
};
use http::Response;
use http_body::{Body, Frame};
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};
use tokio_test::task::Spawn;
use tower::{BoxError, Layer, Service};
use tower_overload::{
    OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason,
    admission::{
        AdmissionHandle, EngineAdmission, EngineAdmissionFuture, EngineAdmissionLayer, Snapshot,
        UntilBodyEnd,
    },
};

/// A worker with this many slots and places, and its engine.
pub fn worker(slots: usize, queue: usize) -> (EngineAdmission<Engine>, Engine, AdmissionHandle) {
    let engine = Engine::default();
    let layer = EngineAdmissionLayer::new(slots, queue).unwrap();
    (layer.layer(engine.clone()), engine, layer.handle().unwrap())
}

/// A mock engine. It insists on being made ready before every call.
#[derive(Default)]
pub struct Engine {
    shared: Arc<Shared>,
    ready: bool,
}

#[derive(Default)]
struct Shared {
    inside: AtomicUsize,
    most: AtomicUsize,
    readiness_polls: AtomicUsize,
    stuck: AtomicBool,
    broken: AtomicBool,
    running: Mutex<VecDeque<Running>>,
}

/// A request in the engine, as the engine sees it.
pub struct Running {
    pub id: u64,
    head: Option<oneshot::Sender<()>>,
    frames: mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>,
}

impl Running {
    /// Sends the response head.
    pub fn head(&mut self) {
        let _ = self.head.take().expect("one head a response").send(());
    }

    /// Sends the head, if it is not sent yet, and one frame.
    pub fn token(&mut self, token: &'static str) {
        if self.head.is_some() {
            self.head();
        }
        let _ = self
            .frames
            .unbounded_send(Ok(Frame::data(Bytes::from_static(token.as_bytes()))));
    }

    /// Breaks the body off.
    pub fn fail(&mut self) {
        if self.head.is_some() {
            self.head();
        }
        let _ = self.frames.unbounded_send(Err("the engine broke".into()));
    }

    /// Ends the body.
    pub fn end(mut self) {
        if self.head.is_some() {
            self.head();
        }
    }

    /// Whether the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        match &self.head {
            Some(head) => head.is_canceled(),
            None => self.frames.is_closed(),
        }
    }
}

impl Clone for Engine {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            ready: false,
        }
    }
}

impl Engine {
    /// Requests in the engine now: called, and their bodies not over.
    pub fn inside(&self) -> usize {
        self.shared.inside.load(SeqCst)
    }

    /// The most that were in the engine at one time.
    pub fn most(&self) -> usize {
        self.shared.most.load(SeqCst)
    }

    /// How often its readiness was asked for.
    pub fn readiness_polls(&self) -> usize {
        self.shared.readiness_polls.load(SeqCst)
    }

    /// Whether it is never ready.
    pub fn set_stuck(&self, stuck: bool) {
        self.shared.stuck.store(stuck, SeqCst);
    }

    /// Whether being made ready fails.
    pub fn set_broken(&self, broken: bool) {
        self.shared.broken.store(broken, SeqCst);
    }

    /// The oldest request that has started and was not taken yet.
    pub fn next(&self) -> Running {
        self.try_next().expect("a request has started")
    }

    pub fn try_next(&self) -> Option<Running> {
        self.shared.running.lock().unwrap().pop_front()
    }
}

pub struct InEngine(Arc<Shared>);

impl InEngine {
    fn enter(shared: &Arc<Shared>) -> Self {
        let inside = shared.inside.fetch_add(1, SeqCst) + 1;
        shared.most.fetch_max(inside, SeqCst);
        Self(shared.clone())
    }
}

impl Drop for InEngine {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

/// What the mock makes of a request.
pub trait Identified {
    fn id(&self) -> u64;
}

impl Identified for u64 {
    fn id(&self) -> u64 {
        *self
    }
}

impl<B> Identified for http::Request<B> {
    fn id(&self) -> u64 {
        self.uri()
            .path()
            .trim_start_matches('/')
            .parse()
            .unwrap_or(0)
    }
}

impl<R: Identified> Service<R> for Engine {
    type Response = Response<EngineBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.shared.readiness_polls.fetch_add(1, SeqCst);
        if self.shared.broken.load(SeqCst) {
            return Poll::Ready(Err("the engine is broken".into()));
        }
        if self.shared.stuck.load(SeqCst) {
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without being ready"
        );
        let guard = InEngine::enter(&self.shared);
        let (head, answered) = oneshot::channel();
        let (frames, body) = mpsc::unbounded();
        self.shared.running.lock().unwrap().push_back(Running {
            id: request.id(),
            head: Some(head),
            frames,
        });
        Box::pin(async move {
            answered.await.map_err(|_| "the engine panicked").unwrap();
            Ok(Response::new(EngineBody {
                frames: body,
                guard: Some(guard),
            }))
        })
    }
}

/// In the engine until it has ended.
pub struct EngineBody {
    frames: mpsc::UnboundedReceiver<Result<Frame<Bytes>, BoxError>>,
    guard: Option<InEngine>,
}

impl Body for EngineBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.frames).poll_next(cx);
        if let Poll::Ready(None | Some(Err(_))) = frame {
            self.guard = None;
        }
        frame
    }
}

pub type Call<R = u64, C = UntilBodyEnd> = Spawn<EngineAdmissionFuture<Engine, R, C>>;

/// Calls, without polling the response.
pub fn call<S: Service<R>, R>(service: &mut S, request: R) -> Spawn<S::Future> {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    tokio_test::task::spawn(service.call(request))
}

/// Calls and polls the response once: it must be pending.
pub fn send<S: Service<R>, R>(service: &mut S, request: R) -> Spawn<S::Future>
where
    Spawn<S::Future>: PollOnce,
{
    let mut call = call(service, request);
    assert!(call.poll_once_is_pending(), "it is answered already");
    call
}

pub trait PollOnce {
    fn poll_once_is_pending(&mut self) -> bool;
}

impl<F: Future> PollOnce for Spawn<F> {
    fn poll_once_is_pending(&mut self) -> bool {
        self.poll().is_pending()
    }
}

/// The answer of a call that has one.
pub fn answer<F: Future>(call: &mut Spawn<F>) -> F::Output {
    match call.poll() {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("there is no answer yet"),
    }
}

/// The overload that a call is refused with.
pub fn overload<F, T>(call: &mut Spawn<F>) -> ServiceOverloaded
where
    F: Future<Output = Result<T, BoxError>>,
{
    match answer(call) {
        Ok(_) => panic!("it is accepted"),
        Err(error) => ServiceOverloaded::find_in(&*error)
            .expect("an overload")
            .clone(),
    }
}

/// The call is refused because the worker is full.
#[track_caller]
pub fn assert_refused<F, T>(call: &mut Spawn<F>)
where
    F: Future<Output = Result<T, BoxError>>,
{
    assert_eq!(overload(call).reason(), OverloadReason::WorkerAtCapacity);
}

/// The call is refused because the worker shuts down.
#[track_caller]
pub fn assert_unavailable<F, T>(call: &mut Spawn<F>)
where
    F: Future<Output = Result<T, BoxError>>,
{
    match answer(call) {
        Ok(_) => panic!("it is accepted"),
        Err(error) => assert_eq!(
            Unavailable::find_in(&*error).expect("unavailable").reason(),
            UnavailableReason::ShuttingDown
        ),
    }
}

/// In the engine and waiting.
pub fn counts(handle: &AdmissionHandle) -> (usize, usize) {
    let Snapshot {
        in_engine, queued, ..
    } = handle.snapshot();
    (in_engine, queued)
}

/// The body of a call that has its head.
pub fn body<F, B>(call: &mut Spawn<F>) -> Spawn<B>
where
    F: Future<Output = Result<Response<B>, BoxError>>,
{
    tokio_test::task::spawn(answer(call).expect("a response").into_body())
}

/// The next frame of a body, which must be there: its data, or its error.
pub fn next_frame<B>(body: &mut Spawn<B>) -> Option<Result<String, String>>
where
    B: Body<Data = Bytes, Error = BoxError>,
{
    match body.enter(|cx, body| body.poll_frame(cx)) {
        Poll::Pending => panic!("there is no frame yet"),
        Poll::Ready(frame) => frame.map(|frame| {
            let frame = frame.map_err(|error| error.to_string())?;
            let data = frame.into_data().expect("a data frame");
            Ok(String::from_utf8_lossy(&data).into_owned())
        }),
    }
}
