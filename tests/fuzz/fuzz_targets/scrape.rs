#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_overload::{
    load::WorkerConfig,
    scrape::{EngineReport, WaitingTokens},
};

fuzz_target!(|text: &[u8]| {
    let Ok(report) = EngineReport::read(text) else {
        return;
    };
    let ranks = report.ranks();
    assert!(!ranks.is_empty());
    assert!(
        ranks
            .iter()
            .all(|rank| (rank.dp_rank as usize) < WorkerConfig::MAX_RANKS)
    );
    assert!(ranks.is_sorted_by(|one, next| one.dp_rank < next.dp_rank));

    let config = WorkerConfig::new([0]).unwrap().kv_total_blocks(100);
    let config = report.complete_with_ranks(config);
    assert!(
        config
            .ranks()
            .iter()
            .eq(ranks.iter().map(|rank| &rank.dp_rank))
    );
    for waiting in [WaitingTokens::EngineMean, WaitingTokens::Fixed(u64::MAX)] {
        for load in report.loads(&(), &config, waiting) {
            assert!(load.kv_used_blocks.is_none_or(|used| used <= 100));
        }
    }
});
