//! Load events of a Dynamo fleet: what is read, and that nothing else does
//! any harm.
#![cfg(feature = "nats")]

#[path = "support/dynamo.rs"]
mod real;

use proptest::{collection::vec, prelude::*, sample::Index};
use real::REAL;
use serde::{Serialize, Serializer};
use tower_overload::{
    load::LoadEvent,
    nats::{
        Defect, Undecodable,
        dynamo::{DynamoLoad, MAX_DEPTH, MAX_MESSAGE_BYTES, SUBSCRIPTION, Subject, decode},
    },
};

const NIL: &[u8] = b"\xc0";

/// `value` as MessagePack.
fn pack<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

fn bin(bytes: &[u8]) -> Vec<u8> {
    pack(&Octets(bytes))
}

/// A map of members that are MessagePack already.
fn map<N: AsRef<str>, V: AsRef<[u8]>>(members: &[(N, V)]) -> Vec<u8> {
    let length = u16::try_from(members.len()).unwrap().to_be_bytes();
    let mut bytes = [b"\xde".as_slice(), &length].concat();
    for (name, value) in members {
        bytes.extend(pack(name.as_ref()));
        bytes.extend(value.as_ref());
    }
    bytes
}

/// A message with this payload and an envelope in which nothing is wrong.
fn message(payload: &[u8]) -> Vec<u8> {
    map(&[("topic", pack("kv_metrics")), ("payload", bin(payload))])
}

/// A message with these members beside the id of the worker, 7.
fn load(members: &[(&str, &[u8])]) -> Vec<u8> {
    let id: [(&str, &[u8]); 1] = [("worker_id", b"\x07")];
    message(&map(&[&id, members].concat()))
}

struct Octets<'a>(&'a [u8]);

impl Serialize for Octets<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// `load` as a fleet encodes it.
fn encode(load: &DynamoLoad) -> Vec<u8> {
    #[derive(Serialize)]
    struct Envelope<'a> {
        publisher_id: Option<u64>,
        sequence: Option<u64>,
        published_at: Option<u64>,
        topic: &'a str,
        payload: Octets<'a>,
    }

    #[derive(Serialize)]
    struct Payload {
        worker_id: u64,
        dp_rank: u32,
        active_decode_blocks: Option<u64>,
        active_prefill_tokens: Option<u64>,
        kv_used_blocks: Option<u64>,
    }

    let payload = pack(&Payload {
        worker_id: load.worker_id,
        dp_rank: load.dp_rank,
        active_decode_blocks: load.active_decode_blocks,
        active_prefill_tokens: load.active_prefill_tokens,
        kv_used_blocks: load.kv_used_blocks,
    });
    pack(&Envelope {
        publisher_id: load.publisher_id,
        sequence: load.sequence,
        published_at: load.published_at_ms,
        topic: "kv_metrics",
        payload: Octets(&payload),
    })
}

#[track_caller]
fn assert_refused(message: &[u8], defect: Defect, says: &str) {
    let error = decode(message).unwrap_err();
    assert_eq!(error.defect(), defect, "{error}");
    let text = error.to_string();
    assert!(text.starts_with(defect.as_str()), "{text}");
    assert!(text.contains(says), "{text:?} does not say {says:?}");
}

