//! The load events of a Dynamo 1.6 fleet, as they are on its NATS event plane.
//!
//! A Dynamo fleet publishes the load of each rank of each worker: the worker
//! its own block count, routers what they know of it. [`decode`] reads such a
//! message, and the application says which of its workers is meant by the id
//! in it:
//!
//! ```
//! use tower_overload::{load::LoadEvent, nats::dynamo};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let message = b"\x85\xacpublisher_id\x07\xa8sequence\x00\xacpublished_at\xcf\x00\x00\x01\xa2\
//! #     \x29\xe4\x03\x52\xa5topic\xaakv_metrics\xa7payload\xc4\x52\x85\xa9worker_id\x2a\xa7dp_rank\x01\
//! #     \xb4active_decode_blocks\xc0\xb5active_prefill_tokens\xc0\xaekv_used_blocks\x05";
//! let subject = dynamo::Subject::parse("namespace.prod.component.backend.endpoint.generate.kv_metrics")?;
//! assert_eq!(subject.component, "backend");
//!
//! let load = dynamo::decode(message)?;
//! let event = load.into_event(format!("backend-{}", load.worker_id));
//! assert_eq!(event, LoadEvent::new("backend-42".to_owned(), 1).kv_used_blocks(5));
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! A message is a MessagePack map, whose payload is bytes that hold another:
//!
//! | envelope | | payload | |
//! |---|---|---|---|
//! | `publisher_id` | whole number | `worker_id` | whole number, required |
//! | `sequence` | whole number | `dp_rank` | whole number below 2³², 0 if absent |
//! | `published_at` | milliseconds since 1970 | `active_decode_blocks` | whole number |
//! | `topic` | text, required: `kv_metrics` | `active_prefill_tokens` | whole number |
//! | `payload` | bytes, required | `kv_used_blocks` | whole number |
//!
//! A number that is nil or missing is absent: it says nothing about that
//! count, where 0 says that it is 0. Members of other names are passed over,
//! whatever they hold, for newer fleets may add some. Everything else is an
//! error that names it: see [`Defect`]. MessagePack had one
//! type for text and bytes once, so a payload in either is read; names and the
//! topic have to be text.
//!
//! # What a hostile message can do
//!
//! Nothing. No panic, no allocation but for the text of an error, no work
//! beyond one pass over the at most [`MAX_MESSAGE_BYTES`] of it, no recursion
//! deeper than [`MAX_DEPTH`] levels. A length that it claims is compared with what
//! is there before anything is done with it.

use super::{Defect, Undecodable};
use crate::load::LoadEvent;
use rmp_serde::{Deserializer, decode::Error};
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, Unexpected,
    Visitor,
};
use std::{fmt, marker::PhantomData};

/// The subjects of all load events of all namespaces, for a subscription.
/// Put a name in the place of a `*` to hear less.
pub const SUBSCRIPTION: &str = "namespace.*.component.*.endpoint.*.kv_metrics";

/// The longest message that is read: 16 KiB, about a hundred times what a
/// fleet sends.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024;

/// The deepest level of maps and arrays that is read, of which the message and
/// its payload are the first. Only members of other names go deeper.
pub const MAX_DEPTH: usize = 16;

const TOPIC: &str = "kv_metrics";

/// What one message says about the load of one rank of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DynamoLoad {
    /// Who published it: a worker or a router.
    pub publisher_id: Option<u64>,
    /// The publisher's count of its messages.
    pub sequence: Option<u64>,
    /// When it was published, in milliseconds since 1970 by the publisher's
    /// clock.
    pub published_at_ms: Option<u64>,
    /// The worker that the load belongs to, by the fleet's id of it.
    pub worker_id: u64,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// KV blocks in use by decoding, as a router counts them.
    pub active_decode_blocks: Option<u64>,
    /// Prompt tokens that wait for or are in prefill, as a router counts them.
    pub active_prefill_tokens: Option<u64>,
    /// KV blocks in use, as the worker itself counts them.
    pub kv_used_blocks: Option<u64>,
}

impl DynamoLoad {
    /// The event for a monitor, about the worker that the application knows
    /// as `worker`.
    pub fn into_event<K>(self, worker: K) -> LoadEvent<K> {
        LoadEvent::new(worker, self.dp_rank)
            .active_decode_blocks(self.active_decode_blocks)
            .active_prefill_tokens(self.active_prefill_tokens)
            .kv_used_blocks(self.kv_used_blocks)
    }
}

/// Whose load events a subject carries.
///
/// Displays as the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subject<'a> {
    /// The namespace; one below another contains dots.
    pub namespace: &'a str,
    /// The component, such as `backend`.
    pub component: &'a str,
    /// The endpoint, such as `generate`.
    pub endpoint: &'a str,
}

