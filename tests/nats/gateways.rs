//! Two gateways and three workers.

use crate::{
    eventually::eventually,
    gateway::{Gateway, GatewayConfig},
    serving::{Client, STUCK, config, events, prompt, text, value, worker},
    support::{LONG, Server, registration, with_server},
};
use futures::future::join_all;
use http::{Method, StatusCode};
use overload_examples::{
    engine::Timing,
    worker::{Worker, WorkerConfig},
};
use serde_json::Value;
use std::collections::BTreeSet;
use tokio::task::JoinSet;
use tower_overload::{
    load::{LoadEvent, ThresholdUpdate},
    nats::Registration,
};

struct Seen {
    gateway: Gateway,
    public: Client,
    admin: Client,
}

impl Seen {
    async fn start(server: &Server) -> Self {
        let gateway = Gateway::start(GatewayConfig {
            nats: Some(server.servers()),
            thresholds: ThresholdUpdate::new().active_decode_blocks(0.5),
            ..GatewayConfig::default()
        });
        let gateway = gateway.await.unwrap();
        let client = |address| Client::new(format!("http://{address}"));
        Self {
            public: client(gateway.address()),
            admin: client(gateway.admin_address()),
            gateway,
        }
    }

    /// The ids of the workers of which `is` says so.
    async fn workers(&self, is: &str) -> BTreeSet<String> {
        let workers = value(self.admin.get("/workers").await).await;
        let workers = workers["workers"].as_array().unwrap().iter();
        workers
            .filter(|worker| worker[is] != Value::Bool(false))
            .map(|worker| worker["id"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn ids(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// Waits until both see the same.
async fn both_see(gateways: &[Seen; 2], is: &str, expected: &[&str]) {
    let expected = ids(expected);
    eventually(&format!("{is}: {expected:?}"), async || {
        let [a, b] = gateways;
        a.workers(is).await == expected && b.workers(is).await == expected
    })
    .await;
}

#[test]
fn a_worker_that_an_operator_removes_is_back_with_its_next_load() {
    with_server(async |server, _| {
        let gateway = Seen::start(&server).await;
        let worker = server.publisher("a", registration().ttl(LONG)).await;
        let there = async || !gateway.workers("id").await.is_empty();
        eventually("it joins", there).await;
        let removed = gateway.admin.send(Method::DELETE, "/workers/a", &[], "");
        assert_eq!(removed.await.unwrap().status(), StatusCode::NO_CONTENT);
        worker
            .report(LoadEvent::new((), 0).kv_used_blocks(1))
            .unwrap();
        eventually("it is back", there).await;
    });
}

#[test]
fn two_gateways_agree_on_who_is_busy_after_one_event() {
    with_server(async |server, _| {
        let gateways = [Seen::start(&server).await, Seen::start(&server).await];
        let mut workers = Vec::new();
        for id in ["a", "b", "c"] {
            workers.push(server.publisher(id, registration().ttl(LONG)).await);
        }
        both_see(&gateways, "id", &["a", "b", "c"]).await;
        let blocks = |blocks| LoadEvent::new((), 0).kv_used_blocks(blocks);
        workers[1].report(blocks(51)).unwrap();
        both_see(&gateways, "busy", &["b"]).await;
        workers[0].report(blocks(99)).unwrap();
        workers[2].report(blocks(50)).unwrap();
        both_see(&gateways, "busy", &["a", "b"]).await;
        workers[2].report(blocks(100)).unwrap();
        both_see(&gateways, "busy", &["a", "b", "c"]).await;
        for gateway in &gateways {
            let refused = gateway.public.post("/v1/completions", &prompt(1)).await;
            assert_eq!(refused.status().as_u16(), 529);
        }
        workers[1].report(blocks(50)).unwrap();
        both_see(&gateways, "busy", &["a", "c"]).await;
        workers[0]
            .update(registration().ttl(LONG).draining(true))
            .unwrap();
        both_see(&gateways, "draining", &["a"]).await;
        workers.remove(1).leave().await.unwrap();
        both_see(&gateways, "id", &["a", "c"]).await;

        // One that comes late knows all of it.
        let late = Seen::start(&server).await;
        eventually("it knows the fleet", async || {
            late.workers("busy").await == ids(&["a", "c"])
                && late.workers("draining").await == ids(&["a"])
        })
        .await;
        late.gateway.drain().await;
    });
}

/// The requests that are inside a worker.
fn inside(worker: &Worker) -> usize {
    let snapshot = worker.admission().unwrap().snapshot();
    snapshot.in_engine + snapshot.queued
}

#[test]
fn the_cap_of_a_worker_holds_against_the_sum_of_two_gateways() {
    with_server(async |server, _| {
        let gateways = [Seen::start(&server).await, Seen::start(&server).await];
        let mut workers = Vec::new();
        for id in ["a", "b"] {
            let config = WorkerConfig {
                id: Some(id.into()),
                nats: Some(server.servers()),
                ..config(Some((2, 2)), STUCK)
            };
            workers.push(Worker::start(config).await.unwrap());
        }
        // One that brings no more than its own publisher.
        let by_hand = worker(Some((2, 2)), STUCK).await;
        let its = Registration::new(by_hand.url(), ["tiny"]).ttl(LONG);
        let _publisher = server.publisher("c", its).await;
        workers.push(by_hand);
        both_see(&gateways, "eligible", &["a", "b", "c"]).await;

        let mut requests = JoinSet::new();
        let full = || workers.iter().all(|worker| inside(worker) == 4);
        eventually("all are full", async || {
            for gateway in &gateways {
                for _ in 0..8 {
                    let client = gateway.public.clone();
                    requests.spawn(async move {
                        let response = client.post("/v1/completions", &prompt(2)).await;
                        if response.status() != StatusCode::OK {
                            assert_eq!(response.status().as_u16(), 529);
                            return;
                        }
                        // It is held for as long as the test runs.
                        let _ = text(response).await;
                    });
                }
            }
            for worker in &workers {
                assert!(inside(worker) <= 4, "{}", worker.id());
            }
            full()
        })
        .await;
        // Full is full, for both.
        for gateway in &gateways {
            let body = prompt(1);
            let more = (0..20).map(|_| gateway.public.post("/v1/completions", &body));
            for refused in join_all(more).await {
                assert_eq!(refused.status().as_u16(), 529);
            }
            assert!(full());
        }
        requests.shutdown().await;
    });
}

#[test]
fn requests_are_served_by_the_fleet_and_an_address_stays_with_its_owner() {
    with_server(async |server, _| {
        let fast = Timing {
            prefill_tokens_per_second: 0.0,
            decode_tokens_per_second: 0.0,
        };
        let gateway = Seen::start(&server).await;
        let worker = Worker::start(WorkerConfig {
            id: Some("a".into()),
            nats: Some(server.servers()),
            ..config(Some((1, 0)), fast)
        });
        let worker = worker.await.unwrap();
        eventually("it joins", async || {
            gateway.workers("eligible").await == ids(&["a"])
        })
        .await;
        let response = gateway.public.start(3).await;
        let body = text(response).await;
        assert_eq!(events(&body).last(), Some(&"[DONE]"));
        let metrics = text(gateway.admin.get("/metrics").await).await;
        assert!(
            metrics.contains("dynamo_frontend_load_sources_connected 1"),
            "{metrics}"
        );

        // It registers over HTTP as well: from then on it is that which counts,
        // and the end of the other one ends nothing.
        let body = format!(r#"{{"url":"{}","ttl_ms":3600000}}"#, worker.url());
        let json = [("content-type", "application/json")];
        let put = gateway.admin.send(Method::PUT, "/workers/a", &json, body);
        assert_eq!(put.await.unwrap().status(), StatusCode::OK);
        worker.drain().await;
        let other = server.publisher("b", registration().ttl(LONG)).await;
        eventually("b joins after a left", async || {
            gateway.workers("id").await == ids(&["a", "b"])
        })
        .await;
        drop(other);
    });
}
