//! Whole streams, in every way that they may be cut.

use super::*;
use proptest::{collection::vec, prelude::*};

const CHAT: &str = include_str!("../../tests/data/sse/llamacpp-chat.sse");
const COMPLETION: &str = include_str!("../../tests/data/sse/llamacpp-completion.sse");

/// Begun, ended, tokens, tokens of the prompt, tokens by the stream.
type Seen = (bool, bool, u64, Option<u64>, Option<u64>);

fn seen(progress: &StreamProgress) -> Seen {
    (
        progress.has_begun(),
        progress.has_ended(),
        progress.tokens(),
        progress.prompt_tokens(),
        progress.output_tokens(),
    )
}

fn whole(stream: impl AsRef<[u8]>) -> StreamProgress {
    let mut progress = StreamProgress::default();
    progress.feed(stream.as_ref());
    progress
}

fn tokens(stream: impl AsRef<[u8]>) -> u64 {
    whole(stream).tokens()
}

/// An event with this data.
fn event(data: impl std::fmt::Display) -> String {
    format!("data: {data}\n\n")
}

fn chat(text: &str) -> String {
    event(serde_json::json!({"choices": [{"index": 0, "delta": {"content": text}}]}))
}

#[test]
fn real_streams_have_the_tokens_that_their_usage_says() {
    for (stream, prompt) in [(CHAT, 56), (COMPLETION, 9)] {
        let expected = (true, true, 5, Some(prompt), Some(5));
        assert_eq!(seen(&whole(stream)), expected);
        assert_eq!(seen(&whole(stream.replace('\n', "\r\n"))), expected);
        assert_eq!(seen(&whole(stream.replace('\n', "\r"))), expected);
    }
    // Of the completion the last token has no text.
    for (stream, expected) in [(CHAT, 5), (COMPLETION, 4)] {
        let without = stream.replace("usage", "no").replace("timings", "no");
        assert_eq!(tokens(without), expected);
    }
}

#[test]
fn a_real_stream_begins_with_the_first_text() {
    let mut progress = StreamProgress::default();
    let mut counts = Vec::new();
    for part in CHAT.split_inclusive("\n\n") {
        progress.feed(part.as_bytes());
        counts.push((progress.has_begun(), progress.tokens()));
    }
    let begun = [1, 2, 3, 4, 5, 5, 5, 5].map(|tokens| (true, tokens));
    assert_eq!(counts[0], (false, 0), "the role is no token");
    assert_eq!(counts[1..], begun);
}

#[test]
fn what_is_no_token_counts_for_nothing() {
    for stream in [
        ": ping\n\n",
        ":\n\n:\n\n",
        "\n\n\n",
        "event: ping\ndata: {\"type\": \"ping\"}\n\n",
        "event: ping\ndata: {}\n\n",
        "data: {\"type\":\"ping\"}\n\n",
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":\
         {\"content\":[],\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":\
         {\"type\":\"text\",\"text\":\"\"}}\n\n",
        "data: {\"type\":\"response.created\",\"response\":{\"output\":[],\"usage\":null}}\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":null,\"tool_calls\":[]},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":0}}\n\n",
        "id: 7\nretry: 100\n\n",
        "data:\n\ndata\n\ndata:   \n\n",
    ] {
        let progress = whole(stream);
        let counts = (
            progress.has_begun(),
            progress.has_ended(),
            progress.tokens(),
        );
        assert_eq!(counts, (false, false, 0), "{stream:?}");
    }
}

