//! What of a worker's answers is a refusal, and what of its errors means that
//! it could not be reached. Pure rules; the endpoint acts on them.

use crate::{ServiceOverloaded, Unreachable, error::find};
use http::{HeaderMap, Response, StatusCode, header};
use std::{error::Error, io, time::Duration};

/// A worker said that it has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// When it may have room again, if it said so.
    pub retry_after: Option<Duration>,
    /// It has none for this request, and may have for others: no lease.
    pub only_this_request: bool,
}

/// Marks a response, by its extensions, as the answer to a request that asked
/// for more than others do, for example not to be queued. A refusal of it says
/// nothing about the worker's room for others, so there is no lease: otherwise
/// one such client could keep every worker leased.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnlyThisRequest;

/// What an error of a worker says about the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It refused the request for want of room.
    Refused(Refusal),
    /// The connection could not be made; nothing was sent.
    Unreachable,
    /// The connection was lost before any byte of a response, after the
    /// request may have been sent.
    Lost,
    /// Nothing that routing should act on.
    Other,
}

/// Tells refusals and failed connections from everything else.
///
/// `Res` is the response type of the workers.
pub trait Classify<Res> {
    /// The refusal in a response, if it is one.
    fn response(&self, response: &Res) -> Option<Refusal>;

    /// What an error that came instead of a response says about the worker.
    fn error(&self, error: &(dyn Error + 'static)) -> Fault;
}

/// The default policy for HTTP workers.
///
/// | a worker's answer | is |
/// |---|---|
/// | an error whose chain holds [`ServiceOverloaded`] | a refusal |
/// | status 529 | a refusal |
/// | a gRPC response whose head says `grpc-status: 8` (RESOURCE_EXHAUSTED) | a refusal |
/// | status 503 with `Retry-After` | a refusal, if [asked for](Self::also_503_with_retry_after) |
/// | an error that says that the connection could not be made | unreachable |
/// | an error that says that the connection was lost | unreachable too, but the request may have been sent |
/// | everything else, every other 4xx and 5xx included | neither |
///
/// Bodies are not looked at, and of the headers only the time a refusal names.
///
/// Which errors say so: [`Unreachable`] anywhere in the chain, or an
/// [`io::Error`] of a kind that such a connection has; with the feature
/// `upstream` also a `Fault` of its worker, and what hyper's client and
/// hyper-util's say of a connection. A client library that hides the cause
/// needs a [function](Self::connection_faults). Mind that a
/// request body streamed from a client can fail with an `io::Error` of *that*
/// connection, and that a worker may answer and close before it has read a
/// long body: a gateway decides by its client library's own types, or a client
/// could mark workers unreachable.
#[derive(Clone, Copy, Debug)]
pub struct RefusalPolicy {
    status: StatusCode,
    grpc: bool,
    unavailable_with_retry_after: bool,
    connection_fault: fn(&(dyn Error + 'static)) -> Option<Fault>,
}

impl RefusalPolicy {
    /// The policy of the table.
    pub fn new() -> Self {
        Self {
            status: overloaded_status(),
            grpc: true,
            unavailable_with_retry_after: false,
            connection_fault,
        }
    }

    /// The status that is a refusal (default: 529). Set it to what the
    /// workers' `DYN_HTTP_OVERLOAD_STATUS_CODE` says.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Whether a gRPC status 8 in the head of a response is a refusal
    /// (default: yes).
    #[must_use]
    pub fn grpc(mut self, grpc: bool) -> Self {
        self.grpc = grpc;
        self
    }

    /// Takes a 503 with a `Retry-After` for a refusal too (default: no).
    #[must_use]
    pub fn also_503_with_retry_after(mut self, yes: bool) -> Self {
        self.unavailable_with_retry_after = yes;
        self
    }

    /// Which errors mean that a connection failed, and how; asked for errors
    /// that say neither [`ServiceOverloaded`] nor [`Unreachable`].
    #[must_use]
    pub fn connection_faults(mut self, fault: fn(&(dyn Error + 'static)) -> Option<Fault>) -> Self {
        self.connection_fault = fault;
        self
    }
}

impl Default for RefusalPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> Classify<Response<B>> for RefusalPolicy {
    fn response(&self, response: &Response<B>) -> Option<Refusal> {
        let (status, headers) = (response.status(), response.headers());
        let retry_after = if status == self.status {
            retry_after(headers)
        } else if status == StatusCode::OK && self.grpc && is_exhausted(headers) {
            milliseconds(headers, "grpc-retry-pushback-ms")
        } else if status == StatusCode::SERVICE_UNAVAILABLE && self.unavailable_with_retry_after {
            Some(retry_after(headers)?)
        } else {
            return None;
        };
        Some(Refusal {
            retry_after,
            only_this_request: response.extensions().get::<OnlyThisRequest>().is_some(),
        })
    }

    fn error(&self, error: &(dyn Error + 'static)) -> Fault {
        fault(error, self.connection_fault)
    }
}

/// A policy for workers of any response type: only errors say anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorsOnly;

impl<Res> Classify<Res> for ErrorsOnly {
    fn response(&self, _: &Res) -> Option<Refusal> {
        None
    }

    fn error(&self, error: &(dyn Error + 'static)) -> Fault {
        fault(error, connection_fault)
    }
}

fn fault(
    error: &(dyn Error + 'static),
    connection_fault: fn(&(dyn Error + 'static)) -> Option<Fault>,
) -> Fault {
    if let Some(overloaded) = ServiceOverloaded::find_in(error) {
        return Fault::Refused(Refusal {
            retry_after: overloaded.retry_after(),
            only_this_request: false,
        });
    }
    #[cfg(feature = "upstream")]
    if let Some(fault) = crate::upstream::of_fault(error) {
        return fault;
    }
    match Unreachable::find_in(error) {
        Some(failure) if failure.may_have_been_sent() => Fault::Lost,
        Some(_) => Fault::Unreachable,
        None => connection_fault(error).unwrap_or(Fault::Other),
    }
}

fn connection_fault(error: &(dyn Error + 'static)) -> Option<Fault> {
    use io::ErrorKind::{
        AddrNotAvailable, BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset,
        HostUnreachable, NetworkDown, NetworkUnreachable, NotConnected, UnexpectedEof,
    };
    #[cfg(feature = "upstream")]
    if let Some(fault) = crate::upstream::of_hyper(error) {
        return Some(fault);
    }
    match find::<io::Error>(error)?.kind() {
        AddrNotAvailable | ConnectionRefused | HostUnreachable | NetworkDown
        | NetworkUnreachable | NotConnected => Some(Fault::Unreachable),
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => Some(Fault::Lost),
        _ => None,
    }
}

/// 529, which the reference answers; it has no registered name.
fn overloaded_status() -> StatusCode {
    StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
}

fn is_exhausted(headers: &HeaderMap) -> bool {
    let is_grpc = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    is_grpc
        && headers
            .get("grpc-status")
            .is_some_and(|status| status == "8")
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    milliseconds(headers, "retry-after-ms").or_else(|| {
        let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
        Some(Duration::from_secs(seconds.trim().parse().ok()?))
    })
}

fn milliseconds(headers: &HeaderMap, name: &str) -> Option<Duration> {
    let value = headers.get(name)?.to_str().ok()?;
    Some(Duration::from_millis(value.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OverloadReason, Unavailable, UnavailableReason};

    fn response(status: u16, headers: &[(&'static str, &str)]) -> Response<()> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap()
    }

    fn refusal(status: u16, headers: &[(&'static str, &str)]) -> Option<Option<Duration>> {
        let refusal = RefusalPolicy::new().response(&response(status, headers));
        refusal.map(|refusal| refusal.retry_after)
    }

    #[test]
    fn only_the_overload_status_and_grpc_8_are_refusals() {
        for status in (200..=599).filter(|status| *status != 529) {
            let headers = [
                ("retry-after", "1"),
                ("grpc-status", "8"),
                ("x-overload-reason", "worker_at_capacity"),
            ];
            assert_eq!(refusal(status, &headers), None, "{status}");
        }
        assert_eq!(refusal(529, &[]), Some(None));
        let grpc = ("content-type", "application/grpc+proto");
        assert_eq!(refusal(200, &[grpc, ("grpc-status", "8")]), Some(None));
        assert_eq!(refusal(200, &[grpc, ("grpc-status", "14")]), None);
        assert_eq!(refusal(200, &[grpc]), None);
    }

    #[test]
    fn the_time_that_a_refusal_names_is_read_in_whole_seconds_or_milliseconds() {
        let named = |header, value| refusal(529, &[(header, value)]).unwrap();
        let seconds = Duration::from_secs;
        assert_eq!(named("retry-after", "7"), Some(seconds(7)));
        assert_eq!(
            named("retry-after-ms", "250"),
            Some(Duration::from_millis(250))
        );
        for nonsense in ["-1", "1.5", "NaN", "soon", "", "99999999999999999999999"] {
            assert_eq!(named("retry-after", nonsense), None, "{nonsense}");
        }
        let date = "Fri, 31 Dec 1999 23:59:59 GMT";
        assert_eq!(named("retry-after", date), None);
    }

    #[test]
    fn a_503_is_a_refusal_only_if_asked_for_and_with_a_time() {
        let policy = RefusalPolicy::new().also_503_with_retry_after(true);
        let named = response(503, &[("retry-after", "2")]);
        assert!(RefusalPolicy::new().response(&named).is_none());
        assert!(policy.response(&named).is_some());
        assert!(policy.response(&response(503, &[])).is_none());
    }

    #[test]
    fn errors_say_refused_or_unreachable_by_their_type_only() {
        let fault = |error: crate::BoxError| Classify::<()>::error(&ErrorsOnly, &*error);
        let overloaded = ServiceOverloaded::new(OverloadReason::WorkerAtCapacity);
        assert!(matches!(fault(overloaded.into()), Fault::Refused(_)));
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(fault(refused.into()), Fault::Unreachable);
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(fault(reset.into()), Fault::Lost);
        let no_route = Unreachable::new("no route");
        assert_eq!(fault(no_route.into()), Fault::Unreachable);
        assert_eq!(fault(Unreachable::lost("gone").into()), Fault::Lost);
        // One that takes long is reached, and works on it.
        for kind in [io::ErrorKind::InvalidData, io::ErrorKind::TimedOut] {
            assert_eq!(fault(io::Error::from(kind).into()), Fault::Other);
        }
        assert_eq!(fault("connection refused".into()), Fault::Other);
        let unavailable = Unavailable::new(UnavailableReason::ShuttingDown);
        assert_eq!(fault(unavailable.into()), Fault::Other);
    }
}
