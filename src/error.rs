//! The errors that overload control answers with, and how to find them.
//!
//! [`ServiceOverloaded`] means *there are workers, and they have no room*: try
//! again, soon, or elsewhere. [`Unavailable`] means *there is no path to a
//! worker at all*. [`Unreachable`] wraps the error of a connection to one
//! worker that failed before any byte of a response, and [`LimitPassed`] says
//! that a worker was waited for as long as it may take.
//!
//! Middleware between the place where such an error is made and the one where
//! it is answered wraps it, so it is looked for in the whole chain:
//!
//! ```
//! use tower_overload::{BoxError, OverloadReason, ServiceOverloaded};
//!
//! let error: BoxError = ServiceOverloaded::new(OverloadReason::WorkerAtCapacity).into();
//! // What `Buffer`, a timeout or a client library does with it:
//! let wrapped = std::io::Error::other(error);
//!
//! let found = ServiceOverloaded::find_in(&wrapped).expect("it is in the chain");
//! assert_eq!(found.reason(), OverloadReason::WorkerAtCapacity);
//! assert_eq!(found.to_string(), "Server overloaded: worker at capacity");
//! ```

use std::{error::Error, fmt, sync::Arc, time::Duration};

/// Why a request was refused although there are workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OverloadReason {
    /// Every usable worker is marked busy or leased.
    AllWorkersBusy,
    /// The worker has no slot and no place in its queue.
    WorkerAtCapacity,
    /// The request stayed in a worker's queue for the whole time it may.
    WaitedTooLong,
    /// The chosen worker became busy between readiness and dispatch, and no
    /// other was ready. Nothing was sent: the request can be retried at once.
    BusyAtDispatch,
    /// As many requests wait for a worker as may.
    TooManyWaiting,
}

impl OverloadReason {
    /// The reason as a label: `all_workers_busy`, `worker_at_capacity`,
    /// `waited_too_long`, `busy_at_dispatch` or `too_many_waiting`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllWorkersBusy => "all_workers_busy",
            Self::WorkerAtCapacity => "worker_at_capacity",
            Self::WaitedTooLong => "waited_too_long",
            Self::BusyAtDispatch => "busy_at_dispatch",
            Self::TooManyWaiting => "too_many_waiting",
        }
    }
}

impl fmt::Display for OverloadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllWorkersBusy => "all workers are busy",
            Self::WorkerAtCapacity => "worker at capacity",
            Self::WaitedTooLong => "waited too long in the worker's queue",
            Self::BusyAtDispatch => "worker became busy at dispatch",
            Self::TooManyWaiting => "too many requests wait for a worker",
        })
    }
}

/// There are workers, and none has room for this request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOverloaded {
    reason: OverloadReason,
    retry_after: Option<Duration>,
    worker: Option<Arc<str>>,
}

impl ServiceOverloaded {
    /// An overload for `reason`, without a retry-after.
    pub const fn new(reason: OverloadReason) -> Self {
        Self {
            reason,
            retry_after: None,
            worker: None,
        }
    }

    /// Says when a retry may find room, counted from now.
    #[must_use]
    pub const fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }

    /// Names the worker that refused the request.
    #[must_use]
    pub fn with_worker(mut self, worker: impl Into<Arc<str>>) -> Self {
        self.worker = Some(worker.into());
        self
    }

    /// The worker that refused the request; `None` if no worker was asked.
    pub fn worker(&self) -> Option<&str> {
        self.worker.as_deref()
    }

    /// Why the request was refused.
    pub const fn reason(&self) -> OverloadReason {
        self.reason
    }

    /// When a retry may find room, if that is known.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Finds the outermost `ServiceOverloaded` in `error` and its sources; see [`find`].
    pub fn find_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find(error)
    }
}

impl fmt::Display for ServiceOverloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server overloaded: {}", self.reason)
    }
}

impl Error for ServiceOverloaded {}

