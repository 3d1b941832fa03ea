//! Model, stream, answers and key.

use crate::{content_type, prompt_tokens, read, read_text, words};
use http::{HeaderMap, StatusCode};
use serde_json::json;
use tower_overload::api::RequestReader;

#[test]
fn the_model_is_the_one_that_the_worker_will_see() {
    for (body, model) in [
        (r#"{"model":"tiny"}"#, Some("tiny")),
        (r#"{"mod\u0065l":"a\/b\u00e9"}"#, Some("a/b\u{e9}")),
        ("\u{feff} {\"model\":\"tiny\"}\r\n", Some("tiny")),
        (r#"{"model":null}"#, None),
        (r#"{"messages":[{"model":"other"}]}"#, None),
        ("{}", None),
        ("", None),
    ] {
        assert_eq!(read_text(body).unwrap().model.as_deref(), model, "{body}");
    }
}

#[test]
fn a_body_that_is_no_request_is_refused_with_what_is_wrong() {
    for (body, wrong) in [
        (r#"{"model":5}"#, "it is a number"),
        (r#"{"model":["tiny"]}"#, "it is an array"),
        (r#"{"model":"a","model":"b"}"#, "duplicate field `model`"),
        (
            r#"{"model":"a","mod\u0065l":"b"}"#,
            "duplicate field `model`",
        ),
        (r#"{"model":"tiny"} {}"#, "trailing characters"),
        (r#"{"model":"tiny""#, "EOF"),
        (r#"["model"]"#, "expected a request"),
        ("hello", "expected value"),
    ] {
        let error = read_text(body).unwrap_err();
        assert_eq!(error.status(), StatusCode::BAD_REQUEST, "{body}");
        let message = error.to_string();
        assert!(message.contains(wrong), "{body}: {message}");
        assert!(message.contains("JSON object whose `model`"), "{message}");
    }
}

#[test]
fn stream_is_read_as_the_engines_read_it() {
    for (stream, streamed) in [
        (json!(true), true),
        (json!("true"), true),
        (json!("Yes"), true),
        (json!(1), true),
        (json!(1.0), true),
        (json!(false), false),
        (json!("false"), false),
        (json!(0), false),
        (json!(null), false),
        (json!({}), false),
        (json!([true]), false),
    ] {
        let read = read(&json!({"model": "tiny", "stream": stream}));
        assert_eq!(read.streamed, Some(streamed), "{stream}");
    }
    assert_eq!(read(&json!({"model": "tiny"})).streamed, Some(false));
    assert_eq!(read_text("").unwrap().streamed, None);
}

#[test]
fn answers_are_counted_for_each_prompt() {
    for (body, choices) in [
        (json!({}), 1),
        (json!({"n": 3}), 3),
        (json!({"n": 2, "best_of": 4}), 4),
        (json!({"n": "2"}), 2),
        (json!({"n": 0}), 1),
        (json!({"n": -1}), 1),
        (json!({"n": null, "prompt": null}), 1),
        (json!({"prompt": ["a", "b"], "n": 2}), 4),
        (json!({"prompt": [1, 2, 3], "n": 2}), 2),
        (json!({"prompt": [[1, 2], [3]], "n": 2}), 4),
        (json!({"n": u64::MAX, "prompt": ["a", "b"]}), u64::MAX),
    ] {
        assert_eq!(read(&body).choices, choices, "{body}");
    }
}

#[test]
fn what_has_no_type_or_a_wrong_one_is_json_if_it_looks_like_it() {
    let body = br#"{"model":"tiny","prompt":"one two"}"#;
    for headers in [
        HeaderMap::new(),
        content_type("application/json; charset=utf-8"),
        content_type("APPLICATION/JSON"),
        content_type("application/vnd.api+json"),
        content_type("application/x-www-form-urlencoded"),
        content_type("text/plain"),
        content_type("application/octet-stream"),
    ] {
        let read = words().read(&headers, body).unwrap();
        assert_eq!(read.model.as_deref(), Some("tiny"), "{headers:?}");
        assert_eq!(read.prompt_tokens, 2, "{headers:?}");
    }
    let opaque = content_type("application/octet-stream");
    for body in [&[0; 5000][..], &[b'{'; 5000]] {
        let read = words().read(&opaque, body).unwrap();
        assert_eq!((read.model, read.streamed), (None, None));
        assert_eq!(read.prompt_tokens, 5);
    }
}

#[test]
fn prompts_that_begin_alike_have_one_key() {
    let reader = words().keys(true);
    let key = |body: serde_json::Value| {
        let body = body.to_string();
        reader.read(&HeaderMap::new(), body.as_bytes()).unwrap().key
    };
    let system = "You are ".repeat(200);
    let turn = |more: &[&str]| {
        let mut messages = vec![json!({"role": "system", "content": system})];
        messages.extend(more.iter().map(|it| json!({"role": "user", "content": it})));
        key(json!({"messages": messages}))
    };
    assert!(turn(&["hi"]).is_some());
    assert_eq!(turn(&["hi"]), turn(&["hi", "hello"]));
    assert_ne!(
        turn(&["hi"]),
        key(json!({"messages": [{"role": "user", "content": "hi"}]}))
    );
    assert_eq!(
        key(json!({"prompt": [1, 2]})),
        key(json!({"prompt": [1, 2]}))
    );
    assert_ne!(
        key(json!({"prompt": [1, 2]})),
        key(json!({"prompt": [2, 1]}))
    );
    assert_eq!(key(json!({"model": "tiny", "messages": []})), None);
    // Anthropic's clients write the two in either order.
    let one = r#"{"system":"be brief","messages":[{"role":"user","content":"hi"}]}"#;
    let other = r#"{"messages":[{"role":"user","content":"hi"}],"system":"be brief"}"#;
    let key = |body: &str| reader.read(&HeaderMap::new(), body.as_bytes()).unwrap().key;
    assert_eq!(key(one), key(other));
    assert_eq!(read_text(one).unwrap().key, None, "none are asked for");
}

#[test]
fn without_prompts_the_rest_is_read_all_the_same() {
    let reader = RequestReader::new().prompts(false);
    let body = br#"{"model":"tiny","stream":true,"n":2,"prompt":"one two"}"#;
    let read = reader.read(&HeaderMap::new(), body).unwrap();
    assert_eq!(read.model.as_deref(), Some("tiny"));
    assert_eq!((read.streamed, read.choices), (Some(true), 2));
    assert_eq!(read.prompt_tokens, 0);
}

#[test]
fn a_prompt_that_a_worker_may_take_is_not_refused_here() {
    // Half of a surrogate pair, and a number that is none: Python takes both.
    for prompt in [r#""\ud83d""#, "1e999"] {
        let body = format!("{{\"model\":\"tiny\",\"stream\":true,\"prompt\":{prompt}}}");
        let read = read_text(&body).unwrap();
        assert_eq!(read.model.as_deref(), Some("tiny"), "{body}");
        assert_eq!(read.streamed, Some(true), "{body}");
        assert_eq!(read.prompt_tokens, body.len() as u64 / 3, "{body}");
    }
    assert_eq!(prompt_tokens(&json!({"prompt": -1})), 0);
}
