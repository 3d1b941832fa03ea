//! What the gateway counts by itself: the load of each worker by the requests
//! that it has sent there.

use super::stack::{Id, LimitedBody, Upstream, WorkerClient, WorkerResponse};
use futures::future::Either;
use http::Response;
use http_body_util::Either as EitherBody;
use pin_project_lite::pin_project;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    fmt,
    num::NonZeroU64,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::{Layer, Service};
use tower_overload::{
    BoxError,
    completion::TrackedBody,
    load::{
        LoadEvent, WorkerCounts, WorkerMonitor,
        tracker::{Cost, Frames, KeepFresh, LoadTracker, ResponseFuture, TrackLoad, Tracked},
    },
    pool::pick::hash_key,
};

/// How the gateway counts load by itself.
#[derive(Clone, Copy, Debug)]
pub struct RouterTracking {
    /// Tokens of a KV block of the workers.
    pub block_size: NonZeroU64,
    /// Whether the blocks of the output count, as it streams.
    pub output_blocks: bool,
}

type OfRequest = fn(&Upstream) -> Cost;

/// The tracker of all workers. Its counts replace those of the same name that
/// workers report.
#[derive(Clone, Debug)]
pub(super) struct Tracking {
    tracker: LoadTracker<Id, OfRequest>,
}

impl Tracking {
    pub(super) fn new(monitor: &WorkerMonitor<Id>, options: RouterTracking) -> Self {
        // Put there when the request was read; without a prompt there is none.
        let cost: OfRequest = |request| {
            request
                .extensions()
                .get::<Cost>()
                .copied()
                .unwrap_or_default()
        };
        let mut tracker = LoadTracker::new(monitor.clone(), cost);
        if options.output_blocks {
            tracker = tracker.track_output_blocks(options.block_size);
        }
        Self { tracker }
    }

    /// The client of a worker, whose requests are counted.
    pub(super) fn client(&self, worker: Id, client: WorkerClient) -> WorkerService {
        WorkerService::Tracked(self.tracker.layer(worker).layer(client))
    }

    /// The worker was configured with these ranks, perhaps after it was away.
    pub(super) fn configured(&self, worker: &Id, ranks: &[u32]) {
        drop(
            self.tracker
                .layer(worker.clone())
                .ranks(ranks.iter().copied()),
        );
        self.tracker.report(worker);
    }

    /// The id is another worker's from now on.
    pub(super) fn hand_over(&self, worker: &Id) {
        self.tracker.hand_over(worker);
    }

    /// What the worker has by the gateway's own count.
    pub(super) fn counts(&self, worker: &Id) -> WorkerCounts {
        self.tracker.counts(worker.clone())
    }

    pub(super) fn keep_fresh(&self) -> KeepFresh<Id> {
        self.tracker.keep_fresh()
    }

    /// What the gateway does not know better than the worker.
    pub(super) fn rest_of(event: &LoadEvent<Id>) -> LoadEvent<Id> {
        LoadEvent::new(event.worker.clone(), event.dp_rank).kv_used_blocks(event.kv_used_blocks)
    }
}

/// The client of one worker, whether or not its requests are counted.
#[derive(Clone, Debug)]
pub(super) enum WorkerService {
    Plain(WorkerClient),
    Tracked(TrackLoad<WorkerClient, OfRequest>),
}

type Answered = EitherBody<LimitedBody, TrackedBody<LimitedBody, Tracked, Frames>>;

impl Service<Upstream> for WorkerService {
    type Response = Response<Answered>;
    type Error = BoxError;
    type Future = WorkerFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Plain(client) => client.poll_ready(cx),
            Self::Tracked(client) => client.poll_ready(cx),
        }
    }

    fn call(&mut self, request: Upstream) -> WorkerFuture {
        WorkerFuture {
            response: match self {
                Self::Plain(client) => Either::Left(client.call(request)),
                Self::Tracked(client) => Either::Right(client.call(request)),
            },
        }
    }
}

pin_project! {
    /// The response of a [`WorkerService`].
    #[derive(Debug)]
    pub(super) struct WorkerFuture {
        #[pin]
        response: Either<WorkerResponse, ResponseFuture<WorkerResponse>>,
    }
}

impl Future for WorkerFuture {
    type Output = Result<Response<Answered>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match self.project().response.as_pin_mut() {
            Either::Left(plain) => {
                ready!(plain.poll(cx)).map(|response| response.map(EitherBody::Left))
            }
            Either::Right(tracked) => {
                ready!(tracked.poll(cx)).map(|response| response.map(EitherBody::Right))
            }
        })
    }
}

