//! Whether the answer to a request will be streamed.

use http::{
    HeaderMap, Request,
    header::{ACCEPT, CONTENT_TYPE},
};
use std::fmt;

/// Says, as an extension of a request, whether its answer is streamed.
///
/// A gateway that has read the body of a request (`"stream": true`) knows it
/// best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Streamed(pub bool);

/// Tells whether the answer to a request of type `R` will be streamed.
pub trait IsStreamed<R> {
    /// Whether it will be.
    fn is_streamed(&self, request: &R) -> bool;
}

/// What the request itself says. This is the default.
///
/// | the request | its answer |
/// |---|---|
/// | has the extension [`Streamed`] | as that says |
/// | has an `accept` that begins with `text/event-stream` | is streamed |
/// | has a `content-type` that begins with `application/grpc` | is streamed |
/// | any other | comes whole |
///
/// The SDKs of most APIs say in the body alone whether they stream, so what
/// reads bodies should set the extension. The head of a unary gRPC call comes
/// with its message, as that of a whole answer does; where such calls take
/// long, say [so](super::TimeLimitLayer::streamed_when).
#[derive(Clone, Copy, Debug, Default)]
pub struct ByRequest;

impl<B> IsStreamed<Request<B>> for ByRequest {
    fn is_streamed(&self, request: &Request<B>) -> bool {
        match request.extensions().get() {
            Some(Streamed(streamed)) => *streamed,
            None => {
                is_event_stream(request.headers(), &ACCEPT)
                    || has(request.headers(), &CONTENT_TYPE, b"application/grpc")
            }
        }
    }
}

/// Asks a function; made by
/// [`TimeLimitLayer::streamed_when`](super::TimeLimitLayer::streamed_when).
#[derive(Clone, Copy)]
pub struct StreamedWhen<F>(pub(super) F);

impl<F, R> IsStreamed<R> for StreamedWhen<F>
where
    F: Fn(&R) -> bool,
{
    fn is_streamed(&self, request: &R) -> bool {
        (self.0)(request)
    }
}

impl<F> fmt::Debug for StreamedWhen<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamedWhen")
    }
}

/// Whether the first type that the header names is that of event streams.
pub(super) fn is_event_stream(headers: &HeaderMap, name: &http::HeaderName) -> bool {
    const TYPE: &[u8] = b"text/event-stream";
    let value = headers.get(name).map(http::HeaderValue::as_bytes);
    value.is_some_and(|value| {
        let end = value.iter().position(|byte| b";,".contains(byte));
        let first = &value[..end.unwrap_or(value.len())];
        first.trim_ascii().eq_ignore_ascii_case(TYPE)
    })
}

fn has(headers: &HeaderMap, name: &http::HeaderName, start: &[u8]) -> bool {
    let value = headers.get(name).map(http::HeaderValue::as_bytes);
    let head = value.and_then(|value| value.get(..start.len()));
    head.is_some_and(|head| head.eq_ignore_ascii_case(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_streamed(headers: &[(&str, &str)], said: Option<bool>) -> bool {
        let mut request = Request::new(());
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        if let Some(said) = said {
            request.extensions_mut().insert(Streamed(said));
        }
        ByRequest.is_streamed(&request)
    }

    #[test]
    fn headers_tell_where_nobody_has_said_it() {
        for (name, value, streamed) in [
            ("accept", "text/event-stream", true),
            ("accept", "Text/Event-Stream; q=1", true),
            ("accept", " text/event-stream , */*", true),
            ("accept", "application/json, text/event-stream", false),
            ("accept", "text/event-streams", false),
            ("accept", "", false),
            ("content-type", "application/grpc", true),
            ("content-type", "Application/gRPC+proto", true),
            ("content-type", "application/json", false),
            ("content-type", "text/event-stream", false),
        ] {
            let headers = [(name, value)];
            assert_eq!(is_streamed(&headers, None), streamed, "{name}: {value}");
            assert!(is_streamed(&headers, Some(true)));
            assert!(!is_streamed(&headers, Some(false)));
        }
        assert!(!is_streamed(&[], None));
    }
}
