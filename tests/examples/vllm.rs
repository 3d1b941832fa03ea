//! The metrics of the mock engine are those of vLLM.

use overload_examples::{engine::Ledger, worker::Exporter};
use std::{num::NonZeroU64, sync::Arc};
use tower_overload::scrape::{Engine, EngineReport};

#[test]
fn what_is_written_is_read_again() {
    let block = const { NonZeroU64::new(16).unwrap() };
    let ledger = Arc::new(Ledger::new(2, block));
    drop(ledger.enter(100));
    let _running = [ledger.enter(32), ledger.enter(64), ledger.enter(32)];
    let exporter = Exporter {
        ledger,
        admission: None,
        model: "a \"b\"\\\n".into(),
        kv_total_blocks: 4,
        kv_block_size: block,
    };
    let report = EngineReport::read(exporter.render().as_bytes()).unwrap();
    assert_eq!(report.engine(), Engine::Vllm);
    assert_eq!(report.ignored(), 0);
    assert_eq!(report.kv_blocks(), Some(4));
    assert_eq!(report.mean_prompt_tokens(), Some(100.0));
    let ranks: Vec<_> = report
        .ranks()
        .iter()
        .map(|it| (it.dp_rank, it.kv_usage, it.waiting, it.running))
        .collect();
    let all = [
        (0, Some(1.0), Some(0), Some(1)),
        (1, Some(1.0), Some(0), Some(2)),
    ];
    assert_eq!(ranks, all);
}
