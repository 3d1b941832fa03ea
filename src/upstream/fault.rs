//! What kept a worker from answering, with a kind.

use crate::{
    BoxError, Unreachable,
    error::{Limit, find},
};
use http::StatusCode;
use std::{error::Error, fmt, sync::Arc};

/// A request that a worker has not answered, or an answer that broke off, and
/// why: the error of [`HttpWorker`](super::HttpWorker) and of its bodies.
///
/// [`RefusalPolicy`](crate::busy::RefusalPolicy) understands it, and so does
/// [`RetryRefused`](crate::busy::RetryRefused):
///
/// | kind | mark | sent again |
/// |---|---|---|
/// | [`NotConnected`](FaultKind::NotConnected), [`Limit`](FaultKind::Limit) to connect | unreachable | until a worker is reached |
/// | [`LostFresh`](FaultKind::LostFresh) | unreachable if nothing else is under way there, else a failure | at most as often as a refusal |
/// | [`LostReused`](FaultKind::LostReused) | none | once, for free; `HttpWorker` has done so already if it could |
/// | [`Reset`](FaultKind::Reset), [`Malformed`](FaultKind::Malformed), [`Broken`](FaultKind::Broken) | a failure | no |
/// | [`Request`](FaultKind::Request) | none | no |
///
/// Where it was a connection that failed, an [`Unreachable`] is among the
/// sources, for whoever looks for that.
#[derive(Clone)]
pub struct Fault(Arc<Inner>);

struct Inner {
    kind: FaultKind,
    worker: Arc<str>,
    source: BoxError,
}

/// What a [`Fault`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// No connection could be made: nothing was sent.
    NotConnected,
    /// The connection was lost before the head of an answer, and that says
    /// something about the worker: it was a new one, or the worker had begun
    /// to answer.
    LostFresh,
    /// A connection that had served others before was lost before any byte of
    /// an answer: most likely the worker has closed it for being idle while the
    /// request was on its way.
    LostReused,
    /// A time limit has passed; a [`LimitPassed`](crate::LimitPassed) is among
    /// the sources.
    Limit(Limit),
    /// The worker has reset this request's stream (HTTP/2), and is well
    /// otherwise.
    Reset,
    /// What the worker has answered is not HTTP, or more of it than is taken.
    Malformed,
    /// The answer's body broke off.
    Broken,
    /// The body of the request failed on its way from the client.
    Request,
}

impl Fault {
    /// Makes one; an error of the connection gets an [`Unreachable`] around it.
    pub(super) fn new(kind: FaultKind, worker: &Arc<str>, source: impl Into<BoxError>) -> Self {
        let source = source.into();
        let source = match kind {
            FaultKind::NotConnected | FaultKind::Limit(Limit::Connect) => {
                Unreachable::new(source).into()
            }
            FaultKind::LostFresh | FaultKind::LostReused => Unreachable::lost(source).into(),
            _ => source,
        };
        Self(Arc::new(Inner {
            kind,
            worker: worker.clone(),
            source,
        }))
    }

    /// Returns what it is.
    pub fn kind(&self) -> FaultKind {
        self.0.kind
    }

    /// Returns the URL of the worker.
    pub fn worker(&self) -> &str {
        &self.0.worker
    }

    /// Finds the outermost `Fault` in `error` and its sources; see
    /// [`find`](crate::error::find).
    pub fn find_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find(error)
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault")
            .field("kind", &self.0.kind)
            .field("worker", &self.0.worker)
            .field("source", &self.0.source)
            .finish()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worker = &self.0.worker;
        match self.0.kind {
            FaultKind::NotConnected => write!(f, "no connection to {worker} could be made"),
            FaultKind::LostFresh => write!(f, "{worker} closed the connection before it answered"),
            FaultKind::LostReused => write!(f, "{worker} closed a connection that was reused"),
            FaultKind::Limit(limit) => write!(f, "{worker} took longer than it may {limit}"),
            FaultKind::Reset => write!(f, "{worker} reset the request"),
            FaultKind::Malformed => write!(f, "{worker} did not answer in HTTP"),
            FaultKind::Broken => write!(f, "the answer of {worker} broke off"),
            FaultKind::Request => write!(f, "the request for {worker} broke off"),
        }
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0.source)
    }
}

/// An answer that is none, or none to the request: the source of a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MalformedAnswer {
    /// The status is an informational one, where the final one has to be.
    Informational(StatusCode),
    /// More informational responses than are taken before the final one.
    TooManyInformational,
    /// A 408 that the worker has sent before the request could reach it, to say
    /// that it closes an idle connection.
    Farewell,
    /// The stream ended before the answer did.
    Unfinished,
}

impl fmt::Display for MalformedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Informational(status) => write!(f, "the answer is a {}", status.as_u16()),
            Self::TooManyInformational => f.write_str("there is no end of informational responses"),
            Self::Farewell => f.write_str("the worker closed an idle connection with a 408"),
            Self::Unfinished => f.write_str("the stream ended before the answer did"),
        }
    }
}

impl Error for MalformedAnswer {}
