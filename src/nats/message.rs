use super::subjects::{Address, InvalidName, Kind, token};
use crate::load::{InvalidWorkerConfig, LoadEvent, WorkerConfig};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use std::{fmt, marker::PhantomData, time::Duration};

/// The longest message that is read; longer ones are dropped.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// The most models of one worker.
pub const MAX_MODELS: usize = 64;

/// The most bytes of the URL of a worker.
const MAX_URL: usize = 2048;

/// What a worker says of itself: where it is reached, and what it is.
///
/// ```
/// use tower_overload::nats::Registration;
///
/// let registration = Registration::new("http://10.0.0.1:8100", ["tiny"])
///     .dp_ranks([0, 1])
///     .kv_total_blocks(4096);
/// assert!(registration.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registration {
    /// Where the worker is reached.
    pub url: String,
    /// Its data-parallel ranks; one, 0, by default.
    pub dp_ranks: Vec<u32>,
    /// The KV blocks that each rank has, if known.
    pub kv_total_blocks: Option<u64>,
    /// The tokens that each rank takes into one batch, if known.
    pub max_num_batched_tokens: Option<u64>,
    /// Whether it wants no new requests.
    pub draining: bool,
    /// What it serves.
    pub models: Vec<String>,
    /// How long the registration is good unless it is renewed; 10 s by default.
    pub ttl: Duration,
}

impl Registration {
    /// A registration is good for this long, unless it says otherwise.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(10);
    /// The shortest time to live: a third of it is the pause between two
    /// heartbeats.
    pub const MIN_TTL: Duration = Duration::from_millis(100);
    /// The longest time to live.
    pub const MAX_TTL: Duration = Duration::from_secs(3600);

    /// A worker with one rank and of unknown capacity.
    pub fn new<M: Into<String>>(
        url: impl Into<String>,
        models: impl IntoIterator<Item = M>,
    ) -> Self {
        Self {
            url: url.into(),
            dp_ranks: vec![0],
            kv_total_blocks: None,
            max_num_batched_tokens: None,
            draining: false,
            models: models.into_iter().map(Into::into).collect(),
            ttl: Self::DEFAULT_TTL,
        }
    }

    /// The data-parallel ranks.
    #[must_use]
    pub fn dp_ranks(mut self, ranks: impl IntoIterator<Item = u32>) -> Self {
        self.dp_ranks = ranks.into_iter().collect();
        self
    }

    /// The KV blocks of each rank.
    #[must_use]
    pub fn kv_total_blocks(mut self, blocks: impl Into<Option<u64>>) -> Self {
        self.kv_total_blocks = blocks.into();
        self
    }

    /// The tokens that each rank takes into one batch.
    #[must_use]
    pub fn max_num_batched_tokens(mut self, tokens: impl Into<Option<u64>>) -> Self {
        self.max_num_batched_tokens = tokens.into();
        self
    }

    /// Whether the worker wants no new requests.
    #[must_use]
    pub fn draining(mut self, draining: bool) -> Self {
        self.draining = draining;
        self
    }

    /// How long the registration is good; whole milliseconds count.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// What the monitor needs to know.
    ///
    /// # Errors
    ///
    /// If the ranks cannot be used; those of a registration that came over
    /// NATS can.
    pub fn config(&self) -> Result<WorkerConfig, InvalidWorkerConfig> {
        Ok(WorkerConfig::new(self.dp_ranks.iter().copied())?
            .kv_total_blocks(self.kv_total_blocks)
            .max_num_batched_tokens(self.max_num_batched_tokens))
    }

    /// Whether others would take it.
    ///
    /// # Errors
    ///
    /// What is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), InvalidRegistration> {
        if self.url.is_empty() || self.url.len() > MAX_URL {
            return Err(InvalidRegistration::Url);
        }
        if self.models.is_empty() || self.models.len() > MAX_MODELS {
            return Err(InvalidRegistration::Models(self.models.len()));
        }
        for (n, model) in self.models.iter().enumerate() {
            token(model).map_err(InvalidRegistration::Name)?;
            if self.models[..n].contains(model) {
                return Err(InvalidRegistration::ModelTwice(model.clone()));
            }
        }
        self.config().map_err(InvalidRegistration::Ranks)?;
        if !(Self::MIN_TTL..=Self::MAX_TTL).contains(&self.ttl) {
            return Err(InvalidRegistration::Ttl(self.ttl));
        }
        Ok(())
    }
}

/// A registration that nobody would take.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidRegistration {
    /// The URL is empty or too long.
    Url,
    /// No models, or too many.
    Models(usize),
    /// A model is named twice.
    ModelTwice(String),
    /// The id, or the name of a model.
    Name(InvalidName),
    /// The ranks.
    Ranks(InvalidWorkerConfig),
    /// The time to live.
    Ttl(Duration),
}

