//! The connections of one worker: those that are idle, and how one comes by
//! another.

mod http1;
mod http2;
mod task;

pub(super) use self::http1::{Http1, keep_alive};
pub(super) use self::http2::Stream;

use self::{http1::State, http2::Http2};
use super::{
    Fault, FaultKind, Protocol,
    classify::Loss,
    connect::Connector,
    upload::{Back, Outgoing},
};
use crate::sync::{Mutex, lock};
use futures::{
    FutureExt,
    future::{BoxFuture, WeakShared},
};
use http::{Request, Response};
use hyper::body::Incoming;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    runtime::Handle,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

/// How long connections are kept that nobody uses, and how many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep {
    /// `None`: as long as the worker says, or else the default.
    pub(super) idle: Option<Duration>,
    pub(super) max_idle: usize,
}

/// Less than the 5 s after which the usual server closes.
const KEPT: Duration = Duration::from_secs(4);
/// How much sooner than the worker a connection is given up.
const MARGIN: Duration = Duration::from_secs(1);
/// However long the worker would keep it.
const LONGEST: Duration = Duration::from_secs(90);
/// Connections with HTTP/2 that one worker gets when each has as many requests
/// as it takes. What is more waits for its turn on one of them.
const MAX_HTTP2: usize = 16;

impl Keep {
    /// How long a connection is kept whose last answer says that the worker
    /// keeps it for `said`.
    fn time(&self, said: Option<Duration>) -> Duration {
        let said = said.map(|said| said.saturating_sub(MARGIN).min(LONGEST));
        match (self.idle, said) {
            (Some(idle), Some(said)) => idle.min(said),
            (Some(time), None) | (None, Some(time)) => time,
            (None, None) => KEPT,
        }
    }
}

type Connecting = WeakShared<BoxFuture<'static, Result<Arc<Http2>, Fault>>>;

pub(super) struct Pool {
    connector: Connector,
    keep: Keep,
    state: Mutex<Connections>,
    made: AtomicU64,
}

#[derive(Default)]
struct Connections {
    /// The one that was used last is the last, and the next to be used.
    http1: VecDeque<Kept>,
    http2: Vec<Arc<Http2>>,
    /// One at a time, for all that wait for it.
    connecting: Option<Connecting>,
    reaper: Option<AbortHandle>,
}

impl Connections {
    /// Whether a task closes what is idle: one that ended with its runtime does
    /// not.
    fn is_watched(&self) -> bool {
        let reaper = self.reaper.as_ref();
        reaper.is_some_and(|reaper| !reaper.is_finished())
    }
}

struct Kept {
    connection: Http1,
    until: Instant,
}

/// A connection, for one request.
pub(super) struct Lease {
    on: On,
    reused: bool,
}

/// Which connection a request was on, where it is one of several that live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionId(u64);

enum On {
    Http1(Http1),
    Http2(Stream),
}

/// What an answer holds until its end.
pub(super) enum Held {
    Http1(Http1, Back),
    Http2(Stream),
}

/// A request that was not answered.
pub(super) struct Lost {
    error: hyper::Error,
    /// Something has come since it was sent.
    begun: bool,
    /// More informational responses than may be have come.
    flooded: bool,
    back: Back,
}

impl Pool {
    pub(super) fn new(connector: Connector, keep: Keep) -> Arc<Self> {
        Arc::new(Self {
            connector,
            keep,
            state: Mutex::default(),
            made: AtomicU64::new(0),
        })
    }

    pub(super) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// A connection for a request. One that was `lost` gets a new one with
    /// HTTP/1.1, and any other with HTTP/2.
    pub(super) async fn take(self: &Arc<Self>, lost: Option<ConnectionId>) -> Result<Lease, Fault> {
        match self.connector.protocol {
            Protocol::Http1 => self.take_http1(lost.is_some()).await,
            Protocol::Http2 => self.take_http2(lost).await,
        }
    }

