use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, num::NonZeroU32};
use tower_overload::front::Problem;

/// Which of the two POST routes a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
}

/// A request to generate, read and checked; of the prompt only its size is
/// kept, since a mock needs no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generate {
    /// The route that it came to.
    pub endpoint: Endpoint,
    /// The model that it asks for.
    pub model: String,
    /// The words of the prompt, of all messages or prompts.
    pub prompt_tokens: u64,
    /// How many answers: `n` for each prompt.
    pub choices: u32,
    /// The tokens of each answer.
    pub max_tokens: u32,
    /// Whether the answer is a stream of events.
    pub stream: bool,
    /// Whether the stream ends with a chunk that says the usage.
    pub include_usage: bool,
}

/// `max_tokens` of a request that has none.
const DEFAULT_MAX_TOKENS: u32 = 16;
/// The most tokens of one request's answers: a whole answer is made in
/// memory, and an infinitely fast engine makes it at once.
pub const MOST_TOKENS: u32 = 1 << 20;

/// The members of both kinds of requests; `null` is the same as absent. Each
/// is read on its own, so that an error can say which one is wrong.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    messages: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    max_tokens: Option<&'a RawValue>,
    max_completion_tokens: Option<&'a RawValue>,
    n: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
    stream_options: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Generate {
    /// Reads the body of a request to `endpoint`. Members that a mock has no
    /// use for are ignored.
    ///
    /// # Errors
    ///
    /// A 400 if the body is no JSON object, or if a member is missing or
    /// wrong. Whether the model exists is not for this to say.
    pub fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Self, Problem> {
        let members: Members<'_> = serde_json::from_slice(body).map_err(|error| {
            let message = format!("The body must be a JSON object: {error}");
            Problem::new(StatusCode::BAD_REQUEST, message)
        })?;
        let model = required("model", members.model, "a string")?;
        let (prompt_tokens, prompts) = match endpoint {
            Endpoint::ChatCompletions => {
                let expected = "an array of messages, each with a string `role` and a `content` \
                                that is a string or an array of text parts";
                let messages: Vec<Message<'_>> = required("messages", members.messages, expected)?;
                if messages.is_empty() {
                    return Err(bad_param(
                        "messages",
                        "`messages` must have at least one message",
                    ));
                }
                (messages.iter().map(Message::words).sum(), 1)
            }
            Endpoint::Completions => {
                let expected = "a string or an array of strings";
                match required("prompt", members.prompt, expected)? {
                    OneOrMany::One(prompt) => (words(&prompt), 1),
                    OneOrMany::Many(prompts) => count(&prompts)?,
                }
            }
        };
        let at_least_1 = "a whole number of at least 1";
        let n = optional("n", members.n, at_least_1)?.map_or(1, NonZeroU32::get);
        let (limit, value) = match members.max_completion_tokens {
            Some(value) => ("max_completion_tokens", Some(value)),
            None => ("max_tokens", members.max_tokens),
        };
        let max_tokens = optional(limit, value, at_least_1)?;
        let max_tokens = max_tokens.map_or(DEFAULT_MAX_TOKENS, NonZeroU32::get);
        let choices = prompts
            .checked_mul(n)
            .filter(|choices| {
                choices
                    .checked_mul(max_tokens)
                    .is_some_and(|tokens| tokens <= MOST_TOKENS)
            })
            .ok_or_else(|| {
                let message = format!(
                    "`{limit}` is {max_tokens}, for {prompts} × {n} answers: a request can \
                     generate at most {MOST_TOKENS} tokens"
                );
                bad_param(limit, message)
            })?;
        let stream = optional("stream", members.stream, "a boolean")?.unwrap_or(false);
        let options: Option<StreamOptions> = optional(
            "stream_options",
            members.stream_options,
            "an object with a boolean `include_usage`",
        )?;
        Ok(Self {
            endpoint,
            model,
            prompt_tokens,
            choices,
            max_tokens,
            stream,
            include_usage: options
                .and_then(|options| options.include_usage)
                .unwrap_or(false),
        })
    }
}

/// The words of `prompts`, and how many there are.
fn count(prompts: &[String]) -> Result<(u64, u32), Problem> {
    if prompts.is_empty() {
        let message = "`prompt` must have at least one string";
        return Err(bad_param("prompt", message));
    }
    let number = u32::try_from(prompts.len()).unwrap_or(u32::MAX);
    Ok((prompts.iter().map(|prompt| words(prompt)).sum(), number))
}

/// 400: what is wrong with a member of the body.
fn bad_param(name: &'static str, message: impl Into<Cow<'static, str>>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, message).with_param(name)
}

fn required<'a, T: Deserialize<'a>>(
    name: &'static str,
    value: Option<&'a RawValue>,
    expected: &str,
) -> Result<T, Problem> {
    optional(name, value, expected)?.ok_or_else(|| {
        let message = format!("`{name}` is missing: it must be {expected}");
        bad_param(name, message)
    })
}

fn optional<'a, T: Deserialize<'a>>(
    name: &'static str,
    value: Option<&'a RawValue>,
    expected: &str,
) -> Result<Option<T>, Problem> {
    let Some(value) = value else { return Ok(None) };
    serde_json::from_str(value.get())
        .map(Some)
        .map_err(|_| bad_param(name, format!("`{name}` must be {expected}")))
}

fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

/// A string, or an array of `T`.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<'a, T> {
    One(#[serde(borrow)] Cow<'a, str>),
    Many(Vec<T>),
}

/// A message of a chat.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, rename = "role")]
    _role: Cow<'a, str>,
    /// Absent in an assistant's message that only calls tools.
    #[serde(borrow)]
    content: Option<OneOrMany<'a, Part<'a>>>,
}

/// A part of a message's content. There is no other kind than text.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    Text {
        #[serde(borrow)]
        text: Cow<'a, str>,
    },
}

impl Message<'_> {
    fn words(&self) -> u64 {
        match &self.content {
            None => 0,
            Some(OneOrMany::One(text)) => words(text),
            Some(OneOrMany::Many(parts)) => {
                parts.iter().map(|Part::Text { text }| words(text)).sum()
            }
        }
    }
}