impl fmt::Display for InvalidRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url => write!(
                f,
                "the url is empty or too long, allowed: 1 to {MAX_URL} bytes"
            ),
            Self::Models(n) => write!(f, "{n} models, allowed: 1 to {MAX_MODELS}"),
            Self::ModelTwice(model) => {
                write!(
                    f,
                    "the model {model:?} is given twice, allowed: each model once"
                )
            }
            Self::Name(error) => error.fmt(f),
            Self::Ranks(error) => error.fmt(f),
            Self::Ttl(ttl) => write!(
                f,
                "a time to live of {ttl:?}, allowed: {:?} to {:?}",
                Registration::MIN_TTL,
                Registration::MAX_TTL
            ),
        }
    }
}

impl std::error::Error for InvalidRegistration {}

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The reader was slow: the oldest went, the newest stayed.
    SlowConsumer,
    /// The client's own queue was full: the newest went.
    ClientOverrun,
    Malformed,
    Oversized,
    /// Not of our fleet, or in another's name.
    Foreign,
    TooManyWorkers,
}

impl Reason {
    pub(super) const ALL: [Self; 6] = [
        Self::SlowConsumer,
        Self::ClientOverrun,
        Self::Malformed,
        Self::Oversized,
        Self::Foreign,
        Self::TooManyWorkers,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::SlowConsumer => "slow_consumer",
            Self::ClientOverrun => "client_overrun",
            Self::Malformed => "malformed",
            Self::Oversized => "oversized",
            Self::Foreign => "foreign",
            Self::TooManyWorkers => "too_many_workers",
        }
    }
}

/// What a message was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The counts of some ranks.
    Loads(Vec<LoadEvent<()>>),
    Registered(Registration),
    Leaves,
}

/// Reads what a worker said on one of its subjects.
pub(super) fn decode(address: &Address, payload: &[u8]) -> Result<Said, Reason> {
    if payload.len() > MAX_MESSAGE {
        return Err(Reason::Oversized);
    }
    match address.kind {
        Kind::Load => {
            let loads = one_or_many::<LoadDocument>(payload)?;
            if loads.len() > WorkerConfig::MAX_RANKS {
                return Err(Reason::Oversized);
            }
            let in_anothers_name = |load: &LoadDocument| {
                let named = load.worker.as_ref();
                named.is_some_and(|worker| *worker != address.worker)
            };
            if loads.iter().any(in_anothers_name) {
                return Err(Reason::Foreign);
            }
            Ok(Said::Loads(loads.into_iter().map(Into::into).collect()))
        }
        Kind::Worker => {
            let Object(document) = read::<Object<WorkerDocument>>(payload)?;
            match document {
                WorkerDocument {
                    leaving: Some(true),
                    url: None,
                    ..
                } => Ok(Said::Leaves),
                WorkerDocument {
                    leaving: None | Some(false),
                    url: Some(url),
                    ..
                } => {
                    let registration = Registration {
                        url,
                        dp_ranks: document.dp_ranks.unwrap_or_else(|| vec![0]),
                        kv_total_blocks: document.kv_total_blocks,
                        max_num_batched_tokens: document.max_num_batched_tokens,
                        draining: document.draining,
                        models: document
                            .models
                            .unwrap_or_else(|| vec![address.model.clone()]),
                        ttl: document
                            .ttl_ms
                            .map_or(Registration::DEFAULT_TTL, Duration::from_millis),
                    };
                    registration.check().map_err(|error| {
                        tracing::debug!(worker = address.worker, %error, "a registration is refused");
                        Reason::Malformed
                    })?;
                    if !registration.models.contains(&address.model) {
                        return Err(Reason::Foreign);
                    }
                    Ok(Said::Registered(registration))
                }
                _ => Err(Reason::Malformed),
            }
        }
    }
}

/// Reads a message that may be anything, and panics unless what was read is
/// within its limits, and the same when it is written and read again.
#[cfg(fuzzing)]
pub fn check_any(subjects: &super::Subjects, subject: &str, payload: &[u8]) {
    let Some(address) = subjects.parse(subject) else {
        return;
    };
    let made = match address.kind {
        Kind::Load => subjects.load(&address.model, &address.worker),
        Kind::Worker => subjects.worker(&address.model, &address.worker),
    };
    assert_eq!(made.as_deref(), Ok(subject));
    let Ok(said) = decode(&address, payload) else {
        return;
    };
    let json = match &said {
        Said::Loads(events) => {
            assert!(events.len() <= WorkerConfig::MAX_RANKS);
            loads(events)
        }
        Said::Registered(it) => {
            assert_eq!(it.check(), Ok(()));
            assert!(it.models.contains(&address.model));
            registration(it)
        }
        Said::Leaves => goodbye(),
    };
    assert!(json.len() <= MAX_MESSAGE, "too long to be said");
    assert_eq!(decode(&address, &json), Ok(said));
}

