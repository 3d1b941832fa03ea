//! A connection with HTTP/2: many requests at a time.

use super::{Lost, Pool, task::Task};
use crate::{
    sync::{Mutex, lock},
    upstream::{
        connect::Connector,
        fault::{Fault, FaultKind},
        io::{Idle, Io, Watch},
        upload::{Back, Outgoing},
    },
};
use futures::task::AtomicWaker;
use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;

/// What a client that does not read can keep from the others of a connection.
const STREAM_WINDOW: u32 = 256 * 1024;
/// So large that only the windows of the streams count.
const CONNECTION_WINDOW: u32 = 1 << 30;
const MAX_HEAD: u32 = 64 * 1024;
/// A worker that is gone without a word is noticed after twice this.
const PING: Duration = Duration::from_secs(20);

/// A connection; when the last one lets go of it, it is closed.
pub(in crate::upstream) struct Http2 {
    sender: SendRequest<Outgoing>,
    watch: Arc<Watch>,
    id: u64,
    in_flight: AtomicUsize,
    max_in_flight: Arc<AtomicUsize>,
    idle_since: Mutex<Instant>,
    has_answered: AtomicBool,
    /// Wakes the task to see what the worker's settings are: they come before
    /// its first answer, and to another task.
    settled: Arc<AtomicWaker>,
    _task: Task,
}

impl Http2 {
    /// `id` tells it from the others.
    pub(super) async fn over(io: Io, id: u64, connector: &Connector) -> Result<Self, Fault> {
        let watch = io.watch().clone();
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEAD)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .handshake(TokioIo::new(io.count_heads()));
        let (sender, mut connection) = handshake
            .await
            .map_err(|error| connector.fault(FaultKind::NotConnected, error))?;
        let max_in_flight = Arc::new(AtomicUsize::new(connection.current_max_send_streams()));
        let settled = Arc::new(AtomicWaker::new());
        let (allowed, waker) = (max_in_flight.clone(), settled.clone());
        let task = Task::spawn(async move {
            let ended = poll_fn(|cx| {
                waker.register(cx.waker());
                let polled = Pin::new(&mut connection).poll(cx);
                allowed.store(connection.current_max_send_streams(), Relaxed);
                polled
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "a connection to a worker ended");
            }
        });
        Ok(Self {
            sender,
            watch,
            id,
            in_flight: AtomicUsize::new(0),
            max_in_flight,
            idle_since: Mutex::new(Instant::now()),
            has_answered: AtomicBool::new(false),
            settled,
            _task: task,
        })
    }

    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight() < self.max_in_flight.load(Relaxed)
    }

    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Relaxed)
    }

    /// Since when nothing runs on it.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.in_flight() == 0).then(|| *lock(&self.idle_since))
    }

    pub(super) fn is_closed(&self) -> bool {
        let quiet = self.in_flight() == 0;
        self.sender.is_closed() || (quiet && self.watch.look() == Idle::Closed)
    }
}

/// A request's place on a connection.
pub(in crate::upstream) struct Stream {
    connection: Arc<Http2>,
    pool: Arc<Pool>,
}

impl Stream {
    pub(super) fn on(connection: Arc<Http2>, pool: &Arc<Pool>) -> Self {
        connection.in_flight.fetch_add(1, Relaxed);
        Self {
            connection,
            pool: pool.clone(),
        }
    }

    pub(super) fn connection_id(&self) -> u64 {
        self.connection.id()
    }

    pub(super) async fn send(
        self,
        request: Request<Outgoing>,
        back: Back,
    ) -> Result<(Response<Incoming>, Self, Back), Lost> {
        let watch = &self.connection.watch;
        let before = watch.received();
        let mut sender = self.connection.sender.clone();
        match sender.try_send_request(request).await {
            Ok(response) => {
                watch.answered();
                if !self.connection.has_answered.swap(true, Relaxed) {
                    self.connection.settled.wake();
                }
                Ok((response, self, back))
            }
            Err(mut error) => {
                let begun = watch.received() > before;
                drop(error.take_message());
                drop(sender);
                // The stream is reset, and with it the body goes.
                Err(Lost {
                    error: error.into_error(),
                    begun,
                    flooded: watch.is_flooded(),
                    back,
                })
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.connection.in_flight.fetch_sub(1, Relaxed) == 1 {
            *lock(&self.connection.idle_since) = Instant::now();
            self.pool.watch_idle();
        }
    }
}