#[test]
fn each_api_has_its_own_text() {
    for data in [
        r#"{"choices":[{"delta":{"content":"12345678"}}]}"#,
        r#"{"choices":[{"delta":{"content":[{"type":"text","text":"12345678"}]}}]}"#,
        r#"{"choices":[{"delta":{"reasoning_content":"12345678"}}]}"#,
        r#"{"choices":[{"delta":{"reasoning":"12345678","reasoning_content":"12345678"}}]}"#,
        r#"{"choices":[{"delta":{"refusal":"12345678"}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"id":"x","function":{"name":"1234","arguments":"5678"}}]}}]}"#,
        r#"{"choices":[{"text":"12345678","logprobs":{"tokens":["1234","5678"]}}]}"#,
        r#"{"choices":[{"text":"123456789 and more","token_ids":[4, 17],"finish_reason":null}]}"#,
        r#"{"choices":[{"text":"1234"},{"text":"5678"}]}"#,
        r#"{"type":"response.output_text.delta","item_id":"x","delta":"12345678"}"#,
        r#"{"delta":"12345678","type":"response.function_call_arguments.delta"}"#,
        r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"12345678"}}"#,
        r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"12345678"}}"#,
        r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"a\":12}"}}"#,
        r#"{"type":"content_block_start","content_block":{"type":"tool_use","name":"12345678"}}"#,
        r#"{"content":"12345678","stop":false}"#,
        r#"{"content":"1","stop":false,"tokens_predicted":2,"tokens_evaluated":7}"#,
        r#"{"token":{"id":1,"text":"12345678"},"generated_text":null}"#,
        r#"{"token":"12345678"}"#,
        r#"{"response":"12345678"}"#,
        r#"{"text":"all so far","meta_info":{"prompt_tokens":7,"completion_tokens":2}}"#,
        r#"{"choices":[{"text":"1234567890"}],"usage":{"completion_tokens":2}}"#,
        r#"{"choices":[{"text":"\u00e9\n\"\u0041\ud83d\udE00"}]}"#,
        "1234567",
        "1234\ndata: 567",
        " { \"choices\"\ndata::\ndata:[ {\"text\"\ndata: : \"12345678\" } ] }",
    ] {
        let progress = whole(event(data));
        let counts = (progress.has_begun(), progress.tokens());
        let expected = if data.contains("udE00") { 3 } else { 2 };
        assert_eq!(counts, (true, expected), "{data}");
    }
    for data in [
        "{}",
        "[]",
        r#"{"n":1}"#,
        "12",
        r#"{"candidates":[{"text":"12345678"}]}"#,
    ] {
        assert_eq!(tokens(event(data)), 1, "{data}");
    }
}

