//! Texts that a worker might write to do harm, or a broken one by mistake.

use crate::support::*;
use proptest::prelude::*;
use std::{collections::BTreeSet, fmt::Write};
use tower_overload::{
    load::WorkerConfig,
    scrape::{EngineReport, WaitingTokens},
};

/// What holds of every report, whatever the text was.
fn is_sound(report: &EngineReport) {
    let ranks = report.ranks();
    assert!(!ranks.is_empty());
    assert!(
        ranks
            .iter()
            .all(|rank| (rank.dp_rank as usize) < WorkerConfig::MAX_RANKS)
    );
    assert!(
        ranks
            .windows(2)
            .all(|pair| pair[0].dp_rank < pair[1].dp_rank)
    );
    let config = report.complete_with_ranks(WorkerConfig::new([0]).unwrap());
    assert!(WorkerConfig::new(config.ranks().iter().copied()).is_ok());
    assert_ne!(report.kv_blocks(), Some(0));
    for rank in ranks {
        assert!(
            rank.kv_usage
                .is_none_or(|usage| (0.0..=1.0).contains(&usage))
        );
    }
    for config in [config, WorkerConfig::new([0]).unwrap().kv_total_blocks(100)] {
        let loads = report.loads(&"asked", &config, WaitingTokens::EngineMean);
        assert_eq!(loads.len(), ranks.len());
        for load in loads {
            assert_eq!(load.worker, "asked");
            let most = report.kv_blocks().unwrap_or(10_000).max(100);
            assert!(load.kv_used_blocks.is_none_or(|used| used <= most));
            let tokens = load.active_prefill_tokens;
            assert!(tokens.is_none_or(|tokens| tokens <= 1 << 53));
        }
    }
}

#[test]
fn a_figure_that_cannot_be_is_absent_and_counted() {
    for value in ["NaN", "+Inf", "-Inf", "-0.1", "1.0000001", "87", "1e400"] {
        let text = format!(
            "vllm:kv_cache_usage_perc {value}\nvllm:num_requests_waiting 2\nvllm:num_requests_running 3\n"
        );
        let report = read(&text);
        let rank = report.ranks()[0];
        assert_eq!(rank.kv_usage, None, "{value}");
        assert_eq!((rank.waiting, rank.running), (Some(2), Some(3)));
        assert_eq!(report.ignored(), 1);
    }
    for value in ["NaN", "+Inf", "-1", "1.5", "1e300", "-1e-300"] {
        let text = format!("vllm:kv_cache_usage_perc 0.5\nvllm:num_requests_waiting {value}\n");
        let report = read(&text);
        let rank = report.ranks()[0];
        assert_eq!((rank.kv_usage, rank.waiting), (Some(0.5), None), "{value}");
        assert_eq!(report.ignored(), 1);
    }
    for blocks in [
        "-1",
        "1e3",
        "9007199254740993",
        "99999999999999999999",
        "many",
    ] {
        let text = format!(
            "vllm:kv_cache_usage_perc 0.5\nvllm:cache_config_info{{num_gpu_blocks=\"{blocks}\"}} 1\n"
        );
        let report = read(&text);
        assert_eq!(
            (report.kv_blocks(), report.ignored()),
            (None, 1),
            "{blocks}"
        );
    }
    let not_ready = "sglang:token_usage 0\nsglang:max_total_num_tokens 0\nsglang:page_size 0\n";
    assert_eq!(read(not_ready).kv_blocks(), None);
}

#[test]
fn a_mean_that_cannot_be_is_none() {
    for (sum, count) in [
        ("NaN", "1"),
        ("1", "NaN"),
        ("+Inf", "1"),
        ("-5", "1"),
        ("5", "0"),
        ("5", "-1"),
        ("0", "0"),
        ("1e300", "1"),
    ] {
        let text = format!(
            "vllm:num_requests_waiting 9007199254740992\n\
             vllm:request_prompt_tokens_sum {sum}\nvllm:request_prompt_tokens_count {count}\n"
        );
        assert_eq!(read(&text).mean_prompt_tokens(), None, "{sum} / {count}");
    }
    let too_many = "vllm:num_requests_waiting 9007199254740992\n\
                    vllm:request_prompt_tokens_sum 8\nvllm:request_prompt_tokens_count 4\n";
    let config = WorkerConfig::new([0]).unwrap();
    let loads = read(too_many).loads(&(), &config, WaitingTokens::EngineMean);
    assert_eq!(loads[0].active_prefill_tokens, None);
}

#[test]
fn a_rank_that_is_no_number_is_ignored_and_counted() {
    for rank in ["-1", "+1", "1.0", "4294967296", "a", " 1", "0x1"] {
        let text = format!(
            "vllm:num_requests_waiting{{engine=\"{rank}\"}} 7\nvllm:num_requests_waiting 1\n"
        );
        let report = read(&text);
        assert_eq!(report.ranks().len(), 1, "{rank}");
        assert_eq!(report.ranks()[0].waiting, Some(1));
        assert_eq!(report.ignored(), 1);
    }
}

