//! Load makes workers busy and free, and the metrics tell.

use crate::{
    gateway::GatewayConfig,
    serving::{STUCK, prompt, text, value},
    support::{CHAT, COMPLETIONS, Fleet, JSON, OVERLOADED, Stub, eventually},
};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;
use tower_overload::load::ThresholdUpdate;

impl Fleet {
    async fn load(&self, event: Value) {
        let body = event.to_string();
        let sent = self.admin.send(Method::POST, "/worker_load", JSON, body);
        let answer = value(sent.await.unwrap()).await;
        assert_eq!(answer, json!({"accepted": 1, "dropped": 0}));
    }

    async fn set(&self, thresholds: Value) {
        let body = thresholds.to_string();
        let sent = self.admin.send(Method::POST, "/busy_threshold", JSON, body);
        assert_eq!(sent.await.unwrap().status(), StatusCode::OK);
    }

    async fn is_busy(&self, id: &str) -> bool {
        let worker = self.worker(id).await.unwrap();
        assert_eq!(worker["eligible"] == true, worker["busy"] == false);
        worker["busy"] == true
    }
}

#[tokio::test]
async fn a_threshold_of_the_flags_excludes_a_busy_worker_until_it_is_free() {
    let fleet = Fleet::start(GatewayConfig {
        thresholds: ThresholdUpdate::new().active_decode_blocks(0.5),
        ..GatewayConfig::default()
    })
    .await;
    let stubs = [
        Stub::answering(200, &[]).await,
        Stub::answering(200, &[]).await,
    ];
    for (id, stub) in ["a", "b"].iter().zip(&stubs) {
        fleet
            .register(id, &stub.url, json!({"kv_total_blocks": 100}))
            .await;
    }
    let ask = async || {
        let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        (response.status().as_u16(), text(response).await)
    };
    fleet
        .load(json!({"worker": "a", "kv_used_blocks": 50}))
        .await;
    assert!(!fleet.is_busy("a").await, "50 of 100 is not above 0.5");
    fleet
        .load(json!({"worker": "a", "active_decode_blocks": 51}))
        .await;
    assert!(fleet.is_busy("a").await);
    for _ in 0..8 {
        assert_eq!(ask().await.0, 200);
    }
    assert_eq!((stubs[0].calls(), stubs[1].calls()), (0, 8));

    fleet
        .load(json!({"worker": "b", "kv_used_blocks": 51}))
        .await;
    assert_eq!(ask().await, (529, OVERLOADED.into()));
    fleet
        .load(json!({"worker": "a", "active_decode_blocks": 0}))
        .await;
    assert!(!fleet.is_busy("a").await);
    assert_eq!(ask().await.0, 200);
    assert_eq!((stubs[0].calls(), stubs[1].calls()), (1, 8));
}

