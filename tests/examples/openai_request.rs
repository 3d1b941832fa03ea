//! What the mock engine reads of a request.

use http::StatusCode;
use overload_examples::openai::{Endpoint, Generate, MOST_TOKENS};
use serde_json::{Value, json};
use tower_overload::front::Problem;

fn chat(body: Value) -> Result<Generate, Problem> {
    Generate::parse(Endpoint::ChatCompletions, body.to_string().as_bytes())
}

fn completion(body: Value) -> Result<Generate, Problem> {
    Generate::parse(Endpoint::Completions, body.to_string().as_bytes())
}

#[test]
fn prompt_tokens_are_the_words_of_all_text() {
    let request = chat(json!({
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be  brief,\nplease."},
            {"role": "user", "content": [
                {"type": "text", "text": "Hello there,"},
                {"type": "text", "text": "\"world\" \u{e9}t\u{e9}"},
            ]},
            {"role": "assistant", "content": null, "tool_calls": []},
        ],
    }));
    assert_eq!(request.unwrap().prompt_tokens, 7);
    let request = completion(json!({"model": "tiny", "prompt": "one two three"})).unwrap();
    assert_eq!((request.prompt_tokens, request.choices), (3, 1));
    let request = completion(json!({"model": "tiny", "prompt": ["one two", "three", ""]}));
    let request = request.unwrap();
    assert_eq!((request.prompt_tokens, request.choices), (3, 3));
}

#[test]
fn what_is_absent_or_null_has_its_default() {
    let plain = completion(json!({"model": "tiny", "prompt": "hi"})).unwrap();
    let nulls = completion(json!({
        "model": "tiny", "prompt": "hi", "max_tokens": null, "stream": null,
        "stream_options": null, "n": null, "temperature": null,
    }));
    assert_eq!(plain, nulls.unwrap());
    assert_eq!(
        plain,
        Generate {
            endpoint: Endpoint::Completions,
            model: "tiny".into(),
            prompt_tokens: 1,
            choices: 1,
            max_tokens: 16,
            stream: false,
            include_usage: false,
        }
    );
}

#[test]
fn the_members_of_a_chat_are_read() {
    let request = chat(json!({
        "model": "other", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9,
        "max_completion_tokens": 3, "stream": true, "n": 2,
        "stream_options": {"include_usage": true}, "temperature": 0.5,
    }));
    let request = request.unwrap();
    assert_eq!(request.model, "other");
    assert_eq!((request.max_tokens, request.choices), (3, 2));
    assert!(request.stream && request.include_usage);
}

#[test]
fn an_error_names_the_member_that_is_wrong() {
    let good = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]});
    assert!(chat(good.clone()).is_ok());
    for (name, bad) in [
        ("model", json!(null)),
        ("model", json!(7)),
        ("messages", json!(null)),
        ("messages", json!([])),
        ("messages", json!("hi")),
        ("messages", json!([{"content": "hi"}])),
        ("messages", json!([{"role": "user", "content": 7}])),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image_url"}]}]),
        ),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!("5")),
        ("max_tokens", json!(5_000_000_000_u64)),
        ("max_tokens", json!(4_000_000_000_u64)),
        ("max_completion_tokens", json!(-1)),
        ("n", json!(0)),
        ("stream", json!("yes")),
        ("stream_options", json!(true)),
    ] {
        let mut body = good.clone();
        body[name] = bad.clone();
        let error = chat(body).unwrap_err();
        assert_eq!(error.status(), StatusCode::BAD_REQUEST, "{name}: {bad}");
        assert_eq!(error.param(), Some(name), "{bad}");
        assert!(error.to_string().contains(name), "{bad}: {error}");
    }
    for bad in [json!(null), json!([]), json!([1]), json!(7)] {
        let error = completion(json!({"model": "tiny", "prompt": bad})).unwrap_err();
        assert_eq!(error.param(), Some("prompt"), "{bad}");
    }
}

#[test]
fn a_body_that_is_no_object_is_refused() {
    for bad in ["", "{", "[]", "null", "7", "{\"model\": \"a\", }", "{} {}"] {
        let error = Generate::parse(Endpoint::Completions, bad.as_bytes()).unwrap_err();
        assert_eq!(error.status(), StatusCode::BAD_REQUEST, "{bad}");
    }
    assert!(Generate::parse(Endpoint::Completions, &[b'"', 0xff, b'"']).is_err());
}

#[test]
fn the_product_of_prompts_answers_and_tokens_is_limited() {
    let most = json!({"model": "t", "prompt": ["a", "b"], "n": 2, "max_tokens": MOST_TOKENS / 4});
    assert!(completion(most.clone()).is_ok());
    let mut more = most;
    more["max_tokens"] = json!(MOST_TOKENS / 4 + 1);
    assert_eq!(completion(more).unwrap_err().param(), Some("max_tokens"));
}
