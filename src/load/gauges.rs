//! What is shown of each rank of each worker.

use super::{LoadEvent, rank::RankLoad};
use crate::metrics::{self, Metric, Prefix};
use ::metrics::Gauge;
use std::fmt::Write;

/// The gauges of one rank.
pub(super) struct RankGauges {
    active_decode_blocks: Gauge,
    kv_used_blocks: Gauge,
    active_prefill_tokens: Gauge,
}

impl RankGauges {
    pub(super) fn new(prefix: &Prefix, worker: &str, dp_rank: u32, worker_type: &str) -> Self {
        let dp_rank = dp_rank.to_string();
        let labels = [worker, &dp_rank, worker_type];
        Self {
            active_decode_blocks: metrics::WORKER_DECODE_BLOCKS.gauge(prefix, &labels),
            kv_used_blocks: metrics::WORKER_KV_USED_BLOCKS.gauge(prefix, &labels),
            active_prefill_tokens: metrics::WORKER_PREFILL_TOKENS.gauge(prefix, &labels),
        }
    }

    /// Gauges that show nothing.
    pub(super) fn none() -> Self {
        Self {
            active_decode_blocks: Gauge::noop(),
            kv_used_blocks: Gauge::noop(),
            active_prefill_tokens: Gauge::noop(),
        }
    }

    pub(super) fn report<K>(&self, event: &LoadEvent<K>) {
        let set = |gauge: &Gauge, count: Option<u64>| {
            if let Some(count) = count {
                gauge.set(count as f64);
            }
        };
        set(&self.active_decode_blocks, event.active_decode_blocks);
        set(&self.kv_used_blocks, event.kv_used_blocks);
        set(&self.active_prefill_tokens, event.active_prefill_tokens);
    }

    pub(super) fn restore(&self, load: &RankLoad) {
        let [blocks, used, tokens] = load.last_reported();
        self.active_decode_blocks.set(blocks as f64);
        self.kv_used_blocks.set(used as f64);
        self.active_prefill_tokens.set(tokens as f64);
    }

    pub(super) fn retire(&self) {
        self.active_decode_blocks.set(0.0);
        self.kv_used_blocks.set(0.0);
        self.active_prefill_tokens.set(0.0);
    }
}

/// One rank, as text has it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) worker: String,
    pub(super) dp_rank: u32,
    pub(super) worker_type: String,
    /// What it last reported: decode blocks, used blocks, prefill tokens.
    pub(super) counts: [u64; 3],
}

/// The gauges of all ranks in the text format of Prometheus, version 0.0.4.
pub(super) fn text(prefix: &Prefix, mut rows: Vec<Row>) -> String {
    rows.sort_unstable();
    let mut text = String::new();
    let shown = [
        (metrics::WORKER_DECODE_BLOCKS, 0),
        (metrics::WORKER_KV_USED_BLOCKS, 1),
        (metrics::WORKER_PREFILL_TOKENS, 2),
    ];
    for (metric, which) in shown {
        if !rows.is_empty() {
            series(&mut text, prefix, &metric, which, &rows);
        }
    }
    text
}

fn series(text: &mut String, prefix: &Prefix, metric: &Metric, which: usize, rows: &[Row]) {
    let name = metric.name(prefix);
    // Writing to a String does not fail.
    let _ = writeln!(text, "# HELP {name} {}", metric.help());
    let _ = writeln!(text, "# TYPE {name} gauge");
    for row in rows {
        let dp_rank = row.dp_rank.to_string();
        text.push_str(&name);
        let values = [&*row.worker, &dp_rank, &row.worker_type];
        for (n, (label, value)) in metric.labels().iter().zip(values).enumerate() {
            let _ = write!(text, "{}{label}=\"", if n == 0 { '{' } else { ',' });
            escape(text, value);
            text.push('"');
        }
        let _ = writeln!(text, "}} {}", row.counts[which]);
    }
}

fn escape(text: &mut String, value: &str) {
    for char in value.chars() {
        match char {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_break_out_of_its_label() {
        let row = |worker: &str, dp_rank| Row {
            worker: worker.into(),
            dp_rank,
            worker_type: "decode".into(),
            counts: [1, 2, 3],
        };
        let text = text(&Prefix::default(), vec![row("b", 0), row("a\\\"\n", 1)]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 12);
        let name = "dynamo_frontend_worker_active_decode_blocks";
        assert_eq!(lines[1], format!("# TYPE {name} gauge"));
        let labels = r#"worker_id="a\\\"\n",dp_rank="1",worker_type="decode""#;
        assert_eq!(lines[2], format!("{name}{{{labels}}} 1"));
        assert!(lines[11].ends_with("} 3"), "{}", lines[11]);
    }
}
