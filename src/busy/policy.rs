//! What of a worker's answers is a refusal or a failure, and what of its errors
//! means that it could not be reached. Pure rules; others act on them.

use crate::{Limit, LimitPassed, ServiceOverloaded, Unreachable, error::find};
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

/// What an answer or an error says about the worker that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It refused the request for want of room.
    Refused(Refusal),
    /// The connection could not be made; nothing was sent.
    Unreachable,
    /// The connection was lost before any byte of a response, after the
    /// request may have been sent.
    Lost,
    /// It was reached, and did not do what it was asked for: it answered with
    /// a server error, with what cannot be read, or not within a time limit.
    Failed,
    /// Nothing that routing should act on.
    Other,
}

/// Tells refusals, failures and failed connections from everything else.
///
/// `Res` is the response type of the workers.
pub trait Classify<Res> {
    /// What a response says against the worker; `None` if it is well.
    ///
    /// A refusal, or a connection that failed behind the worker, becomes an
    /// error. Any other response is passed on.
    fn response(&self, response: &Res) -> Option<Fault>;

    /// What an error that came instead of a response says about the worker.
    fn error(&self, error: &(dyn Error + 'static)) -> Fault;
}

/// The default policy for HTTP workers.
///
/// | a worker's answer | is |
/// |---|---|
/// | an error whose chain holds [`ServiceOverloaded`] | a refusal |
/// | status 529, 429, or 503 with `Retry-After` | a refusal |
/// | a gRPC response whose head says `grpc-status: 8` (RESOURCE_EXHAUSTED) | a refusal |
/// | an error that says that the connection could not be made | unreachable |
/// | an error that says that the connection was lost | unreachable if nothing else is under way there, and a failure otherwise; the request may have been sent |
/// | any other 5xx, gRPC status 13 to 15 in a head (INTERNAL, UNAVAILABLE, DATA_LOSS) | a failure |
/// | an error that says that a time limit has passed, or that the answer is no HTTP | a failure |
/// | everything else, every other 4xx included | well |
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
    too_many_requests: bool,
    unavailable: Unavailable503,
    connection_fault: fn(&(dyn Error + 'static)) -> Option<Fault>,
}

impl RefusalPolicy {
    /// The policy of the table.
    pub fn new() -> Self {
        Self {
            status: overloaded_status(),
            grpc: true,
            too_many_requests: true,
            unavailable: Unavailable503::WithRetryAfter,
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

    /// Whether a 429 is a refusal (default: yes). Say no where workers limit
    /// the rate of single clients: that says nothing about their room.
    #[must_use]
    pub fn too_many_requests(mut self, yes: bool) -> Self {
        self.too_many_requests = yes;
        self
    }

    /// Which 503s are refusals (default: those with a `Retry-After`). The
    /// others are failures.
    #[must_use]
    pub fn unavailable(mut self, which: Unavailable503) -> Self {
        self.unavailable = which;
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

/// Which of a worker's 503s say that it has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable503 {
    /// None.
    None,
    /// Those with a `Retry-After` that can be read.
    WithRetryAfter,
    /// All: some engines answer a bare 503 while their queue is full.
    All,
}

impl Default for RefusalPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> Classify<Response<B>> for RefusalPolicy {
    fn response(&self, response: &Response<B>) -> Option<Fault> {
        let (status, headers) = (response.status(), response.headers());
        let refused = |retry_after| {
            let only_this_request = response.extensions().get::<OnlyThisRequest>().is_some();
            Some(Fault::Refused(Refusal {
                retry_after,
                only_this_request,
            }))
        };
        let named = || retry_after(headers);
        if status == self.status {
            return refused(named());
        }
        match status {
            StatusCode::OK if self.grpc => match grpc_status(headers)? {
                b"8" => refused(milliseconds(headers, "grpc-retry-pushback-ms")),
                b"13" | b"14" | b"15" => Some(Fault::Failed),
                _ => None,
            },
            StatusCode::TOO_MANY_REQUESTS if self.too_many_requests => refused(named()),
            StatusCode::SERVICE_UNAVAILABLE => match (self.unavailable, named()) {
                (Unavailable503::All, named) => refused(named),
                (Unavailable503::WithRetryAfter, Some(named)) => refused(Some(named)),
                _ => Some(Fault::Failed),
            },
            status if status.is_server_error() => Some(Fault::Failed),
            _ => None,
        }
    }

    fn error(&self, error: &(dyn Error + 'static)) -> Fault {
        fault(error, self.connection_fault)
    }
}

/// A policy for workers of any response type: only errors say anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorsOnly;

impl<Res> Classify<Res> for ErrorsOnly {
    fn response(&self, _: &Res) -> Option<Fault> {
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
    if let Some(passed) = LimitPassed::find_in(error) {
        return match passed.limit() {
            Limit::Connect => Fault::Unreachable,
            _ => Fault::Failed,
        };
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

/// The gRPC status in the head of a response that has no body.
fn grpc_status(headers: &HeaderMap) -> Option<&[u8]> {
    let content_type = headers.get(header::CONTENT_TYPE)?.as_bytes();
    let status = headers.get("grpc-status")?;
    let is_grpc = content_type.starts_with(b"application/grpc");
    is_grpc.then_some(status.as_bytes())
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
        match RefusalPolicy::new().response(&response(status, headers)) {
            Some(Fault::Refused(refusal)) => Some(refusal.retry_after),
            _ => None,
        }
    }

    #[test]
    fn a_status_is_a_refusal_a_failure_or_well() {
        let policy = RefusalPolicy::new();
        let headers = [
            ("grpc-status", "8"),
            ("x-overload-reason", "worker_at_capacity"),
        ];
        for status in 200..=599 {
            let said = policy.response(&response(status, &headers));
            match status {
                429 | 529 => assert!(matches!(said, Some(Fault::Refused(_))), "{status}"),
                500.. => assert_eq!(said, Some(Fault::Failed), "{status}"),
                _ => assert_eq!(said, None, "{status}"),
            }
        }
        let grpc = ("content-type", "application/grpc+proto");
        assert_eq!(refusal(200, &[grpc, ("grpc-status", "8")]), Some(None));
        let said = |status| policy.response(&response(200, &[grpc, ("grpc-status", status)]));
        for status in ["13", "14", "15"] {
            assert_eq!(said(status), Some(Fault::Failed), "{status}");
        }
        for status in ["0", "3", "5", "16", "", "88"] {
            assert_eq!(said(status), None, "{status}");
        }
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
    fn what_says_that_there_is_no_room_can_be_chosen() {
        let refuses = |policy: RefusalPolicy, response: &Response<()>| {
            matches!(policy.response(response), Some(Fault::Refused(_)))
        };
        let (bare, named) = (response(503, &[]), response(503, &[("retry-after", "2")]));
        let policy = RefusalPolicy::new();
        assert!(!refuses(policy, &bare) && refuses(policy, &named));
        let all = policy.unavailable(Unavailable503::All);
        assert!(refuses(all, &bare) && refuses(all, &named));
        let none = policy.unavailable(Unavailable503::None);
        assert!(!refuses(none, &bare) && !refuses(none, &named));
        let limited = response(429, &[]);
        assert!(refuses(policy, &limited));
        let policy = policy.too_many_requests(false);
        assert_eq!(policy.response(&limited), None);
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
