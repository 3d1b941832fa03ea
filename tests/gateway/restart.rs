//! Gateways and workers that come and go in any order.

use crate::{
    gateway::{Gateway, GatewayConfig},
    serving::{config, events, prompt, text},
    support::{COMPLETIONS, Fleet, eventually},
};
use overload_examples::{
    engine::Timing,
    worker::{Worker, WorkerConfig},
};
use std::net::SocketAddr;

async fn worker(id: &str, admin: SocketAddr) -> Worker {
    let worker = Worker::start(WorkerConfig {
        id: Some(id.into()),
        register: Some(format!("http://{admin}").parse().unwrap()),
        ..config(Some((1, 2)), Timing::INSTANT)
    });
    worker.await.unwrap()
}

async fn both_serve(fleet: &Fleet) {
    eventually("both are registered", async || {
        fleet.workers().await["workers"].as_array().unwrap().len() == 2
    })
    .await;
    for _ in 0..4 {
        let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
        assert_eq!(events(&text(response).await).last(), Some(&"[DONE]"));
    }
}

#[tokio::test]
async fn workers_register_with_a_gateway_that_starts_after_them_and_when_it_is_restarted() {
    let admin = Fleet::empty().await.gateway.admin_address();
    let _workers = [worker("a", admin).await, worker("b", admin).await];
    let at = GatewayConfig {
        admin_listen: admin,
        ..GatewayConfig::default()
    };
    for _ in 0..2 {
        // Dropped, its predecessor leaves the address a moment later.
        let mut gateway = None;
        eventually("it listens", async || {
            gateway = Gateway::start(at.clone()).await.ok();
            gateway.is_some()
        })
        .await;
        both_serve(&Fleet::of(gateway.unwrap())).await;
    }
}

#[tokio::test]
async fn a_worker_that_drains_is_deregistered_and_one_under_its_id_takes_its_place() {
    let fleet = Fleet::empty().await;
    let admin = fleet.gateway.admin_address();
    let first = worker("a", admin).await;
    eventually("it registers", async || fleet.worker("a").await.is_some()).await;
    let url = first.url().to_owned();
    first.drain().await;
    assert!(fleet.worker("a").await.is_none());
    let second = worker("a", admin).await;
    eventually("it registers", async || fleet.worker("a").await.is_some()).await;
    assert_ne!(second.url(), url);
    assert_eq!(fleet.worker("a").await.unwrap()["url"], second.url());
    let response = fleet.public.post(COMPLETIONS, &prompt(1)).await;
    assert_eq!(events(&text(response).await).last(), Some(&"[DONE]"));
}
