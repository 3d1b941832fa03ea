//! The metrics by which vLLM 0.12 tells its load, of the mock engine.

use crate::engine::Ledger;
use std::{fmt::Write, num::NonZeroU64, sync::Arc};
use tower_overload::admission::AdmissionHandle;

/// Writes the load of the engine and the queue in front of it.
#[derive(Clone, Debug)]
pub struct Exporter {
    /// The accounts of the engine.
    pub ledger: Arc<Ledger>,
    /// The queue in front of it, if there is a cap.
    pub admission: Option<AdmissionHandle>,
    /// The model that it serves.
    pub model: String,
    /// KV blocks of each rank.
    pub kv_total_blocks: u64,
    /// Tokens of a KV block.
    pub kv_block_size: NonZeroU64,
}

impl Exporter {
    /// Prometheus' text format. Waiting requests have no rank yet: each rank
    /// has those that would come to it if they entered now, in turn.
    pub fn render(&self) -> String {
        let loads: Vec<_> = self.ledger.snapshot().collect();
        let requests: Vec<_> = self.ledger.requests().collect();
        let queued = self.admission.as_ref().map_or(0, |it| it.snapshot().queued);
        let ranks = loads.len();
        let waiting = |rank| (queued / ranks + usize::from(rank < queued % ranks)) as f64;
        let usage = |rank: usize| {
            // The ledger can show more than there is, and an engine never does.
            (loads[rank].kv_blocks as f64 / self.kv_total_blocks as f64).min(1.0)
        };
        let mut text = String::new();
        let model = escape(&self.model);
        let mut family = |name: &str, kind: &str, help: &str, series: &[Series<'_>]| {
            let _ = writeln!(text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
            for rank in 0..ranks {
                for (suffix, more, value) in series {
                    let value = value(rank);
                    let _ = writeln!(
                        text,
                        "vllm:{name}{suffix}{{engine=\"{rank}\",model_name=\"{model}\"{more}}} {value:?}"
                    );
                }
            }
        };
        family(
            "num_requests_running",
            "gauge",
            "Requests in the engine.",
            &[("", "", &|rank| requests[rank].running as f64)],
        );
        family(
            "num_requests_waiting",
            "gauge",
            "Requests that wait for the engine.",
            &[("", "", &waiting)],
        );
        family(
            "kv_cache_usage_perc",
            "gauge",
            "The share of the KV cache in use; 1 is all of it.",
            &[("", "", &usage)],
        );
        let served = |rank: usize| requests[rank].served as f64;
        family(
            "request_prompt_tokens",
            "histogram",
            "Tokens of the prompts of requests that were served.",
            &[
                ("_bucket", ",le=\"+Inf\"", &served),
                ("_sum", "", &|rank| {
                    requests[rank].served_prompt_tokens as f64
                }),
                ("_count", "", &served),
            ],
        );
        let cache = format!(
            ",block_size=\"{}\",num_gpu_blocks=\"{}\"",
            self.kv_block_size, self.kv_total_blocks
        );
        family(
            "cache_config_info",
            "gauge",
            "How the KV cache is made.",
            &[("", &cache, &|_| 1.0)],
        );
        text
    }
}

/// What follows the name, further labels, and the value by rank.
type Series<'a> = (&'a str, &'a str, &'a dyn Fn(usize) -> f64);

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
