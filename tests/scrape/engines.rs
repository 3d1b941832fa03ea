//! What the texts of each engine's versions say.

use crate::support::*;
use tower_overload::{
    load::{LoadEvent, WorkerConfig},
    scrape::{Engine, EngineReport, STAND_IN_BLOCKS, UnreadableMetrics, WaitingTokens},
};

/// `(rank, usage, waiting, running)`.
type Rank = (u32, Option<f64>, Option<u64>, Option<u64>);

fn says(text: &str, engine: Engine, ranks: &[Rank], blocks: Option<u64>, mean: Option<f64>) {
    let report = read(text);
    let read: Vec<_> = report
        .ranks()
        .iter()
        .map(|it| (it.dp_rank, it.kv_usage, it.waiting, it.running))
        .collect();
    assert_eq!(report.engine(), engine);
    assert_eq!(read, ranks);
    assert_eq!(report.kv_blocks(), blocks);
    assert_eq!(report.mean_prompt_tokens(), mean);
    assert_eq!(report.ignored(), 0);
}

/// `(rank, kv_used_blocks, active_prefill_tokens)`.
type Load = (u32, Option<u64>, Option<u64>);

/// The loads of a worker that the application knows nothing of, and its
/// blocks.
fn loads(text: &str) -> (Vec<Load>, Option<u64>) {
    let report = read(text);
    let config = report.complete_with_ranks(WorkerConfig::new([0]).unwrap());
    let ranks: Vec<_> = report.ranks().iter().map(|it| it.dp_rank).collect();
    assert_eq!(config.ranks(), ranks);
    let loads = report.loads(&"a", &config, WaitingTokens::default());
    let loads = loads.iter().map(|it| {
        assert_eq!((it.worker, it.active_decode_blocks), ("a", None));
        (it.dp_rank, it.kv_used_blocks, it.active_prefill_tokens)
    });
    (loads.collect(), blocks(&config))
}

/// The blocks of a configuration: the load of a full cache.
fn blocks(config: &WorkerConfig) -> Option<u64> {
    let full = read(&usage(1.0)).loads(&(), config, WaitingTokens::Ignored);
    full[0].kv_used_blocks
}

#[test]
fn vllm_with_its_first_engine() {
    let ranks = [(0, Some(0.29010718678615355), Some(2), Some(12))];
    says(VLLM_0_6, Engine::Vllm, &ranks, Some(5691), Some(400.0));
    assert_eq!(
        loads(VLLM_0_6),
        (vec![(0, Some(1651), Some(800))], Some(5691))
    );
}

#[test]
fn vllm_that_has_not_counted_its_blocks_and_served_nothing() {
    let ranks = [(0, Some(0.0625), Some(0), Some(3))];
    says(VLLM_0_8, Engine::Vllm, &ranks, None, None);
    // Nobody waits: that is 0 tokens, however long prompts are.
    assert_eq!(
        loads(VLLM_0_8),
        (vec![(0, Some(625), Some(0))], Some(STAND_IN_BLOCKS))
    );
    let one_waits = VLLM_0_8.replace(
        "num_requests_waiting{engine=\"0\",model_name=\"Qwen/Qwen2.5-7B-Instruct\"} 0.0",
        "num_requests_waiting{engine=\"0\",model_name=\"Qwen/Qwen2.5-7B-Instruct\"} 1.0",
    );
    assert_eq!(loads(&one_waits).0, [(0, Some(625), None)]);
}

#[test]
fn vllm_with_both_names_of_the_usage() {
    let ranks = [(0, Some(0.62), Some(3), Some(7))];
    says(
        VLLM_0_10,
        Engine::Vllm,
        &ranks,
        Some(102_563),
        Some(250.125),
    );
    assert_eq!(loads(VLLM_0_10).0, [(0, Some(63_589), Some(750))]);
    let newer = VLLM_0_10.replacen(
        "perc{engine=\"0\",model_name=\"zai-org/GLM-4.5\"} 0.62",
        "perc{engine=\"0\"} 0.9",
        1,
    );
    assert_eq!(
        read(&newer).ranks()[0].kv_usage,
        Some(0.62),
        "the newer name"
    );
}