impl<'a> Subject<'a> {
    /// Takes `namespace.<ns>.component.<c>.endpoint.<e>.kv_metrics` apart.
    ///
    /// # Errors
    ///
    /// [`Defect::Foreign`] for any other subject, one with an empty part too.
    pub fn parse(subject: &'a str) -> Result<Self, Undecodable> {
        let foreign = || {
            let expected = "namespace.<ns>.component.<c>.endpoint.<e>.kv_metrics";
            Undecodable::new(
                Defect::Foreign,
                format_args!("the subject is not {expected}: {subject:?}"),
            )
        };
        // From the end: only a namespace can have dots.
        let mut parts = subject.rsplitn(6, '.');
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let (
            Some(TOPIC),
            Some(endpoint),
            Some("endpoint"),
            Some(component),
            Some("component"),
            Some(rest),
        ) = (next(), next(), next(), next(), next(), next())
        else {
            return Err(foreign());
        };
        let namespace = rest.strip_prefix("namespace.").ok_or_else(foreign)?;
        if namespace.split('.').any(str::is_empty) {
            return Err(foreign());
        }
        Ok(Self {
            namespace,
            component,
            endpoint,
        })
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            component,
            endpoint,
        } = self;
        write!(
            f,
            "namespace.{namespace}.component.{component}.endpoint.{endpoint}.{TOPIC}"
        )
    }
}

/// Reads one message.
///
/// # Errors
///
/// Anything but a complete load event and nothing behind it, see the
/// [module](self).
pub fn decode(message: &[u8]) -> Result<DynamoLoad, Undecodable> {
    if message.len() > MAX_MESSAGE_BYTES {
        let length = message.len();
        return Err(Undecodable::new(
            Defect::Oversized,
            format_args!("{length} bytes, of which at most {MAX_MESSAGE_BYTES} are read"),
        ));
    }
    let envelope: Envelope<'_> = whole("the message", message)?;
    if envelope.topic != TOPIC {
        let topic = envelope.topic;
        return Err(Undecodable::new(
            Defect::Foreign,
            format_args!("the topic is not {TOPIC}: {topic:?}"),
        ));
    }
    let payload: Payload = whole("the payload", envelope.payload)?;
    Ok(DynamoLoad {
        publisher_id: envelope.publisher_id,
        sequence: envelope.sequence,
        published_at_ms: envelope.published_at,
        worker_id: payload.worker_id,
        dp_rank: payload.dp_rank,
        active_decode_blocks: payload.active_decode_blocks,
        active_prefill_tokens: payload.active_prefill_tokens,
        kv_used_blocks: payload.kv_used_blocks,
    })
}

/// The one value that `bytes`, called `what`, are.
fn whole<'a, T: Members<'a>>(what: &str, bytes: &'a [u8]) -> Result<T, Undecodable> {
    let mut deserializer = Deserializer::from_read_ref(bytes);
    // The reader gives up at the level where its count reaches 0.
    deserializer.set_max_depth(MAX_DEPTH + 1);
    let value = deserializer
        .deserialize_any(MapOf(PhantomData))
        .map_err(|error| match error {
            Error::InvalidMarkerRead(_) | Error::InvalidDataRead(_) => Undecodable::new(
                Defect::Truncated,
                format_args!(
                    "{what} of {} bytes ends in the middle of a value",
                    bytes.len()
                ),
            ),
            Error::DepthLimitExceeded => Undecodable::new(
                Defect::Oversized,
                format_args!("{what} is nested deeper than {MAX_DEPTH} levels"),
            ),
            error => Undecodable::new(Defect::Mistyped, format_args!("{what}: {error}")),
        })?;
    // The reader does not tell its position. Only at the end can it not read
    // the first byte of a value.
    match bool::deserialize(&mut deserializer) {
        Err(Error::InvalidMarkerRead(_)) => Ok(value),
        _ => Err(Undecodable::new(
            Defect::Mistyped,
            format_args!("{what} is followed by more bytes"),
        )),
    }
}

/// What is made of the members of a map.
trait Members<'de>: Sized {
    const WHAT: &'static str;

    fn read<A: MapAccess<'de>>(map: &mut A) -> Result<Self, A::Error>;
}

/// A map: neither an array, nor anything else that is not one.
struct MapOf<T>(PhantomData<T>);

impl<'de, T: Members<'de>> Visitor<'de> for MapOf<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        T::read(&mut map)
    }
}

struct Envelope<'a> {
    publisher_id: Option<u64>,
    sequence: Option<u64>,
    published_at: Option<u64>,
    topic: &'a str,
    payload: &'a [u8],
}

