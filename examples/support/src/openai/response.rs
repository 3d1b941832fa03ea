use super::{Endpoint, Generate};
use crate::engine::token;
use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// The tokens of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of all answers.
    pub completion_tokens: u64,
    /// Both.
    pub total_tokens: u64,
}

impl Usage {
    /// The sum is made here.
    pub fn new(prompt_tokens: u64, completion_tokens: u64) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
        }
    }
}

/// The answer to one request: makes its objects, whole or as events.
#[derive(Debug)]
pub struct Reply {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
    choices: u32,
    include_usage: bool,
}

/// Both kinds of objects: a chat has deltas or messages, a completion text.
#[derive(Serialize)]
struct Object<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [C],
    /// Absent, or `null` in all chunks of a stream but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct DeltaChoice {
    index: u64,
    delta: Delta,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'static str>,
}

#[derive(Serialize)]
struct MessageChoice {
    index: u64,
    message: Message,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: Option<()>,
}

#[derive(Serialize)]
struct TextChoice<T> {
    index: u64,
    text: T,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

/// Every answer has exactly the tokens that were asked for.
const LENGTH: Option<&str> = Some("length");
const ASSISTANT: &str = "assistant";

impl Reply {
    /// The answer to `request`, with an id of its own.
    pub fn new(request: &Generate) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);

        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let created = since_epoch.map_or(0, |elapsed| elapsed.as_secs());
        let prefix = match request.endpoint {
            Endpoint::ChatCompletions => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            endpoint: request.endpoint,
            id: format!("{prefix}-{created:x}{number:08x}"),
            created,
            model: request.model.clone(),
            choices: request.choices,
            include_usage: request.include_usage,
        }
    }

    /// The object of a whole answer with `tokens` tokens in each choice.
    pub fn whole(&self, tokens: u64, usage: Usage) -> Bytes {
        let text = || (0..tokens).map(token).collect::<String>();
        let indices = 0..u64::from(self.choices);
        let mut body = BytesMut::with_capacity(512);
        match self.endpoint {
            Endpoint::ChatCompletions => {
                let choices: Vec<_> = indices
                    .map(|index| MessageChoice {
                        index,
                        message: Message {
                            role: ASSISTANT,
                            content: text(),
                            refusal: None,
                        },
                        logprobs: None,
                        finish_reason: LENGTH,
                    })
                    .collect();
                self.write(&mut body, "chat.completion", &choices, Some(Some(usage)));
            }
            Endpoint::Completions => {
                let choices: Vec<_> = indices
                    .map(|index| TextChoice {
                        index,
                        text: text(),
                        logprobs: None,
                        finish_reason: LENGTH,
                    })
                    .collect();
                self.write(&mut body, "text_completion", &choices, Some(Some(usage)));
            }
        }
        body.freeze()
    }

    /// The event of one token of a choice; before the first of a chat's there
    /// is the event that says whose turn it is.
    pub fn token_event(&self, events: &mut BytesMut, choice: u64, place: u64) {
        match self.endpoint {
            Endpoint::ChatCompletions => {
                if place == 0 {
                    let delta = Delta {
                        role: Some(ASSISTANT),
                        content: Some(""),
                    };
                    self.delta_event(events, choice, delta, None);
                }
                let delta = Delta {
                    content: Some(token(place)),
                    ..Delta::default()
                };
                self.delta_event(events, choice, delta, None);
            }
            Endpoint::Completions => self.text_event(events, choice, token(place), None),
        }
    }

    /// The events after the last token: why each choice ended, the usage if
    /// it was asked for, and `[DONE]`.
    pub fn end_events(&self, events: &mut BytesMut, usage: Usage) {
        for choice in 0..u64::from(self.choices) {
            match self.endpoint {
                Endpoint::ChatCompletions => {
                    self.delta_event(events, choice, Delta::default(), LENGTH);
                }
                Endpoint::Completions => self.text_event(events, choice, "", LENGTH),
            }
        }
        if self.include_usage {
            self.event::<()>(events, &[], Some(Some(usage)));
        }
        events.put_slice(b"data: [DONE]\n\n");
    }

    fn delta_event(
        &self,
        events: &mut BytesMut,
        index: u64,
        delta: Delta,
        finish_reason: Option<&'static str>,
    ) {
        let choice = DeltaChoice {
            index,
            delta,
            logprobs: None,
            finish_reason,
        };
        self.event(events, &[choice], self.include_usage.then_some(None));
    }

    fn text_event(
        &self,
        events: &mut BytesMut,
        index: u64,
        text: &'static str,
        finish_reason: Option<&'static str>,
    ) {
        let choice = TextChoice {
            index,
            text,
            logprobs: None,
            finish_reason,
        };
        self.event(events, &[choice], self.include_usage.then_some(None));
    }

    fn event<C: Serialize>(
        &self,
        events: &mut BytesMut,
        choices: &[C],
        usage: Option<Option<Usage>>,
    ) {
        let object = match self.endpoint {
            Endpoint::ChatCompletions => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        events.put_slice(b"data: ");
        self.write(events, object, choices, usage);
        events.put_slice(b"\n\n");
    }

    fn write<C: Serialize>(
        &self,
        out: &mut BytesMut,
        object: &'static str,
        choices: &[C],
        usage: Option<Option<Usage>>,
    ) {
        let object = Object {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
        };
        // Strings and numbers into memory: there is nothing that can fail.
        serde_json::to_writer(out.writer(), &object).expect("the object is JSON");
    }
}

/// The answer to `GET /v1/models`.
pub fn models<'a>(ids: impl IntoIterator<Item = &'a str>) -> serde_json::Value {
    let data: Vec<_> = ids
        .into_iter()
        .map(|id| {
            serde_json::json!({
                "id": id, "object": "model", "created": 0, "owned_by": "tower-overload",
            })
        })
        .collect();
    serde_json::json!({"object": "list", "data": data})
}

#[cfg(test)]
mod tests {
    use super::*;
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
                assert_eq!(members.remove("id"), Some(json!(reply.id)));
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
}