#[test]
fn vllm_with_data_parallel_ranks() {
    let ranks = [
        (0, Some(0.9765625), Some(72), Some(24)),
        (1, Some(0.5), Some(0), Some(20)),
    ];
    says(VLLM_0_12_DP, Engine::Vllm, &ranks, Some(2048), Some(2000.0));
    let of_ranks = vec![(0, Some(2000), Some(144_000)), (1, Some(1024), Some(0))];
    assert_eq!(loads(VLLM_0_12_DP), (of_ranks, Some(2048)));
}

#[test]
fn vllm_that_is_one_rank_of_several() {
    let ranks = [(3, Some(9.75010481363281e-06), Some(0), Some(1))];
    says(VLLM_0_12_EXTERNAL, Engine::Vllm, &ranks, Some(2048), None);
    assert_eq!(loads(VLLM_0_12_EXTERNAL).0, [(3, Some(0), Some(0))]);
}

#[test]
fn sglang_that_tells_a_rounded_share_and_no_capacity() {
    let ranks = [(0, Some(0.28), Some(2826), Some(162))];
    says(SGLANG_0_4, Engine::Sglang, &ranks, None, Some(812.8902));
    assert_eq!(
        loads(SGLANG_0_4),
        (
            vec![(0, Some(2800), Some(2_297_228))],
            Some(STAND_IN_BLOCKS)
        )
    );
}

#[test]
fn sglang_whose_tensor_parallel_ranks_and_priorities_are_one_rank() {
    // 239901 / 262144 is 0.92 when rounded: the quotient is exact.
    let usage = 239_901.0 / 262_144.0;
    let ranks = [(0, Some(usage), Some(5), Some(16))];
    says(
        SGLANG_0_5_TP,
        Engine::Sglang,
        &ranks,
        Some(262_144),
        Some(1024.0),
    );
    assert_eq!(loads(SGLANG_0_5_TP).0, [(0, Some(239_901), Some(5120))]);
}

#[test]
fn of_several_views_of_one_scheduler_the_largest_counts() {
    let text = "sglang:num_queue_reqs{priority=\"1\"} 10\n\
                sglang:num_queue_reqs{priority=\"\"} 16\n\
                sglang:num_queue_reqs{priority=\"2\"} 6\n";
    assert_eq!(read(text).ranks()[0].waiting, Some(16));
}

#[test]
fn sglang_with_data_parallel_ranks_and_pages() {
    let ranks = [
        // Another pool than that of tokens is fuller: the engine's own share.
        (0, Some(0.75), Some(0), Some(8)),
        (1, Some(0.854321), Some(11), Some(2)),
    ];
    says(SGLANG_0_5_DP, Engine::Sglang, &ranks, Some(62_500), None);
    let of_ranks = vec![(0, Some(46_875), Some(0)), (1, Some(53_395), None)];
    assert_eq!(loads(SGLANG_0_5_DP), (of_ranks, Some(62_500)));
    let no_pages: String = SGLANG_0_5_DP
        .lines()
        .filter(|line| !line.contains("num_pages"))
        .flat_map(|line| [line, "\n"])
        .collect();
    assert_eq!(read(&no_pages).kv_blocks(), Some(62_500), "1e6 / 16");
}

#[test]
fn sglang_with_underscores() {
    let ranks = [(0, Some(0.25), Some(4), Some(3))];
    says(SGLANG_LOADS, Engine::Sglang, &ranks, Some(4000), None);
}

