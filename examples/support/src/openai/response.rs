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

    /// What each of its objects is called.
    pub fn id(&self) -> &str {
        &self.id
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
