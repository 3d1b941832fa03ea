use super::{EngineReport, InvalidPoller, ScrapeError, error::OUTCOMES};
use crate::{
    BoxError,
    metrics::{self, Prefix},
};
use ::metrics::Counter;
use bytes::{Buf, BufMut};
use futures::Stream;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header::ACCEPT};
use http_body::Body;
use pin_project_lite::pin_project;
use std::{
    borrow::Cow,
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Sleep, sleep};
use tower::util::rng::{HasherRng, Rng};
use tower_service::Service;

/// The frames of a body that one poll takes, so that other tasks of its thread
/// get their turn.
const FRAMES_PER_POLL: usize = 64;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Makes a [`Poller`].
#[derive(Clone, Debug)]
pub struct PollerBuilder {
    interval: Duration,
    jitter: f64,
    timeout: Duration,
    max_body: usize,
    rank_label: Option<Cow<'static, str>>,
    worker: Option<String>,
    prefix: Prefix,
}

impl Default for PollerBuilder {
    fn default() -> Self {
        Self {
            interval: Self::DEFAULT_INTERVAL,
            jitter: Self::DEFAULT_JITTER,
            timeout: Self::DEFAULT_TIMEOUT,
            max_body: Self::DEFAULT_MAX_BODY,
            rank_label: None,
            worker: None,
            prefix: Prefix::default(),
        }
    }
}

impl PollerBuilder {
    /// 1 s. SGLang renews its figures every 40 decode steps by default, which
    /// is about that long, and an engine that is asked much more often spends
    /// time on writing its metrics that its API server needs.
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
    /// 10 % either way.
    pub const DEFAULT_JITTER: f64 = 0.1;
    /// 5 s: an engine's API server answers late when it is overloaded, which
    /// is when its load matters.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
    /// 4 MiB. An engine's metrics are some 100 KB.
    pub const DEFAULT_MAX_BODY: usize = 4 << 20;

    /// The time from the end of a scrape to the start of the next one.
    ///
    /// Keep it well below the time that a count is good for the monitor, 30 s
    /// by default: a full worker is free from when its last report is stale to
    /// the next one.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// By how large a share of it an interval may be longer or shorter, from 0
    /// to 1. The first scrape comes within one interval, so that the workers
    /// of a gateway that has just started are not all asked at once; with a
    /// jitter of 0 it comes at once.
    #[must_use]
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// How long a scrape may take until its body is complete.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The bytes of the longest body that is read.
    #[must_use]
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// The label that tells data-parallel ranks apart, instead of the engine's
    /// own.
    #[must_use]
    pub fn rank_label(mut self, label: impl Into<Cow<'static, str>>) -> Self {
        self.rank_label = Some(label.into());
        self
    }

    /// What the worker is called in the log; by default its address.
    #[must_use]
    pub fn worker(mut self, worker: impl fmt::Display) -> Self {
        self.worker = Some(worker.to_string());
        self
    }

