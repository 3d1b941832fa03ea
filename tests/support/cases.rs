//! The cases of `tests/data/monitor.jsonl`, and how to run one against a fleet.

use serde_json::Value;
use std::{collections::BTreeSet, time::Duration};
use tower_overload::load::{Change, LoadEvent, ThresholdUpdate, WorkerConfig};

pub struct Case {
    pub name: String,
    pub steps: Vec<Value>,
}

/// Every case of the file.
pub fn all() -> Vec<Case> {
    let lines = include_str!("../data/monitor.jsonl").lines();
    lines
        .map(|line| {
            let mut case: Value = serde_json::from_str(line).unwrap();
            Case {
                name: case["name"].as_str().unwrap().to_owned(),
                steps: match case["steps"].take() {
                    Value::Array(steps) => steps,
                    other => panic!("steps: {other}"),
                },
            }
        })
        .collect()
}

/// What a case is run against.
pub trait Fleet {
    fn thresholds(&mut self, update: ThresholdUpdate);
    /// The worker is a live member from now on, or its configuration changes.
    fn configure(&mut self, worker: &str, config: WorkerConfig);
    fn load(&mut self, event: LoadEvent<String>);
    fn remove(&mut self, worker: &str);
    fn refused(&mut self, worker: &str);
    fn completed(&mut self, worker: &str);
    fn excluded(&mut self) -> BTreeSet<String>;
    /// What a new request gets.
    fn verdict(&mut self) -> &'static str;
}

fn has(step: &Value, key: &str) -> bool {
    step.get(key).is_some()
}

fn count(step: &Value, key: &str) -> Option<u64> {
    step.get(key).map(|count| count.as_u64().unwrap())
}

fn change<T>(update: &Value, key: &str, set: fn(&Value) -> Option<T>) -> Change<T> {
    match update.get(key) {
        None => Change::Keep,
        Some(Value::Null) => Change::Clear,
        Some(value) => Change::Set(set(value).unwrap()),
    }
}

/// Runs a case on the paused clock; panics where it is not met.
pub async fn run(case: &Case, fleet: &mut impl Fleet) {
    for (i, step) in case.steps.iter().enumerate() {
        let at = format!("{:?}, step {i}: {step}", case.name);
        let id = |key: &str| step[key].as_str().unwrap_or_else(|| panic!("{at}"));
        if let Some(update) = step.get("thresholds") {
            fleet.thresholds(
                ThresholdUpdate::new()
                    .active_decode_blocks(change(
                        update,
                        "active_decode_blocks_threshold",
                        Value::as_f64,
                    ))
                    .active_prefill_tokens(change(
                        update,
                        "active_prefill_tokens_threshold",
                        Value::as_u64,
                    ))
                    .active_prefill_tokens_frac(change(
                        update,
                        "active_prefill_tokens_threshold_frac",
                        Value::as_f64,
                    )),
            );
        } else if has(step, "config") {
            let ranks = step["ranks"].as_array().unwrap();
            let ranks = ranks
                .iter()
                .map(|rank| u32::try_from(rank.as_u64().unwrap()).unwrap());
            let config = WorkerConfig::new(ranks)
                .unwrap()
                .kv_total_blocks(count(step, "kv_total_blocks"))
                .max_num_batched_tokens(count(step, "max_num_batched_tokens"));
            fleet.configure(id("config"), config);
        } else if has(step, "load") {
            let rank = count(step, "rank").unwrap().try_into().unwrap();
            fleet.load(
                LoadEvent::new(id("load").to_owned(), rank)
                    .active_decode_blocks(count(step, "active_decode_blocks"))
                    .kv_used_blocks(count(step, "kv_used_blocks"))
                    .active_prefill_tokens(count(step, "active_prefill_tokens")),
            );
        } else if has(step, "remove") {
            fleet.remove(id("remove"));
        } else if has(step, "refused") {
            fleet.refused(id("refused"));
        } else if has(step, "completed") {
            fleet.completed(id("completed"));
        } else if let Some(ms) = count(step, "advance_ms") {
            tokio::time::advance(Duration::from_millis(ms)).await;
        } else if let Some(expected) = step.get("expect_excluded") {
            let expected: BTreeSet<String> = serde_json::from_value(expected.clone()).unwrap();
            assert_eq!(fleet.excluded(), expected, "{at}");
            assert_eq!(step["verdict"], fleet.verdict(), "{at}");
        } else {
            panic!("unknown step: {at}");
        }
    }
}
