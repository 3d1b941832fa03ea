//! What the worker is told of the client.

use http::{HeaderMap, HeaderName, HeaderValue, header::HOST, request};
use std::net::IpAddr;

const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Who has sent a request: put into its extensions by whoever accepted the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    address: IpAddr,
    https: bool,
}

impl Client {
    /// Makes a client at `address`, whose connection was not encrypted.
    pub const fn new(address: IpAddr) -> Self {
        Self {
            address,
            https: false,
        }
    }

    /// Sets whether the client came over https.
    #[must_use]
    pub const fn https(mut self, yes: bool) -> Self {
        self.https = yes;
        self
    }
}

/// What becomes of `X-Forwarded-For`, `X-Forwarded-Proto` and
/// `X-Forwarded-Host`.
///
/// The first two need a [`Client`] in the extensions of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XForwarded {
    /// Appends the client's address, and sets the others where they are not:
    /// right behind another proxy that has set them.
    #[default]
    Append,
    /// Replaces whatever the client has sent, `Forwarded` included: right at
    /// the edge.
    Replace,
    /// Leaves them as they came.
    Pass,
    /// Removes them, `Forwarded` included.
    Remove,
}

impl XForwarded {
    pub(super) fn apply(self, parts: &mut request::Parts) {
        if self == Self::Pass {
            return;
        }
        if matches!(self, Self::Replace | Self::Remove) {
            let all = [
                FORWARDED,
                X_FORWARDED_FOR,
                X_FORWARDED_HOST,
                X_FORWARDED_PROTO,
            ];
            for name in all {
                parts.headers.remove(name);
            }
        }
        if self == Self::Remove {
            return;
        }
        if let Some(host) = asked_host(parts) {
            set_if_absent(&mut parts.headers, X_FORWARDED_HOST, host);
        }
        let Some(client) = parts.extensions.get::<Client>().copied() else {
            return;
        };
        if let Ok(address) = HeaderValue::try_from(client.address.to_string()) {
            parts.headers.append(X_FORWARDED_FOR, address);
        }
        let proto = HeaderValue::from_static(if client.https { "https" } else { "http" });
        set_if_absent(&mut parts.headers, X_FORWARDED_PROTO, proto);
    }
}

fn set_if_absent(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    headers.entry(name).or_insert(value);
}

/// The host that the client has asked for: what the target says counts before
/// the header.
fn asked_host(parts: &request::Parts) -> Option<HeaderValue> {
    match parts.uri.authority() {
        Some(authority) => HeaderValue::try_from(authority.as_str()).ok(),
        None => parts.headers.get(HOST).cloned(),
    }
}