#[test]
fn the_messages_of_a_real_fleet_are_read() {
    let loads: Vec<_> = REAL
        .iter()
        .map(|(_, bytes)| decode(bytes).unwrap())
        .collect();
    assert_eq!(loads.len(), 22);
    for (nth, load) in loads.iter().enumerate() {
        assert_eq!(load.publisher_id, Some(0x0011_d43e_298c_80d9));
        assert_eq!(load.sequence, Some(nth as u64));
        assert!(
            load.published_at_ms
                .is_some_and(|at| at.abs_diff(0x01a2_29e4_0341) < 2_000)
        );
        assert_eq!(load.worker_id, 0x3dc1_9c87_6982_e7f8);
        assert_eq!(load.active_decode_blocks, None);
        assert_eq!(load.active_prefill_tokens, None);
    }
    let used = |rank| {
        let of_rank = loads.iter().filter(move |load| load.dp_rank == rank);
        of_rank
            .map(|load| load.kv_used_blocks.unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(used(0), [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]);
    assert_eq!(used(1), [0, 3, 5, 7, 9, 11, 13, 15, 17, 19, 0]);
}

#[test]
fn a_real_message_encodes_to_the_same_bytes_again() {
    for (_, bytes) in REAL.iter() {
        assert_eq!(encode(&decode(bytes).unwrap()), *bytes);
    }
}

#[test]
fn the_two_block_counts_stay_apart() {
    let used = decode(&load(&[("kv_used_blocks", b"\x05")])).unwrap();
    assert_eq!(
        used.into_event("a"),
        LoadEvent::new("a", 0).kv_used_blocks(5)
    );
    let active = decode(&load(&[("active_decode_blocks", b"\x05")])).unwrap();
    assert_eq!(
        active.into_event("a"),
        LoadEvent::new("a", 0).active_decode_blocks(5)
    );
    let all = decode(&load(&[
        ("dp_rank", b"\x03"),
        ("active_decode_blocks", b"\x01"),
        ("active_prefill_tokens", b"\x02"),
        ("kv_used_blocks", b"\x04"),
    ]));
    let event = LoadEvent::new("a", 3)
        .active_decode_blocks(1)
        .active_prefill_tokens(2);
    assert_eq!(all.unwrap().into_event("a"), event.kv_used_blocks(4));
}

#[test]
fn nil_and_missing_are_absent_and_0_is_a_count() {
    let nothing = decode(&load(&[])).unwrap();
    assert_eq!(nothing.into_event("a"), LoadEvent::new("a", 0));
    let (id, sequence) = (nothing.publisher_id, nothing.sequence);
    assert_eq!((id, sequence, nothing.published_at_ms), (None, None, None));
    for name in [
        "dp_rank",
        "active_decode_blocks",
        "active_prefill_tokens",
        "kv_used_blocks",
    ] {
        assert_eq!(decode(&load(&[(name, NIL)])), Ok(nothing), "{name}");
    }
    let zero = decode(&load(&[("kv_used_blocks", b"\x00")])).unwrap();
    assert_eq!(zero.kv_used_blocks, Some(0));
}

#[test]
fn a_number_may_be_wider_than_it_needs_to_be() {
    let five: [&[u8]; 9] = [
        b"\x05",
        b"\xcc\x05",
        b"\xcd\0\x05",
        b"\xce\0\0\0\x05",
        b"\xcf\0\0\0\0\0\0\0\x05",
        b"\xd0\x05",
        b"\xd1\0\x05",
        b"\xd2\0\0\0\x05",
        b"\xd3\0\0\0\0\0\0\0\x05",
    ];
    for five in five {
        let message = load(&[("dp_rank", five), ("kv_used_blocks", five)]);
        let load = decode(&message).unwrap();
        assert_eq!(
            (load.dp_rank, load.kv_used_blocks),
            (5, Some(5)),
            "{five:x?}"
        );
    }
    let most = load(&[("kv_used_blocks", b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff")]);
    assert_eq!(decode(&most).unwrap().kv_used_blocks, Some(u64::MAX));
}

#[test]
fn members_of_other_names_are_passed_over_whatever_they_hold() {
    let extension = b"\xc7\x02\x2a\x01\x02".as_slice();
    let not_utf8 = b"\xa2\xff\xfe".as_slice();
    let nested = pack(&serde_json::json!({"a": [1, {"b": null}], "worker_id": 9}));
    for value in [
        extension,
        not_utf8,
        &nested,
        b"\xca\x3f\x80\0\0",
        b"\xff",
        NIL,
    ] {
        let payload = map(&[
            ("gpu_cache", value),
            ("worker_id", b"\x07"),
            ("gpu_cache", value),
            ("kv_used_blocks", b"\x05"),
            ("Worker_ID", value),
        ]);
        let message = map(&[
            ("version", value),
            ("topic", &pack("kv_metrics")),
            ("payload", &bin(&payload)),
            ("", value),
        ]);
        let load = decode(&message).unwrap();
        assert_eq!(
            (load.worker_id, load.kv_used_blocks),
            (7, Some(5)),
            "{value:x?}"
        );
    }
}

#[test]
fn a_number_has_to_be_one_that_fits() {
    let mistyped: [(&[u8], &str); 9] = [
        (b"\xff", "`-1`"),
        (b"\xd3\x80\0\0\0\0\0\0\0", "`-9223372036854775808`"),
        (b"\xca\x3f\xc0\0\0", "`1.5`"),
        (b"\xcb\x40\x14\0\0\0\0\0\0", "`5.0`"),
        (b"\xc3", "boolean"),
        (b"\xa15", "string \"5\""),
        (b"\xc4\x01\x05", "byte array"),
        (b"\x91\x05", "sequence"),
        (b"\x81\xa1a\x05", "map"),
    ];
    let of_payload = [
        "dp_rank",
        "active_decode_blocks",
        "active_prefill_tokens",
        "kv_used_blocks",
    ];
    for (value, says) in mistyped {
        for name in of_payload {
            assert_refused(&load(&[(name, value)]), Defect::Mistyped, says);
            assert_refused(&load(&[(name, value)]), Defect::Mistyped, name);
        }
        let payload = map(&[("worker_id", value)]);
        assert_refused(&message(&payload), Defect::Mistyped, "worker_id");
        for name in ["publisher_id", "sequence", "published_at"] {
            assert_refused(&map(&[(name, value)]), Defect::Mistyped, name);
        }
    }
    let rank = b"\xcf\0\0\0\x01\0\0\0\0";
    assert_refused(
        &load(&[("dp_rank", rank)]),
        Defect::Mistyped,
        "`4294967296`",
    );
}

#[test]
fn a_known_member_may_be_there_once() {
    let of_payload = [
        "worker_id",
        "dp_rank",
        "active_decode_blocks",
        "active_prefill_tokens",
        "kv_used_blocks",
    ];
    for name in of_payload {
        for value in [b"\x07".as_slice(), NIL] {
            let twice = message(&map(&[
                ("worker_id", b"\x07".as_slice()),
                (name, value),
                (name, value),
            ]));
            assert_refused(&twice, Defect::Mistyped, "is there twice");
        }
    }
    for name in ["publisher_id", "sequence", "published_at"] {
        let twice = map(&[(name, NIL), (name, NIL)]);
        assert_refused(&twice, Defect::Mistyped, &format!("{name} is there twice"));
    }
    let topics = map(&[("topic", pack("kv_metrics")), ("topic", pack("kv_metrics"))]);
    assert_refused(&topics, Defect::Mistyped, "topic is there twice");
    let payload = bin(&map(&[("worker_id", b"\x07")]));
    let payloads = map(&[("payload", &payload), ("payload", &payload)]);
    assert_refused(&payloads, Defect::Mistyped, "payload is there twice");
}

#[test]
fn what_says_nothing_of_a_worker_is_refused() {
    for worker in [vec![], vec![("worker_id", NIL)]] {
        let payload = message(&map(&worker));
        assert_refused(&payload, Defect::Mistyped, "worker_id is missing");
    }
    let no_topic = map(&[("payload", bin(&map(&[("worker_id", b"\x07")])))]);
    assert_refused(&no_topic, Defect::Mistyped, "topic is missing");
    let no_payload = map(&[("topic", pack("kv_metrics"))]);
    assert_refused(&no_payload, Defect::Mistyped, "payload is missing");
}

#[test]
fn maps_are_maps_and_names_are_text() {
    let positional = pack(&(7, 0, None::<u64>, None::<u64>, Some(5)));
    assert_refused(
        &message(&positional),
        Defect::Mistyped,
        "sequence, expected a load as a map",
    );
    let payload = map(&[("worker_id", b"\x07")]);
    let positional = pack(&(1, 2, 3, "kv_metrics", Octets(&payload)));
    assert_refused(
        &positional,
        Defect::Mistyped,
        "sequence, expected an envelope as a map",
    );
    assert_refused(
        b"{\"worker_id\":7}",
        Defect::Mistyped,
        "expected an envelope as a map",
    );
    assert_refused(NIL, Defect::Mistyped, "expected an envelope as a map");
    assert_refused(b"\xc1", Defect::Mistyped, "the message: ");

    let numbered = b"\x81\x00\x07";
    assert_refused(
        &message(numbered),
        Defect::Mistyped,
        "the name of a member to be text",
    );
    let of_bytes = b"\x81\xc4\x09worker_id\x07";
    assert_refused(
        &message(of_bytes),
        Defect::Mistyped,
        "the name of a member to be text",
    );
    let not_utf8 = b"\x81\xa2\xff\xfe\x07";
    assert_refused(&message(not_utf8), Defect::Mistyped, "utf8");

    // As an encoder of `Vec<u8>` would write it by mistake.
    let as_array = map(&[("topic", pack("kv_metrics")), ("payload", pack(&payload))]);
    assert_refused(&as_array, Defect::Mistyped, "payload to be bytes");
    let direct = map(&[("topic", pack("kv_metrics")), ("payload", payload)]);
    assert_refused(&direct, Defect::Mistyped, "payload to be bytes");
    let topic = map(&[("topic", bin(b"kv_metrics"))]);
    assert_refused(&topic, Defect::Mistyped, "topic to be text");
}

#[test]
fn a_payload_may_be_of_the_type_that_bytes_and_text_once_shared() {
    let utf8 = b"\xde\0\x01\xa9worker_id\x07";
    let ascii = b"\x07";
    let raw = |payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        let payload = [b"\xd9", &[length], payload].concat();
        map(&[("topic", pack("kv_metrics")), ("payload", payload)])
    };
    assert_eq!(decode(&raw(utf8)).unwrap().worker_id, 7);
    assert_refused(&raw(ascii), Defect::Mistyped, "the payload: ");
}

#[test]
fn nothing_may_follow() {
    let payload = map(&[("worker_id", b"\x07")]);
    for trailing in [
        b"\0".as_slice(),
        NIL,
        b"\xc1",
        b"\x91",
        b"\xcf",
        b"\xdf",
        &message(&payload),
    ] {
        let outside = [&message(&payload), trailing].concat();
        assert_refused(&outside, Defect::Mistyped, "the message is followed");
        let inside = message(&[&payload, trailing].concat());
        assert_refused(&inside, Defect::Mistyped, "the payload is followed");
    }
}

#[test]
fn another_topic_is_foreign_before_its_payload_is_read() {
    for topic in ["kv_events", "", "KV_METRICS", "kv_metrics "] {
        let message = map(&[("payload", bin(b"\xc1")), ("topic", pack(topic))]);
        assert_refused(
            &message,
            Defect::Foreign,
            &format!("not kv_metrics: {topic:?}"),
        );
    }
}

#[test]
fn an_error_repeats_little_of_the_message_and_no_control_characters() {
    let topic = "\u{1b}[31m\n".repeat(1000);
    let error = decode(&map(&[("topic", pack(&topic)), ("payload", bin(b""))])).unwrap_err();
    assert_short(&error);
    let error = decode(&load(&[("dp_rank", &pack(&topic))])).unwrap_err();
    assert_short(&error);
    assert_short(&Subject::parse(&topic).unwrap_err());
}

#[track_caller]
fn assert_short(error: &Undecodable) {
    let text = error.to_string();
    assert!(
        text.chars().count() < 240,
        "{} characters",
        text.chars().count()
    );
    assert!(!text.chars().any(char::is_control), "{text:?}");
}

#[test]
fn a_message_that_ends_early_is_truncated() {
    for (_, bytes) in REAL.iter() {
        for length in 0..bytes.len() {
            assert_refused(&bytes[..length], Defect::Truncated, "the message of");
        }
    }
    let payload = map(&[("worker_id", b"\x07"), ("kv_used_blocks", b"\x05")]);
    for length in 0..payload.len() {
        assert_refused(
            &message(&payload[..length]),
            Defect::Truncated,
            "the payload of",
        );
    }
}

#[test]
fn a_length_that_is_not_there_is_truncated() {
    let claims: [&[u8]; 7] = [
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xde\xff\xff",
        b"\xc5\xff\xff",
    ];
    for claim in claims {
        let unknown = [b"\x81\xa7unknown", claim].concat();
        assert_refused(&unknown, Defect::Truncated, "the message");
        assert_refused(&message(&unknown), Defect::Truncated, "the payload");
    }
    assert_refused(b"\xdf\xff\xff\xff\xff", Defect::Truncated, "the message");
    assert_refused(
        b"\x81\xa7payload\xc6\xff\xff\xff\xff",
        Defect::Truncated,
        "the message",
    );
    assert_refused(
        b"\x81\xdb\xff\xff\xff\xff",
        Defect::Truncated,
        "the message",
    );
}

#[test]
fn a_message_is_read_up_to_its_longest_length() {
    let filled = |length: usize| {
        let frame = load(&[("filler", b"\xc5\0\0")]).len();
        // The payload's own length is written in two more bytes then.
        let filler = vec![0; length - frame - 1];
        let mut value = vec![0xc5];
        value.extend(u16::try_from(filler.len()).unwrap().to_be_bytes());
        value.extend(filler);
        let message = load(&[("filler", &value)]);
        assert_eq!(message.len(), length);
        message
    };
    assert!(decode(&filled(MAX_MESSAGE_BYTES)).is_ok());
    assert_refused(
        &filled(MAX_MESSAGE_BYTES + 1),
        Defect::Oversized,
        "16385 bytes",
    );
    assert_refused(&vec![0x91; 1 << 20], Defect::Oversized, "1048576 bytes");
}

#[test]
fn nesting_is_followed_up_to_its_deepest_level() {
    let array = |levels: usize| [vec![0x91; levels], NIL.to_vec()].concat();
    let maps = |levels: usize| [b"\x81\xa0".repeat(levels), NIL.to_vec()].concat();
    let extension = |levels: usize| [vec![0x91; levels - 1], b"\xd4\x01\x02".to_vec()].concat();
    let kinds: [&dyn Fn(usize) -> Vec<u8>; 3] = [&array, &maps, &extension];
    for nested in kinds {
        // The map of the members is a level itself.
        assert!(decode(&load(&[("unknown", &nested(MAX_DEPTH - 1))])).is_ok());
        let too_deep = load(&[("unknown", &nested(MAX_DEPTH))]);
        assert_refused(
            &too_deep,
            Defect::Oversized,
            "the payload is nested deeper than 16",
        );
    }
    let bomb = vec![0x91; MAX_MESSAGE_BYTES - 100];
    assert_refused(&load(&[("unknown", &bomb)]), Defect::Oversized, "deeper");
    let bomb = [b"\x81\xa7unknown".to_vec(), b"\x81\xa0".repeat(8000)].concat();
    assert_refused(&bomb, Defect::Oversized, "deeper");
}

#[test]
fn a_subject_is_taken_apart_and_put_together_again() {
    for (subject, _) in REAL.iter() {
        let parsed = Subject::parse(subject).unwrap();
        let parts = (parsed.namespace, parsed.component, parsed.endpoint);
        assert_eq!(parts, ("dynamo", "backend", "generate"));
        assert_eq!(parsed.to_string(), *subject);
    }
    let below = "namespace.prod.eu-1.component.vllm_prefill.endpoint.e.kv_metrics";
    let parsed = Subject::parse(below).unwrap();
    assert_eq!(
        (parsed.namespace, parsed.component),
        ("prod.eu-1", "vllm_prefill")
    );
    assert_eq!(parsed.to_string(), below);
}

#[test]
fn any_other_subject_is_foreign() {
    let foreign = [
        "",
        "kv_metrics",
        "namespace.kv_metrics",
        "namespace.n.component.c.endpoint.e.kv_events",
        "namespace.n.component.c.endpoint.e.kv_metrics.more",
        "namespace.n.component.c.kv_metrics",
        "component.c.endpoint.e.kv_metrics",
        "namespace.component.c.endpoint.e.kv_metrics",
        "namespace..component.c.endpoint.e.kv_metrics",
        "namespace.a..b.component.c.endpoint.e.kv_metrics",
        "namespace.n.component..endpoint.e.kv_metrics",
        "namespace.n.component.c.endpoint..kv_metrics",
        "namespaces.n.component.c.endpoint.e.kv_metrics",
        "Namespace.n.component.c.endpoint.e.kv_metrics",
        "namespace.n.component.c.endpoint.e.f.kv_metrics",
    ];
    for subject in foreign {
        let error = Subject::parse(subject).unwrap_err();
        assert_eq!(error.defect(), Defect::Foreign, "{subject}");
        assert!(
            error.to_string().ends_with(&format!("{subject:?}")),
            "{error}"
        );
    }
}

#[test]
fn the_subscription_hears_the_real_fleet() {
    for (subject, _) in REAL.iter() {
        let (pattern, subject) = (SUBSCRIPTION.split('.'), subject.split('.'));
        assert_eq!(pattern.clone().count(), subject.clone().count());
        assert!(
            pattern
                .zip(subject)
                .all(|(one, other)| one == "*" || one == other)
        );
    }
}

#[test]
fn errors_and_loads_are_send_and_sync() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Undecodable>();
    check::<Defect>();
    check::<DynamoLoad>();
    check::<Subject<'static>>();
}

/// A change of a message.
#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Truncate(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, u8),
    /// The rest becomes that of another message.
    Splice(Index, Index, Index),
    /// A byte becomes one that says a type and a length.
    Raise(Index, u8),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let raising = prop::sample::select(
        [
            0x8f, 0x9f, 0xbf, 0xc4, 0xc5, 0xc6, 0xc7, 0xc9, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde,
            0xdf, 0xff,
        ]
        .as_slice(),
    );
    prop_oneof![
        (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        any::<Index>().prop_map(Mutation::Truncate),
        (any::<Index>(), vec(any::<u8>(), 1..6)).prop_map(|(at, new)| Mutation::Insert(at, new)),
        (any::<Index>(), 1..6u8).prop_map(|(at, count)| Mutation::Remove(at, count)),
        (any::<Index>(), any::<Index>(), any::<Index>())
            .prop_map(|(at, other, from)| Mutation::Splice(at, other, from)),
        (any::<Index>(), raising).prop_map(|(at, to)| Mutation::Raise(at, to)),
    ]
}

impl Mutation {
    fn apply(self, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Flip(at, bit) => {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            Self::Truncate(at) => bytes.truncate(at.index(bytes.len())),
            Self::Insert(at, new) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, new);
            }
            Self::Remove(at, count) => {
                let at = at.index(bytes.len());
                let end = bytes.len().min(at + usize::from(count));
                bytes.drain(at..end);
            }
            Self::Splice(at, other, from) => {
                let other = &others[other.index(others.len())];
                bytes.truncate(at.index(bytes.len()));
                bytes.extend(&other[from.index(other.len())..]);
            }
            Self::Raise(at, to) => {
                let at = at.index(bytes.len());
                bytes[at] = to;
            }
        }
    }
}

/// One of `of`, changed up to four times.
fn mutated(of: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (any::<Index>(), vec(mutation(), 0..5)).prop_map(move |(which, mutations)| {
        let mut bytes = of[which.index(of.len())].clone();
        for mutation in mutations {
            mutation.apply(&mut bytes, &of);
        }
        bytes
    })
}

fn real_messages() -> Vec<Vec<u8>> {
    REAL.iter().map(|(_, bytes)| bytes.clone()).collect()
}

/// The payloads of the real messages: the last 90 bytes of each.
fn real_payloads() -> Vec<Vec<u8>> {
    real_messages()
        .iter()
        .map(|bytes| bytes[bytes.len() - 90..].to_vec())
        .collect()
}

/// What holds for every message.
fn check(message: &[u8]) -> Result<(), TestCaseError> {
    match decode(message) {
        Ok(load) => {
            prop_assert_eq!(decode(&encode(&load)), Ok(load));
            for length in 0..message.len() {
                let error = decode(&message[..length]).unwrap_err();
                prop_assert_eq!(error.defect(), Defect::Truncated, "{}", error);
            }
        }
        Err(error) => assert_short(&error),
    }
    Ok(())
}

/// A value of MessagePack, and the number that it is.
fn value() -> impl Strategy<Value = (Vec<u8>, Result<Option<u64>, ()>)> {
    let number = prop_oneof![0..300u64, any::<u64>(), Just(u64::from(u32::MAX))];
    let other = prop_oneof![
        any::<f32>().prop_map(|value| pack(&value)),
        any::<f64>().prop_map(|value| pack(&value)),
        any::<bool>().prop_map(|value| pack(&value)),
        (i64::MIN..0).prop_map(|value| pack(&value)),
        ".{0,20}".prop_map(|value| pack(&value)),
        vec(any::<u8>(), 0..20).prop_map(|value| bin(&value)),
        vec(any::<u16>(), 0..4).prop_map(|value| pack(&value)),
        vec(("[a-c]", Just(NIL)), 0..4).prop_map(|members| map(&members)),
    ];
    prop_oneof![
        4 => number.prop_map(|number| (pack(&number), Ok(Some(number)))),
        2 => Just((NIL.to_vec(), Ok(None))),
        1 => other.prop_map(|other| (other, Err(()))),
    ]
}

/// A member of a payload, and its place among those that are known.
fn member() -> impl Strategy<Value = (&'static str, usize)> {
    let names = [
        "worker_id",
        "dp_rank",
        "active_decode_blocks",
        "active_prefill_tokens",
        "kv_used_blocks",
        "unknown",
        "worker",
    ];
    (0..names.len()).prop_map(move |at| (names[at], at))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn arbitrary_bytes_do_no_harm(message in vec(any::<u8>(), 0..200)) {
        check(&message)?;
        check(&self::message(&message))?;
    }

    #[test]
    fn a_changed_message_does_no_harm(message in mutated(real_messages())) {
        check(&message)?;
    }

    #[test]
    fn a_changed_payload_does_no_harm(payload in mutated(real_payloads())) {
        check(&message(&payload))?;
    }

    #[test]
    fn a_payload_is_read_exactly_if_each_of_its_members_is_what_it_has_to_be(
        members in vec((member(), value()), 0..8),
    ) {
        let mut known: [Option<Option<u64>>; 5] = [None; 5];
        let mut valid = true;
        for ((_, at), (_, number)) in &members {
            let Some(slot) = known.get_mut(*at) else { continue };
            match number {
                Ok(number) => valid &= slot.replace(*number).is_none(),
                Err(()) => valid = false,
            }
        }
        let [worker_id, rank, decode_blocks, prefill, used] = known.map(Option::flatten);
        let rank = u32::try_from(rank.unwrap_or(0));
        let bytes: Vec<_> = members.iter().map(|((name, _), (value, _))| (name, value)).collect();
        let message = message(&map(&bytes));
        check(&message)?;
        match (decode(&message), worker_id, rank) {
            (Ok(load), Some(worker_id), Ok(rank)) if valid => {
                prop_assert_eq!((load.worker_id, load.dp_rank), (worker_id, rank));
                let counts = (load.active_decode_blocks, load.active_prefill_tokens, load.kv_used_blocks);
                prop_assert_eq!(counts, (decode_blocks, prefill, used));
            }
            (Err(error), worker_id, rank) => {
                prop_assert!(!valid || worker_id.is_none() || rank.is_err(), "{}", error);
                prop_assert_eq!(error.defect(), Defect::Mistyped);
            }
            (Ok(load), ..) => prop_assert!(false, "read as {load:?}"),
        }
    }

    #[test]
    fn an_arbitrary_subject_is_foreign_or_the_same_when_put_together(
        subject in "(namespace\\.)?[a-z.]{0,9}(\\.component)?\\.[a-z.]{0,3}\\.endpoint\\.[a-z]{0,2}(\\.kv_metrics)?",
        any in ".{0,60}",
    ) {
        for subject in [subject, any] {
            match Subject::parse(&subject) {
                Ok(parsed) => prop_assert_eq!(parsed.to_string(), subject),
                Err(error) => prop_assert_eq!(error.defect(), Defect::Foreign),
            }
        }
    }
}
