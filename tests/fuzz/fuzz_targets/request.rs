#![no_main]

use http::HeaderMap;
use libfuzzer_sys::fuzz_target;
use tower_overload::api::RequestReader;

// A request in JSON: what it is for does not depend on whether its prompt is
// read.
fuzz_target!(|body: &[u8]| {
    let headers = HeaderMap::new();
    let whole = RequestReader::new().keys(true).read(&headers, body);
    let brief = RequestReader::new().prompts(false).read(&headers, body);
    let read = |of: Result<tower_overload::api::ReadRequest<'_>, _>| {
        let read = of.ok()?.into_owned();
        Some((read.model, read.streamed))
    };
    assert_eq!(read(whole), read(brief));
});
