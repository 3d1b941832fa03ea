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

#[derive(Serialize)]
struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    /// Absent, or `null` in all chunks of a stream but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

/// A whole chat has messages and its chunks have deltas; a completion has text.
#[derive(Default, Serialize)]
struct Choice<'a> {
    index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Message<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    /// `null` in a whole message.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<Option<()>>,
}

/// Every answer has exactly the tokens that were asked for.
const LENGTH: Option<&str> = Some("length");
const ASSISTANT: Option<&str> = Some("assistant");

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
        let text: String = (0..tokens).map(token).collect();
        let (object, message, text) = match self.endpoint {
            Endpoint::ChatCompletions => ("chat.completion", Some(&*text), None),
            Endpoint::Completions => ("text_completion", None, Some(&*text)),
        };
        let choice = |index| Choice {
            index,
            message: message.map(|text| Message {
                role: ASSISTANT,
                content: Some(text),
                refusal: Some(None),
            }),
            text,
            finish_reason: LENGTH,
            ..Choice::default()
        };
        let choices: Vec<_> = (0..self.choices.into()).map(choice).collect();
        let mut body = BytesMut::with_capacity(512);
        self.write(&mut body, object, &choices, Some(Some(usage)));
        body.freeze()
    }

    /// The event of one token of a choice; before the first of a chat's there
    /// is the event that says whose turn it is.
    pub fn token_event(&self, events: &mut BytesMut, choice: u64, place: u64) {
        if self.endpoint == Endpoint::ChatCompletions && place == 0 {
            self.choice_event(events, choice, ASSISTANT, Some(""), None);
        }
        self.choice_event(events, choice, None, Some(token(place)), None);
    }

    /// The events after the last token: why each choice ended, the usage if
    /// it was asked for, and `[DONE]`.
    pub fn end_events(&self, events: &mut BytesMut, usage: Usage) {
        for choice in 0..self.choices.into() {
            self.choice_event(events, choice, None, None, LENGTH);
        }
        if self.include_usage {
            self.event(events, &[], Some(Some(usage)));
        }
        events.put_slice(b"data: [DONE]\n\n");
    }

    fn choice_event(
        &self,
        events: &mut BytesMut,
        index: u64,
        role: Option<&'static str>,
        content: Option<&'static str>,
        finish_reason: Option<&'static str>,
    ) {
        let is_chat = self.endpoint == Endpoint::ChatCompletions;
        let choice = Choice {
            index,
            delta: is_chat.then_some(Message {
                role,
                content,
                refusal: None,
            }),
            text: (!is_chat).then(|| content.unwrap_or_default()),
            finish_reason,
            ..Choice::default()
        };
        self.event(events, &[choice], self.include_usage.then_some(None));
    }

    fn event(&self, events: &mut BytesMut, choices: &[Choice<'_>], usage: Option<Option<Usage>>) {
        let object = match self.endpoint {
            Endpoint::ChatCompletions => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        events.put_slice(b"data: ");
        self.write(events, object, choices, usage);
        events.put_slice(b"\n\n");
    }

    fn write(
        &self,
        out: &mut BytesMut,
        object: &'static str,
        choices: &[Choice<'_>],
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
