//! The URL of a worker, and where under it a request goes.

use super::{InvalidSetting, forward::Rejected};
use http::{
    HeaderValue, Uri,
    uri::{Authority, PathAndQuery, Scheme},
};
use std::sync::Arc;

/// A worker's URL, taken apart.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) https: bool,
    pub(super) authority: Authority,
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
    /// What `Host` says.
    pub(super) host_header: HeaderValue,
    /// As it is named in errors.
    pub(super) name: Arc<str>,
    /// Without a slash at its end.
    path: String,
}

/// What a client of this crate can still send: `http::Uri` is at its limit.
const MAX_TARGET: usize = 32 * 1024;

impl Base {
    pub(super) fn parse(url: &str) -> Result<Self, InvalidSetting> {
        const ALLOWED: &str = "http:// or https://, a host, perhaps a port and a path";
        // It may hold a password, which is not for logs.
        let shown = url.rsplit_once('@').map_or(url, |(_, host)| host);
        let invalid = |allowed: &str| InvalidSetting::new("URL of a worker", shown, allowed);
        let uri: Uri = url.parse().map_err(|_| invalid(ALLOWED))?;
        let https = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(invalid(ALLOWED)),
        };
        let authority = uri.authority().ok_or_else(|| invalid(ALLOWED))?.clone();
        if authority.as_str().contains('@') {
            return Err(invalid("no user and password: set a header instead"));
        }
        if uri.query().is_some() || url.contains('#') {
            return Err(invalid("no query and no fragment"));
        }
        if super::forward::has_parent_segment(uri.path()) {
            return Err(invalid("no segment `..` in the path"));
        }
        let host = authority.host();
        let named = authority.as_str().strip_prefix(host).unwrap_or_default();
        let port = match authority.port_u16() {
            Some(0) => return Err(invalid("a port from 1 to 65535")),
            Some(port) => port,
            None if !named.trim_start_matches(':').is_empty() => {
                return Err(invalid("a port from 1 to 65535"));
            }
            None if https => 443,
            None => 80,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(invalid(ALLOWED));
        }
        let path = uri.path().trim_end_matches('/').to_owned();
        let scheme = if https { "https" } else { "http" };
        Ok(Self {
            https,
            host: host.to_owned(),
            port,
            host_header: HeaderValue::try_from(authority.as_str()).map_err(|_| invalid(ALLOWED))?,
            name: format!("{scheme}://{authority}{path}").into(),
            authority,
            path,
        })
    }

    /// The path and query that `asked` has under this URL.
    pub(super) fn target(&self, asked: &Uri) -> Result<PathAndQuery, Rejected> {
        let Some(asked) = asked.path_and_query() else {
            return Err(Rejected::NO_PATH);
        };
        if self.path.len() + asked.as_str().len() > MAX_TARGET {
            return Err(Rejected::TOO_LONG);
        }
        if self.path.is_empty() {
            return Ok(asked.clone());
        }
        if !asked.as_str().starts_with(['/', '?']) {
            return Err(Rejected::NO_PATH);
        }
        PathAndQuery::try_from(format!("{}{asked}", self.path)).map_err(|_| Rejected::NO_PATH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_below_the_path_of_the_url() {
        for (url, asked, target) in [
            ("http://w", "/v1/x?a=b", Ok("/v1/x?a=b")),
            ("http://w/", "/v1/x", Ok("/v1/x")),
            ("http://w", "*", Ok("*")),
            ("http://w/tenant-a", "/v1/x?a=b", Ok("/tenant-a/v1/x?a=b")),
            ("http://w/tenant-a//", "/", Ok("/tenant-a/")),
            ("http://w/tenant-a", "http://other/v1", Ok("/tenant-a/v1")),
            ("http://w/tenant-a", "http://other?a", Ok("/tenant-a/?a")),
            ("http://w/tenant-a", "*", Err(Rejected::NO_PATH)),
            ("http://w/tenant-a", "other:1", Err(Rejected::NO_PATH)),
        ] {
            let found = Base::parse(url).unwrap().target(&asked.parse().unwrap());
            let found = found.as_ref().map(PathAndQuery::as_str);
            assert_eq!(found, target.as_ref().copied(), "{url} {asked}");
        }
        let long = format!("/{}", "x".repeat(MAX_TARGET)).parse().unwrap();
        let target = Base::parse("http://w").unwrap().target(&long);
        assert_eq!(target, Err(Rejected::TOO_LONG));
    }

    #[test]
    fn what_is_no_url_of_a_worker_is_refused_by_name() {
        for (url, part) in [
            ("", "http:// or https://"),
            ("w:80", "http:// or https://"),
            ("/v1", "http:// or https://"),
            ("ftp://w", "http:// or https://"),
            ("http://", "http:// or https://"),
            ("http://w:0", "port"),
            ("http://w:99999", "port"),
            ("http://user:secret@w", "header"),
            ("http://w/?a=b", "query"),
            ("http://w/#a", "fragment"),
            ("http://w/a/%2e%2e/b", ".."),
        ] {
            let error = Base::parse(url).unwrap_err().to_string();
            assert!(error.contains("URL of a worker"), "{error}");
            assert!(error.contains(part), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn hosts_and_ports_are_found() {
        for (url, https, host, port) in [
            ("http://w", false, "w", 80),
            ("https://w.example/x", true, "w.example", 443),
            ("http://127.0.0.1:8100", false, "127.0.0.1", 8100),
            ("https://[::1]:8443/", true, "::1", 8443),
        ] {
            let base = Base::parse(url).unwrap();
            assert_eq!((base.https, &*base.host, base.port), (https, host, port));
        }
    }
}
