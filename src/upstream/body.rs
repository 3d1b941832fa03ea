//! The body of a worker's answer, which holds its connection.

use super::{
    BoxError, Fault, FaultKind, MalformedAnswer,
    forward::{Rejected, clean_trailers},
    pool::{Held, Http1, Pool, Stream},
    upload::Back,
};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

/// The body of an answer of [`HttpWorker`](super::HttpWorker).
///
/// At its end the connection can take another request. Dropped before, it
/// closes the connection, or resets the stream over HTTP/2, so that the worker
/// knows that nobody listens any more.
pub struct WorkerBody(State);

enum State {
    Streaming {
        incoming: Incoming,
        held: Option<HeldUntilEnd>,
        pool: Arc<Pool>,
    },
    /// An answer that no worker has given.
    Own(Option<Bytes>),
}

enum HeldUntilEnd {
    Http1 {
        connection: Http1,
        /// What is not over yet of the request, if anything.
        upload: Option<Back>,
        said: Option<Duration>,
    },
    Http2 {
        _stream: Stream,
    },
}

impl WorkerBody {
    pub(super) fn new(
        incoming: Incoming,
        held: Held,
        said: Option<Duration>,
        pool: Arc<Pool>,
    ) -> Self {
        let held = match held {
            Held::Http1(connection, mut upload) => HeldUntilEnd::Http1 {
                connection,
                // It is not to be kept for as long as the answer takes.
                upload: match upload.try_recv().is_ok_and(|upload| upload.is_over()) {
                    true => None,
                    false => Some(upload),
                },
                said,
            },
            Held::Http2(stream) => HeldUntilEnd::Http2 { _stream: stream },
        };
        let mut held = Some(held);
        if incoming.is_end_stream() {
            give_back(&mut held, &pool);
        }
        Self(State::Streaming {
            incoming,
            held,
            pool,
        })
    }

    pub(super) fn rejected(rejected: Rejected) -> Self {
        Self(State::Own(Some(Bytes::from_static(
            rejected.reason().as_bytes(),
        ))))
    }
}

/// The answer is over: its connection is free, if the request is over too.
fn give_back(held: &mut Option<HeldUntilEnd>, pool: &Arc<Pool>) {
    let Some(HeldUntilEnd::Http1 {
        connection,
        upload,
        said,
    }) = held.take()
    else {
        return;
    };
    let is_over = upload.is_none_or(|mut upload| {
        let upload = upload.try_recv();
        upload.is_ok_and(|upload| upload.is_over())
    });
    if is_over {
        pool.put(connection, said);
    }
}

impl Body for WorkerBody {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let (incoming, held, pool) = match &mut self.0 {
            State::Own(body) => return Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            State::Streaming {
                incoming,
                held,
                pool,
            } => (incoming, held, pool),
        };
        let broken = |error: BoxError| pool.connector().fault(FaultKind::Broken, error);
        Poll::Ready(match ready!(Pin::new(&mut *incoming).poll_frame(cx)) {
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    clean_trailers(trailers);
                }
                if incoming.is_end_stream() {
                    give_back(held, pool);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                *held = None;
                Some(Err(broken(error.into())))
            }
            // hyper takes a reset without an error for an end.
            None if matches!(held, Some(HeldUntilEnd::Http2 { .. }))
                && !incoming.is_end_stream() =>
            {
                *held = None;
                Some(Err(broken(MalformedAnswer::Unfinished.into())))
            }
            None => {
                give_back(held, pool);
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            State::Own(body) => body.is_none(),
            State::Streaming { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::Own(body) => {
                SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64))
            }
            State::Streaming { incoming, .. } => incoming.size_hint(),
        }
    }
}

impl fmt::Debug for WorkerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.0 {
            State::Own(_) => "Own",
            State::Streaming { held: Some(_), .. } => "Streaming",
            State::Streaming { held: None, .. } => "Ended",
        };
        f.debug_tuple("WorkerBody").field(&state).finish()
    }
}
