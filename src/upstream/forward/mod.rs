//! What of a message goes on to the next hop, and what it becomes there: the
//! rules of RFC 9110 and RFC 9112 for those in between.
//!
//! Plain functions over heads. [`HttpWorker`](super::HttpWorker) applies them
//! both ways; a gateway asks [`Forwarding::check`] before it reads a body or
//! chooses a worker, and answers [`Rejected`] in the form of its own API:
//!
//! ```
//! use http::{Request, StatusCode};
//! use tower_overload::upstream::forward::Forwarding;
//!
//! let forwarding = Forwarding::new();
//! let (parts, _) = Request::get("/v1/%2e%2e/admin").body(())?.into_parts();
//! let rejected = forwarding.check(&parts).unwrap_err();
//! assert_eq!(rejected.status(), StatusCode::BAD_REQUEST);
//! # Ok::<_, http::Error>(())
//! ```
//!
//! | of a request | what happens |
//! |---|---|
//! | `Connection` and what it names, `Keep-Alive`, `Proxy-*`, `Upgrade`, … | removed; of `TE`, `trailers` is kept |
//! | `Content-Length`, `Transfer-Encoding`, `Expect` | removed: the body says how long it is, and who forwards it has taken over the expectation |
//! | several `Cookie` fields over HTTP/2 | joined into one |
//! | a segment `..` in the path, however it is encoded | refused with a 400 |
//! | several `Host` fields | refused with a 400 |
//! | `CONNECT`, `TRACE` | refused with a 405: tunnels and echoes are not for workers to give |
//! | `Via` that names this instance | refused with a 508: a loop |
//! | `Via`, `X-Forwarded-*` | as [configured](Forwarding) |
//!
//! | of a response | what happens |
//! |---|---|
//! | `Connection` and what it names, `Keep-Alive`, … | removed |
//! | `Content-Length` beside `Transfer-Encoding`, or in a 204 | removed |
//! | status 101 | malformed: nothing was to be upgraded |
//!
//! Nothing else is touched, `Trailer`, `Server` and `Date` among it.

mod hop;
mod origin;
mod path;
mod via;

pub(super) use hop::clean_trailers;
pub use origin::{Client, XForwarded};
pub(super) use path::has_parent_segment;

use self::via::Pseudonym;
use super::{InvalidSetting, MalformedAnswer};
use http::{
    HeaderMap, HeaderValue, Method, StatusCode, Version,
    header::{CONNECTION, HOST, TE},
    request, response,
};
use std::{error::Error, fmt};

/// The rules for what is forwarded, and the two things about them that can be
/// configured: the name in `Via`, and `X-Forwarded-*`.
///
/// All workers of one gateway have the same, or a loop is seen only when it
/// comes by the same worker again. The default is the same in all of a process.
#[derive(Clone, Debug)]
pub struct Forwarding {
    via: Option<Pseudonym>,
    x_forwarded: XForwarded,
}

impl Forwarding {
    /// Makes the default rules: a name in `Via` that is random, and the same
    /// throughout the process, and [`XForwarded::Append`].
    pub fn new() -> Self {
        Self {
            via: Some(Pseudonym::of_process()),
            x_forwarded: XForwarded::default(),
        }
    }

    /// Sets the name of this instance in `Via`. A request that has it there
    /// already has been here before, and ends with a 508: two proxies of one
    /// process that may stand in a row need names of their own.
    ///
    /// # Errors
    ///
    /// If it is not a token of at most 64 characters.
    pub fn via(mut self, name: &str) -> Result<Self, InvalidSetting> {
        let allowed = "a token of at most 64 letters, digits and !#$%&'*+-.^_`|~";
        let pseudonym = Pseudonym::new(name);
        self.via =
            Some(pseudonym.ok_or_else(|| InvalidSetting::new("name in Via", name, allowed))?);
        Ok(self)
    }

    /// Adds no `Via`, so that no loop is seen either.
    #[must_use]
    pub fn without_via(mut self) -> Self {
        self.via = None;
        self
    }

