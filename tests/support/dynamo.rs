//! The messages of a real Dynamo fleet, see tests/data/README.md.

use std::sync::LazyLock;

/// Subject and bytes of each.
pub static REAL: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let lines = include_str!("../data/dynamo-kv-metrics.jsonl").lines();
    lines
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let hex = line["hex"].as_str().unwrap();
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            let bytes = (0..hex.len()).step_by(2).map(byte).collect();
            (line["subject"].as_str().unwrap().to_owned(), bytes)
        })
        .collect()
});
