//! Workers that report no load: the gateway reads their metrics.

use crate::{
    gateway::GatewayConfig,
    serving::{Client, STUCK, config, prompt, text},
    support::{COMPLETIONS, Fleet, OVERLOADED, Stub, eventually},
};
use axum::{body::Body, response::Response};
use http::{Method, StatusCode, Uri};
use overload_examples::{
    engine::Timing,
    worker::{Worker, WorkerConfig},
};
use serde_json::json;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tower_overload::load::ThresholdUpdate;

/// A gateway that reads metrics often, and these workers, of which it knows
/// nothing but the address.
async fn fleet(workers: &[(&str, &str)], more: GatewayConfig) -> Fleet {
    let workers = workers.iter().map(|(id, url)| {
        let url: Uri = url.parse().unwrap();
        (id.to_string(), url)
    });
    Fleet::start(GatewayConfig {
        workers: workers.collect(),
        scrape: true,
        scrape_interval: Duration::from_millis(5),
        ..more
    })
    .await
}

fn above(share: f64) -> GatewayConfig {
    GatewayConfig {
        thresholds: ThresholdUpdate::new().active_decode_blocks(share),
        ..GatewayConfig::default()
    }
}

impl Fleet {
    async fn complete(&self) -> (u16, String) {
        let response = self.public.post(COMPLETIONS, &prompt(1)).await;
        (response.status().as_u16(), text(response).await)
    }

    async fn becomes(&self, id: &str, busy: bool) {
        let what = format!("{id} is {}", if busy { "busy" } else { "free" });
        eventually(&what, async || {
            self.worker(id).await.unwrap()["busy"] == busy
        })
        .await;
    }

    /// Waits until a worker has this many blocks.
    async fn has_blocks(&self, id: &str, blocks: u64) {
        eventually("its metrics are read", async || {
            self.worker(id).await.unwrap()["kv_total_blocks"] == blocks
        })
        .await;
    }

    /// How often something came of reading metrics.
    async fn scrapes(&self, outcome: &str) -> u64 {
        let metrics = self.metrics().await;
        let series = format!("dynamo_frontend_scrapes_total{{outcome=\"{outcome}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
        line.map_or(0, |count| count.parse().unwrap())
    }
}

/// A worker whose metrics are what the test sets, and that serves.
struct Engine {
    stub: Stub,
    metrics: Arc<Mutex<Option<String>>>,
}

impl Engine {
    async fn start(metrics: String) -> Self {
        let metrics = Arc::new(Mutex::new(Some(metrics)));
        let shown = Arc::clone(&metrics);
        let stub = Stub::start(move |request| {
            let found = |text: String| Response::new(Body::from(text));
            match (request.uri().path(), &*shown.lock().unwrap()) {
                ("/base/metrics", Some(text)) => found(text.clone()),
                ("/base/metrics", None) => {
                    let gone = Response::builder().status(StatusCode::NOT_FOUND);
                    gone.body(Body::from(usage(0.0))).unwrap()
                }
                _ => found("{}".into()),
            }
        })
        .await;
        Self { stub, metrics }
    }

    /// Below a path, as engines behind a proxy are.
    fn url(&self) -> String {
        format!("{}/base", self.stub.url)
    }

