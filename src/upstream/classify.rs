//! What the errors of HTTP clients say: hyper's own for [`HttpWorker`], and
//! for those who have another client the errors that it made.
//!
//! [`HttpWorker`]: super::HttpWorker

use super::{Fault, FaultKind, Limit, MalformedAnswer};
use crate::{busy, error::find};
use hyper_util::client::legacy;
use std::{error::Error, io};

/// What an error of `HttpWorker` says about the worker; `None` if it is of
/// somebody else.
pub(crate) fn of_fault(error: &(dyn Error + 'static)) -> Option<busy::Fault> {
    Some(match Fault::find_in(error)?.kind() {
        FaultKind::NotConnected | FaultKind::Limit(Limit::Connect) => busy::Fault::Unreachable,
        FaultKind::LostFresh => busy::Fault::Lost,
        FaultKind::Limit(_) | FaultKind::Reset | FaultKind::Malformed | FaultKind::Broken => {
            busy::Fault::Failed
        }
        FaultKind::LostReused | FaultKind::Request => busy::Fault::Other,
    })
}

/// Whether a request met the end of an idle connection, and can be sent again
/// without any blame.
pub(crate) fn is_lost_reused(error: &(dyn Error + 'static)) -> bool {
    Fault::find_in(error).is_some_and(|fault| fault.kind() == FaultKind::LostReused)
}

/// Whether the worker has failed in a way that makes the answer a bad
/// gateway's, although the connection was well.
pub(crate) fn is_bad_gateway(error: &(dyn Error + 'static)) -> bool {
    use FaultKind::{Broken, Malformed, Reset};
    Fault::find_in(error).is_some_and(|fault| matches!(fault.kind(), Broken | Malformed | Reset))
}

/// What an error of hyper, or of hyper-util's client, says about the worker;
/// `None` if it is of neither, or says nothing but the `io::Error` within.
pub(crate) fn of_hyper(error: &(dyn Error + 'static)) -> Option<busy::Fault> {
    if find::<legacy::Error>(error).is_some_and(legacy::Error::is_connect) {
        return Some(busy::Fault::Unreachable);
    }
    let error = find::<hyper::Error>(error)?;
    match Loss::of(error) {
        Loss::Connection { .. } => Some(busy::Fault::Lost),
        Loss::Stream | Loss::Malformed => Some(busy::Fault::Failed),
        Loss::Request => Some(busy::Fault::Other),
        Loss::Unknown => None,
    }
}

/// What was lost, by an error of hyper's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The request's own body.
    Request,
    /// The connection; `untouched` if the peer says that it has not looked at
    /// the request.
    Connection { untouched: bool },
    /// This stream only.
    Stream,
    /// What came is no HTTP.
    Malformed,
    /// Something else.
    Unknown,
}

impl Loss {
    pub(super) fn of(error: &hyper::Error) -> Self {
        if error.is_canceled() {
            return Self::Connection { untouched: true };
        }
        if error.is_closed() || error.is_incomplete_message() || error.is_timeout() {
            return Self::Connection { untouched: false };
        }
        if error.is_parse() {
            return Self::Malformed;
        }
        if let Some(error) = find::<h2::Error>(error) {
            return Self::of_http2(error);
        }
        if error.is_user() {
            return Self::Request;
        }
        if find::<MalformedAnswer>(error).is_some() {
            return Self::Malformed;
        }
        match find::<io::Error>(error) {
            Some(_) => Self::Connection { untouched: false },
            None => Self::Unknown,
        }
    }

    fn of_http2(error: &h2::Error) -> Self {
        let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
        if error.is_remote() && (error.is_go_away() || (error.is_reset() && refused)) {
            Self::Connection { untouched: true }
        } else if error.is_remote() && error.is_reset() {
            Self::Stream
        } else if error.is_reset() && !error.is_library() {
            // By this side, since the request's body failed.
            Self::Request
        } else if error.is_library() {
            Self::Malformed
        } else {
            Self::Connection { untouched: false }
        }
    }
}
