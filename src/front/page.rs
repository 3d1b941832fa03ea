//! Clients that are web pages: a browser asks first whether it may send a
//! request, and shows a page no answer that does not say it may.
//!
//! The browser's question is answered here, for it is no load. Whether a page
//! may read a worker's answer is said by the worker; those of the front may be
//! read by all.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
        ALLOW, ORIGIN, VARY,
    },
};

const ANY: HeaderValue = HeaderValue::from_static("*");

/// For how long a browser need not ask again. Chrome keeps it no longer than
/// two hours.
const SECONDS: HeaderValue = HeaderValue::from_static("7200");

/// Whether a browser asks what a page may send.
pub(super) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to `OPTIONS`, where `methods` are allowed.
pub(super) fn options(request: &HeaderMap, methods: &'static str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    let methods = HeaderValue::from_static(methods);
    headers.insert(ALLOW, methods.clone());
    if !is_preflight(&Method::OPTIONS, request) {
        return response;
    }
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    // Not `*`, for that leaves `Authorization` out.
    if let Some(asked) = request.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    headers.insert(ACCESS_CONTROL_MAX_AGE, SECONDS);
    headers.insert(VARY, ACCESS_CONTROL_REQUEST_HEADERS.into());
    response
}

/// Lets a page read an answer.
pub(super) fn may_read<B>(response: &mut Response<B>) {
    response
        .headers_mut()
        .insert(ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
}