/// The members of a request that the gateway reads if it counts: beside the
/// model those that hold the prompt, in the APIs that it knows.
#[derive(Debug, Deserialize)]
pub(super) struct OfPrompt<'a> {
    #[serde(borrow)]
    pub(super) model: Option<Cow<'a, str>>,
    /// As it is: whether it can be read is for the worker to judge.
    #[serde(borrow, default)]
    pub(super) stream: Option<&'a RawValue>,
    #[serde(default)]
    messages: Words,
    #[serde(default)]
    prompt: Words,
    #[serde(default)]
    input: Words,
    #[serde(default)]
    system: Words,
    #[serde(default)]
    instructions: Words,
}

impl OfPrompt<'_> {
    /// An estimate: its words, as the engine of the example counts them, and
    /// where it is given as tokens, those.
    pub(super) fn prompt_tokens(&self) -> u64 {
        let all = [
            &self.messages,
            &self.prompt,
            &self.input,
            &self.system,
            &self.instructions,
        ];
        all.into_iter()
            .fold(0, |sum, words| sum.saturating_add(words.count))
    }

    /// What requests have in common whose prompts begin with the same text;
    /// `None` without any.
    pub(super) fn head(&self) -> Option<u64> {
        let all = [
            &self.system,
            &self.instructions,
            &self.messages,
            &self.prompt,
            &self.input,
        ];
        let mut head = Head::default();
        for words in all {
            head.add(&words.head.0);
        }
        (!head.0.is_empty()).then(|| hash_key(&head.0))
    }
}

/// The first text of a prompt: that is where prompts of one conversation, or
/// of one application, are the same.
#[derive(Debug, Default)]
struct Head(Vec<u8>);

impl Head {
    const LONGEST: usize = 1024;

    fn add(&mut self, text: &[u8]) {
        let room = Self::LONGEST - self.0.len();
        self.0.extend_from_slice(&text[..text.len().min(room)]);
    }
}

/// An estimate for a prompt that cannot be read here but perhaps by a worker.
pub(super) fn prompt_tokens_of_bytes(body: &[u8]) -> u64 {
    body.len() as u64 / 4
}

/// The words of any JSON that a prompt may be. What is no text is skipped: to
/// judge it is for the worker.
#[derive(Debug, Default)]
struct Words {
    count: u64,
    head: Head,
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut head = Head::default();
        let all = Count {
            depth: 0,
            head: &mut head,
        };
        let count = all.deserialize(deserializer)?;
        Ok(Self { count, head })
    }
}

/// Counts down to this depth. Messages have text in their parts, and that is
/// the fifth.
struct Count<'a> {
    depth: u8,
    head: &'a mut Head,
}

const DEEPEST: u8 = 8;

impl<'de> DeserializeSeed<'de> for Count<'_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        if self.depth == DEEPEST {
            return IgnoredAny::deserialize(deserializer).map(|_| 0);
        }
        deserializer.deserialize_any(self)
    }
}

impl Count<'_> {
    const fn below(&mut self) -> Count<'_> {
        Count {
            depth: self.depth + 1,
            head: self.head,
        }
    }
}

impl<'de> Visitor<'de> for Count<'_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_str<E>(self, text: &str) -> Result<u64, E> {
        self.head.add(text.as_bytes());
        Ok(text.split_whitespace().count() as u64)
    }

    fn visit_u64<E>(self, token: u64) -> Result<u64, E> {
        self.head.add(&token.to_le_bytes());
        Ok(1)
    }

    fn visit_i64<E>(self, _: i64) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_f64<E>(self, _: f64) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_bool<E>(self, _: bool) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_unit<E>(self) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<u64, A::Error> {
        let mut sum = 0_u64;
        while let Some(words) = seq.next_element_seed(self.below())? {
            sum = sum.saturating_add(words);
        }
        Ok(sum)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<u64, A::Error> {
        let mut sum = 0_u64;
        while let Some(name) = map.next_key::<Name>()? {
            sum = sum.saturating_add(match name {
                Name::Text => map.next_value_seed(self.below())?,
                Name::Other => map.next_value::<IgnoredAny>().map(|_| 0)?,
            });
        }
        Ok(sum)
    }
}

