//! Workers that cannot be reached, that refuse and that break off, and clients
//! that leave.

use crate::{
    gateway::GatewayConfig,
    serving::{STUCK, events, prompt, text},
    support::{
        COMPLETIONS, Fleet, JSON, NOWHERE, NOWHERE_ELSE, OVERLOADED, Stub, UNAVAILABLE, eventually,
    },
};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use overload_examples::{engine::Timing, worker::Worker};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_worker_that_cannot_be_reached_is_passed_over() {
    let fleet = Fleet::empty().await;
    let _worker = fleet.join("a", None, Timing::INSTANT).await;
    for (id, url) in [("b", NOWHERE), ("c", NOWHERE_ELSE)] {
        fleet.register(id, url, json!({})).await;
    }
    for _ in 0..10 {
        let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(events(&text(response).await).last(), Some(&"[DONE]"));
    }
}

#[tokio::test]
async fn when_nobody_can_be_reached_it_is_a_503_and_all_are_left_alone() {
    let fleet = Fleet::empty().await;
    for (id, url) in [("a", NOWHERE), ("b", NOWHERE_ELSE)] {
        fleet.register(id, url, json!({})).await;
    }
    let first = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(first.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(first.headers()["content-type"], "application/json");
    assert_eq!(first.headers()["x-overload-reason"], "none_reachable");
    assert_eq!(text(first).await, UNAVAILABLE);
    for id in ["a", "b"] {
        let worker = fleet.worker(id).await.unwrap();
        assert_eq!(
            (&worker["unreachable"], &worker["eligible"]),
            (&json!(true), &json!(false))
        );
    }
    // Both are left alone for a while: there is nobody to try.
    let second = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(second.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(text(second).await, UNAVAILABLE);
    eventually("the marks end by themselves", async || {
        fleet.worker("a").await.unwrap()["eligible"] == true
    })
    .await;
}

#[tokio::test]
async fn a_request_whose_worker_dies_before_the_head_is_served_by_another() {
    let fleet = Fleet::empty().await;
    // No head before the last token.
    let worker = fleet.join("a", None, STUCK).await;
    let request = json!({"model": "tiny", "prompt": "a b c", "max_tokens": 2});
    let waiting = tokio::spawn({
        let public = fleet.public.clone();
        async move { public.post(COMPLETIONS, &request).await }
    });
    eventually("it is in the engine", async || {
        worker.loads()[0].kv_blocks > 0
    })
    .await;
    let _other = fleet.join("b", None, Timing::INSTANT).await;
    drop(worker);
    assert_eq!(waiting.await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn what_one_worker_refuses_the_other_serves() {
    let fleet = Fleet::start(GatewayConfig {
        lease: LONG,
        ..GatewayConfig::default()
    })
    .await;
    let full = Stub::answering(529, &[]).await;
    fleet.register("full", &full.url, json!({})).await;
    let _worker = fleet.join("a", None, Timing::INSTANT).await;
    for _ in 0..20 {
        let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(response.status(), StatusCode::OK);
        text(response).await;
    }
    assert!(full.calls() <= 1, "it is leased: {}", full.calls());
    assert_eq!(
        fleet.worker("full").await.unwrap()["leased"],
        full.calls() == 1
    );
}

#[tokio::test]
async fn when_all_refuse_there_is_one_refusal() {
    for (retry_refused, asked) in [(0, 1), (1, 2), (9, 3)] {
        let fleet = Fleet::start(GatewayConfig {
            lease: LONG,
            retry_refused,
            ..GatewayConfig::default()
        })
        .await;
        let stubs = [
            Stub::answering(529, &[]).await,
            Stub::answering(529, &[]).await,
            Stub::answering(529, &[]).await,
        ];
        for (n, stub) in stubs.iter().enumerate() {
            fleet
                .register(&format!("stub-{n}"), &stub.url, json!({}))
                .await;
        }
        let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(refused.status().as_u16(), 529);
        assert_eq!(text(refused).await, OVERLOADED);
        assert_eq!(stubs.iter().map(Stub::calls).sum::<usize>(), asked);
        assert!(stubs.iter().all(|stub| stub.calls() <= 1));
    }
}

#[tokio::test]
async fn what_other_engines_say_when_they_are_full_is_a_refusal_too() {
    for status in [429, 503] {
        let fleet = Fleet::start(GatewayConfig {
            lease: LONG,
            ..GatewayConfig::default()
        })
        .await;
        let full = || Stub::answering(status, &[("retry-after", "7")]);
        let stubs = [full().await, full().await];
        for (n, stub) in stubs.iter().enumerate() {
            fleet
                .register(&format!("stub-{n}"), &stub.url, json!({}))
                .await;
        }
        let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(refused.status().as_u16(), 529, "{status}");
        assert_eq!(text(refused).await, OVERLOADED);
        assert!(stubs.iter().all(|stub| stub.calls() == 1), "{status}");
    }
}

#[tokio::test]
async fn the_time_that_a_worker_names_reaches_the_client() {
    for retry_refused in [0, 1] {
        let fleet = Fleet::start(GatewayConfig {
            retry_refused,
            ..GatewayConfig::default()
        })
        .await;
        let stub = Stub::answering(529, &[("retry-after", "7")]).await;
        fleet.register("a", &stub.url, json!({})).await;
        let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(refused.status().as_u16(), 529);
        assert_eq!(refused.headers()["retry-after"], "7");
        assert_eq!(text(refused).await, OVERLOADED);
    }
}

#[tokio::test]
async fn a_request_that_a_worker_took_is_never_sent_to_another() {
    let failing = |status| Stub::answering(status, &[]);
    for status in [400, 500, 502, 503] {
        let fleet = Fleet::start(GatewayConfig {
            retry_refused: 9,
            ..GatewayConfig::default()
        })
        .await;
        let stubs = [failing(status).await, failing(status).await];
        for (n, stub) in stubs.iter().enumerate() {
            fleet
                .register(&format!("stub-{n}"), &stub.url, json!({}))
                .await;
        }
        let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(stubs.iter().map(Stub::calls).sum::<usize>(), 1, "{status}");
    }

    // A head, and then a body that breaks off.
    let breaks = Arc::new(Notify::new());
    let breaking = || {
        let breaks = Arc::clone(&breaks);
        Stub::start(move |_| {
            let breaks = Arc::clone(&breaks);
            let frame = async { Ok(Frame::data(Bytes::from_static(b"x"))) };
            let broken = async move {
                breaks.notified().await;
                Err("broken")
            };
            let frames = stream::once(frame).chain(stream::once(broken));
            Response::new(Body::new(StreamBody::new(frames)))
        })
    };
    let stubs = [breaking().await, breaking().await];
    let fleet = Fleet::empty().await;
    for (n, stub) in stubs.iter().enumerate() {
        fleet
            .register(&format!("stub-{n}"), &stub.url, json!({}))
            .await;
    }
    let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(response.status(), StatusCode::OK);
    breaks.notify_one();
    assert!(response.into_body().collect().await.is_err());
    assert_eq!(stubs.iter().map(Stub::calls).sum::<usize>(), 1);
}

/// In the engine, waiting, blocks, prefill tokens.
fn occupied(worker: &Worker) -> (usize, usize, u64, u64) {
    let admission = worker.admission().unwrap().snapshot();
    let load = worker.loads()[0];
    (
        admission.in_engine,
        admission.queued,
        load.kv_blocks,
        load.prefill_tokens,
    )
}

#[tokio::test]
async fn a_client_that_leaves_frees_what_it_had_at_the_worker() {
    let prefilling = Timing {
        prefill_tokens_per_second: 1e-9,
        decode_tokens_per_second: 0.0,
    };
    for (timing, tokens) in [(STUCK, 0), (prefilling, 3)] {
        let fleet = Fleet::empty().await;
        let worker = fleet.join("a", Some((1, 1)), timing).await;
        let whole = json!({"model": "tiny", "prompt": "a b c", "max_tokens": 2});
        let send = |request| {
            let public = fleet.public.clone();
            tokio::spawn(async move { public.post(COMPLETIONS, &request).await })
        };
        let is = async |expected| {
            let what = format!("the worker has {expected:?}");
            eventually(&what, async || occupied(&worker) == expected).await;
        };

        // Before the head, and queued behind that.
        let first = send(whole.clone());
        is((1, 0, 1, tokens)).await;
        let second = send(whole.clone());
        is((1, 1, 1, tokens)).await;
        second.abort();
        is((1, 0, 1, tokens)).await;
        first.abort();
        is((0, 0, 0, 0)).await;

        // In the middle of a stream, whose head comes with its first token.
        let running = send(prompt(2));
        is((1, 0, 1, tokens)).await;
        if tokens == 0 {
            let response = running.await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            drop(response);
        } else {
            running.abort();
        }
        is((0, 0, 0, 0)).await;
        eventually("the gateway hears of it", async || {
            let seen = fleet.worker("a").await.unwrap();
            let rank = &seen["ranks"][0];
            rank["kv_used_blocks"] == 0 && rank["active_prefill_tokens"] == 0
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_cannot_take_workers_out_of_service_by_bodies_that_they_do_not_read() {
    let fleet = Fleet::empty().await;
    let _a = fleet.join("a", None, Timing::INSTANT).await;
    let _b = fleet.join("b", None, Timing::INSTANT).await;
    // A worker answers 404 and closes before it has read all of it.
    let long = json!({"model": "tiny", "prompt": "a".repeat(8 << 20)}).to_string();
    let mut attacks = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let (public, long) = (fleet.public.clone(), long.clone());
        attacks.spawn(async move {
            let post = public.send(Method::POST, "/v1/nothing", JSON, long);
            post.await.map(|response| response.status())
        });
    }
    while let Some(attack) = attacks.join_next().await {
        // The answer may be lost with the connection; no more than that.
        let status = attack.unwrap().unwrap();
        assert!([404, 502, 503].contains(&status.as_u16()), "{status}");
        for id in ["a", "b"] {
            let worker = fleet.worker(id).await.unwrap();
            assert_eq!(worker["eligible"], true, "{worker}");
        }
    }
}

#[tokio::test]
async fn a_client_that_will_not_wait_leases_no_worker() {
    let fleet = Fleet::empty().await;
    let worker = fleet.join("a", Some((1, 4)), STUCK).await;
    let _running = fleet.public.start(2).await;
    eventually("its slot is taken", async || {
        worker.admission().unwrap().snapshot().in_engine == 1
    })
    .await;
    let headers = &[JSON[0], ("x-no-queue", "true")];
    let body = prompt(2).to_string();
    let refused = fleet.public.send(Method::POST, COMPLETIONS, headers, body);
    assert_eq!(refused.await.unwrap().status(), 529);
    assert_eq!(fleet.worker("a").await.unwrap()["leased"], false);
    let waiting = tokio::spawn({
        let public = fleet.public.clone();
        async move { public.post(COMPLETIONS, &prompt(2)).await.status() }
    });
    eventually("another one waits in its queue", async || {
        worker.admission().unwrap().snapshot().queued == 1
    })
    .await;
    waiting.abort();
}
