//! The gateway as a process: its options, its first lines, its end.

use crate::{
    gateway::GatewayConfig,
    process::{Process, example, refusal},
    serving::{Client, events, prompt, text, value},
    support::{COMPLETIONS, NOWHERE, Stub, eventually},
};
use http::Method;
use http_body_util::BodyExt;
use overload_examples::cli::try_parse;
use serde_json::{Value, json};
use std::{ffi::OsString, time::Duration};
use tokio::{net::TcpListener, process::Command};

const DECODE: &str = "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD";
const PREFILL: &str = "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD";
const PREFILL_FRAC: &str = "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC";
const STATUS: &str = "DYN_HTTP_OVERLOAD_STATUS_CODE";

/// A gateway on free ports.
pub struct Started {
    process: Process,
    pub public: Client,
    pub admin: Client,
}

pub async fn start(command: &mut Command) -> Started {
    let ports = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let mut process = Process::start(command.args(ports));
    let mut url = async |what| {
        let line = process.line().await;
        let url: &str = line.strip_prefix(what).expect(&line);
        assert!(!url.ends_with(":0"), "the real port: {line}");
        Client::new(url)
    };
    Started {
        public: url("listening on ").await,
        admin: url("admin listening on ").await,
        process,
    }
}

impl Started {
    async fn ids(&self) -> Vec<Value> {
        let workers = value(self.admin.get("/workers").await).await;
        let workers = workers["workers"].as_array().unwrap().iter();
        workers.map(|worker| worker["id"].clone()).collect()
    }
}

