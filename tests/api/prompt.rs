//! What counts as a prompt.

use crate::prompt_tokens;
use serde_json::{Value, json};
use tower_overload::api::{EstimateTokens, ScriptEstimator};

/// What a message counts beside its texts.
const MESSAGE: u64 = 4;
const IMAGE: u64 = 1024;

#[track_caller]
fn counts(body: Value, tokens: u64) {
    assert_eq!(prompt_tokens(&body), tokens, "{body}");
}

#[test]
fn every_text_of_a_chat_counts() {
    counts(
        json!({"model": "a b c", "user": "a b c", "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "name": "ann", "content": [{"type": "text", "text": "one two"}]},
            {"role": "assistant", "content": null, "reasoning_content": "let me think",
             "tool_calls": [{"id": "call_1", "type": "function",
                 "function": {"name": "look_up", "arguments": "{\"a\": 1}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "it is four words"},
        ]}),
        4 * MESSAGE + (1 + 2) + (1 + 1 + 2) + (1 + 3 + 1 + 2) + (1 + 4),
    );
}

#[test]
fn tools_count_with_their_names() {
    let described = "word ".repeat(4000);
    let body = |tools: &str, tool: Value| json!({"messages": [], tools: [tool]});
    let tool = json!({"type": "function", "function": {"name": "f", "description": described,
        "parameters": {"type": "object", "properties": {"city": {"enum": ["a", "b"]}}}}});
    assert!(prompt_tokens(&body("tools", tool.clone())) > 4000);
    assert!(prompt_tokens(&body("functions", tool["function"].clone())) > 4000);
    let anthropic = json!({"name": "f", "description": described, "input_schema": {}});
    assert!(prompt_tokens(&body("tools", anthropic)) > 4000);
    let named = json!({"properties": {"one": 1, "two": {"three": true}}});
    // Four names of 1 + 2, and two values.
    counts(body("tools", named), 1 + 4 * 3 + 2);
}

#[test]
fn completions_and_embeddings_are_counted_as_text_or_as_tokens() {
    counts(json!({"prompt": "one two three", "suffix": "four"}), 4);
    counts(json!({"prompt": ["one two", "three", ""]}), 3);
    counts(json!({"prompt": [1, 2, 3]}), 3);
    counts(json!({"prompt": [[1, 2], [3]]}), 3);
    counts(json!({"input": ["one", "two three"]}), 3);
    counts(json!({"inputs": "one two"}), 2);
    counts(json!({"text": ["one", "two"], "input_ids": [[1, 2]]}), 4);
}

#[test]
fn responses_are_counted_with_their_instructions() {
    counts(
        json!({"instructions": "be brief", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "one two"}]},
            {"type": "function_call_output", "call_id": "c", "output": "three four"},
            {"type": "reasoning", "encrypted_content": "x y z", "summary": []},
        ], "text": {"format": {"type": "json_schema", "name": "a b"}}}),
        2 + 3 * MESSAGE + 3 + 2,
    );
}

#[test]
fn anthropics_messages_are_counted_with_their_blocks() {
    counts(
        json!({"system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [
            {"type": "tool_use", "id": "t", "name": "look", "input": {"city": "new york"}},
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "one two"}]},
            {"type": "thinking", "thinking": "let me see", "signature": "a b c"},
            {"type": "document", "source": {"type": "text", "data": "three words here", "media_type": "text/plain"}},
            {"type": "document", "source": {"content": [{"type": "text", "text": "two words"}], "type": "content"}},
        ]}]}),
        2 + MESSAGE + 1 + (1 + 3 + 2) + 2 + 3 + 3 + 2,
    );
}

#[test]
fn rankings_read_the_query_with_each_document() {
    counts(
        json!({"query": "two words", "documents": ["a", "b", "c d"]}),
        3 * 2 + 4,
    );
    counts(
        json!({"documents": [{"text": "a b"}], "query": "two words"}),
        4,
    );
    counts(json!({"text_1": "two words", "text_2": ["a", "b"]}), 6);
    counts(
        json!({"queries": ["two words"], "documents": ["a", "b"]}),
        6,
    );
    counts(json!({"query": "two words", "documents": 5}), 2 + 1);
}

#[test]
fn several_queries_are_read_with_a_document_each() {
    counts(json!({"queries": ["one", "two"], "documents": ["a"]}), 3);
    let pairs = json!({"text_1": ["two words", "one"], "text_2": ["a", "b"]});
    counts(pairs, 5);
    let many = json!({"text_1": vec!["two words"; 50], "text_2": vec!["a"; 50]});
    counts(many, 50 * 3);
}

#[test]
fn images_count_as_so_many_tokens_each_whatever_their_size() {
    let data = format!("data:image/png;base64,{}", "A".repeat(1_000_000));
    let ask = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    for image in [
        json!({"type": "image_url", "image_url": {"url": data, "detail": "high"}}),
        json!({"type": "image_url", "image_url": "https://example.com/a.png"}),
        json!({"type": "input_image", "image_url": data}),
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}),
        json!({"type": "image", "source": {"data": data, "media_type": "image/png", "type": "base64"}}),
        json!({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}),
    ] {
        counts(ask(image), MESSAGE + 1 + IMAGE);
    }
    counts(
        ask(json!({"images": [data, data]})),
        MESSAGE + 1 + 2 * IMAGE,
    );
}

#[test]
fn audio_and_files_count_by_their_bytes_or_as_an_image_if_they_are_elsewhere() {
    let data = "A".repeat(1_000_000);
    let ask = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    for file in [
        json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}),
        json!({"type": "file", "file": {"filename": "a.pdf", "file_data": data}}),
        json!({"type": "input_file", "filename": "a.pdf", "file_data": data}),
        json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}),
    ] {
        let body = ask(file);
        let tokens = prompt_tokens(&body);
        assert!((1000..=1010).contains(&tokens), "{tokens}");
    }
    for elsewhere in [
        json!({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}),
        json!({"type": "file", "file": {"file_id": "file-1"}}),
    ] {
        counts(ask(elsewhere), MESSAGE + 1 + IMAGE);
    }
}

#[test]
fn what_is_no_prompt_counts_for_nothing() {
    counts(json!({}), 0);
    counts(
        json!({"metadata": {"a": "one two"}, "stop": ["one"], "logit_bias": {"1": 2}}),
        0,
    );
    counts(
        json!({"response_format": {"type": "json_schema", "json_schema": {"a": "b"}}}),
        0,
    );
    counts(
        json!({"prompt": [null, false, [], {}, -7, 1.5, ["", [""]]]}),
        0,
    );
    for nothing in [json!(null), json!(true), json!({})] {
        counts(json!({"prompt": nothing}), 0);
    }
}

#[test]
fn a_label_that_is_longer_than_one_counts() {
    let body = json!({"prompt": {"id": "word ".repeat(100)}});
    counts(body, 100);
}

#[test]
fn text_without_spaces_is_many_tokens() {
    let estimator = ScriptEstimator::new();
    for text in [
        "\u{4e00}\u{4e8c}",
        "if(a[i]==b){",
        "\u{e01}\u{e02}",
        "\u{ac00}",
    ] {
        let length = 4000 / text.chars().count();
        let tokens = estimator.tokens(&text.repeat(length));
        assert!((1000..=8000).contains(&tokens), "{text}: {tokens}");
    }
    assert_eq!(estimator.tokens(""), 0);
    assert_eq!(estimator.tokens("word"), 1);
}
