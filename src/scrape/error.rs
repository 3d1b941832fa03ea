use super::UnreadableMetrics;
use crate::BoxError;
use http::StatusCode;
use std::{error::Error, fmt, time::Duration};

/// A scrape that failed. It says nothing of the worker's load.
#[derive(Debug)]
#[non_exhaustive]
pub enum ScrapeError {
    /// The client has failed for good: its `poll_ready` did, and by Tower's
    /// contract it is of no more use. The [`Poller`](super::Poller) ends.
    ClientClosed(BoxError),
    /// The request failed before there was a response.
    Request(BoxError),
    /// The answer was not `200 OK`. Redirections are not followed.
    Status(StatusCode),
    /// The body broke off.
    Body(BoxError),
    /// The body is longer than this many bytes.
    TooLarge(usize),
    /// Head and body were not there after this time.
    TimedOut(Duration),
    /// The answer is no text of an engine's metrics.
    Unreadable(UnreadableMetrics),
}

/// How a scrape can end, as a label.
pub(super) const OUTCOMES: [&str; 8] = [
    "ok",
    "client_closed",
    "request_failed",
    "status",
    "body_failed",
    "too_large",
    "timed_out",
    "unreadable",
];

impl ScrapeError {
    /// The place of its outcome in [`OUTCOMES`].
    pub(super) const fn outcome(&self) -> usize {
        match self {
            Self::ClientClosed(_) => 1,
            Self::Request(_) => 2,
            Self::Status(_) => 3,
            Self::Body(_) => 4,
            Self::TooLarge(_) => 5,
            Self::TimedOut(_) => 6,
            Self::Unreadable(_) => 7,
        }
    }

    /// The error as the label `outcome` of the metric: `client_closed`,
    /// `request_failed`, `status`, `body_failed`, `too_large`, `timed_out` or
    /// `unreadable`. A scrape that succeeded is `ok`.
    pub const fn as_str(&self) -> &'static str {
        OUTCOMES[self.outcome()]
    }
}

impl fmt::Display for ScrapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientClosed(_) => f.write_str("the client has failed for good"),
            Self::Request(_) => f.write_str("the request failed"),
            Self::Status(status) => write!(f, "the answer is {status}, expected 200 OK"),
            Self::Body(_) => f.write_str("the body broke off"),
            Self::TooLarge(limit) => write!(f, "the body is longer than {limit} bytes"),
            Self::TimedOut(after) => write!(f, "no whole answer within {after:?}"),
            Self::Unreadable(error) => error.fmt(f),
        }
    }
}

impl Error for ScrapeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::ClientClosed(error) | Self::Request(error) | Self::Body(error) => Some(&**error),
            // The others say all of it themselves.
            _ => None,
        }
    }
}

/// A [`Poller`](super::Poller) cannot be made like this.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum InvalidPoller {
    /// The interval is zero or longer than a day.
    Interval(Duration),
    /// The timeout is zero or longer than a day.
    Timeout(Duration),
    /// The jitter is not from 0 to 1.
    Jitter(f64),
    /// No body would be short enough.
    MaxBody,
}

impl fmt::Display for InvalidPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interval(interval) => write!(
                f,
                "the interval is {interval:?}, allowed: more than 0 and at most a day"
            ),
            Self::Timeout(timeout) => write!(
                f,
                "the timeout is {timeout:?}, allowed: more than 0 and at most a day"
            ),
            Self::Jitter(jitter) => {
                write!(f, "the jitter is {jitter}, allowed: from 0 to 1")
            }
            Self::MaxBody => f.write_str("the longest body is 0 bytes, allowed: at least 1"),
        }
    }
}

impl Error for InvalidPoller {}