#[test]
fn the_end_is_known() {
    for stream in [
        "data: [DONE]\n\n",
        "data:[DONE] \r\n\r\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        "event: message_stop\ndata: {}\n\n",
        "event: error\ndata: {}\n\n",
        "data: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"text\":\"long\"}]}}\n\n",
        "data: {\"type\":\"response.failed\"}\n\n",
        "data: {\"error\":{\"message\":\"it broke\"}}\n\n",
        "data: {\"error\":\"it broke\"}\n\n",
    ] {
        assert_eq!(
            seen(&whole(stream)),
            (false, true, 0, None, None),
            "{stream:?}"
        );
    }
    let last = r#"{"content":"","stop":true,"tokens_predicted":7,"tokens_evaluated":3}"#;
    let expected = (true, true, 7, Some(3), Some(7));
    assert_eq!(seen(&whole(event(last))), expected);
    for stream in [
        event(r#"{"choices":[{"text":"[DONE]"}],"error":null}"#),
        event("[DONE]x"),
        event("[DONE]\ndata: x"),
        event(r#"{"choices":[{"delta":{"content":"error","stop":true}}]}"#),
        "data: [DONE]\n".to_owned(),
        ": [DONE]\n\n".to_owned(),
    ] {
        assert!(!whole(&stream).has_ended(), "{stream:?}");
    }
}

#[test]
fn an_answer_without_a_token_has_begun_when_it_is_finished() {
    let progress = whole(event(
        r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
    ));
    assert_eq!((progress.has_begun(), progress.tokens()), (true, 0));
    let progress = whole(event(r#"{"choices":[{"text":"","finish_reason":""}]}"#));
    assert!(!progress.has_begun());
}

#[test]
fn an_event_of_several_tokens_counts_what_its_text_says() {
    let twenty = chat(&"four".repeat(20));
    assert_eq!(tokens(twenty.repeat(5)), 100);
    // Each event rounds up for itself no more than once.
    assert_eq!(tokens(chat("fives").repeat(100)), 125);
    assert_eq!(tokens(chat("a").repeat(100)), 100);
}

#[test]
fn what_the_stream_says_replaces_the_estimate() {
    let usage = |tokens: u64| {
        event(format_args!(
            "{{\"choices\":[],\"usage\":{{\"completion_tokens\":{tokens}}}}}"
        ))
    };
    let text = chat(&"four".repeat(20));
    assert_eq!(tokens([&*text, &usage(7)].concat()), 7);
    assert_eq!(tokens([&*text, &usage(7), &text].concat()), 27);
    assert_eq!(tokens([&*text, &usage(7), &text, &usage(9)].concat()), 9);
    assert_eq!(tokens([&*text, &usage(7), &text, &usage(7)].concat()), 7);
    assert_eq!(tokens([&*text, &usage(7), &text, &usage(3)].concat()), 27);
    assert_eq!(tokens([&*text, &usage(0), &text, &usage(0)].concat()), 40);
    assert_eq!(tokens([usage(u64::MAX), text.clone()].concat()), u64::MAX);
    let number = |number: &str| tokens(usage(0).replace(":0}", &format!(":{number}}}")));
    assert_eq!(number("99999999999999999999999"), u64::MAX);
    assert_eq!(["-1", "1.5", "1e3", "null", "\"7\""].map(number), [0; 5]);
    let anthropic = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":\
        {\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n\
        event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hi\"}}\n\n\
        event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
        \"usage\":{\"output_tokens\":15}}\n\n\
        event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    assert_eq!(
        seen(&whole(anthropic)),
        (true, true, 15, Some(25), Some(15))
    );
    let completed = r#"{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":8}}}"#;
    assert_eq!(
        seen(&whole(event(completed))),
        (true, true, 8, Some(3), Some(8))
    );
}

#[test]
fn the_last_event_of_tgi_says_all_tokens() {
    let word = r#"{"index":1,"token":{"id":5,"text":" hello","special":false},"generated_text":null,"details":null}"#;
    let last = r#"{"index":9,"token":{"id":2,"text":"</s>","special":true},"generated_text":"hello","details":{"finish_reason":"eos_token","generated_tokens":9,"input_length":7,"seed":null}}"#;
    let stream = [event(word).repeat(8), event(last)].concat();
    assert_eq!(seen(&whole(stream)), (true, false, 9, Some(7), Some(9)));
}

#[test]
fn cached_tokens_are_tokens_of_the_prompt() {
    // Anthropic's API gives them beside the others, and OpenAI's among them.
    let usage = r#"{"input_tokens":25,"cache_creation_input_tokens":100,"cache_read_input_tokens":1000,"output_tokens":1}"#;
    for event_of in [
        format!(r#"{{"type":"message_start","message":{{"usage":{usage}}}}}"#),
        format!(r#"{{"type":"message_delta","usage":{usage}}}"#),
    ] {
        assert_eq!(whole(event(&event_of)).prompt_tokens(), Some(1125));
        let only_output = r#"{"type":"message_delta","usage":{"output_tokens":9}}"#;
        let stream = [event(&event_of), event(only_output)].concat();
        assert_eq!(whole(stream).prompt_tokens(), Some(1125));
    }
    let openai = r#"{"choices":[],"usage":{"prompt_tokens":25,"prompt_tokens_details":{"cached_tokens":20}}}"#;
    assert_eq!(whole(event(openai)).prompt_tokens(), Some(25));
}

#[test]
fn the_last_event_counts_without_its_empty_line() {
    let stream = chat("a").repeat(2);
    for cut in 1..3 {
        let mut progress = whole(&stream[..stream.len() - cut]);
        assert_eq!(progress.tokens(), 1);
        progress.finish();
        assert_eq!(seen(&progress), (true, true, 2, None, None));
    }
    let mut progress = whole(&stream);
    progress.finish();
    assert_eq!(progress.tokens(), 2);
    let mut progress = whole(": ping");
    progress.finish();
    assert_eq!(seen(&progress), (false, true, 0, None, None));
}

#[test]
fn nothing_grows_with_the_stream() {
    assert!(size_of::<StreamProgress>() < 512);
    // A line of 1 GB is as many of these as fit.
    let mega = vec![b'x'; 1 << 20];
    let pieces = if cfg!(debug_assertions) { 16 } else { 1024 };
    for (begin, end, expected) in [
        (
            "data: {\"choices\":[{\"text\":\"",
            "\"}]}\n\n",
            pieces << 18,
        ),
        ("data: ", "\n\n", pieces << 18),
        ("data: {\"", "\":1}\n\n", 1),
        ("event: ", "\ndata: {}\n\n", 1),
        (": ", "\n\n", 0),
        ("", "\n\n", 0),
    ] {
        let mut progress = whole(begin);
        (0..pieces).for_each(|_| progress.feed(&mega));
        progress.feed(end.as_bytes());
        assert_eq!(progress.tokens(), expected, "{begin:?}");
        progress.feed(chat("a").as_bytes());
        assert!(progress.tokens() > expected && progress.has_begun());
    }
    let comments = ": ping\n\n".repeat(1 << 17);
    let mut progress = whole(comments);
    assert_eq!(seen(&progress), (false, false, 0, None, None));
    progress.feed(event("[".repeat(1 << 20)).as_bytes());
    progress.feed(event("{\"a\":".repeat(1 << 20)).as_bytes());
    progress.feed(event("}]".repeat(1 << 20)).as_bytes());
    progress.feed(chat("a").as_bytes());
    // One, one, two million bytes of text, and one.
    assert_eq!(progress.tokens(), (1 << 19) + 1);
}

fn streams() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => ".{0,12}".prop_map(|text| chat(&text)),
        2 => ".{0,6}".prop_map(|text| event(text.replace(['\r', '\n'], " "))),
        1 => Just(CHAT.to_owned()), 1 => Just(COMPLETION.to_owned()),
        1 => (0..99_u32).prop_map(|n| event(format_args!("{{\"tokens_predicted\":{n}}}"))),
        4 => prop::sample::select(vec![
            ": ping\n", "\n", "\r", "\r\n", "data: ", "data", ":", "event: ping\n", "event: error\r",
            "{", "}", "[", "\"", "\\", "\\u00", "\u{feff}", "data: [DO", "NE]", "é",
            "{\"choices\":[{\"delta\":{\"content\":\"", "12", "}}]}",
        ]).prop_map(str::to_owned),
    ];
    vec(piece, 0..12).prop_map(|all| all.concat().into_bytes())
}

proptest! {
    #[test]
    fn every_cut_counts_the_same(stream in streams(), cuts in vec(0..40_usize, 0..200)) {
        let all = seen(&whole(&stream));
        let mut bytes = StreamProgress::default();
        stream.iter().for_each(|byte| bytes.feed(&[*byte]));
        prop_assert_eq!(seen(&bytes), all);
        let (mut cut, mut rest) = (StreamProgress::default(), &stream[..]);
        for length in cuts {
            let (piece, more) = rest.split_at(length.min(rest.len()));
            cut.feed(piece);
            rest = more;
        }
        cut.feed(rest);
        prop_assert_eq!(seen(&cut), all);
    }

    #[test]
    fn the_text_of_any_event_is_as_long_as_it_is(text in ".{0,80}", ascii: bool) {
        let data = event(serde_json::json!({
            "id": "a\"b\\", "choices": [{"logprobs": null, "delta": {"content": text}, "x": [{"y": {}}]}],
        }));
        let escape = |it: char| match it {
            ' '..='~' | '\n' => it.to_string(),
            _ => it.encode_utf16(&mut [0; 2]).iter().map(|it| format!("\\u{it:04x}")).collect(),
        };
        let data = if ascii { data.chars().map(escape).collect() } else { data };
        prop_assert_eq!(tokens(data), text.len().div_ceil(4) as u64);
    }

    #[test]
    fn any_bytes_are_read(stream in vec(any::<u8>(), 0..500)) {
        let mut progress = whole(stream);
        progress.finish();
        prop_assert!(progress.has_ended());
    }
}
