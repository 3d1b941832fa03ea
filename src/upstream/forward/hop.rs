//! Headers that are meant for the next hop only, and what frames a message.

use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, Entry, HOST, PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
};

/// What never goes further than one hop, whether or not `Connection` says so.
/// `TE` is apart: its `trailers` is kept, for gRPC needs it.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes what was meant for this hop only, the headers that `Connection`
/// names among it.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        for name in named_by_connection(headers) {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    keep_trailers_of_te(headers);
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    tokens(headers, &CONNECTION)
        // `TE` always comes with its name in `Connection`, and has a rule of
        // its own.
        .filter(|token| !token.eq_ignore_ascii_case(b"te"))
        .filter_map(|token| HeaderName::from_bytes(token).ok())
        .collect()
}

/// The elements of a header that is a comma-separated list.
pub(super) fn tokens<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).iter();
    lines
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

fn keep_trailers_of_te(headers: &mut HeaderMap) {
    if !headers.contains_key(TE) {
        return;
    }
    let trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case(b"trailers"));
    headers.remove(TE);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes what said where the body of a request ended. How it is framed on
/// the next hop follows from the body alone.
pub(super) fn unframe_request(headers: &mut HeaderMap) {
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT] {
        headers.remove(name);
    }
}

/// Leaves the length of a response only where it is true: not beside a
/// Transfer-Encoding, which has counted instead, not in a 204, and once.
pub(super) fn unframe_response(status: StatusCode, headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) || status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
    }
    let first = match headers.get(CONTENT_LENGTH).map(HeaderValue::as_bytes) {
        Some(line) => match line.split(|byte| *byte == b',').next() {
            Some(first) => HeaderValue::from_bytes(first.trim_ascii()).ok(),
            None => None,
        },
        None => return,
    };
    match first {
        // Two that differ are malformed, and the client has refused them.
        Some(length) => drop(headers.insert(CONTENT_LENGTH, length)),
        None => drop(headers.remove(CONTENT_LENGTH)),
    }
}

/// Joins the cookies that HTTP/2 sends in a field each: HTTP/1.1 knows one.
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let Entry::Occupied(mut cookies) = headers.entry(COOKIE) else {
        return;
    };
    if cookies.iter().nth(1).is_none() {
        return;
    }
    let lines: Vec<&[u8]> = cookies.iter().map(HeaderValue::as_bytes).collect();
    // Values that were valid are valid when they are joined.
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        cookies.insert(joined);
    }
}

/// Removes from trailers what must not come so late: what frames the message,
/// says where it goes, or is for one hop.
pub(crate) fn clean_trailers(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    for name in [CONTENT_LENGTH, HOST, TE, TRAILER] {
        trailers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(in super::super) fn map(headers: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn what_connection_names_goes_with_it() {
        let mut headers = map(&[
            ("connection", "close, X-One"),
            ("connection", ",, x-two ,not a name"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("upgrade", "websocket"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "Basic x"),
            ("proxy-authenticate", "Basic"),
            ("http2-settings", "AAMAAABkAARAAAAAAAIAAAAA"),
            ("trailer", "x-checksum"),
            ("authorization", "Bearer x"),
        ]);
        remove_hop_by_hop(&mut headers);
        let expected = map(&[
            ("x-three", "3"),
            ("trailer", "x-checksum"),
            ("authorization", "Bearer x"),
        ]);
        assert_eq!(headers, expected);
    }

    #[test]
    fn of_te_only_trailers_are_kept() {
        for (te, kept) in [
            ("trailers", Some("trailers")),
            ("gzip, Trailers", Some("trailers")),
            ("gzip;q=0.5", None),
            ("", None),
        ] {
            let mut headers = map(&[("te", te), ("connection", "te")]);
            remove_hop_by_hop(&mut headers);
            assert_eq!(headers.get(TE).map(|it| it.to_str().unwrap()), kept, "{te}");
            assert_eq!(headers.len(), usize::from(kept.is_some()));
        }
    }

    #[test]
    fn a_response_keeps_a_length_only_if_nothing_else_framed_it() {
        for (status, headers, kept) in [
            (200, vec![("content-length", "5")], Some("5")),
            (200, vec![("content-length", "5, 5")], Some("5")),
            (
                200,
                vec![("content-length", "5"), ("content-length", "5")],
                Some("5"),
            ),
            (
                200,
                vec![("transfer-encoding", "chunked"), ("content-length", "5")],
                None,
            ),
            (204, vec![("content-length", "0")], None),
            (304, vec![("content-length", "5")], Some("5")),
            (200, vec![], None),
        ] {
            let mut map = map(&headers);
            unframe_response(StatusCode::from_u16(status).unwrap(), &mut map);
            let found: Vec<_> = map.get_all(CONTENT_LENGTH).iter().collect();
            assert_eq!(found, Vec::from_iter(kept), "{status} {headers:?}");
        }
    }

    #[test]
    fn cookies_are_joined_in_their_order() {
        let mut headers = map(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut headers);
        assert_eq!(headers, map(&[("cookie", "a=1; b=2; c=3"), ("x", "y")]));
        let mut one = map(&[("cookie", "a=1")]);
        join_cookies(&mut one);
        assert_eq!(one, map(&[("cookie", "a=1")]));
    }

    #[test]
    fn trailers_cannot_reframe_a_message() {
        let mut trailers = map(&[
            ("grpc-status", "0"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("host", "evil.example"),
            ("te", "trailers"),
        ]);
        clean_trailers(&mut trailers);
        assert_eq!(trailers, map(&[("grpc-status", "0")]));
    }
}