/// A member of a message or of one of its parts.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Name {
    #[serde(alias = "content")]
    Text,
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{Endpoint, Generate};
    use serde_json::{Value, json};

    fn words(body: &Value) -> u64 {
        let body = body.to_string();
        let of: OfPrompt<'_> = serde_json::from_str(&body).unwrap();
        of.prompt_tokens()
    }

    #[test]
    fn the_estimate_is_what_the_engine_of_the_example_counts() {
        for (endpoint, body) in [
            (
                Endpoint::ChatCompletions,
                json!({"model": "tiny", "messages": [
                    {"role": "system", "content": "Be  brief,\nplease."},
                    {"role": "user", "content": [
                        {"type": "text", "text": "Hello there,"},
                        {"type": "text", "text": "\"world\" \u{e9}t\u{e9}"},
                    ]},
                    {"role": "assistant", "content": null, "tool_calls": []},
                ]}),
            ),
            (
                Endpoint::Completions,
                json!({"model": "tiny", "prompt": "one two three"}),
            ),
            (
                Endpoint::Completions,
                json!({"model": "tiny", "prompt": ["one two", "three", ""], "n": 2}),
            ),
        ] {
            let counted = Generate::parse(endpoint, body.to_string().as_bytes()).unwrap();
            assert_eq!(words(&body), counted.prompt_tokens, "{body}");
        }
    }

    #[test]
    fn prompts_of_other_apis_are_counted_too() {
        for (body, expected) in [
            (json!({"prompt": [1, 2, 3]}), 3),
            (json!({"prompt": [[1, 2], [3]]}), 3),
            (json!({"input": "one two"}), 2),
            (
                json!({"instructions": "be brief", "input": [{"role": "user",
                "content": [{"type": "input_text", "text": "one two"}]}]}),
                4,
            ),
            (
                json!({"system": "be brief", "messages": [{"role": "user", "content": "hi"}]}),
                3,
            ),
            (json!({"system": [{"type": "text", "text": "be brief"}]}), 2),
        ] {
            assert_eq!(words(&body), expected, "{body}");
        }
    }

    #[test]
    fn what_is_no_prompt_counts_for_nothing_and_is_no_error() {
        for prompt in [
            json!(null),
            json!(true),
            json!(-1),
            json!(1.5),
            json!({}),
            json!({"role": "user", "name": "a b c"}),
            json!([null, false, [], {}, -7, ["", [""]]]),
        ] {
            assert_eq!(words(&json!({"prompt": prompt})), 0, "{prompt}");
        }
        assert_eq!(words(&json!({})), 0);
        // As deep as the parser skips, which is deeper than it reads.
        let deep = format!(
            "{{\"prompt\": {}\"a b\"{}}}",
            "[".repeat(500),
            "]".repeat(500)
        );
        let of: OfPrompt<'_> = serde_json::from_str(&deep).unwrap();
        assert_eq!(of.prompt_tokens(), 0);
    }

    #[test]
    fn prompts_that_begin_alike_have_one_head() {
        let head = |body: Value| {
            let body = body.to_string();
            serde_json::from_str::<OfPrompt<'_>>(&body).unwrap().head()
        };
        let turn = |messages: &[(&str, &str)]| {
            let message =
                |(role, content): &(&str, &str)| json!({"role": role, "content": content});
            head(json!({"messages": messages.iter().map(message).collect::<Vec<_>>()}))
        };
        let system = "You are ".repeat(200);
        let first = turn(&[("system", &system), ("user", "hi")]);
        let second = turn(&[("system", &system), ("user", "hi"), ("assistant", "hello")]);
        assert!(first.is_some() && first == second);
        assert_ne!(first, turn(&[("system", "Be brief."), ("user", "hi")]));
        assert_eq!(
            head(json!({"prompt": [1, 2]})),
            head(json!({"prompt": [1, 2]}))
        );
        assert_ne!(
            head(json!({"prompt": [1, 2]})),
            head(json!({"prompt": [2, 1]}))
        );
        assert_eq!(head(json!({"model": "tiny", "messages": []})), None);
    }

    #[test]
    fn only_the_workers_own_blocks_are_left_of_its_report() {
        let event = LoadEvent::new(Id::from("a"), 3)
            .active_decode_blocks(1)
            .active_prefill_tokens(2)
            .kv_used_blocks(3);
        let rest = LoadEvent::new(Id::from("a"), 3).kv_used_blocks(3);
        assert_eq!(Tracking::rest_of(&event), rest);
    }
}