#[tokio::test]
async fn a_threshold_that_is_posted_takes_effect_and_null_clears_it() {
    let fleet = Fleet::empty().await;
    let stub = Stub::answering(200, &[]).await;
    fleet
        .register("a", &stub.url, json!({"max_num_batched_tokens": 10}))
        .await;
    let full = json!({"worker": "a", "active_prefill_tokens": 16});
    for name in [
        "active_prefill_tokens_threshold",
        "active_prefill_tokens_threshold_frac",
    ] {
        fleet.load(full.clone()).await;
        assert!(!fleet.is_busy("a").await, "no check is on");
        fleet.set(json!({"model": "tiny", name: 1})).await;
        // With the next event of any kind.
        fleet.load(full.clone()).await;
        assert!(fleet.is_busy("a").await, "{name}");
        let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(refused.status().as_u16(), 529);
        fleet.set(json!({"model": "tiny", name: null})).await;
        fleet.load(full.clone()).await;
        assert!(!fleet.is_busy("a").await, "{name} is cleared");
        let served = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(served.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn evidence_that_goes_stale_frees_the_worker() {
    let fleet = Fleet::start(GatewayConfig {
        thresholds: ThresholdUpdate::new().active_prefill_tokens(0),
        stale_after: Some(Duration::from_millis(50)),
        ..GatewayConfig::default()
    })
    .await;
    let stub = Stub::answering(200, &[]).await;
    fleet.register("a", &stub.url, json!({})).await;
    fleet
        .load(json!({"worker": "a", "active_prefill_tokens": 1}))
        .await;
    eventually("it is free without an event", async || {
        !fleet.is_busy("a").await
    })
    .await;
    let served = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(served.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_worker_that_reports_itself_is_busy_while_it_runs_and_free_after_it() {
    let fleet = Fleet::start(GatewayConfig {
        thresholds: ThresholdUpdate::new().active_decode_blocks(0.0),
        ..GatewayConfig::default()
    })
    .await;
    let _worker = fleet.join("a", None, STUCK).await;
    let running = fleet.public.start(2).await;
    eventually("it is busy", async || fleet.is_busy("a").await).await;
    let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(refused.status().as_u16(), 529);
    drop(running);
    eventually("it is free", async || !fleet.is_busy("a").await).await;
    let _running = fleet.public.start(2).await;
}

/// The value of a series, in Prometheus' text format.
fn series(text: &str, series: &str) -> Option<f64> {
    let mut lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let (_, value) = lines.find(|(name, _)| *name == series)?;
    Some(value.parse().unwrap())
}

#[tokio::test]
async fn the_metrics_count_refusals_and_show_the_load() {
    let fleet = Fleet::start(GatewayConfig {
        lease: Duration::from_secs(3600),
        ..GatewayConfig::default()
    })
    .await;
    let refusals = |model: &str, endpoint: &str| {
        let labels = format!(r#"model="{model}",endpoint="{endpoint}""#);
        format!("dynamo_frontend_model_rejection_total{{{labels}}}")
    };
    let metrics = fleet.metrics().await;
    assert_eq!(
        series(&metrics, &refusals("tiny", "chat_completions")),
        Some(0.0)
    );

    // A 503 is not counted as a refusal.
    let unavailable = fleet.public.post(CHAT, &prompt(1)).await;
    assert_eq!(unavailable.status().as_u16(), 503);
    let full = Stub::answering(529, &[]).await;
    fleet
        .register("w%221", &full.url, json!({"dp_ranks": [0, 3]}))
        .await;
    for (path, times) in [
        (CHAT, 2),
        (COMPLETIONS, 1),
        ("/v1/responses", 1),
        ("/v1/messages", 3),
    ] {
        for _ in 0..times {
            let refused = fleet.public.post(path, &prompt(1)).await;
            assert_eq!(refused.status().as_u16(), 529);
        }
    }
    let unknown = json!({"model": "huge"});
    assert_eq!(
        fleet.public.post(CHAT, &unknown).await.status().as_u16(),
        404
    );
    fleet
        .load(json!({"worker": "w\"1", "dp_rank": 3, "active_decode_blocks": 7, "active_prefill_tokens": 9}))
        .await;

    let response = fleet.admin.get("/metrics").await;
    let content_type = response.headers()["content-type"].to_str().unwrap();
    assert!(
        content_type.starts_with("text/plain; version=0.0.4"),
        "{content_type}"
    );
    let metrics = text(response).await;
    for (endpoint, count) in [
        ("chat_completions", 2.0),
        ("completions", 1.0),
        ("responses", 1.0),
        ("anthropic_messages", 3.0),
    ] {
        assert_eq!(
            series(&metrics, &refusals("tiny", endpoint)),
            Some(count),
            "{metrics}"
        );
        assert_eq!(series(&metrics, &refusals("unknown", endpoint)), Some(0.0));
    }
    assert!(!metrics.contains("huge"), "clients cannot make series");
    let unavailable =
        r#"dynamo_frontend_model_unavailable_total{model="tiny",endpoint="chat_completions"}"#;
    assert_eq!(series(&metrics, unavailable), Some(1.0));
    let gauge = |name: &str, rank: u32| {
        let labels = format!(r#"worker_id="w\"1",dp_rank="{rank}",worker_type="decode""#);
        series(
            &metrics,
            &format!("dynamo_frontend_worker_{name}{{{labels}}}"),
        )
    };
    assert_eq!(gauge("active_decode_blocks", 3), Some(7.0), "{metrics}");
    assert_eq!(gauge("active_prefill_tokens", 3), Some(9.0));
    assert_eq!(gauge("active_decode_blocks", 0), Some(0.0));

    for line in metrics.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            assert!(
                comment.starts_with("HELP ") || comment.starts_with("TYPE "),
                "{line}"
            );
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let name = name.split('{').next().unwrap();
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{line}");
        assert!(metrics.contains(&format!("# HELP {name} ")), "{line}");
    }

    let gone = fleet.admin.send(Method::DELETE, "/workers/w%221", &[], "");
    assert_eq!(gone.await.unwrap().status(), StatusCode::NO_CONTENT);
    let metrics = fleet.metrics().await;
    let blocks = r#"dynamo_frontend_worker_active_decode_blocks{worker_id="w\"1",dp_rank="3",worker_type="decode"}"#;
    assert_eq!(
        series(&metrics, blocks),
        None,
        "it has ended with the worker"
    );
}