    fn shows(&self, metrics: impl Into<Option<String>>) {
        *self.metrics.lock().unwrap() = metrics.into();
    }
}

/// What vLLM shows with one rank of 1,000 blocks.
fn usage(share: f64) -> String {
    format!(
        "vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"tiny\"}} {share}\n\
         vllm:cache_config_info{{engine=\"0\",num_gpu_blocks=\"1000\"}} 1.0\n"
    )
}

#[tokio::test]
async fn a_worker_that_reports_nothing_is_busy_while_its_metrics_say_so() {
    let worker = async || {
        let config = WorkerConfig {
            dp_ranks: 2,
            ..config(None, STUCK)
        };
        Worker::start(config).await.unwrap()
    };
    let workers = [worker().await, worker().await];
    let fleet = fleet(
        &[("a", workers[0].url()), ("b", workers[1].url())],
        above(0.0),
    )
    .await;
    for id in ["a", "b"] {
        fleet.has_blocks(id, 4096).await;
        let ranks = &fleet.worker(id).await.unwrap()["ranks"];
        let ranks: Vec<_> = ranks.as_array().unwrap().iter().collect();
        assert_eq!(ranks.len(), 2);
        assert_eq!(
            (&ranks[0]["dp_rank"], &ranks[1]["dp_rank"]),
            (&json!(0), &json!(1))
        );
    }

    let direct = Client::new(workers[0].url());
    let first = direct.start(2).await;
    let second = direct.start(2).await;
    fleet.becomes("a", true).await;
    let running = [fleet.public.start(2).await, fleet.public.start(2).await];
    assert_eq!(
        workers[1]
            .loads()
            .iter()
            .map(|it| it.kv_blocks)
            .sum::<u64>(),
        2
    );
    fleet.becomes("b", true).await;
    assert_eq!(fleet.complete().await, (529, OVERLOADED.into()));

    // One rank that is free is enough.
    drop(first);
    fleet.becomes("a", false).await;
    let _running = fleet.public.start(2).await;
    fleet.becomes("a", true).await;
    drop((second, running));
    fleet.becomes("b", false).await;
}

#[tokio::test]
async fn requests_that_wait_count_as_prompts_of_the_mean_length() {
    let worker = Worker::start(config(Some((1, 4)), STUCK)).await.unwrap();
    let direct = Client::new(worker.url());
    // A prompt of 3 tokens has been served.
    drop(direct.start(2).await);
    let _running = direct.start(2).await;
    let fleet = fleet(
        &[("a", worker.url())],
        GatewayConfig {
            thresholds: ThresholdUpdate::new().active_prefill_tokens(5),
            ..GatewayConfig::default()
        },
    )
    .await;
    let wait = || {
        let direct = direct.clone();
        tokio::spawn(async move { direct.start(2).await })
    };
    let prefill = async |tokens: u64| {
        eventually("so many tokens wait", async || {
            fleet.worker("a").await.unwrap()["ranks"][0]["active_prefill_tokens"] == tokens
        })
        .await;
    };
    let first = wait();
    prefill(3).await;
    assert_eq!(fleet.worker("a").await.unwrap()["busy"], false);
    let second = wait();
    prefill(6).await;
    fleet.becomes("a", true).await;
    first.abort();
    second.abort();
    fleet.becomes("a", false).await;
}

#[tokio::test]
async fn metrics_that_fail_are_silence_and_the_mark_ages_out() {
    let engine = Engine::start(usage(0.9)).await;
    let fleet = fleet(
        &[("a", &engine.url())],
        GatewayConfig {
            stale_after: Some(Duration::from_secs(1)),
            ..above(0.5)
        },
    )
    .await;
    fleet.becomes("a", true).await;
    assert_eq!(fleet.complete().await, (529, OVERLOADED.into()));
    // Its body says that the cache is empty. It must not be believed: the
    // count goes by its age, and does not become 0.
    engine.shows(None);
    let failed = fleet.scrapes("status").await;
    eventually("scrapes fail", async || {
        fleet.scrapes("status").await > failed + 2
    })
    .await;
    fleet.becomes("a", false).await;
    let rank = fleet.worker("a").await.unwrap()["ranks"][0].clone();
    assert_eq!(rank["kv_used_blocks"], json!(null), "unknown, and not 0");
    assert_eq!(fleet.complete().await.0, 200);

    engine.shows(usage(0.8));
    fleet.becomes("a", true).await;
    let rank = fleet.worker("a").await.unwrap()["ranks"][0].clone();
    assert_eq!(rank["kv_used_blocks"], 800);
}

#[tokio::test]
async fn what_a_registration_says_stays_and_the_rest_is_read() {
    let engine = Engine::start(usage(0.5)).await;
    let fleet = fleet(&[], above(0.5)).await;
    let url = engine.url();
    let batch = json!({"max_num_batched_tokens": 77});
    fleet.register("a", &url, batch.clone()).await;
    fleet.has_blocks("a", 1000).await;
    let a = fleet.register("a", &url, batch).await;
    assert_eq!(a["kv_total_blocks"], 1000, "read before, and not forgotten");
    assert_eq!(a["max_num_batched_tokens"], 77);
    assert_eq!(a["models"], json!(["tiny"]));

    let blocks = json!({"kv_total_blocks": 10, "dp_ranks": [0, 1]});
    let a = fleet.register("a", &url, blocks).await;
    assert_eq!(a["kv_total_blocks"], 10);
    assert_eq!(a["ranks"][0]["kv_used_blocks"], 5, "still half of them");
    assert_eq!(a["ranks"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_reading_ends_with_the_worker_and_moves_with_its_address() {
    let engines = [
        Engine::start(usage(0.5)).await,
        Engine::start(usage(0.25)).await,
    ];
    let fleet = fleet(&[], above(0.5)).await;
    fleet.register("a", &engines[0].url(), json!({})).await;
    fleet.has_blocks("a", 1000).await;
    fleet.register("a", &engines[1].url(), json!({})).await;
    eventually("the other one is read", async || {
        fleet.worker("a").await.unwrap()["ranks"][0]["kv_used_blocks"] == 250
    })
    .await;
    let first = engines[0].stub.calls();
    let second = engines[1].stub.calls();
    eventually("the other one is read on", async || {
        engines[1].stub.calls() > second + 5
    })
    .await;
    assert!(engines[0].stub.calls() <= first + 1, "one was on its way");

    let gone = fleet
        .admin
        .send(Method::DELETE, "/workers/a", &[], "")
        .await;
    assert_eq!(gone.unwrap().status(), StatusCode::NO_CONTENT);
    fleet.register("b", &engines[0].url(), json!({})).await;
    let (first, second) = (engines[0].stub.calls(), engines[1].stub.calls());
    eventually("b is read", async || engines[0].stub.calls() > first + 5).await;
    assert!(engines[1].stub.calls() <= second + 1);
    assert!(fleet.worker("a").await.is_none(), "nothing revives it");
}

#[tokio::test]
async fn reading_metrics_keeps_no_registration_alive() {
    let engine = Engine::start(usage(0.5)).await;
    let fleet = fleet(
        &[],
        GatewayConfig {
            registration_ttl: Duration::from_millis(300),
            ..above(0.5)
        },
    )
    .await;
    fleet.register("a", &engine.url(), json!({})).await;
    eventually("it expires", async || fleet.worker("a").await.is_none()).await;
    assert!(fleet.scrapes("ok").await > 0);
}

#[tokio::test]
async fn a_worker_that_reports_its_load_knows_better_than_its_metrics() {
    let fleet = fleet(&[], above(0.0)).await;
    let _worker = fleet.join("a", None, STUCK).await;
    let engine = Engine::start(usage(0.9)).await;
    fleet
        .register("b", &engine.url(), json!({"kv_total_blocks": 100}))
        .await;
    fleet.becomes("b", true).await;
    let load = |blocks: u64| json!({"worker": "b", "kv_used_blocks": blocks}).to_string();
    let headers = crate::support::JSON;
    let sent = fleet
        .admin
        .send(Method::POST, "/worker_load", headers, load(0))
        .await;
    assert_eq!(sent.unwrap().status(), StatusCode::OK);
    let calls = engine.stub.calls();
    eventually("it is read on", async || engine.stub.calls() > calls + 5).await;
    let b = fleet.worker("b").await.unwrap();
    assert_eq!(b["ranks"][0]["kv_used_blocks"], 0);
    assert_eq!(b["busy"], false);
}

#[tokio::test]
async fn without_the_option_nobody_reads_metrics() {
    let engine = Engine::start(usage(0.9)).await;
    let fleet = Fleet::start(GatewayConfig {
        workers: vec![("a".into(), engine.url().parse().unwrap())],
        ..above(0.5)
    })
    .await;
    assert_eq!(fleet.complete().await.0, 200);
    assert_eq!(engine.stub.calls(), 1);
    assert_eq!(
        fleet.worker("a").await.unwrap()["kv_total_blocks"],
        json!(null)
    );
}

#[tokio::test]
async fn the_workers_own_metrics_come_first_and_vllms_after_them() {
    let worker = Worker::start(config(Some((1, 1)), Timing::INSTANT))
        .await
        .unwrap();
    let client = Client::new(worker.url());
    let metrics = text(client.get("/metrics").await).await;
    for line in [
        "dynamo_engine_request 0",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 0.0",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.0",
        "vllm:cache_config_info{engine=\"0\",model_name=\"tiny\",block_size=\"16\",num_gpu_blocks=\"4096\"} 1.0",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line} in {metrics}");
    }
}