/// The JSON of a registration.
pub(super) fn registration(registration: &Registration) -> Vec<u8> {
    let ttl = registration.ttl.as_millis().min(u128::from(u64::MAX)) as u64;
    written(&WorkerDocument {
        url: Some(registration.url.clone()),
        dp_ranks: Some(registration.dp_ranks.clone()),
        kv_total_blocks: registration.kv_total_blocks,
        max_num_batched_tokens: registration.max_num_batched_tokens,
        draining: registration.draining,
        models: Some(registration.models.clone()),
        ttl_ms: Some(ttl),
        leaving: None,
    })
}

/// The JSON of the goodbye.
pub(super) fn goodbye() -> Vec<u8> {
    br#"{"leaving":true}"#.to_vec()
}

/// The JSON of the load of some ranks.
pub(super) fn loads<K>(loads: &[LoadEvent<K>]) -> Vec<u8> {
    let documents: Vec<_> = loads
        .iter()
        .map(|load| LoadDocument {
            worker: None,
            dp_rank: load.dp_rank,
            active_decode_blocks: load.active_decode_blocks,
            kv_used_blocks: load.kv_used_blocks,
            active_prefill_tokens: load.active_prefill_tokens,
        })
        .collect();
    written(&documents)
}

fn written(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("numbers, strings and lists are JSON")
}

fn read<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, Reason> {
    serde_json::from_slice(json).map_err(|error| {
        tracing::debug!(%error, "a message is no JSON of ours");
        Reason::Malformed
    })
}

fn one_or_many<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<Vec<T>, Reason> {
    let first = json.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[') {
        let many: Vec<Object<T>> = read(json)?;
        Ok(many.into_iter().map(|Object(one)| one).collect())
    } else {
        read(json).map(|Object(one)| vec![one])
    }
}

/// A member that is not known is refused: a misspelt count must not look like
/// one that was taken.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(default)]
    dp_rank: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_decode_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_used_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_prefill_tokens: Option<u64>,
}

impl From<LoadDocument> for LoadEvent<()> {
    fn from(load: LoadDocument) -> Self {
        Self::new((), load.dp_rank)
            .active_decode_blocks(load.active_decode_blocks)
            .kv_used_blocks(load.kv_used_blocks)
            .active_prefill_tokens(load.active_prefill_tokens)
    }
}

/// A registration, or a goodbye.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkerDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dp_ranks: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_total_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_num_batched_tokens: Option<u64>,
    #[serde(default)]
    draining: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaving: Option<bool>,
}

