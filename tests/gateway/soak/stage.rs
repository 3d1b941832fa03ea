//! A gateway and its workers, and what must be true of them when they rest.

use super::sick::{Sick, Stoppable};
use crate::{
    gateway::{Gateway, GatewayConfig, WorkerLimits},
    serving::{Client, config, prompt, text, value},
    support::{COMPLETIONS, JSON},
};
use http::{Method, StatusCode};
use overload_examples::{
    engine::{RankLoad, Timing},
    worker::{Worker, WorkerConfig},
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{sleep, timeout};

pub const WORKERS: usize = 4;
/// With those that are sick.
const ALL: usize = WORKERS + 2;
/// How long a worker may say nothing: ten tokens come in a second.
const SILENCE: Duration = Duration::from_secs(1);
const SLOTS: usize = 4;
const QUEUE: usize = 4;
const TIMING: Timing = Timing {
    prefill_tokens_per_second: 1000.0,
    decode_tokens_per_second: 10.0,
};

pub struct Stage {
    gateway: Gateway,
    pub admin: Client,
    pub workers: [Option<Worker>; WORKERS],
    pub sick: Sick,
    pub stoppable: Stoppable,
}

impl Stage {
    pub async fn start() -> Self {
        let gateway = Gateway::start(GatewayConfig {
            lease: Duration::from_millis(200),
            registration_ttl: Duration::from_secs(3),
            limits: WorkerLimits {
                head: Some(SILENCE),
                first_frame: Some(SILENCE),
                frame: Some(SILENCE),
                ..WorkerLimits::default()
            },
            health_path: "/health".parse().ok(),
            health_interval: Duration::from_millis(200),
            ..GatewayConfig::default()
        });
        let gateway = gateway.await.unwrap();
        let sick = Sick::start().await;
        let stoppable = Stoppable::start(&gateway.admin_url()).await;
        let mut stage = Self {
            sick,
            stoppable,
            admin: Client::new(format!("http://{}", gateway.admin_address())),
            gateway,
            workers: [const { None }; WORKERS],
        };
        stage.restore().await;
        stage
    }

    /// A client whose connections are its own.
    pub fn client(&self) -> Client {
        Client::new(format!("http://{}", self.gateway.address()))
    }

    pub async fn join(&mut self, n: usize) {
        let worker = Worker::start(WorkerConfig {
            id: Some(format!("worker-{n}")),
            register: Some(self.gateway.admin_url()),
            ..config(Some((SLOTS, QUEUE)), TIMING)
        });
        self.workers[n] = Some(worker.await.unwrap());
    }

    pub async fn set_thresholds(&self, decode: Value, prefill: Value) {
        let update = json!({
            "model": "tiny",
            "active_decode_blocks_threshold": decode,
            "active_prefill_tokens_threshold": prefill,
        });
        let body = update.to_string();
        let post = self.admin.send(Method::POST, "/busy_threshold", JSON, body);
        assert_eq!(post.await.unwrap().status(), StatusCode::OK);
    }

    /// As it was in the beginning: all workers, their limits, no thresholds.
    pub async fn restore(&mut self) {
        for n in 0..WORKERS {
            match &self.workers[n] {
                None => self.join(n).await,
                Some(worker) => {
                    let admission = worker.admission().unwrap();
                    admission.set_slots(SLOTS).unwrap();
                    admission.set_queue_limit(QUEUE).unwrap();
                }
            }
        }
        self.set_thresholds(Value::Null, Value::Null).await;
        self.sick.recover();
        self.stoppable.go_on();
        self.register_sick().await;
    }

    pub async fn register_sick(&self) {
        let body = json!({ "url": self.sick.url() }).to_string();
        let put = self.admin.send(Method::PUT, "/workers/sick", JSON, body);
        assert_eq!(put.await.unwrap().status(), StatusCode::OK);
    }

    fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().flatten()
    }

    /// No request is anywhere, and no mark is left.
    pub async fn assert_at_rest(&self) {
        eventually("every worker is empty", async || {
            self.workers().all(is_empty).then_some(()).ok_or_else(|| {
                let admission = self.workers().map(|worker| worker.admission().unwrap());
                let counts: Vec<_> = admission.map(|admission| admission.snapshot()).collect();
                format!("{counts:?}")
            })
        })
        .await;
        let all = json!({"models": [
            {"model": "tiny", "alive": ALL, "usable": ALL, "eligible": ALL},
        ]});
        eventually("every worker is a member, and eligible", async || {
            // A balancer learns of a change with the next request.
            text(self.client().post(COMPLETIONS, &prompt(1)).await).await;
            self.register_sick().await;
            let models = value(self.admin.get("/models").await).await;
            let workers = value(self.admin.get("/workers").await).await;
            let eligible = workers["workers"].as_array().unwrap().iter();
            let eligible: Vec<_> = eligible.map(|worker| &worker["eligible"]).collect();
            if models == all && eligible == [true; ALL] {
                Ok(())
            } else {
                Err(format!("{models}, {workers}"))
            }
        })
        .await;
        let metrics = text(self.admin.get("/metrics").await).await;
        let excluded: Vec<_> = metrics
            .lines()
            .filter(|line| line.starts_with("dynamo_frontend_excluded_workers{"))
            .collect();
        assert_eq!(excluded.len(), 5, "a gauge of each mark: {excluded:?}");
        assert!(
            excluded.iter().all(|line| line.ends_with(" 0")),
            "{excluded:?}"
        );
        for worker in self.workers() {
            let client = Client::new(worker.url());
            let metrics = text(client.get("/metrics").await).await;
            for gauge in ["dynamo_engine_request 0", "dynamo_request_queue 0"] {
                assert!(
                    metrics.lines().any(|line| line == gauge),
                    "{gauge}: {metrics}"
                );
            }
        }
    }

    /// Each worker takes exactly as many requests as it ever did: those in the
    /// engine answer, those in the queue wait, and there is no room for another.
    pub async fn assert_that_every_place_is_there(&self) {
        for worker in self.workers() {
            let client = Client::new(worker.url());
            let mut running = Vec::new();
            for _ in 0..SLOTS {
                running.push(client.start(1 << 16).await);
            }
            let waiting: Vec<_> = (0..QUEUE)
                .map(|_| {
                    let client = client.clone();
                    tokio::spawn(async move { client.start(1).await })
                })
                .collect();
            let admission = worker.admission().unwrap();
            eventually("the queue is full", async || {
                let counts = admission.snapshot();
                let full = (counts.in_engine, counts.queued) == (SLOTS, QUEUE);
                full.then_some(()).ok_or_else(|| format!("{counts:?}"))
            })
            .await;
            let refused = client.post(COMPLETIONS, &prompt(1)).await;
            assert_eq!(refused.status().as_u16(), 529);
            drop(running);
            for waiting in waiting {
                let served = timeout(ANSWER_WITHIN, waiting).await;
                text(served.expect("a waiting request is asleep").unwrap()).await;
            }
            eventually("it is empty again", async || {
                let counts = || format!("{:?}", admission.snapshot());
                is_empty(worker).then_some(()).ok_or_else(counts)
            })
            .await;
        }
    }
}

fn is_empty(worker: &Worker) -> bool {
    let counts = worker.admission().unwrap().snapshot();
    let idle = |load: &RankLoad| load.kv_blocks == 0 && load.prefill_tokens == 0;
    counts.in_engine == 0 && counts.queued == 0 && worker.loads().iter().all(idle)
}

const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Waits until it is so, and says what was so instead when it never is.
async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> Result<(), String>) {
    let mut last = String::new();
    let holds = async {
        while let Err(instead) = condition().await {
            last = instead;
            sleep(Duration::from_millis(10)).await;
        }
    };
    let held = timeout(ANSWER_WITHIN, holds).await;
    assert!(held.is_ok(), "it should be that {what}, and is {last}");
}