/// Why there is no path to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnavailableReason {
    /// No worker is registered.
    NoWorkers,
    /// Workers are registered, and every one is unreachable, failing or draining.
    NoneReachable,
    /// No worker became ready within the longest time a request may wait.
    WaitedTooLong,
    /// The service is shutting down and admits nothing more.
    ShuttingDown,
}

impl UnavailableReason {
    /// The reason as a label: `no_workers`, `none_reachable`,
    /// `waited_too_long` or `shutting_down`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoWorkers => "no_workers",
            Self::NoneReachable => "none_reachable",
            Self::WaitedTooLong => "waited_too_long",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

impl fmt::Display for UnavailableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoWorkers => "no worker is registered",
            Self::NoneReachable => "no worker is reachable",
            Self::WaitedTooLong => "waited too long for a worker to become ready",
            Self::ShuttingDown => "the service is shutting down",
        })
    }
}

/// There is no usable worker, and so no path for this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable {
    reason: UnavailableReason,
}

impl Unavailable {
    /// An unavailability for `reason`.
    pub const fn new(reason: UnavailableReason) -> Self {
        Self { reason }
    }

    /// Why there is no path.
    pub const fn reason(&self) -> UnavailableReason {
        self.reason
    }

    /// Finds the outermost `Unavailable` in `error` and its sources; see [`find`].
    pub fn find_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find(error)
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service unavailable: {}", self.reason)
    }
}

impl Error for Unavailable {}

/// A connection to one worker failed before any byte of a response.
#[derive(Clone, Debug)]
pub struct Unreachable {
    source: Arc<dyn Error + Send + Sync>,
    may_have_been_sent: bool,
    worker: Option<Arc<str>>,
}

impl Unreachable {
    /// The connection could not be made: nothing has reached the worker, and
    /// the request can be sent to another one.
    pub fn new(source: impl Into<crate::BoxError>) -> Self {
        Self {
            source: Arc::from(source.into()),
            may_have_been_sent: false,
            worker: None,
        }
    }

    /// The connection was lost while the response was waited for: the worker
    /// may have accepted the request, so sending it again may do it twice.
    pub fn lost(source: impl Into<crate::BoxError>) -> Self {
        Self {
            source: Arc::from(source.into()),
            may_have_been_sent: true,
            worker: None,
        }
    }

    /// Names the worker that was not reached.
    #[must_use]
    pub fn with_worker(mut self, worker: impl Into<Arc<str>>) -> Self {
        self.worker = Some(worker.into());
        self
    }

    /// The worker that was not reached, if that is known.
    pub fn worker(&self) -> Option<&str> {
        self.worker.as_deref()
    }

    /// Whether the worker may have got the request.
    pub const fn may_have_been_sent(&self) -> bool {
        self.may_have_been_sent
    }

    /// Finds the outermost `Unreachable` in `error` and its sources; see [`find`].
    pub fn find_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find(error)
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.may_have_been_sent {
            "connection to the worker lost"
        } else {
            "worker unreachable"
        })
    }
}

impl Error for Unreachable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// A limit on the time that a worker may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// On a connection to be made: name, TCP and TLS.
    Connect,
    /// On the head of an answer to come.
    Head,
    /// From the head to the first data frame of the body.
    FirstFrame,
    /// On each frame of the body after that.
    Frame,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "to connect",
            Self::Head => "to the head of an answer",
            Self::FirstFrame => "to the first frame of an answer",
            Self::Frame => "to the next frame of an answer",
        })
    }
}

/// A worker took longer than it may.
///
/// Made by [`limits`](crate::limits), and for the time to connect by
/// `HttpWorker`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPassed {
    limit: Limit,
    after: Duration,
    worker: Option<Arc<str>>,
}

impl LimitPassed {
    /// `limit` was `after`, and it has passed.
    pub const fn new(limit: Limit, after: Duration) -> Self {
        Self {
            limit,
            after,
            worker: None,
        }
    }

    /// Names the worker that was waited for.
    #[must_use]
    pub fn with_worker(mut self, worker: impl Into<Arc<str>>) -> Self {
        self.worker = Some(worker.into());
        self
    }