#[test]
fn ranks_beyond_those_that_a_worker_can_have_are_ignored_and_counted() {
    let mut text = String::new();
    for rank in (0..10_000).rev() {
        writeln!(text, "vllm:num_requests_waiting{{engine=\"{rank}\"}} 1").unwrap();
    }
    writeln!(text, "vllm:kv_cache_usage_perc{{engine=\"3\"}} 0.5").unwrap();
    let report = read(&text);
    is_sound(&report);
    assert_eq!(report.ranks().len(), WorkerConfig::MAX_RANKS);
    assert_eq!(report.ignored(), 10_000 - WorkerConfig::MAX_RANKS as u64);
    assert_eq!(report.ranks()[3].kv_usage, Some(0.5));
}

/// A gauge of a rank stays with the recorder when the rank is gone.
#[test]
fn a_worker_whose_ranks_are_always_others_has_no_more_of_them_in_all() {
    let mut seen = BTreeSet::new();
    for first in (0..u32::MAX).step_by(1 << 26) {
        let mut text = usage(0.5);
        for rank in (first..).take(WorkerConfig::MAX_RANKS) {
            writeln!(text, "vllm:kv_cache_usage_perc{{engine=\"{rank}\"}} 1").unwrap();
        }
        let report = read(&text);
        is_sound(&report);
        seen.extend(report.ranks().iter().map(|rank| rank.dp_rank));
    }
    assert!(seen.len() <= WorkerConfig::MAX_RANKS, "{}", seen.len());
}

#[test]
fn labels_that_name_other_workers_or_models_name_nobody() {
    let text = "vllm:kv_cache_usage_perc{engine=\"0\",worker_id=\"other\",instance=\"other\",worker=\"other\"} 1\n";
    is_sound(&read(text));
}

#[test]
fn a_bad_line_costs_that_line() {
    let text = format!(
        "\u{fffd}\u{0}\nvllm:num_requests_waiting{{engine=\"0}} 5\n{{}} 1\n{}",
        usage(0.5)
    );
    let report = read(&text);
    assert_eq!(report.ranks()[0].kv_usage, Some(0.5));
    assert_eq!(report.ranks()[0].waiting, None);
    assert_eq!(report.ignored(), 3);
}

#[test]
fn a_label_of_a_megabyte_is_read() {
    let long = "\\\"{,".repeat(1 << 18);
    let text = format!("x{{a=\"{long}\"}} 1\nvllm:kv_cache_usage_perc{{a=\"{long}\"}} 0.5\n");
    assert_eq!(read(&text).ranks()[0].kv_usage, Some(0.5));
}

/// What somebody does to a text.
#[derive(Clone, Debug)]
enum Damage {
    Set(usize, u8),
    Remove(usize, usize),
    Repeat(usize, usize),
    Insert(usize, &'static str),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0..4096_usize;
    let pieces = prop::sample::select(vec![
        "{",
        "}",
        "\"",
        "\\",
        ",",
        "=",
        "\n",
        " ",
        "NaN",
        "-",
        "1e999",
        "+Inf",
        "engine=\"1\",",
        "\u{e9}",
        "\0",
    ]);
    prop_oneof![
        (at.clone(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (at.clone(), 1..64_usize).prop_map(|(at, n)| Damage::Remove(at, n)),
        (at.clone(), 1..256_usize).prop_map(|(at, n)| Damage::Repeat(at, n)),
        (at, pieces).prop_map(|(at, piece)| Damage::Insert(at, piece)),
    ]
}

fn damaged(text: &str, damages: &[Damage]) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    for damage in damages {
        let place = |at: usize| at % text.len().max(1);
        match *damage {
            _ if text.is_empty() => {}
            Damage::Set(at, byte) => {
                let at = place(at);
                text[at] = byte;
            }
            Damage::Remove(at, n) => {
                let at = place(at);
                text.drain(at..text.len().min(at + n));
            }
            Damage::Repeat(at, n) => {
                let at = place(at);
                let piece = text[at..text.len().min(at + n)].to_vec();
                text.splice(at..at, piece);
            }
            Damage::Insert(at, piece) => {
                let at = place(at);
                text.splice(at..at, piece.bytes());
            }
        }
    }
    text
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..2000)) {
        if let Ok(report) = EngineReport::read(&text) {
            is_sound(&report);
        }
    }

    #[test]
    fn a_damaged_text_is_refused_or_sound(
        text in prop::sample::select(TEXTS),
        damages in prop::collection::vec(damage(), 1..12),
    ) {
        let mut text = damaged(text, &damages);
        text.push(b'\n');
        if let Ok(report) = EngineReport::read(&text) {
            is_sound(&report);
        }
    }

    #[test]
    fn any_values_under_the_known_names_are_sound(
        values in prop::collection::vec((0..10_usize, any::<f64>(), any::<i64>()), 1..40),
    ) {
        const NAMES: [&str; 10] = [
            "vllm:kv_cache_usage_perc", "vllm:num_requests_waiting", "vllm:num_requests_running",
            "vllm:request_prompt_tokens_sum", "vllm:request_prompt_tokens_count",
            "sglang:token_usage", "sglang:num_used_tokens", "sglang:max_total_num_tokens",
            "sglang:page_size", "sglang:num_queue_reqs",
        ];
        let mut text = String::new();
        for (name, value, rank) in values {
            writeln!(text, "{}{{engine=\"{rank}\",dp_rank=\"{rank}\"}} {value}", NAMES[name]).unwrap();
            writeln!(text, "{} {value}", NAMES[name]).unwrap();
            writeln!(text, "{} {rank}", NAMES[name]).unwrap();
        }
        if let Ok(report) = EngineReport::read(text.as_bytes()) {
            is_sound(&report);
        }
    }
}