    async fn take_http1(self: &Arc<Self>, fresh: bool) -> Result<Lease, Fault> {
        let kept = if fresh { None } else { self.take_kept() };
        let reused = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => {
                let io = self.connector.connect().await?;
                Http1::over(io, &self.connector).await?
            }
        };
        Ok(Lease {
            on: On::Http1(connection),
            reused,
        })
    }

    /// The connection that was used last, if it is still one.
    fn take_kept(&self) -> Option<Http1> {
        let mut busy = Vec::new();
        let mut closed = Vec::new();
        let mut found = None;
        let mut state = lock(&self.state);
        while let Some(kept) = state.http1.pop_back() {
            if kept.until <= Instant::now() {
                closed.push(kept);
                continue;
            }
            match kept.connection.state() {
                State::Ready => {
                    found = Some(kept.connection);
                    break;
                }
                State::Busy => busy.push(kept),
                State::Closed => closed.push(kept),
            }
        }
        state.http1.extend(busy.into_iter().rev());
        // Connections end outside of the lock.
        drop(state);
        drop(closed);
        let mut found = found?;
        found.set_idle(false);
        Some(found)
    }

    /// Keeps a connection whose answer is over, for the time that the worker
    /// has `said`, less a margin.
    pub(super) fn put(self: &Arc<Self>, mut connection: Http1, said: Option<Duration>) {
        let time = self.keep.time(said);
        connection.set_idle(true);
        if time.is_zero() || self.keep.max_idle == 0 || connection.is_closed() {
            return;
        }
        let kept = Kept {
            connection,
            until: Instant::now() + time,
        };
        let mut state = lock(&self.state);
        state.http1.push_back(kept);
        let one_too_many = match state.http1.len() > self.keep.max_idle {
            true => state.http1.pop_front(),
            false => None,
        };
        let is_watched = state.is_watched();
        drop(state);
        drop(one_too_many);
        if !is_watched {
            self.watch_idle();
        }
    }

    async fn take_http2(self: &Arc<Self>, lost: Option<ConnectionId>) -> Result<Lease, Fault> {
        let lease = |connection: Arc<Http2>| Lease {
            reused: connection.has_answered(),
            on: On::Http2(Stream::on(connection, self)),
        };
        if let Some(connection) = self.shared(lost) {
            return Ok(lease(connection));
        }
        // Those that waited for the same one may have filled it meanwhile.
        for _ in 0..MAX_HTTP2 {
            let connection = self.connect_http2().await?;
            if connection.has_room() {
                return Ok(lease(connection));
            }
            if let Some(connection) = self.shared(lost) {
                return Ok(lease(connection));
            }
        }
        Ok(lease(self.connect_http2().await?))
    }

    /// A connection with room; or the one with the fewest requests, if there
    /// are as many as there may be.
    fn shared(&self, lost: Option<ConnectionId>) -> Option<Arc<Http2>> {
        let mut state = lock(&self.state);
        let (open, closed) = std::mem::take(&mut state.http2)
            .into_iter()
            .partition::<Vec<_>, _>(|connection| !connection.is_closed());
        let others = open.iter().filter(|it| lost != Some(ConnectionId(it.id())));
        let found = others.clone().find(|connection| connection.has_room());
        let found = found.or_else(|| match open.len() < MAX_HTTP2 {
            true => None,
            false => others.min_by_key(|connection| connection.in_flight()),
        });
        let found = found.cloned();
        state.http2 = open;
        drop(state);
        drop(closed);
        found
    }

    /// Connects, together with all who want to at this moment.
    async fn connect_http2(self: &Arc<Self>) -> Result<Arc<Http2>, Fault> {
        let connecting = {
            let mut state = lock(&self.state);
            let under_way = state.connecting.as_ref().and_then(WeakShared::upgrade);
            under_way
                .filter(|it| it.peek().is_none())
                .unwrap_or_else(|| {
                    let pool = self.clone();
                    let connecting = async move {
                        let io = pool.connector.connect().await?;
                        let id = pool.made.fetch_add(1, Relaxed);
                        let connection = Arc::new(Http2::over(io, id, &pool.connector).await?);
                        lock(&pool.state).http2.push(connection.clone());
                        pool.watch_idle();
                        Ok(connection)
                    };
                    let connecting = connecting.boxed().shared();
                    state.connecting = connecting.downgrade();
                    connecting
                })
        };
        connecting.await
    }

    /// Sees to it that what is idle is closed in time.
    fn watch_idle(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if !state.is_watched() {
            // Without a runtime, connections are dead anyway.
            if let Ok(runtime) = Handle::try_current() {
                let reaper = runtime.spawn(reap(Arc::downgrade(self)));
                state.reaper = Some(reaper.abort_handle());
            }
        }
    }

    /// Closes what was idle for too long, and says when to look again.
    fn expire(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let (kept, ended) = std::mem::take(&mut state.http1)
            .into_iter()
            .partition::<VecDeque<_>, _>(|kept| kept.until > now);
        state.http1 = kept;
        let time = self.keep.time(None);
        let (open, closed) = std::mem::take(&mut state.http2)
            .into_iter()
            .partition::<Vec<_>, _>(|connection| {
                !connection.is_closed() && connection.idle_since().is_none_or(|it| it + time > now)
            });
        state.http2 = open;
        let untils = state.http1.iter().map(|kept| kept.until);
        let idle = state.http2.iter().filter_map(|it| it.idle_since());
        let next = untils.chain(idle.map(|since| since + time)).min();
        if next.is_none() {
            state.reaper = None;
        }
        drop(state);
        drop((ended, closed));
        next
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(reaper) = lock(&self.state).reaper.take() {
            reaper.abort();
        }
    }
}