fn config(flags: &[&str], environment: &[(&str, &str)]) -> Result<GatewayConfig, String> {
    let args = ["gateway"].iter().chain(flags).map(OsString::from);
    let config: GatewayConfig = try_parse(args).map_err(|error| error.to_string())?;
    config
        .with_environment(&|name| {
            let mut variables = environment.iter();
            let (_, value) = variables.find(|(variable, _)| *variable == name)?;
            Some(value.into())
        })
        .map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_bad_option_is_named_with_its_value_and_what_is_allowed() {
    let long = "x".repeat(257);
    for (option, bad, allowed) in [
        ("--listen", "nowhere", "an IP address and a port"),
        ("--admin-listen", "127.0.0.1", "an IP address and a port"),
        ("--model", "", "at least one character"),
        ("--model", &long, "at most 256"),
        ("--worker", "a", "ID=URL"),
        ("--worker", "=http://127.0.0.1:1", "at least one character"),
        ("--worker", "a=https://127.0.0.1:1", "http://HOST:PORT"),
        ("--worker", "a=", "http://HOST:PORT"),
        ("--embedded-workers", "257", "from 0 to 256"),
        ("--embedded-workers", "-1", "from 0 to 256"),
        ("--embedded-engine-request-limit", "0", "from 1 to"),
        ("--embedded-request-queue-limit", "1", "from 2 to"),
        ("--embedded-prefill-tokens-per-second", "-1", "at least 0"),
        ("--embedded-decode-tokens-per-second", "NaN", "at least 0"),
        ("--embedded-kv-total-blocks", "0", "from 1 to"),
        ("--embedded-kv-block-size", "0", "from 1 to"),
        ("--embedded-max-num-batched-tokens", "1.5", "from 1 to"),
        ("--embedded-dp-ranks", "0", "from 1 to"),
        ("--active-decode-blocks-threshold", "1.1", "from 0 to 1"),
        ("--active-decode-blocks-threshold", "-0.1", "from 0 to 1"),
        ("--active-decode-blocks-threshold", "NaN", "from 0 to 1"),
        ("--active-prefill-tokens-threshold", "-1", "from 0 to"),
        ("--active-prefill-tokens-threshold", "1.5", "from 0 to"),
        ("--active-prefill-tokens-threshold-frac", "-1", "at least 0"),
        (
            "--active-prefill-tokens-threshold-frac",
            "inf",
            "at least 0",
        ),
        ("--lease-ms", "-1", "from 0 to"),
        ("--lease-ms", "86400001", "to 86400000"),
        ("--stale-after-ms", "soon", "from 0 to"),
        ("--registration-ttl-ms", "0", "from 1 to"),
        ("--scrape-interval-ms", "0", "from 1 to"),
        ("--max-wait-ms", "1.5", "from 0 to"),
        ("--balance", "fastest", "least-tokens"),
        ("--affinity-header", "no header", "the name of a header"),
        ("--affinity-header", "x-session", "--balance affinity"),
        ("--max-in-flight", "0", "from 1 to"),
        ("--max-waiting", "-1", "from 0 to"),
        ("--probe-timeout-ms", "0", "from 1 to"),
        ("--connect-timeout-ms", "-1", "from 0 to"),
        ("--head-timeout-ms", "1.5", "from 0 to"),
        ("--whole-head-timeout-ms", "never", "from 0 to"),
        ("--first-frame-timeout-ms", "86400001", "to 86400000"),
        ("--frame-timeout-ms", "", "from 0 to"),
        ("--retry-refused", "65", "from 0 to 64"),
        ("--retry-budget-percent", "1001", "to 1000"),
        ("--retry-lost-percent", "101", "to 100"),
        ("--max-body-bytes", "0", "from 1 to"),
        ("--body-silence-ms", "0", "from 1 to"),
        ("--client-idle-ms", "0", "from 1 to"),
        ("--worker-kv-total-blocks", "0", "from 1 to"),
        ("--worker-max-num-batched-tokens", "-1", "from 1 to"),
        ("--router-block-size", "0", "from 1 to"),
    ] {
        let first = refusal(example("gateway").args([option, bad])).await;
        for part in [option, bad, allowed] {
            assert!(first.contains(part), "{option} {bad}: {first}");
        }
    }
}

#[test]
fn a_time_limit_of_a_worker_has_its_default_or_is_as_asked_and_0_switches_it_off() {
    let limits = |flags: &[&str]| {
        let limits = config(flags, &[]).unwrap().limits;
        let ms = |limit: Option<Duration>| limit.map(|limit| limit.as_millis());
        [
            ms(limits.connect),
            ms(limits.head),
            ms(limits.whole_head),
            ms(limits.first_frame),
            ms(limits.frame),
        ]
    };
    let default = [Some(1000), Some(60_000), None, Some(60_000), Some(30_000)];
    assert_eq!(limits(&[]), default);
    for (n, option) in [
        "--connect-timeout-ms",
        "--head-timeout-ms",
        "--whole-head-timeout-ms",
        "--first-frame-timeout-ms",
        "--frame-timeout-ms",
    ]
    .iter()
    .enumerate()
    {
        for (value, limit) in [
            ("0", None),
            ("250", Some(250)),
            ("86400000", Some(86_400_000)),
        ] {
            let mut expected = default;
            expected[n] = limit;
            assert_eq!(limits(&[option, value]), expected, "{option} {value}");
        }
    }
}

#[tokio::test]
async fn a_limit_of_the_command_line_ends_a_request_that_hangs() {
    let hangs = Stub::hanging().await;
    let worker = format!("a={}", hangs.url);
    let flags = ["--worker", &worker, "--head-timeout-ms", "50"];
    let gateway = start(example("gateway").args(flags)).await;
    let response = gateway.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(response.status().as_u16(), 503);
    assert_eq!(response.headers()["x-overload-reason"], "worker_timeout");
}

#[tokio::test]
async fn workers_of_one_id_are_refused() {
    let same = ["--worker", "a=http://127.0.0.1:1", "--worker"];
    for flags in [
        [same[0], same[1], same[2], "a=http://127.0.0.1:2"],
        [
            "--embedded-workers",
            "2",
            "--worker",
            "worker-1=http://127.0.0.1:2",
        ],
    ] {
        let first = refusal(example("gateway").args(flags)).await;
        for part in ["--worker", flags[3], "an id that no other worker has"] {
            assert!(first.contains(part), "{first}");
        }
    }
    let apart = [
        "--embedded-workers",
        "1",
        "--worker",
        "worker-1=http://127.0.0.1:2",
    ];
    assert!(config(&apart, &[]).is_ok());
}

#[test]
fn metrics_are_read_only_if_asked_for_each_second_or_as_often_as_asked() {
    let scrape = |flags: &[&str]| {
        let config = config(flags, &[]).unwrap();
        config.scrape.then_some(config.scrape_interval)
    };
    assert_eq!(scrape(&[]), None);
    assert_eq!(scrape(&["--scrape-interval-ms", "250"]), None);
    assert_eq!(scrape(&["--scrape"]), Some(Duration::from_secs(1)));
    assert_eq!(
        scrape(&["--scrape", "--scrape-interval-ms", "250"]),
        Some(Duration::from_millis(250))
    );
}

#[test]
fn metrics_that_would_be_stale_before_they_are_read_again_are_refused() {
    let stale = |flags: &[&str]| config(flags, &[]).map(|it| it.scrape);
    let seldom = ["--scrape", "--scrape-interval-ms", "15001"];
    let error = stale(&seldom).unwrap_err();
    for part in [seldom[1], seldom[2], "half", "--stale-after-ms", "30000"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(stale(&["--scrape", "--stale-after-ms", "1999"]).is_err());
    assert!(stale(&["--scrape", "--stale-after-ms", "2000"]).is_ok());
    assert!(stale(&seldom[1..]).is_ok(), "nothing is read");
    let for_ever = ["--stale-after-ms", "0"];
    assert!(stale(&[&seldom[..], &for_ever].concat()).is_ok());
}

#[tokio::test]
async fn options_that_exclude_each_other_are_named() {
    let both = ["--no-embedded-workers", "--embedded-workers", "1"];
    let first = refusal(example("gateway").args(both)).await;
    for part in ["--no-embedded-workers", "--embedded-workers"] {
        assert!(first.contains(part), "{first}");
    }
}

#[test]
fn load_is_counted_by_requests_if_a_flag_asks_for_it() {
    let tracking = |flags: &[&str]| {
        let config = config(flags, &[]).unwrap();
        let how = (
            config.router_block_size.get(),
            config.router_track_output_blocks,
        );
        config.tracks_load().then_some(how)
    };
    assert_eq!(tracking(&[]), None);
    assert_eq!(tracking(&["--router-block-size", "32"]), None);
    assert_eq!(tracking(&["--router-track-load"]), Some((16, false)));
    let output = ["--router-track-output-blocks", "--router-block-size", "32"];
    assert_eq!(tracking(&output), Some((32, true)), "it is enough alone");
}

#[tokio::test]
async fn an_address_that_is_in_use_is_named_with_its_option() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let _held = TcpListener::bind(&taken).await;
    for option in ["--listen", "--admin-listen"] {
        let mut command = example("gateway");
        let other = if option == "--listen" {
            "--admin-listen"
        } else {
            "--listen"
        };
        let first = refusal(command.args([other, "127.0.0.1:0", option, &taken])).await;
        assert!(
            first.contains(&format!("{option}:")) && first.contains(&taken),
            "{first}"
        );
    }
}

#[tokio::test]
async fn a_bad_variable_is_named_with_its_value_and_what_is_allowed() {
    for (variable, bad, allowed) in [
        (DECODE, "1.1", "from 0 to 1"),
        (DECODE, "many", "from 0 to 1"),
        (PREFILL, "-1", "from 0 to"),
        (PREFILL, "1.5", "from 0 to"),
        (PREFILL_FRAC, "-1", "at least 0"),
        (PREFILL_FRAC, "NaN", "at least 0"),
    ] {
        let first = refusal(example("gateway").env(variable, bad)).await;
        for part in [variable, bad, allowed] {
            assert!(first.contains(part), "{variable}={bad}: {first}");
        }
    }
}

#[tokio::test]
async fn a_flag_beats_its_variable_and_an_empty_variable_is_unset() {
    let mut command = example("gateway");
    command
        .env(DECODE, "bad")
        .env(PREFILL, "")
        .env(PREFILL_FRAC, " 1.5 ");
    let gateway = start(command.args(["--active-decode-blocks-threshold", "0.5"])).await;
    let thresholds = value(gateway.admin.get("/busy_threshold").await).await;
    let expected = json!({"thresholds": [{
        "model": "tiny",
        "active_decode_blocks_threshold": 0.5,
        "active_prefill_tokens_threshold": null,
        "active_prefill_tokens_threshold_frac": 1.5,
    }]});
    assert_eq!(thresholds, expected);
}

#[test]
fn the_flags_set_the_thresholds_of_the_model() {
    let flags = [
        "--model",
        "m",
        "--active-prefill-tokens-threshold",
        "18446744073709551615",
    ];
    assert!(config(&flags, &[]).is_ok());
    assert!(config(&[], &[(DECODE, "0"), (PREFILL, "0"), (PREFILL_FRAC, "0")]).is_ok());
    assert!(config(&[], &[(DECODE, ""), (PREFILL, " "), (PREFILL_FRAC, "")]).is_ok());
}

#[test]
fn the_status_of_overload_is_a_status_or_529() {
    for (value, status) in [
        ("503", 503),
        (" 429 ", 429),
        ("200", 200),
        ("999", 999),
        ("529", 529),
        ("", 529),
        ("abc", 529),
        ("99", 529),
        ("100", 529),
        ("199", 529),
        ("1000", 529),
        ("-503", 529),
        ("503.0", 529),
    ] {
        let config = config(&[], &[(STATUS, value)]).unwrap();
        assert_eq!(config.overload_status, status, "{value:?}");
    }
    assert_eq!(config(&[], &[]).unwrap().overload_status, 529);
}

#[test]
fn a_named_worker_or_no_embedded_ones_switch_the_embedded_workers_off() {
    let worker = ["--worker", "a=http://127.0.0.1:1"];
    let both = [worker[0], worker[1], "--embedded-workers", "3"];
    for (flags, embedded) in [
        (&[][..], 2),
        (&worker, 0),
        (&both, 3),
        (&both[2..], 3),
        (&["--no-embedded-workers"], 0),
        (&["--embedded-workers", "0"], 0),
    ] {
        assert_eq!(
            config(flags, &[]).unwrap().embedded_ids().count(),
            embedded,
            "{flags:?}"
        );
    }
}

#[tokio::test]
async fn embedded_workers_are_there_from_the_first_line_and_ignore_the_environment() {
    let mut command = example("gateway");
    command
        .env("DYN_ENGINE_REQUEST_LIMIT", "bad")
        .env("DYN_DYNAMO_REQUEST_QUEUE_LIMIT", "bad");
    let gateway = start(&mut command).await;
    assert_eq!(gateway.ids().await, ["worker-0", "worker-1"]);
    let response = gateway.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(response.status().as_u16(), 200);
}

#[tokio::test]
async fn a_gateway_without_embedded_workers_has_those_that_are_named() {
    let gateway = start(example("gateway").args(["--worker", &format!("a={NOWHERE}")])).await;
    assert_eq!(gateway.ids().await, ["a"]);
    let gateway = start(example("gateway").arg("--no-embedded-workers")).await;
    assert!(gateway.ids().await.is_empty());
}

#[tokio::test]
async fn a_refusal_has_the_status_of_the_variable() {
    for (variable, status) in [("503", 503), ("nonsense", 529)] {
        let mut command = example("gateway");
        command.env(STATUS, variable).args([
            "--embedded-workers",
            "1",
            "--embedded-engine-request-limit",
            "1",
            "--embedded-request-queue-limit",
            "2",
            "--embedded-decode-tokens-per-second",
            "0.000001",
            // One request makes the worker busy.
            "--active-decode-blocks-threshold",
            "0",
        ]);
        let gateway = start(&mut command).await;
        let _running = gateway.public.start(2).await;
        eventually("the worker is busy", async || {
            let workers = value(gateway.admin.get("/workers").await).await;
            workers["workers"][0]["busy"] == true
        })
        .await;
        let refused = gateway.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(refused.status().as_u16(), status);
        let body = format!(
            r#"{{"message":"Service temporarily overloaded","type":"Overloaded","code":{status}}}"#
        );
        assert_eq!(text(refused).await, body);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_gateway_that_is_terminated_drains_and_exits_with_0() {
    let mut command = example("gateway");
    let fast = ["--embedded-prefill-tokens-per-second", "0"];
    let gateway = start(command.args(fast)).await;
    let running = gateway.public.start(40).await;
    gateway.process.terminate();
    assert_eq!(events(&text(running).await).len(), 42);
    assert_eq!(gateway.process.code().await, Some(0));
}

#[cfg(unix)]
#[tokio::test]
async fn a_second_signal_ends_a_gateway_that_drains() {
    let mut command = example("gateway");
    let stuck = ["--embedded-decode-tokens-per-second", "0.000001"];
    let gateway = start(command.args(stuck)).await;
    let running = gateway.public.start(2).await;
    gateway.process.terminate();
    eventually("nothing new is taken", async || {
        let health = gateway.public.send(Method::GET, "/health", &[], "").await;
        health.is_err()
    })
    .await;
    gateway.process.terminate();
    assert_eq!(gateway.process.code().await, Some(1));
    assert!(running.into_body().collect().await.is_err());
}
