//! Input that is made to hurt: bounded in memory and time, and named.

use crate::read_text;
use http::{HeaderMap, StatusCode};
use tower_overload::api::RequestReader;

#[test]
fn a_string_without_end_is_named() {
    let body = format!(
        "{{\"model\":\"tiny\",\"prompt\":\"{}",
        "a".repeat(10_000_000)
    );
    let error = read_text(&body).unwrap_err();
    assert_eq!(error.status(), StatusCode::BAD_REQUEST);
    assert!(
        error.to_string().contains("EOF while parsing a string"),
        "{error}"
    );
}

#[test]
fn arrays_a_hundred_thousand_deep_are_named_wherever_they_are() {
    let deep = "[".repeat(100_000);
    let end = "]".repeat(100_000);
    for member in ["messages", "prompt", "metadata", "model", "tools", "stream"] {
        for end in [&end[..], ""] {
            let body = format!("{{\"{member}\":{deep}{end}}}");
            let error = read_text(&body).unwrap_err();
            assert_eq!(error.status(), StatusCode::BAD_REQUEST);
            assert!(error.to_string().contains("128 deep"), "{member}: {error}");
        }
    }
}

#[test]
fn any_depth_that_is_allowed_is_read() {
    for limit in [128, 100_000] {
        let reader = RequestReader::new().max_depth(limit);
        let levels = limit - 1;
        let body = format!(
            "{{\"model\":\"tiny\",\"prompt\":{}\"word\"{}}}",
            "[".repeat(levels),
            "]".repeat(levels)
        );
        let read = reader.read(&HeaderMap::new(), body.as_bytes()).unwrap();
        assert_eq!(read.model.as_deref(), Some("tiny"));
        assert!(read.prompt_tokens > 0);
    }
}

#[test]
fn a_million_small_members_are_one_pass() {
    let body = format!(
        "{{\"model\":\"tiny\",\"tools\":[{}0]}}",
        "{\"a\":1},".repeat(1_000_000)
    );
    assert!(read_text(&body).unwrap().prompt_tokens > 1_000_000);
}