async fn reap(pool: Weak<Pool>) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.expire()) {
        // One that came since may have less time.
        sleep_until(next.min(Instant::now() + KEPT)).await;
    }
}

impl Lease {
    /// Whether the request has to be kept, since it may be sent again.
    pub(super) const fn may_be_sent_again(&self) -> bool {
        // On a connection of many, the worker can say that it has not looked.
        self.reused || matches!(self.on, On::Http2(_))
    }

    /// Sends a request, and waits for the head of its answer.
    pub(super) async fn send(
        self,
        request: Request<Outgoing>,
        back: Back,
    ) -> Result<(Response<Incoming>, Held), Lost> {
        match self.on {
            On::Http1(connection) => {
                let (response, connection, back) = connection.send(request, back).await?;
                Ok((response, Held::Http1(connection, back)))
            }
            On::Http2(stream) => {
                let (response, stream, _) = stream.send(request, back).await?;
                Ok((response, Held::Http2(stream)))
            }
        }
    }

    /// What is to be avoided when the request is lost.
    pub(super) fn on(&self) -> ConnectionId {
        match &self.on {
            On::Http1(_) => ConnectionId(0),
            On::Http2(stream) => ConnectionId(stream.connection_id()),
        }
    }

    pub(super) const fn is_reused(&self) -> bool {
        self.reused
    }
}

impl Held {
    /// Where the request's body comes back, if it was not the answer to it that
    /// came: what a worker says before it closes an idle connection.
    pub(super) fn give_up(self) -> Option<Back> {
        match self {
            // The connection ends here, and so brings the body back.
            Self::Http1(_connection, back) => Some(back),
            Self::Http2(_) => None,
        }
    }
}

impl Lost {
    /// What it is, and where the request's body comes back if it may be sent
    /// again.
    pub(super) fn told(self, connector: &Connector, reused: bool) -> (Fault, Option<Back>) {
        let loss = match self.flooded {
            true => Loss::Malformed,
            false => Loss::of(&self.error),
        };
        let kind = match loss {
            Loss::Request => FaultKind::Request,
            Loss::Stream => FaultKind::Reset,
            Loss::Malformed => FaultKind::Malformed,
            Loss::Connection { untouched: true } if reused => FaultKind::LostReused,
            Loss::Connection { .. } | Loss::Unknown if reused && !self.begun => {
                FaultKind::LostReused
            }
            Loss::Connection { .. } | Loss::Unknown => FaultKind::LostFresh,
        };
        let again = kind == FaultKind::LostReused || loss == Loss::Connection { untouched: true };
        (
            connector.fault(kind, self.error),
            again.then_some(self.back),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_kept_for_less_than_the_worker_keeps_them() {
        let seconds = Duration::from_secs;
        for (idle, said, kept) in [
            (None, None, 4),
            (None, Some(5), 4),
            (None, Some(75), 74),
            (None, Some(3600), 90),
            (None, Some(1), 0),
            (None, Some(0), 0),
            (Some(10), None, 10),
            (Some(10), Some(5), 4),
            (Some(2), Some(5), 2),
            (Some(0), Some(5), 0),
        ] {
            let keep = Keep {
                idle: idle.map(seconds),
                max_idle: 1,
            };
            assert_eq!(
                keep.time(said.map(seconds)),
                seconds(kept),
                "{idle:?} {said:?}"
            );
        }
    }
}
