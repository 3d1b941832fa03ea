use http::StatusCode;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt, marker::PhantomData};
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
                let messages: Vec<Message> = required("messages", members.messages, expected)?;
                if messages.is_empty() {
                    return Err(bad_param(
                        "messages",
                        "`messages` must have at least one message",
                    ));
                }
                (messages.iter().map(|message| message.words).sum(), 1)
            }
            Endpoint::Completions => {
                let expected = "a string or an array of strings";
                let prompt: OneOrMany<Words> = required("prompt", members.prompt, expected)?;
                if prompt.items == 0 {
                    return Err(bad_param(
                        "prompt",
                        "`prompt` must have at least one string",
                    ));
                }
                (prompt.words, prompt.items)
            }
        };
        let n: u32 = optional("n", members.n, "a whole number of at least 1")?.unwrap_or(1);
        let (limit, value) = match members.max_completion_tokens {
            Some(value) => ("max_completion_tokens", Some(value)),
            None => ("max_tokens", members.max_tokens),
        };
        let max_tokens =
            optional(limit, value, "a whole number of at least 1")?.unwrap_or(DEFAULT_MAX_TOKENS);
        for (name, number) in [("n", n), (limit, max_tokens)] {
            if number == 0 {
                let message = format!("`{name}` must be a whole number of at least 1");
                return Err(bad_param(name, message));
            }
        }
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

/// The words of a string that is not kept.
struct Words(u64);

impl From<Words> for u64 {
    fn from(words: Words) -> Self {
        words.0
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;

        impl Visitor<'_> for Count {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Words, E> {
                Ok(Words(words(text)))
            }
        }

        deserializer.deserialize_str(Count)
    }
}

fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

/// A string, or an array of `T`: how many there are, and their words.
struct OneOrMany<T> {
    items: u32,
    words: u64,
    item: PhantomData<T>,
}

impl<'de, T: Deserialize<'de> + Into<u64>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Into<u64>> Visitor<'de> for Count<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(OneOrMany {
                    items: 1,
                    words: words(text),
                    item: PhantomData,
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let (mut items, mut words) = (0_u32, 0);
                while let Some(item) = seq.next_element::<T>()? {
                    items = items.saturating_add(1);
                    words += item.into();
                }
                Ok(OneOrMany {
                    items,
                    words,
                    item: PhantomData,
                })
            }
        }

        deserializer.deserialize_any(Count(PhantomData))
    }
}

/// A message of a chat.
#[derive(Deserialize)]
#[serde(from = "RawMessage")]
struct Message {
    words: u64,
}

#[derive(Deserialize)]
struct RawMessage {
    #[serde(rename = "role")]
    _role: Words,
    /// Absent in an assistant's message that only calls tools.
    content: Option<OneOrMany<Part>>,
}

impl From<RawMessage> for Message {
    fn from(message: RawMessage) -> Self {
        Self {
            words: message.content.map_or(0, |content| content.words),
        }
    }
}

/// A part of a message's content. There is no other kind than text.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    Text { text: Words },
}

impl From<Part> for u64 {
    fn from(part: Part) -> Self {
        let Part::Text { text } = part;
        text.0
    }
}
