//! Workers that take their time, and a client that looks at the clock.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use std::{
    collections::VecDeque,
    fmt, io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tower::{BoxError, Layer, Service};
use tower_overload::{
    LimitPassed,
    limits::{Streamed, TimeLimit, TimeLimitLayer},
};

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub const YEAR: Duration = secs(365 * 24 * 60 * 60);

/// What a body does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Data(&'static str),
    Trailers,
    /// The connection is reset.
    Break,
    End,
    /// Nothing, from now on.
    Hang,
}

/// What a worker does, each step so long after the one before it, whether it
/// is asked for it or not.
#[derive(Clone, Debug)]
pub struct Script {
    pub head: Duration,
    pub content_type: &'static str,
    pub status: u16,
    pub steps: Vec<(Duration, Step)>,
    /// The body can tell without being asked that it is over.
    pub knows_end: bool,
}

pub const EVENTS: &str = "text/event-stream";

/// A head at once, and then these steps.
pub fn answer(content_type: &'static str, steps: &[(Duration, Step)]) -> Script {
    Script {
        head: Duration::ZERO,
        content_type,
        status: 200,
        steps: steps.to_vec(),
        knows_end: false,
    }
}

/// The head after this long, and a short body with it.
pub fn head_after(head: Duration) -> Script {
    Script {
        head,
        ..answer(
            "application/json",
            &[(ms(0), Step::Data("{}")), (ms(0), Step::End)],
        )
    }
}

#[derive(Clone, Debug)]
pub struct Worker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    script: Script,
    calls: AtomicUsize,
    /// Each future and each body of the worker has one.
    alive: Arc<()>,
}

impl Worker {
    pub fn new(script: Script) -> Self {
        Self(Arc::new(Shared {
            script,
            calls: AtomicUsize::new(0),
            alive: Arc::new(()),
        }))
    }

    pub fn calls(&self) -> usize {
        self.0.calls.load(SeqCst)
    }

    /// How many futures and bodies there are.
    pub fn alive(&self) -> usize {
        Arc::strong_count(&self.0.alive) - 1
    }

    pub fn within(&self, limits: TimeLimitLayer) -> TimeLimit<Self> {
        limits.layer(self.clone())
    }
}

impl Service<Request<()>> for Worker {
    type Response = Response<ScriptBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.0.calls.fetch_add(1, SeqCst);
        let alive = self.0.alive.clone();
        let script = self.0.script.clone();
        Box::pin(async move {
            match script.head {
                Duration::ZERO => {}
                Duration::MAX => std::future::pending().await,
                head => sleep(head).await,
            }
            let mut due = Instant::now();
            let steps = script.steps.into_iter();
            let steps = steps.map(|(after, step)| {
                due += after;
                (due, step)
            });
            let body = ScriptBody {
                steps: steps.collect(),
                sleep: None,
                is_over: false,
                knows_end: script.knows_end,
                _alive: alive,
            };
            let response = Response::builder()
                .status(script.status)
                .header("content-type", script.content_type);
            Ok(response.body(body).unwrap())
        })
    }
}

/// A body that must not be asked again once it is over, like many a stream.
#[derive(Debug)]
pub struct ScriptBody {
    steps: VecDeque<(Instant, Step)>,
    sleep: Option<Pin<Box<Sleep>>>,
    is_over: bool,
    knows_end: bool,
    _alive: Arc<()>,
}

impl Body for ScriptBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        assert!(!self.is_over, "it is over");
        let Some((due, step)) = self.steps.front().copied() else {
            return Poll::Pending;
        };
        if Instant::now() < due {
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
            ready!(sleep.as_mut().poll(cx));
        }
        if step == Step::Hang {
            return Poll::Pending;
        }
        self.sleep = None;
        self.steps.pop_front();
        self.is_over = matches!(step, Step::End | Step::Break);
        Poll::Ready(match step {
            Step::Data(data) => Some(Ok(Frame::data(Bytes::from_static(data.as_bytes())))),
            Step::Trailers => Some(Ok(Frame::trailers(HeaderMap::from_iter([(
                http::HeaderName::from_static("x-end"),
                HeaderValue::from_static("yes"),
            )])))),
            Step::Break => Some(Err(io::ErrorKind::ConnectionReset.into())),
            Step::End | Step::Hang => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.knows_end && matches!(self.steps.front(), Some((_, Step::End)) | None)
    }
}

pub fn request() -> Request<()> {
    Request::new(())
}

/// A request whose answer is said to be streamed, or to come whole.
pub fn said(streamed: bool) -> Request<()> {
    let mut request = request();
    request.extensions_mut().insert(Streamed(streamed));
    request
}

/// Which limit has passed.
#[track_caller]
pub fn passed(error: &BoxError) -> LimitPassed {
    let passed = LimitPassed::find_in(&**error);
    passed.unwrap_or_else(|| panic!("{error}")).clone()
}

/// The response where it has to be one: its type has no `Debug` to unwrap by.
#[track_caller]
pub fn error<T>(result: Result<T, BoxError>) -> BoxError {
    match result {
        Ok(_) => panic!("it is answered"),
        Err(error) => error,
    }
}

/// A frame for comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Data(Bytes),
    Trailers,
    Error(String),
    End,
}

impl Seen {
    pub fn of<E: fmt::Display>(frame: Option<Result<Frame<Bytes>, E>>) -> Self {
        match frame {
            Some(Ok(frame)) if frame.is_trailers() => Self::Trailers,
            Some(Ok(frame)) => Self::Data(frame.into_data().unwrap()),
            Some(Err(error)) => Self::Error(error.to_string()),
            None => Self::End,
        }
    }

    pub fn data(data: &'static str) -> Self {
        Self::Data(data.into())
    }
}