    /// What the names of the metrics start with; `dynamo` by default.
    #[must_use]
    pub fn metrics_prefix(mut self, prefix: Prefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// A poller of the metrics at `uri`, by means of `client`.
    ///
    /// Whatever the client needs is in the URI: with most clients that is all
    /// of it, as in `http://10.0.0.1:8000/metrics`. Give it one that does not
    /// follow redirections, so that a worker cannot send the gateway to
    /// another address.
    ///
    /// # Errors
    ///
    /// An option is out of its range.
    pub fn build<S, B, RB>(self, client: S, uri: Uri) -> Result<Poller<S, B, RB>, InvalidPoller>
    where
        S: Service<Request<B>, Response = Response<RB>>,
    {
        let is_allowed = |time: Duration| !time.is_zero() && time <= DAY;
        if !is_allowed(self.interval) {
            return Err(InvalidPoller::Interval(self.interval));
        }
        if !is_allowed(self.timeout) {
            return Err(InvalidPoller::Timeout(self.timeout));
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(InvalidPoller::Jitter(self.jitter));
        }
        if self.max_body == 0 {
            return Err(InvalidPoller::MaxBody);
        }
        Ok(Poller {
            client,
            worker: self.worker.unwrap_or_else(|| uri.to_string()),
            uri,
            rank_label: self.rank_label,
            interval: self.interval,
            jitter: self.jitter,
            timeout: self.timeout,
            max_body: self.max_body,
            random: HasherRng::default(),
            outcomes: OUTCOMES.map(|it| metrics::SCRAPES.counter(&self.prefix, &[it])),
            ignored: metrics::SCRAPE_VALUES_IGNORED.counter(&self.prefix, &[]),
            health: Health::Unknown,
            timer: None,
            state: State::New,
            request: PhantomData,
        })
    }
}

pin_project! {
    /// Reads the metrics of one worker, again and again: a stream of
    /// [`EngineReport`]s.
    ///
    /// A scrape that fails is an `Err`, which says nothing of the worker's
    /// load: report none, and what was reported ages. It is counted by its
    /// outcome, and logged when the scrapes before it did not fail.
    ///
    /// The stream ends after [`ScrapeError::ClientClosed`] and never else.
    ///
    /// There is at most one scrape at a time, and it goes on only while the
    /// stream is polled. Cancel safe: dropping the future of `next` loses
    /// nothing, and dropping the poller ends the scrape that it is at, and
    /// its timer.
    ///
    /// `S` is the HTTP client, `B` and `RB` are the bodies of its requests and
    /// responses.
    ///
    /// # Panics
    ///
    /// When it is polled outside of a tokio runtime that has its timer enabled.
    #[must_use = "streams do nothing unless polled"]
    pub struct Poller<S, B, RB>
    where
        S: Service<Request<B>, Response = Response<RB>>,
    {
        client: S,
        uri: Uri,
        worker: String,
        rank_label: Option<Cow<'static, str>>,
        interval: Duration,
        jitter: f64,
        timeout: Duration,
        max_body: usize,
        random: HasherRng,
        outcomes: [Counter; OUTCOMES.len()],
        ignored: Counter,
        health: Health,
        // Until the next scrape, or of the one that is going on.
        #[pin]
        timer: Option<Sleep>,
        #[pin]
        state: State<S::Future, RB>,
        request: PhantomData<fn(B)>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, RB> {
        New,
        Waiting,
        Readying,
        Calling { #[pin] response: F },
        Reading { #[pin] body: RB, text: Vec<u8>, read: usize },
        Ended,
    }
}

/// What the log has said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Unknown,
    Succeeding,
    Failing,
}

impl Health {
    /// Logs what has changed.
    fn update(&mut self, worker: &str, result: &Result<EngineReport, ScrapeError>) {
        let is = match result {
            Ok(_) => Self::Succeeding,
            Err(_) => Self::Failing,
        };
        if std::mem::replace(self, is) == is {
            return;
        }
        match result {
            Ok(report) => tracing::info!(
                worker,
                engine = report.engine().as_str(),
                ranks = report.ranks().len(),
                kv_blocks = report.kv_blocks(),
                "the worker's metrics are read"
            ),
            Err(error) => tracing::warn!(
                worker,
                error = error as &(dyn std::error::Error + 'static),
                "the worker's metrics cannot be read, trying on"
            ),
        }
    }
}

impl<S, B, RB> Poller<S, B, RB>
where
    S: Service<Request<B>, Response = Response<RB>>,
{
    /// What the worker is called in the log.
    pub fn worker(&self) -> &str {
        &self.worker
    }
}

impl<S, B, RB> Stream for Poller<S, B, RB>
where
    S: Service<Request<B>, Response = Response<RB>>,
    S::Error: Into<BoxError>,
    B: Default,
    RB: Body,
    RB::Error: Into<BoxError>,
{
    type Item = Result<EngineReport, ScrapeError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let mut this = self.as_mut().project();
            let step = match this.state.as_mut().project() {
                StateProj::New => {
                    let wait = match *this.jitter {
                        0.0 => Duration::ZERO,
                        _ => this.interval.mul_f64(this.random.next_f64()),
                    };
                    this.timer.set(Some(sleep(wait)));
                    this.state.set(State::Waiting);
                    continue;
                }
                StateProj::Waiting => {
                    if let Some(timer) = this.timer.as_mut().as_pin_mut() {
                        ready!(timer.poll(cx));
                    }
                    this.timer.set(Some(sleep(*this.timeout)));
                    this.state.set(State::Readying);
                    continue;
                }
                StateProj::Ended => return Poll::Ready(None),
                StateProj::Readying => match this.client.poll_ready(cx) {
                    Poll::Ready(Ok(())) => {
                        let response = this.client.call(request(this.uri.clone()));
                        this.state.set(State::Calling { response });
                        continue;
                    }
                    Poll::Ready(Err(error)) => Some(Err(ScrapeError::ClientClosed(error.into()))),
                    Poll::Pending => None,
                },
                StateProj::Calling { response } => match response.poll(cx) {
                    Poll::Ready(Ok(response)) if response.status() == StatusCode::OK => {
                        this.state.set(State::Reading {
                            body: response.into_body(),
                            text: Vec::new(),
                            read: 0,
                        });
                        continue;
                    }
                    Poll::Ready(Ok(response)) => Some(Err(ScrapeError::Status(response.status()))),
                    Poll::Ready(Err(error)) => Some(Err(ScrapeError::Request(error.into()))),
                    Poll::Pending => None,
                },
                StateProj::Reading { body, text, read } => {
                    match poll_read(body, text, read, *this.max_body, cx) {
                        Poll::Ready(Ok(())) => {
                            let report = EngineReport::read_by(text, this.rank_label.as_deref());
                            Some(report.map_err(ScrapeError::Unreadable))
                        }
                        Poll::Ready(Err(error)) => Some(Err(error)),
                        Poll::Pending => None,
                    }
                }
            };
            let result = match step {
                Some(result) => result,
                None => {
                    if let Some(timer) = this.timer.as_mut().as_pin_mut() {
                        ready!(timer.poll(cx));
                    }
                    Err(ScrapeError::TimedOut(*this.timeout))
                }
            };
            this.health.update(this.worker, &result);
            match &result {
                Ok(report) => {
                    this.outcomes[0].increment(1);
                    this.ignored.increment(report.ignored());
                }
                Err(error) => this.outcomes[error.outcome()].increment(1),
            }
            if let Err(ScrapeError::ClientClosed(_)) = result {
                this.timer.set(None);
                this.state.set(State::Ended);
            } else {
                let by = 1.0 + *this.jitter * (2.0 * this.random.next_f64() - 1.0);
                this.timer.set(Some(sleep(this.interval.mul_f64(by))));
                this.state.set(State::Waiting);
            }
            return Poll::Ready(Some(result));
        }
    }
}

fn request<B: Default>(uri: Uri) -> Request<B> {
    let mut request = Request::new(B::default());
    *request.uri_mut() = uri;
    let text = HeaderValue::from_static("text/plain;version=0.0.4");
    request.headers_mut().insert(ACCEPT, text);
    request
}

/// Reads a body to its end. A frame without data counts as one byte, so that
/// a body of nothing but those has an end as well.
fn poll_read<RB>(
    mut body: Pin<&mut RB>,
    text: &mut Vec<u8>,
    read: &mut usize,
    max: usize,
    cx: &mut Context<'_>,
) -> Poll<Result<(), ScrapeError>>
where
    RB: Body,
    RB::Error: Into<BoxError>,
{
    for _ in 0..FRAMES_PER_POLL {
        match ready!(body.as_mut().poll_frame(cx)) {
            None => return Poll::Ready(Ok(())),
            Some(Err(error)) => return Poll::Ready(Err(ScrapeError::Body(error.into()))),
            Some(Ok(frame)) => {
                let data = frame.into_data().ok();
                let length = data.as_ref().map_or(0, Buf::remaining).max(1);
                *read = read.saturating_add(length);
                if *read > max {
                    return Poll::Ready(Err(ScrapeError::TooLarge(max)));
                }
                if let Some(data) = data {
                    text.put(data);
                }
            }
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

impl<S, B, RB> fmt::Debug for Poller<S, B, RB>
where
    S: Service<Request<B>, Response = Response<RB>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("worker", &self.worker)
            .field("uri", &self.uri)
            .field(
                "state",
                &match self.state {
                    State::New | State::Waiting => "waiting",
                    State::Readying | State::Calling { .. } => "asking",
                    State::Reading { .. } => "reading",
                    State::Ended => "ended",
                },
            )
            .finish_non_exhaustive()
    }
}
