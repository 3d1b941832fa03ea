//! What the mock engine answers.

use bytes::{Bytes, BytesMut};
use overload_examples::openai::{Endpoint, Generate, Reply, Usage};
use serde_json::{Value, json};

fn reply(endpoint: Endpoint, choices: u32, include_usage: bool) -> Reply {
    Reply::new(&Generate {
        endpoint,
        model: "tiny".into(),
        prompt_tokens: 3,
        choices,
        max_tokens: 2,
        stream: true,
        include_usage,
    })
}

/// The objects of the events, each without what all have in common.
fn events(reply: &Reply, object: &str, write: impl Fn(&mut BytesMut)) -> Vec<Value> {
    let mut events = BytesMut::new();
    write(&mut events);
    let text = std::str::from_utf8(&events).unwrap();
    let text = text.strip_suffix("\n\n").unwrap();
    text.split("\n\n")
        .map(|event| {
            let data = event.strip_prefix("data: ").unwrap();
            if data == "[DONE]" {
                return json!("done");
            }
            let mut value: Value = serde_json::from_str(data).unwrap();
            let members = value.as_object_mut().unwrap();
            assert_eq!(members.remove("id"), Some(json!(reply.id())));
            assert_eq!(members.remove("object"), Some(json!(object)));
            assert_eq!(members.remove("model"), Some(json!("tiny")));
            assert!(members.remove("created").unwrap().is_u64());
            value
        })
        .collect()
}

#[test]
fn a_chat_is_a_role_then_tokens_then_a_reason() {
    let reply = reply(Endpoint::ChatCompletions, 1, false);
    let choice = |delta: Value, reason: Value| {
        json!({"choices": [
            {"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason},
        ]})
    };
    let events = events(&reply, "chat.completion.chunk", |events| {
        reply.token_event(events, 0, 0);
        reply.token_event(events, 0, 1);
        reply.end_events(events, Usage::new(3, 2));
    });
    assert_eq!(
        events,
        [
            choice(json!({"role": "assistant", "content": ""}), json!(null)),
            choice(json!({"content": "and"}), json!(null)),
            choice(json!({"content": " tokens"}), json!(null)),
            choice(json!({}), json!("length")),
            json!("done"),
        ]
    );
}

#[test]
fn a_usage_that_was_asked_for_is_null_until_the_last_chunk() {
    let reply = reply(Endpoint::Completions, 2, true);
    let choice = |index: u64, text: &str, reason: Value| {
        json!({"usage": null, "choices": [
            {"index": index, "text": text, "logprobs": null, "finish_reason": reason},
        ]})
    };
    let events = events(&reply, "text_completion", |events| {
        reply.token_event(events, 1, 1);
        reply.end_events(events, Usage::new(3, 4));
    });
    assert_eq!(
        events,
        [
            choice(1, " tokens", json!(null)),
            choice(0, "", json!("length")),
            choice(1, "", json!("length")),
            json!({"choices": [], "usage": {
                "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
            }}),
            json!("done"),
        ]
    );
}

#[test]
fn a_whole_answer_has_its_text_and_its_usage() {
    let parse = |bytes: Bytes| serde_json::from_slice::<Value>(&bytes).unwrap();
    let usage = Usage::new(3, 2);
    let chat = parse(reply(Endpoint::ChatCompletions, 1, false).whole(2, usage));
    assert_eq!(chat["object"], "chat.completion");
    assert_eq!(
        chat["choices"],
        json!([{
            "index": 0, "logprobs": null, "finish_reason": "length",
            "message": {"role": "assistant", "content": "and tokens", "refusal": null},
        }])
    );
    assert_eq!(chat["usage"]["total_tokens"], 5);
    let completion = parse(reply(Endpoint::Completions, 2, false).whole(2, usage));
    assert_eq!(completion["object"], "text_completion");
    assert_eq!(completion["choices"][1]["text"], "and tokens");
    assert_ne!(chat["id"], completion["id"]);
}
