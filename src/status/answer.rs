use crate::{
    Limit, LimitPassed, OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason,
    Unreachable, error::find,
};
use std::{error::Error, time::Duration};
use tower::{buffer, load_shed};

/// What is said to the client: the four things that an error can come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AnswerKind {
    /// There are workers, and they have no room. 529 by default.
    Overloaded,
    /// There is no path to a worker, or none has answered in time. 503.
    Unavailable,
    /// A worker was reached, and its answer is no HTTP, or broke off. 502 by
    /// default.
    BadGateway,
    /// Anything else, where everything has to be answered. 500.
    Internal,
}

/// What an error comes to, without its text.
///
/// | in the error's chain | kind | reason |
/// |---|---|---|
/// | [`ServiceOverloaded`] | overloaded | its reason |
/// | [`Unavailable`] | unavailable | its reason |
/// | `tower::load_shed::error::Overloaded` | overloaded | `load_shed` |
/// | `tower::buffer::error::Closed` or `ServiceError` | unavailable | `service_closed` |
/// | [`LimitPassed`], but to connect | unavailable | `worker_timeout` |
/// | [`Unreachable`], and a [`LimitPassed`] to connect | unavailable | `none_reachable` |
/// | with the feature `upstream`, a `Fault` of the kind *malformed*, *broken* or *reset* | bad gateway | `bad_gateway` |
///
/// The first row that matches is taken. A worker that could not be reached was
/// the last that there was to try: what can be sent elsewhere is, by a retry
/// further in. Tower's `LoadShed` does not say what
/// was not ready, so neither does the answer. A `Buffer` whose service has
/// failed, or whose worker task is gone, never serves a request again, so
/// there is no path through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    kind: AnswerKind,
    reason: Option<&'static str>,
    retry_after: Option<Duration>,
}

impl Answer {
    pub(super) const INTERNAL: Self = Self::new(AnswerKind::Internal, None);

    const fn new(kind: AnswerKind, reason: Option<&'static str>) -> Self {
        Self {
            kind,
            reason,
            retry_after: None,
        }
    }

    /// What `error` comes to; `None` if it holds none of the errors above.
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        if let Some(overloaded) = ServiceOverloaded::find_in(error) {
            Some(Self::from(overloaded.clone()))
        } else if let Some(unavailable) = Unavailable::find_in(error) {
            Some(Self::from(*unavailable))
        } else if find::<load_shed::error::Overloaded>(error).is_some() {
            Some(Self::new(AnswerKind::Overloaded, Some("load_shed")))
        } else if find::<buffer::error::Closed>(error).is_some()
            || find::<buffer::error::ServiceError>(error).is_some()
        {
            Some(Self::new(AnswerKind::Unavailable, Some("service_closed")))
        } else if LimitPassed::find_in(error).is_some_and(|it| it.limit() != Limit::Connect) {
            Some(Self::new(AnswerKind::Unavailable, Some("worker_timeout")))
        } else if Unreachable::find_in(error).is_some() || LimitPassed::find_in(error).is_some() {
            Some(Self::from(UnavailableReason::NoneReachable))
        } else {
            #[cfg(feature = "upstream")]
            if crate::upstream::is_bad_gateway(error) {
                return Some(Self::new(AnswerKind::BadGateway, Some("bad_gateway")));
            }
            None
        }
    }

    /// Which of the four it is.
    pub const fn kind(&self) -> AnswerKind {
        self.kind
    }

    /// The reason as a label: see the table above, [`OverloadReason::as_str`]
    /// and [`UnavailableReason::as_str`]. An internal error has none.
    pub const fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// When the error says a retry may succeed.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl From<ServiceOverloaded> for Answer {
    fn from(error: ServiceOverloaded) -> Self {
        Self {
            retry_after: error.retry_after(),
            ..Self::from(error.reason())
        }
    }
}

impl From<OverloadReason> for Answer {
    fn from(reason: OverloadReason) -> Self {
        Self::new(AnswerKind::Overloaded, Some(reason.as_str()))
    }
}

impl From<Unavailable> for Answer {
    fn from(error: Unavailable) -> Self {
        Self::from(error.reason())
    }
}

impl From<UnavailableReason> for Answer {
    fn from(reason: UnavailableReason) -> Self {
        Self::new(AnswerKind::Unavailable, Some(reason.as_str()))
    }
}
