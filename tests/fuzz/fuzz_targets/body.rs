#![no_main]

use http::{
    HeaderMap, HeaderValue,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use libfuzzer_sys::fuzz_target;
use tower_overload::api::RequestReader;

// A form, or a body that is compressed, as the first byte says.
fuzz_target!(|input: &[u8]| {
    let Some((kind, body)) = input.split_first() else {
        return;
    };
    let form = "multipart/form-data; boundary=x";
    let (name, value) = match kind % 6 {
        0 => (CONTENT_TYPE, form),
        1 => (CONTENT_ENCODING, "gzip"),
        2 => (CONTENT_ENCODING, "deflate"),
        3 => (CONTENT_ENCODING, "br"),
        4 => (CONTENT_ENCODING, "zstd"),
        _ => (CONTENT_ENCODING, "deflate, gzip"),
    };
    let mut headers = HeaderMap::new();
    headers.insert(name, HeaderValue::from_static(value));
    let _ = RequestReader::new()
        .max_decoded_bytes(64 * 1024)
        .read(&headers, body);
});