    /// Which limit it was.
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// How long the limit was.
    pub const fn after(&self) -> Duration {
        self.after
    }

    /// The worker that was waited for, if that is known.
    pub fn worker(&self) -> Option<&str> {
        self.worker.as_deref()
    }

    /// Finds the outermost `LimitPassed` in `error` and its sources; see [`find`].
    pub fn find_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find(error)
    }
}

impl fmt::Display for LimitPassed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the limit {} was {:?}", self.limit, self.after)
    }
}

impl Error for LimitPassed {}

/// The longest chain that is searched. A `source()` that leads back to itself
/// is a defect of its type, and must not hang the one who asks.
const MAX_LINKS: usize = 128;

/// Finds the outermost error of type `E` in `error` and everything it wraps.
///
/// Follows `source()`, and looks into the wrappers whose own `source()` skips
/// what they hold: `Box<E>`, `Arc<E>`, an `Arc` of a trait object, and
/// `std::io::Error`, alone or nested. An error's text is never looked at.
pub fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut link = Some(error);
    for _ in 0..MAX_LINKS {
        let error = link?;
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        if let Some(found) = error.downcast_ref::<Box<E>>() {
            return Some(found);
        }
        if let Some(found) = error.downcast_ref::<Arc<E>>() {
            return Some(found);
        }
        link = wrapped(error).or_else(|| error.source());
    }
    None
}

/// What a wrapper holds whose `source()` is its content's source, and so skips
/// the content.
fn wrapped<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if let Some(inner) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
        return Some(&**inner);
    }
    if let Some(inner) = error.downcast_ref::<Arc<dyn Error + Send>>() {
        return Some(&**inner);
    }
    if let Some(inner) = error.downcast_ref::<Arc<dyn Error>>() {
        return Some(&**inner);
    }
    if let Some(io) = error.downcast_ref::<std::io::Error>() {
        return io.get_ref().map(|inner| inner as _);
    }
    if let Some(inner) = error.downcast_ref::<Box<Arc<dyn Error + Send + Sync>>>() {
        return Some(&***inner);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Hop<E>(E);

    impl<E: Error> fmt::Display for Hop<E> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("hop")
        }
    }

    impl<E: Error + 'static> Error for Hop<E> {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[derive(Debug)]
    struct Ouroboros;

    impl fmt::Display for Ouroboros {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Server overloaded: worker at capacity")
        }
    }

    impl Error for Ouroboros {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(self)
        }
    }

    const FULL: ServiceOverloaded = ServiceOverloaded::new(OverloadReason::WorkerAtCapacity);

    fn found(error: &(dyn Error + 'static)) -> bool {
        ServiceOverloaded::find_in(error) == Some(&FULL)
    }

    #[test]
    fn is_found_behind_hops_and_inside_wrappers() {
        assert!(found(&FULL));
        assert!(found(&Hop(Hop(Hop(FULL)))));
        assert!(found(&Box::new(FULL)));
        assert!(found(&Arc::new(FULL)));
        let erased: Arc<dyn Error + Send + Sync> = Arc::new(FULL);
        assert!(found(&erased));
        assert!(found(&Hop(erased.clone())));
        assert!(found(&Hop(Box::new(erased))));
        let local: Arc<dyn Error> = Arc::new(Hop(FULL));
        assert!(found(&local));
        assert!(found(&std::io::Error::other(FULL)));
        let nested: Arc<dyn Error + Send + Sync> = Arc::new(Hop(Arc::new(FULL)));
        assert!(found(&nested));
    }

    #[test]
    fn is_not_inferred_from_text_and_a_circular_chain_ends() {
        assert!(!found(&Ouroboros));
        let text: crate::BoxError = "Server overloaded: worker at capacity".into();
        assert!(!found(&*text));
    }

    #[test]
    fn the_cause_of_an_unreachable_worker_stays_in_the_chain() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = Unreachable::new(refused);
        assert!(Unreachable::find_in(&Hop(error.clone())).is_some());
        assert!(find::<std::io::Error>(&error).is_some());
    }
}
