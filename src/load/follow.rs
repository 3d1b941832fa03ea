use super::{LoadEvent, WorkerMonitor, drive::EVENTS_PER_POLL};
use crate::WorkerId;
use ::metrics::Gauge;
use futures::Stream;
use pin_project_lite::pin_project;
use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::retry::backoff::{Backoff, MakeBackoff};

pin_project! {
    /// Feeds a monitor from a source that is connected again whenever it is
    /// lost; see [`WorkerMonitor::follow`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Follow<K, C, F, S, B>
    where
        B: MakeBackoff,
    {
        connect: C,
        make_backoff: B,
        backoff: B::Backoff,
        monitor: WorkerMonitor<K>,
        batch: Vec<LoadEvent<K>>,
        connected: Gauge,
        #[pin]
        state: State<F, S, <B::Backoff as Backoff>::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, S, W> {
        Connecting { #[pin] connection: F },
        Connected { #[pin] events: S, counted: Counted },
        Waiting { #[pin] wait: W },
    }
}

/// Counts one connected source until it is dropped.
pub(crate) struct Counted(Gauge);

impl Counted {
    pub(crate) fn new(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

impl<K: WorkerId> WorkerMonitor<K> {
    /// Feeds the monitor from a source of load events, and connects again when
    /// the source is lost: when connecting fails, when the stream ends or when
    /// it yields an error. The waits in between are those of `backoff`, which
    /// starts anew once a connection has brought an event.
    ///
    /// The future never ends by itself; drop it to stop. Each loss is logged,
    /// and the gauge `…_frontend_load_sources_connected` says how many sources
    /// are connected. While one is not, marks fall when their evidence is
    /// stale.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tower::{
    ///     retry::backoff::{ExponentialBackoffMaker, MakeBackoff},
    ///     util::rng::HasherRng,
    /// };
    /// use tower_overload::load::{LoadEvent, WorkerMonitor};
    ///
    /// # type Events = futures::stream::Empty<Result<LoadEvent<String>, std::io::Error>>;
    /// # async fn subscribe() -> Result<Events, std::io::Error> { unimplemented!() }
    /// # async fn example(monitor: WorkerMonitor<String>) -> Result<(), Box<dyn std::error::Error>> {
    /// let (first, longest) = (Duration::from_millis(100), Duration::from_secs(10));
    /// let backoff = ExponentialBackoffMaker::new(first, longest, 0.5, HasherRng::default())?;
    /// tokio::spawn(monitor.follow(subscribe, backoff));
    /// # Ok(())
    /// # }
    /// ```
    pub fn follow<C, F, S, E, B>(&self, mut connect: C, mut backoff: B) -> Follow<K, C, F, S, B>
    where
        C: FnMut() -> F,
        F: Future<Output = Result<S, E>>,
        S: Stream<Item = Result<LoadEvent<K>, E>>,
        E: fmt::Display,
        B: MakeBackoff,
    {
        Follow {
            state: State::Connecting {
                connection: connect(),
            },
            connect,
            backoff: backoff.make_backoff(),
            make_backoff: backoff,
            connected: self.load_sources(),
            monitor: self.clone(),
            batch: Vec::new(),
        }
    }
}

impl<K, C, F, S, E, B> Future for Follow<K, C, F, S, B>
where
    K: WorkerId,
    C: FnMut() -> F,
    F: Future<Output = Result<S, E>>,
    S: Stream<Item = Result<LoadEvent<K>, E>>,
    E: fmt::Display,
    B: MakeBackoff,
{
    type Output = Infallible;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Infallible> {
        let mut this = self.project();
        // Bounded, should connections and waits all be ready at once.
        for _ in 0..EVENTS_PER_POLL {
            let next = match this.state.as_mut().project() {
                StateProj::Connecting { connection } => match ready!(connection.poll(cx)) {
                    Ok(events) => {
                        tracing::debug!("connected to a source of load events");
                        State::Connected {
                            events,
                            counted: Counted::new(this.connected),
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "no connection to the source of load events");
                        let wait = this.backoff.next_backoff();
                        State::Waiting { wait }
                    }
                },
                StateProj::Connected { mut events, .. } => {
                    let lost = loop {
                        match events.as_mut().poll_next(cx) {
                            Poll::Ready(Some(Ok(event))) => this.batch.push(event),
                            Poll::Ready(Some(Err(error))) => break Poll::Ready(Some(error)),
                            Poll::Ready(None) => break Poll::Ready(None),
                            Poll::Pending => break Poll::Pending,
                        }
                        if this.batch.len() == EVENTS_PER_POLL {
                            cx.waker().wake_by_ref();
                            break Poll::Pending;
                        }
                    };
                    if !this.batch.is_empty() {
                        *this.backoff = this.make_backoff.make_backoff();
                        // Those that are dropped are counted there.
                        this.monitor.observe_batch(this.batch);
                    }
                    match ready!(lost) {
                        Some(error) => {
                            tracing::warn!(%error, "the source of load events failed");
                        }
                        None => tracing::warn!("the source of load events ended"),
                    }
                    let wait = this.backoff.next_backoff();
                    State::Waiting { wait }
                }
                StateProj::Waiting { wait } => {
                    ready!(wait.poll(cx));
                    State::Connecting {
                        connection: (this.connect)(),
                    }
                }
            };
            this.state.set(next);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<K, C, F, S, B: MakeBackoff> fmt::Debug for Follow<K, C, F, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow")
            .field("monitor", &self.monitor)
            .field(
                "state",
                &match self.state {
                    State::Connecting { .. } => "connecting",
                    State::Connected { .. } => "connected",
                    State::Waiting { .. } => "waiting",
                },
            )
            .finish_non_exhaustive()
    }
}