impl<'de> Members<'de> for Envelope<'de> {
    const WHAT: &'static str = "an envelope as a map";

    fn read<A: MapAccess<'de>>(map: &mut A) -> Result<Self, A::Error> {
        let mut publisher_id = None;
        let mut sequence = None;
        let mut published_at = None;
        let mut topic = None;
        let mut payload = None;
        while let Some(name) = map.next_key_seed(Text("the name of a member"))? {
            match name {
                "publisher_id" => once(map, name, &mut publisher_id, Number::of(name))?,
                "sequence" => once(map, name, &mut sequence, Number::of(name))?,
                "published_at" => once(map, name, &mut published_at, Number::of(name))?,
                "topic" => once(map, name, &mut topic, Text(name))?,
                "payload" => once(map, name, &mut payload, Octets(name))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Self {
            publisher_id: publisher_id.flatten(),
            sequence: sequence.flatten(),
            published_at: published_at.flatten(),
            topic: topic.ok_or_else(|| missing("topic"))?,
            payload: payload.ok_or_else(|| missing("payload"))?,
        })
    }
}

struct Payload {
    worker_id: u64,
    dp_rank: u32,
    active_decode_blocks: Option<u64>,
    active_prefill_tokens: Option<u64>,
    kv_used_blocks: Option<u64>,
}

impl<'de> Members<'de> for Payload {
    const WHAT: &'static str = "a load as a map";

    fn read<A: MapAccess<'de>>(map: &mut A) -> Result<Self, A::Error> {
        let mut worker_id = None;
        let mut dp_rank = None;
        let mut decode = None;
        let mut prefill = None;
        let mut used = None;
        while let Some(name) = map.next_key_seed(Text("the name of a member"))? {
            match name {
                "worker_id" => once(map, name, &mut worker_id, Number::of(name))?,
                "dp_rank" => once(map, name, &mut dp_rank, Number::of(name))?,
                "active_decode_blocks" => once(map, name, &mut decode, Number::of(name))?,
                "active_prefill_tokens" => once(map, name, &mut prefill, Number::of(name))?,
                "kv_used_blocks" => once(map, name, &mut used, Number::of(name))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Self {
            worker_id: worker_id.flatten().ok_or_else(|| missing("worker_id"))?,
            dp_rank: dp_rank.flatten().unwrap_or(0),
            active_decode_blocks: decode.flatten(),
            active_prefill_tokens: prefill.flatten(),
            kv_used_blocks: used.flatten(),
        })
    }
}

/// Reads the value of the member `name` into `slot`, where none may be yet.
fn once<'de, A: MapAccess<'de>, S: DeserializeSeed<'de>>(
    map: &mut A,
    name: &str,
    slot: &mut Option<S::Value>,
    seed: S,
) -> Result<(), A::Error> {
    match slot.replace(map.next_value_seed(seed)?) {
        None => Ok(()),
        Some(_) => Err(de::Error::custom(format_args!("{name} is there twice"))),
    }
}

fn missing<E: de::Error>(name: &str) -> E {
    E::custom(format_args!("{name} is missing"))
}

/// A whole number that fits, or nil.
struct Number<'a, T>(&'a str, PhantomData<T>);

impl<'a, T> Number<'a, T> {
    const fn of(name: &'a str) -> Self {
        Self(name, PhantomData)
    }
}

impl<'de, T: TryFrom<u64>> DeserializeSeed<'de> for Number<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: de::Deserializer<'de>>(self, input: D) -> Result<Option<T>, D::Error> {
        input.deserialize_any(self)
    }
}

impl<T: TryFrom<u64>> Visitor<'_> for Number<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bits) = (self.0, 8 * size_of::<T>());
        write!(f, "{name} to be a whole number of {bits} bits or nil")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Option<T>, E> {
        match T::try_from(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Option<T>, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(value), &self)),
        }
    }
}

/// Text, not copied.
struct Text<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = &'de str;

    fn deserialize<D: de::Deserializer<'de>>(self, input: D) -> Result<&'de str, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text<'_> {
    type Value = &'de str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to be text", self.0)
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<&'de str, E> {
        Ok(text)
    }
}

/// Bytes, not copied.
struct Octets<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Octets<'_> {
    type Value = &'de [u8];

    fn deserialize<D: de::Deserializer<'de>>(self, input: D) -> Result<&'de [u8], D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Octets<'_> {
    type Value = &'de [u8];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to be bytes", self.0)
    }

    fn visit_borrowed_bytes<E: de::Error>(self, bytes: &'de [u8]) -> Result<&'de [u8], E> {
        Ok(bytes)
    }

    // The decoder hands over text that is no UTF-8 as bytes, so text is no
    // error here whatever it holds.
    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<&'de [u8], E> {
        Ok(text.as_bytes())
    }
}
