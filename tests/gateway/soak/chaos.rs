//! What happens to the workers meanwhile.

use super::stage::{Stage, WORKERS};
use crate::support::JSON;
use http::Method;
use proptest::{prelude::RngCore, test_runner::TestRng};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

/// Something happens every 50 ms until `end`; then all who leave have left.
pub async fn until(end: Instant, stage: &mut Stage, mut random: TestRng) {
    let mut leaving = JoinSet::new();
    while Instant::now() < end {
        let n = random.next_u32() as usize % WORKERS;
        match random.next_u32() % 40 {
            0 => stage.stoppable.stop(),
            1..=3 => stage.stoppable.go_on(),
            4..=8 => {
                stage.sick.change(&mut random);
                stage.register_sick().await;
            }
            _ => {}
        }
        match (random.next_u32() % 6, stage.workers[n].take()) {
            (_, None) => stage.join(n).await,
            (0, Some(killed)) => drop(killed),
            (1, Some(leaves)) => {
                leaving.spawn(leaves.drain());
            }
            (2, Some(worker)) => {
                let admission = worker.admission().unwrap();
                admission
                    .set_slots(1 + random.next_u32() as usize % 6)
                    .unwrap();
                let queue = random.next_u32() as usize % 6;
                admission.set_queue_limit(queue).unwrap();
                stage.workers[n] = Some(worker);
            }
            (3, worker) => {
                stage.workers[n] = worker;
                let decode = share_or_none(&mut random);
                let prefill = match random.next_u32() % 2 {
                    0 => json!(random.next_u32() % 20),
                    _ => Value::Null,
                };
                stage.set_thresholds(decode, prefill).await;
            }
            (_, worker) => {
                stage.workers[n] = worker;
                let load = json!({
                    "worker": format!("worker-{n}"),
                    "active_prefill_tokens": random.next_u32() % 40,
                    "active_decode_blocks": random.next_u32() % 4096,
                });
                let body = load.to_string();
                let post = stage.admin.send(Method::POST, "/worker_load", JSON, body);
                assert!(post.await.unwrap().status().is_success());
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    while let Some(left) = leaving.join_next().await {
        left.unwrap();
    }
}

fn share_or_none(random: &mut TestRng) -> Value {
    match random.next_u32() % 2 {
        0 => json!(f64::from(random.next_u32() % 100) / 100.0),
        _ => Value::Null,
    }
}