/// A `T` that was written as an object: a derived `Deserialize` also takes an
/// array for a struct, member by member.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Only<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Only<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(Only(PhantomData)).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::subjects::MAX_NAME, *};
    use proptest::prelude::*;

    fn address(kind: Kind) -> Address {
        Address {
            kind,
            model: "tiny".into(),
            worker: "w/1".into(),
        }
    }

    fn load(json: &str) -> Result<Said, Reason> {
        decode(&address(Kind::Load), json.as_bytes())
    }

    fn worker(json: &str) -> Result<Said, Reason> {
        decode(&address(Kind::Worker), json.as_bytes())
    }

    #[test]
    fn load_is_an_object_or_an_array_of_them() {
        let event = LoadEvent::new((), 0).kv_used_blocks(3);
        let one = Ok(Said::Loads(vec![event.clone()]));
        assert_eq!(load(r#" {"kv_used_blocks":3}"#), one);
        assert_eq!(
            load(r#"{"worker":"w/1","kv_used_blocks":3,"active_decode_blocks":null}"#),
            one
        );
        let two = Ok(Said::Loads(vec![
            event,
            LoadEvent::new((), 7).active_prefill_tokens(0),
        ]));
        let json = r#"[{"dp_rank":0,"kv_used_blocks":3},{"dp_rank":7,"active_prefill_tokens":0}]"#;
        assert_eq!(load(json), two);
        assert_eq!(load("[]"), Ok(Said::Loads(vec![])));
    }

    #[test]
    fn what_is_written_is_read() {
        let events = vec![
            LoadEvent::new((), u32::MAX).active_decode_blocks(u64::MAX),
            LoadEvent::new((), 0)
                .kv_used_blocks(0)
                .active_prefill_tokens(1),
        ];
        assert_eq!(
            decode(&address(Kind::Load), &loads(&events)),
            Ok(Said::Loads(events))
        );
        let full = Registration::new("http://a:1", ["tiny", "é/x"])
            .dp_ranks([3, 1])
            .kv_total_blocks(5)
            .max_num_batched_tokens(6)
            .draining(true)
            .ttl(Duration::from_millis(250));
        let json = registration(&full);
        assert_eq!(
            decode(&address(Kind::Worker), &json),
            Ok(Said::Registered(full))
        );
        assert_eq!(decode(&address(Kind::Worker), &goodbye()), Ok(Said::Leaves));
    }

    #[test]
    fn a_registration_needs_no_more_than_a_url() {
        let said = worker(r#"{"url":"http://a:1"}"#);
        assert_eq!(
            said,
            Ok(Said::Registered(Registration::new("http://a:1", ["tiny"])))
        );
    }

    #[test]
    fn nobody_speaks_in_anothers_name_or_for_another_model() {
        let forged = r#"[{"kv_used_blocks":3},{"worker":"w/2","kv_used_blocks":3}]"#;
        assert_eq!(load(forged), Err(Reason::Foreign));
        let other = r#"{"url":"http://a:1","models":["big"]}"#;
        assert_eq!(worker(other), Err(Reason::Foreign));
    }

    #[test]
    fn whatever_else_is_malformed() {
        for bad in [
            "",
            "{",
            "null",
            "3",
            "[[0,1]]",
            "[null]",
            "{}x",
            "[{}",
            r#"{"kv_used_block":3}"#,
            r#"{"kv_used_blocks":-1}"#,
            r#"{"kv_used_blocks":1.5}"#,
            r#"{"kv_used_blocks":"1"}"#,
            r#"{"kv_used_blocks":18446744073709551616}"#,
            r#"{"dp_rank":4294967296}"#,
            r#"{"kv_used_blocks":1,"kv_used_blocks":2}"#,
            "\u{feff}{}",
        ] {
            assert_eq!(load(bad), Err(Reason::Malformed), "{bad}");
        }
        let long = format!(r#"{{"url":"{}"}}"#, "a".repeat(MAX_URL + 1));
        for bad in [
            "{}",
            "[]",
            r#"["http://a:1"]"#,
            r#"{"leaving":false}"#,
            r#"{"url":""}"#,
            &long,
            r#"{"leaving":true,"url":"http://a:1"}"#,
            r#"{"url":"http://a:1","dp_ranks":[]}"#,
            r#"{"url":"http://a:1","dp_ranks":[1,1]}"#,
            r#"{"url":"http://a:1","models":[]}"#,
            r#"{"url":"http://a:1","models":["tiny","tiny"]}"#,
            r#"{"url":"http://a:1","models":["tiny",""]}"#,
            r#"{"url":"http://a:1","ttl_ms":99}"#,
            r#"{"url":"http://a:1","ttl_ms":3600001}"#,
            r#"{"url":"http://a:1","ttl_ms":18446744073709551615}"#,
            r#"{"url":"http://a:1","color":"red"}"#,
        ] {
            assert_eq!(worker(bad), Err(Reason::Malformed), "{bad}");
        }
    }

    #[test]
    fn what_is_too_long_is_not_read() {
        let ranks = |n: usize| format!("[{}{{}}]", "{},".repeat(n - 1));
        assert!(load(&ranks(WorkerConfig::MAX_RANKS)).is_ok());
        assert_eq!(
            load(&ranks(WorkerConfig::MAX_RANKS + 1)),
            Err(Reason::Oversized)
        );
        assert_eq!(load(&" ".repeat(MAX_MESSAGE + 1)), Err(Reason::Oversized));
        let deep = "[".repeat(MAX_MESSAGE);
        assert_eq!(load(&deep), Err(Reason::Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&address(Kind::Load), &bytes);
            let _ = decode(&address(Kind::Worker), &bytes);
        }

        #[test]
        fn no_json_makes_it_panic(text in "[\\[\\]{}:,\"a-z_0-9.-]{0,80}") {
            let _ = decode(&address(Kind::Load), text.as_bytes());
            let _ = decode(&address(Kind::Worker), text.as_bytes());
        }
    }

    #[test]
    fn a_registration_that_nobody_would_take_says_what_is_allowed() {
        let ok = || Registration::new("http://a", ["m"]);
        for (bad, part) in [
            (Registration::new("", ["m"]), "1 to 2048 bytes"),
            (Registration::new("http://a", [""; 0]), "1 to 64"),
            (Registration::new("http://a", ["m", "m"]), "each model once"),
            (
                Registration::new("http://a", ["m".repeat(MAX_NAME + 1)]),
                "1 to 256 bytes",
            ),
            (ok().dp_ranks([]), "1 to 1024"),
            (ok().ttl(Duration::ZERO), "100ms to 3600s"),
            (ok().ttl(Duration::MAX), "100ms to 3600s"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