    /// Sets what becomes of `X-Forwarded-*` (default: [`XForwarded::Append`]).
    #[must_use]
    pub const fn x_forwarded(mut self, rule: XForwarded) -> Self {
        self.x_forwarded = rule;
        self
    }

    /// Tells whether a request may be forwarded at all.
    ///
    /// # Errors
    ///
    /// [`Rejected`], which says how to answer it.
    pub fn check(&self, parts: &request::Parts) -> Result<(), Rejected> {
        if matches!(parts.method, Method::CONNECT | Method::TRACE) {
            return Err(Rejected::METHOD);
        }
        if parts.headers.get_all(HOST).iter().nth(1).is_some() {
            return Err(Rejected::HOSTS);
        }
        if path::has_parent_segment(parts.uri.path()) {
            return Err(Rejected::PARENT_SEGMENT);
        }
        match &self.via {
            Some(name) if name.is_in(&parts.headers) => Err(Rejected::LOOP),
            _ => Ok(()),
        }
    }

    /// Makes the head of a request the one that goes on to a worker. Where it
    /// goes, and so `Host`, is for who sends it.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check); nothing is changed then.
    pub fn request(&self, parts: &mut request::Parts) -> Result<(), Rejected> {
        self.check(parts)?;
        hop::unframe_request(&mut parts.headers);
        hop::remove_hop_by_hop(&mut parts.headers);
        if parts.version >= Version::HTTP_2 {
            hop::join_cookies(&mut parts.headers);
        }
        self.x_forwarded.apply(parts);
        if let Some(name) = &self.via {
            name.append_to(&mut parts.headers, parts.version);
        }
        Ok(())
    }

    /// Makes the head of a response the one that goes on to the client.
    ///
    /// # Errors
    ///
    /// If it switches protocols, which nobody has asked for.
    pub fn response(&self, parts: &mut response::Parts) -> Result<(), MalformedAnswer> {
        if parts.status.is_informational() {
            return Err(MalformedAnswer::Informational(parts.status));
        }
        hop::unframe_response(parts.status, &mut parts.headers);
        hop::remove_hop_by_hop(&mut parts.headers);
        // HTTP/1.0 here would take chunks and keep-alive from the client.
        parts.version = Version::HTTP_11;
        Ok(())
    }
}

impl Default for Forwarding {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether the connection ends with this message.
pub(super) fn closes(headers: &HeaderMap) -> bool {
    hop::tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(b"close"))
}

/// Sets what HTTP/1.1 wants beside a `TE`.
pub(super) fn name_te_in_connection(parts: &mut request::Parts) {
    if parts.headers.contains_key(TE) {
        parts
            .headers
            .insert(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// A request that is not forwarded, and how it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected {
    status: StatusCode,
    reason: &'static str,
}

impl Rejected {
    const METHOD: Self = Self::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "CONNECT and TRACE are not allowed here",
    );
    const PARENT_SEGMENT: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "the path has a segment that leads out of its folder",
    );
    const HOSTS: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "there is more than one host that is asked for",
    );
    const LOOP: Self = Self::new(
        StatusCode::LOOP_DETECTED,
        "the request has been here before: a worker's URL leads back to its gateway",
    );
    pub(super) const TOO_LONG: Self = Self::new(
        StatusCode::URI_TOO_LONG,
        "the path and the query are too long to be sent on",
    );
    pub(super) const NO_PATH: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "the target is not a path, which is all that a worker with a base path has",
    );
    pub(super) const BODY_TOO_LARGE: Self = Self::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "the body is too long for the name of its model to be replaced",
    );

    const fn new(status: StatusCode, reason: &'static str) -> Self {
        Self { status, reason }
    }

    /// Returns the status to answer with.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns why, in words for the client.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not forwarded: {}", self.reason)
    }
}

impl Error for Rejected {}

#[cfg(test)]
mod tests;
