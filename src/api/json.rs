//! The members of a request that is JSON.

use super::{
    EstimateTokens, ReadError,
    depth::is_deeper_than,
    prompt::{Head, Part, Walk},
    reader::{Found, RequestReader},
    scalar::{Name, Scalar},
};
use crate::pool::pick::hash_key;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// What a prompt counts as that cannot be parsed here, but perhaps by a
/// worker: bytes for each token.
const BYTES_PER_TOKEN: u64 = 3;

pub(super) fn read<'a, E: EstimateTokens>(
    reader: &RequestReader<E>,
    body: &'a [u8],
) -> Result<Found<'a>, ReadError> {
    let json = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    if is_deeper_than(reader.max_depth, json) {
        return Err(ReadError::malformed(format!(
            "The body is nested more than {} deep",
            reader.max_depth
        )));
    }
    if reader.prompts {
        // Half of a surrogate pair, or a number without end, is for the worker
        // to judge, if it is in no member that matters here.
        if let Ok(found) = parse(reader, json, true) {
            return Ok(found);
        }
    }
    let mut found = parse(reader, json, false).map_err(|error| {
        ReadError::malformed(format!(
            "The body must be a JSON object whose `model` is a string: {error}"
        ))
    })?;
    if reader.prompts {
        found.prompt_tokens = json.len() as u64 / BYTES_PER_TOKEN;
    }
    Ok(found)
}

fn parse<'a, E: EstimateTokens>(
    reader: &RequestReader<E>,
    json: &'a [u8],
    prompts: bool,
) -> serde_json::Result<Found<'a>> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let found = OfRequest { reader, prompts }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(found)
}

struct OfRequest<'r, E> {
    reader: &'r RequestReader<E>,
    /// Whether prompts are read, or skipped.
    prompts: bool,
}

impl<'de, E: EstimateTokens> DeserializeSeed<'de> for OfRequest<'_, E> {
    type Value = Found<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// The members with which prompts begin, in the order in which the model sees
/// them.
const HEADS: [&str; 5] = ["system", "instructions", "messages", "prompt", "input"];

impl<'de, E: EstimateTokens> Visitor<'de> for OfRequest<'_, E> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let reader = self.reader;
        let mut counter = reader.counter();
        let mut heads = reader.keys.then(<[Head; HEADS.len()]>::default);
        let mut found = Found::default();
        let (mut answers, mut prompts) = (1, 1);
        // Of a ranking: each document is read with the query. Several queries
        // are read with a document each.
        let (mut query, mut queries, mut documents) = (0, 1, 1);
        let mut has_model = false;
        while let Some(Name(name)) = map.next_key()? {
            let part = match &*name {
                "model" => {
                    if std::mem::replace(&mut has_model, true) {
                        return Err(A::Error::duplicate_field("model"));
                    }
                    found.model = match map.next_value()? {
                        Scalar::Null => None,
                        Scalar::Text(model) => Some(model),
                        other => {
                            let message = format!("it is {}", other.kind());
                            return Err(A::Error::custom(message));
                        }
                    };
                    continue;
                }
                "stream" => {
                    found.streamed = Some(map.next_value::<Scalar<'_>>()?.is_true());
                    continue;
                }
                "n" | "best_of" => {
                    let number = map.next_value::<Scalar<'_>>()?.number();
                    answers = number.map_or(answers, |number| answers.max(number));
                    continue;
                }
                _ if !self.prompts => Part::Skipped,
                "messages" | "input" => Part::Messages,
                "text" | "query" | "text_1" | "queries" => Part::PlainText,
                "tools" | "functions" => Part::Schema,
                "prompt" | "system" | "instructions" | "suffix" | "inputs" | "input_ids"
                | "input_prefix" | "input_suffix" | "input_extra" | "documents" | "items"
                | "texts" | "text_2" => Part::Text,
                _ => Part::Skipped,
            };
            if part == Part::Skipped {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let before = counter.tokens;
            let head = HEADS.iter().position(|head| *head == name);
            let count = map.next_value_seed(Walk {
                counter: &mut counter,
                head: head.and_then(|at| heads.as_mut()?.get_mut(at)),
                part,
            })?;
            match &*name {
                "prompt" => prompts = count.max(1),
                "query" | "queries" | "text_1" => {
                    (query, queries) = (counter.tokens - before, count.max(1));
                }
                "documents" | "items" | "texts" | "text_2" => documents = count.max(1),
                _ => {}
            }
        }
        if queries == 1 {
            counter.add(query.saturating_mul(documents - 1));
        }
        found.streamed.get_or_insert(false);
        found.choices = answers.saturating_mul(prompts);
        found.prompt_tokens = counter.tokens;
        found.key = heads.and_then(|heads| key(&heads));
        Ok(found)
    }
}

/// What requests have in common whose prompts begin with the same text;
/// `None` without any.
fn key(heads: &[Head]) -> Option<u64> {
    let mut head = Head::default();
    heads.iter().for_each(|one| head.add(one.text()));
    (!head.text().is_empty()).then(|| hash_key(head.text()))
}