#[test]
fn a_label_of_the_applications_own_tells_ranks_apart() {
    let text = b"vllm:kv_cache_usage_perc{engine=\"0\",replica=\"7\"} 0.5\n";
    let report = EngineReport::read_with_rank_label(text, "replica").unwrap();
    assert_eq!(report.ranks()[0].dp_rank, 7);
}

#[test]
fn what_the_application_has_configured_stays() {
    let report = read(VLLM_0_12_DP);
    let known = WorkerConfig::new([5])
        .unwrap()
        .kv_total_blocks(100)
        .max_num_batched_tokens(8192)
        .worker_type("prefill");
    assert_eq!(report.complete(known.clone()), known);
    let ranks = known.clone().kv_total_blocks(None);
    assert_eq!(
        report.complete_with_ranks(ranks),
        WorkerConfig::new([0, 1])
            .unwrap()
            .kv_total_blocks(2048)
            .max_num_batched_tokens(8192)
            .worker_type("prefill")
    );
    // The share is of the configured blocks: that is what the monitor
    // divides by.
    let loads = report.loads(&"a", &known, WaitingTokens::Ignored);
    assert_eq!(loads[0], LoadEvent::new("a", 0).kv_used_blocks(98));
    assert_eq!(loads[1], LoadEvent::new("a", 1).kv_used_blocks(50));
}

#[test]
fn a_share_that_is_whole_blocks_is_exactly_those() {
    // As the engine divides, whatever that rounds to.
    for total in [1, 3, 7, 29, 100, 101, 4096, 5691, 10_000, 102_563] {
        let config = WorkerConfig::new([0]).unwrap().kv_total_blocks(total);
        for used in (0..=total).step_by((total / 97).max(1) as usize) {
            for share in [
                used as f64 / total as f64,
                1.0 - (total - used) as f64 / total as f64,
            ] {
                let loads = read(&usage(share)).loads(&(), &config, WaitingTokens::Ignored);
                assert_eq!(loads[0].kv_used_blocks, Some(used), "{share} of {total}");
            }
        }
    }
}

#[test]
fn waiting_requests_count_as_the_application_says() {
    let report = read(VLLM_0_12_DP);
    let config = WorkerConfig::new([0, 1]).unwrap();
    let tokens = |waiting| {
        let loads = report.loads(&(), &config, waiting);
        [0, 1].map(|rank: usize| loads[rank].active_prefill_tokens)
    };
    assert_eq!(tokens(WaitingTokens::Fixed(10)), [Some(720), Some(0)]);
    assert_eq!(
        tokens(WaitingTokens::Fixed(u64::MAX)),
        [Some(u64::MAX), Some(0)]
    );
    assert_eq!(tokens(WaitingTokens::Ignored), [None, None]);
}

#[test]
fn a_text_without_an_engines_load_is_none() {
    for text in [
        "",
        "\n",
        "# EOF\n",
        "up 1\n",
        "vllm:num_preemptions_total{engine=\"0\"} 1\n",
        "vllmx:num_requests_waiting 1\n",
        "<!doctype html>\n<html></html>\n",
    ] {
        let read = EngineReport::read(text.as_bytes());
        assert_eq!(read, Err(UnreadableMetrics::UnknownEngine), "{text:?}");
    }
}

#[test]
fn a_text_that_is_cut_off_anywhere_never_tells_another_figure() {
    for text in TEXTS {
        let whole = read(text);
        for end in 1..text.len() {
            let Ok(part) = EngineReport::read(&text.as_bytes()[..end]) else {
                continue;
            };
            assert!(text[..end].ends_with('\n'));
            for rank in part.ranks() {
                let same = whole.ranks().iter().find(|it| it.dp_rank == rank.dp_rank);
                let same = same.unwrap();
                assert!(rank.waiting.is_none() || rank.waiting == same.waiting);
            }
        }
        let cut = &text.as_bytes()[..text.len() - 1];
        assert_eq!(EngineReport::read(cut), Err(UnreadableMetrics::Truncated));
    }
}
