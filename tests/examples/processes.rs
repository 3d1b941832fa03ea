//! The examples as processes: their options, their first line, their end.

use crate::{
    process::{Process, example, refusal},
    support::{Client, events, text},
};
use tokio::process::Command;

/// Starts a worker on a free port, and says where it is.
async fn start(command: &mut Command) -> (Process, String) {
    let mut process = Process::start(command.args(["--listen", "127.0.0.1:0"]));
    let line = process.line().await;
    let url = line.strip_prefix("listening on ").unwrap().to_owned();
    (process, url)
}

#[tokio::test]
async fn a_bad_option_is_named_with_its_value_and_what_is_allowed() {
    for (option, bad, allowed) in [
        ("--listen", "nowhere", "an IP address and a port"),
        ("--id", "", "at least one character"),
        ("--model", "", "at least one character"),
        ("--engine-request-limit", "0", "from 1 to"),
        ("--engine-request-limit", "-1", "from 1 to"),
        ("--engine-request-limit", "many", "from 1 to"),
        ("--request-queue-limit", "1", "from 2 to"),
        ("--prefill-tokens-per-second", "-1", "at least 0"),
        ("--decode-tokens-per-second", "NaN", "at least 0"),
        ("--kv-total-blocks", "0", "from 1 to"),
        ("--kv-block-size", "0", "from 1 to"),
        ("--max-num-batched-tokens", "1.5", "from 1 to"),
        ("--dp-ranks", "0", "from 1 to"),
        ("--register", "https://127.0.0.1:9000", "http://HOST:PORT"),
        ("--advertise", "127.0.0.1:8100", "http://HOST:PORT"),
    ] {
        let first = refusal(example("worker").args([option, bad])).await;
        for part in [option, bad, allowed] {
            assert!(first.contains(part), "{option} {bad}: {first}");
        }
    }
}

#[tokio::test]
async fn an_address_that_is_in_use_is_named() {
    let (_child, url) = start(&mut example("worker")).await;
    let address = url.strip_prefix("http://").unwrap();
    let first = refusal(example("worker").args(["--listen", address])).await;
    assert!(
        first.contains("--listen") && first.contains(address),
        "{first}"
    );
}

#[tokio::test]
async fn a_bad_variable_is_named_with_its_value_and_what_is_allowed() {
    let (slots, queue) = ("DYN_ENGINE_REQUEST_LIMIT", "DYN_DYNAMO_REQUEST_QUEUE_LIMIT");
    for (variable, bad, allowed) in [
        (slots, "0", "from 1 to"),
        (slots, "-1", "from 1 to"),
        (slots, "many", "from 1 to"),
        (queue, "1", "from 2 to"),
        (queue, "many", "from 2 to"),
    ] {
        let mut command = example("worker");
        let first = refusal(command.env(slots, "2").env(variable, bad)).await;
        for part in [variable, bad, allowed] {
            assert!(first.contains(part), "{variable}={bad}: {first}");
        }
    }
}

#[tokio::test]
async fn a_flag_beats_a_variable_and_an_empty_variable_is_unset() {
    let (slots, queue) = ("DYN_ENGINE_REQUEST_LIMIT", "DYN_DYNAMO_REQUEST_QUEUE_LIMIT");
    let mut command = example("worker");
    command.env(slots, "bad").env(queue, "");
    let (_child, url) = start(command.args(["--engine-request-limit", "1"])).await;
    let metrics = text(Client::new(url).get("/metrics").await).await;
    assert!(metrics.contains("dynamo_engine_request 0"), "{metrics}");

    // Without a cap the queue's variable is not read.
    let mut command = example("worker");
    let (_child, url) = start(command.env(slots, "").env(queue, "bad")).await;
    let metrics = text(Client::new(url).get("/metrics").await).await;
    assert!(!metrics.contains("dynamo_engine_request"), "{metrics}");
}

#[tokio::test]
async fn a_replay_names_what_it_cannot_use() {
    let url = ["--url", "http://127.0.0.1:1"];
    for (option, bad, allowed) in [
        ("--trace", "/no/such/trace.csv", "a trace"),
        (
            "--trace",
            "Cargo.toml",
            "TIMESTAMP,ContextTokens,GeneratedTokens",
        ),
        ("--speedup", "0", "above 0"),
        ("--limit", "0", "from 1 to"),
        ("--ttft-ms", "-1", "above 0"),
        ("--tpot-ms", "x", "above 0"),
    ] {
        let mut command = example("replay");
        if option != "--trace" {
            command.args(["--trace", "x"]);
        }
        let first = refusal(command.args(url).args([option, bad])).await;
        for part in [option, bad, allowed] {
            assert!(first.contains(part), "{option} {bad}: {first}");
        }
    }
    let first = refusal(&mut example("replay")).await;
    assert!(
        first.contains("--trace") && first.contains("--url"),
        "{first}"
    );
}

#[tokio::test]
async fn a_replay_ends_with_its_table() {
    let mut command = example("worker");
    let rates = [
        "--prefill-tokens-per-second",
        "0",
        "--decode-tokens-per-second",
        "0",
    ];
    let (_child, url) = start(command.args(rates)).await;
    let trace = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/data/azure_code_2023.csv"
    );
    let output = example("replay")
        .args([
            "--trace",
            trace,
            "--url",
            &url,
            "--speedup",
            "1000",
            "--limit",
            "20",
        ])
        .output()
        .await
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "there is no progress bar without a terminal");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let count = |name: &str| {
        let line = stdout.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..]
            .split_whitespace()
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(count("offered"), "20", "{stdout}");
    assert_eq!(count("succeeded"), "20", "{stdout}");
    assert_eq!(count("failed"), "0", "{stdout}");
}

#[tokio::test]
async fn a_replay_says_what_it_leaves_out_of_a_trace() {
    let trace = std::env::temp_dir().join(format!("tower-overload-{}.jsonl", std::process::id()));
    let line =
        r#"{"timestamp": 27482, "input_length": 6955, "output_length": 2, "hash_ids": [46]}"#;
    std::fs::write(&trace, format!("{line}\n{line}\n{{\"timest")).unwrap();
    let output = example("replay")
        .args(["--embedded", "--speedup", "1000", "--trace"])
        .arg(&trace)
        .env("RUST_LOG", "off")
        .output()
        .await
        .unwrap();
    std::fs::remove_file(&trace).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains("left out 1 of 3 lines, the first is line 3"),
        "{stderr}"
    );
    let stdout = String::from_utf8(output.stdout).unwrap();
    let offered = stdout.lines().find(|line| line.starts_with("offered"));
    assert_eq!(offered.unwrap().split_whitespace().nth(1), Some("2"));
}

#[cfg(unix)]
#[tokio::test]
async fn a_worker_that_is_terminated_drains_and_exits_with_0() {
    let mut command = example("worker");
    let rates = [
        "--prefill-tokens-per-second",
        "0",
        "--decode-tokens-per-second",
        "100",
    ];
    let (worker, url) = start(command.args(rates)).await;
    let running = Client::new(url).start(20).await;
    worker.terminate();
    assert_eq!(events(&text(running).await).len(), 22);
    assert_eq!(worker.code().await, Some(0));
}
