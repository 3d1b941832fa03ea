//! Which worker a request goes to, as the gateway's options say.

use crate::{
    gateway::{Balance, GatewayConfig},
    serving::{STUCK, prompt, text},
    support::{CHAT, COMPLETIONS, Fleet, JSON, Stub, eventually},
};
use http::{HeaderName, Method, StatusCode};
use overload_examples::engine::Timing;
use serde_json::{Value, json};
use std::num::NonZeroU64;
use tokio::task::JoinSet;

const SESSION: HeaderName = HeaderName::from_static("x-session-id");

async fn stubs(config: GatewayConfig, n: usize) -> (Fleet, Vec<Stub>) {
    let fleet = Fleet::start(config).await;
    let mut stubs = Vec::new();
    for n in 0..n {
        let stub = Stub::answering(200, &[]).await;
        fleet
            .register(&format!("stub-{n}"), &stub.url, json!({}))
            .await;
        stubs.push(stub);
    }
    (fleet, stubs)
}

async fn send(fleet: &Fleet, headers: &[(&str, &str)], body: &Value) {
    let headers = [JSON, headers].concat();
    let sent = fleet
        .public
        .send(Method::POST, CHAT, &headers, body.to_string());
    let response = sent.await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    text(response).await;
}

fn chat(system: &str, user: &str) -> Value {
    json!({"model": "tiny", "messages": [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
    ]})
}

fn affinity(header: Option<HeaderName>) -> GatewayConfig {
    GatewayConfig {
        balance: Balance::Affinity,
        affinity_header: header,
        ..GatewayConfig::default()
    }
}

/// How many of the stubs were called since the last time.
fn called(stubs: &[Stub], before: &mut Vec<usize>) -> usize {
    let now: Vec<_> = stubs.iter().map(Stub::calls).collect();
    before.resize(now.len(), 0);
    let new = now
        .iter()
        .zip(&*before)
        .filter(|(now, before)| now > before);
    let called = new.count();
    *before = now;
    called
}

#[tokio::test]
async fn requests_of_a_session_go_to_one_worker_and_sessions_to_many() {
    let (fleet, stubs) = stubs(affinity(Some(SESSION)), 4).await;
    let mut before = Vec::new();
    for session in 0..20 {
        for turn in 0..5 {
            let body = chat(&format!("of {session}, turn {turn}"), "hi");
            send(&fleet, &[(SESSION.as_str(), &session.to_string())], &body).await;
        }
        assert_eq!(called(&stubs, &mut before), 1);
    }
    let used = stubs.iter().filter(|stub| stub.calls() > 0).count();
    assert!(used >= 3, "20 sessions are on {used} of 4 workers");
}

#[tokio::test]
async fn without_a_header_prompts_that_begin_alike_go_to_one_worker() {
    for header in [None, Some(SESSION)] {
        let (fleet, stubs) = stubs(affinity(header), 4).await;
        let mut before = Vec::new();
        for application in 0..10 {
            let system = format!("You are assistant {application}. ").repeat(100);
            for turn in 0..5 {
                send(&fleet, &[], &chat(&system, &format!("turn {turn}"))).await;
            }
            assert_eq!(called(&stubs, &mut before), 1);
        }
    }
}

#[tokio::test]
async fn the_least_loaded_by_tokens_gets_the_next_request() {
    let (fleet, mut stubs) = stubs(
        GatewayConfig {
            balance: Balance::LeastTokens,
            router_track_load: true,
            ..GatewayConfig::default()
        },
        1,
    )
    .await;
    // Its prefill never ends, and no report says so.
    let hangs = Stub::hanging().await;
    fleet.register("hangs", &hangs.url, json!({})).await;
    let free = stubs.remove(0);
    let long = json!({"model": "tiny", "prompt": "word ".repeat(5_000)});
    let mut on_its_way = JoinSet::new();
    while hangs.calls() == 0 {
        let (client, long) = (fleet.public.clone(), long.clone());
        let calls = free.calls();
        on_its_way.spawn(async move { client.post(COMPLETIONS, &long).await });
        eventually("it arrives", async || {
            hangs.calls() > 0 || free.calls() > calls
        })
        .await;
    }
    let before = free.calls();
    for _ in 0..10 {
        text(fleet.public.post(COMPLETIONS, &prompt(1)).await).await;
    }
    assert_eq!((free.calls() - before, hangs.calls()), (10, 1));
}

#[tokio::test]
async fn a_worker_with_as_many_requests_as_it_may_have_counts_as_busy() {
    let fleet = Fleet::start(GatewayConfig {
        max_in_flight: NonZeroU64::new(2),
        ..GatewayConfig::default()
    })
    .await;
    let _worker = fleet.join("a", None, STUCK).await;
    let first = fleet.public.start(2).await;
    let _second = fleet.public.start(2).await;
    let refused = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(refused.status().as_u16(), 529);
    assert_eq!(refused.headers()["x-overload-reason"], "all_workers_busy");
    drop(first);
    eventually("a place is free", async || {
        let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        response.status() == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_is_removed_is_gone_without_a_request() {
    let fleet = Fleet::empty().await;
    let _worker = fleet.join("a", None, Timing::INSTANT).await;
    text(fleet.public.post(COMPLETIONS, &prompt(1)).await).await;
    let alive = async || {
        let models = crate::serving::value(fleet.admin.get("/models").await).await;
        models["models"][0]["alive"].as_u64().unwrap()
    };
    assert_eq!(alive().await, 1);
    fleet
        .admin
        .send(Method::DELETE, "/workers/a", &[], "")
        .await
        .unwrap();
    eventually("the pool knows", async || alive().await == 0).await;
}
