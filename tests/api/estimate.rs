//! How far the estimate is off, against two real vocabularies.

use std::{fmt::Write, fs, path::Path};
use tiktoken_rs::{CoreBPE, cl100k_base_singleton, o200k_base_singleton};
use tower_overload::api::{EstimateTokens, ScriptEstimator};

/// What the docs of the estimator include.
const TABLE: &str = "src/api/estimate.md";

/// Names and texts, in the order of their names.
fn prompts() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/prompts");
    let mut prompts: Vec<_> = fs::read_dir(folder)
        .expect("a folder of prompts")
        .map(|file| {
            let path = file.expect("a file").path();
            let name = path.file_stem().expect("a name").to_string_lossy();
            let text = fs::read_to_string(&path).expect("a text");
            (name.replace('_', " "), text)
        })
        .collect();
    prompts.sort();
    assert!(prompts.len() > 30, "{} prompts", prompts.len());
    prompts
}

fn vocabularies() -> [(&'static str, &'static CoreBPE); 2] {
    [
        ("o200k", o200k_base_singleton()),
        ("cl100k", cl100k_base_singleton()),
    ]
}

fn tokens(vocabulary: &CoreBPE, text: &str) -> u64 {
    vocabulary.encode_ordinary(text).len() as u64
}

#[test]
fn the_table_in_the_docs_is_what_is_measured() {
    let mut table =
        String::from("\n| Text | Tokens (o200k) | Estimate | Tokens (cl100k) | Estimate |\n");
    table += "|---|--:|--:|--:|--:|\n";
    for (name, text) in prompts() {
        write!(table, "| {name} |").expect("a string");
        let estimate = ScriptEstimator::new().tokens(&text);
        for (_, vocabulary) in vocabularies() {
            let tokens = tokens(vocabulary, &text);
            let percent = (estimate * 100).div_ceil(tokens);
            write!(table, " {tokens} | {percent}% |").expect("a string");
        }
        table.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    if std::env::var_os("TOWER_OVERLOAD_UPDATE_TABLES").is_some() {
        fs::write(&path, &table).expect("written");
    }
    let in_the_docs = fs::read_to_string(&path).expect("a table");
    assert_eq!(
        in_the_docs, table,
        "{TABLE} is written anew with TOWER_OVERLOAD_UPDATE_TABLES=1"
    );
}

#[test]
fn no_text_and_no_piece_of_one_is_estimated_below_half() {
    for (name, text) in prompts() {
        let characters: Vec<_> = text.chars().collect();
        for length in [80, 300, characters.len()] {
            for piece in characters.chunks(length) {
                let piece: String = piece.iter().collect();
                let estimate = ScriptEstimator::new().tokens(&piece);
                for (vocabulary, it) in vocabularies() {
                    let tokens = tokens(it, &piece);
                    assert!(
                        estimate * 2 >= tokens,
                        "{name}: {estimate} instead of {tokens} of {vocabulary}: {piece}"
                    );
                }
            }
        }
    }
}
