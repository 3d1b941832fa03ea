//! What a worker tells a gateway through its admin API: that it exists, what
//! it is loaded with, and that it leaves.

use crate::{
    client::{self, HttpClient},
    engine::Ledger,
    serve::told,
};
use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, Limited};
use serde::{Deserialize, Serialize};
use std::{convert::Infallible, fmt::Write, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tower_overload::{BoxError, load::ReportSchedule};

/// A rank sends at most one load event in this time.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
/// Every rank sends a load event at least this often.
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// A gateway that does not answer within this time is asked again.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Attempts to register are this far apart at first, and then twice as far
/// each time, up to the second of the two.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The longest answer that is read.
const MAX_ANSWER: usize = 64 * 1024;

/// The body of `PUT /workers/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Registration {
    /// Where the worker is reached.
    pub url: String,
    /// Its data-parallel ranks.
    pub dp_ranks: Vec<u32>,
    /// The KV blocks that each rank has.
    pub kv_total_blocks: u64,
    /// The prompt tokens that each rank takes in one step.
    pub max_num_batched_tokens: u64,
    /// Whether it wants no new requests.
    pub draining: bool,
    /// What it serves.
    pub models: Vec<String>,
    /// How long it is good for when nothing is heard of it, in ms.
    pub ttl_ms: u64,
}

/// One event of `POST /worker_load`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadEvent<'a> {
    /// The worker's id.
    pub worker: &'a str,
    /// The rank that the counts are of.
    pub dp_rank: u32,
    /// KV blocks in use, as the worker itself counts them.
    pub kv_used_blocks: u64,
    /// Prompt tokens that wait for or are in prefill.
    pub active_prefill_tokens: u64,
}

/// The answer to `POST /worker_load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct LoadAnswer {
    /// The events that were of a registered worker and a declared rank.
    pub accepted: u64,
    /// The others.
    pub dropped: u64,
}

/// A gateway's admin API, as a worker uses it.
#[derive(Clone, Debug)]
pub struct AdminClient {
    base: String,
    client: HttpClient<Full<Bytes>>,
}

impl AdminClient {
    /// The API at `base`, such as `http://127.0.0.1:9000`.
    pub fn new(base: &Uri) -> Self {
        Self {
            base: base.to_string().trim_end_matches('/').into(),
            client: client::new(ANSWER_WITHIN),
        }
    }

    /// Registers the worker or replaces its configuration.
    ///
    /// # Errors
    ///
    /// If the gateway does not answer in time, or with anything but success.
    pub async fn put_worker(&self, id: &str, worker: &Registration) -> Result<(), BoxError> {
        let body = serde_json::to_vec(worker)?;
        self.send(Method::PUT, &worker_path(id), body).await?;
        Ok(())
    }

    /// Sends load events, and returns how many were of use.
    ///
    /// # Errors
    ///
    /// As [`put_worker`](AdminClient::put_worker).
    pub async fn post_load(&self, events: &[LoadEvent<'_>]) -> Result<LoadAnswer, BoxError> {
        let body = serde_json::to_vec(events)?;
        let answer = self.send(Method::POST, "/worker_load", body).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Says that the worker goes.
    ///
    /// # Errors
    ///
    /// As [`put_worker`](AdminClient::put_worker).
    pub async fn delete_worker(&self, id: &str) -> Result<(), BoxError> {
        let path = worker_path(id) + "?leaving=true";
        self.send(Method::DELETE, &path, Vec::new()).await?;
        Ok(())
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, BoxError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))?;
        let exchange = async {
            let response = self.client.request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER);
            Ok::<_, BoxError>((status, body.collect().await?.to_bytes()))
        };
        let (status, body) = timeout(ANSWER_WITHIN, exchange).await??;
        if !status.is_success() {
            return Err(Refused { status, body }.into());
        }
        Ok(body)
    }
}

/// The gateway has answered, and not with success.
#[derive(Debug)]
struct Refused {
    status: StatusCode,
    body: Bytes,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        write!(f, "the gateway answered {}: {body}", self.status)
    }
}

impl std::error::Error for Refused {}

fn worker_path(id: &str) -> String {
    let mut path = String::from("/workers/");
    for byte in id.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                path.push(char::from(byte));
            }
            // Writing to a String does not fail.
            _ => drop(write!(path, "%{byte:02X}")),
        }
    }
    path
}

/// Keeps a worker registered and its load known, until it is told to leave.
#[derive(Debug)]
pub struct Reporter {
    admin: AdminClient,
    id: String,
    registration: Registration,
    ledger: Arc<Ledger>,
}

impl Reporter {
    /// Will register `id` with the gateway at `admin`, and report `ledger`.
    pub fn new(
        admin: &Uri,
        id: impl Into<String>,
        registration: Registration,
        ledger: Arc<Ledger>,
    ) -> Self {
        Self {
            admin: AdminClient::new(admin),
            id: id.into(),
            registration,
            ledger,
        }
    }

    /// Registers, reports every change and at least once a second, registers
    /// again when the gateway does not know the worker any more; and when
    /// `leaving` becomes true, deregisters and completes.
    pub async fn run(self, mut leaving: watch::Receiver<bool>) {
        tokio::select! {
            () = told(&mut leaving) => {}
            never = self.report() => match never {},
        }
        // Also if no registration was ever answered: one may have arrived.
        match self.admin.delete_worker(&self.id).await {
            Ok(()) => tracing::info!(worker = self.id, "deregistered"),
            Err(error) => tracing::warn!(worker = self.id, error, "cannot deregister"),
        }
    }

    async fn report(&self) -> Infallible {
        loop {
            self.register().await;
            if let Err(error) = self.send_loads().await {
                tracing::warn!(
                    worker = self.id,
                    error,
                    "load is not accepted, registering again"
                );
            }
        }
    }

    async fn register(&self) {
        let mut pause = BACKOFF.0;
        let mut warned = false;
        loop {
            match self.admin.put_worker(&self.id, &self.registration).await {
                Ok(()) => break,
                Err(error) if warned => tracing::debug!(worker = self.id, error, "cannot register"),
                Err(error) => {
                    warned = true;
                    tracing::warn!(worker = self.id, error, "cannot register, trying on");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
        tracing::info!(worker = self.id, url = self.registration.url, "registered");
    }

    /// Sends load events until the gateway takes one for a stranger's, or
    /// does not answer.
    async fn send_loads(&self) -> Result<(), BoxError> {
        let ranks = &self.registration.dp_ranks;
        let mut schedule = ReportSchedule::new(ranks.len(), MAX_INTERVAL, Instant::now());
        loop {
            let due = schedule.due(self.ledger.snapshot(), Instant::now());
            let events: Vec<_> = due
                .map(|(rank, load)| LoadEvent {
                    worker: &self.id,
                    dp_rank: ranks[rank],
                    kv_used_blocks: load.kv_blocks,
                    active_prefill_tokens: load.prefill_tokens,
                })
                .collect();
            if !events.is_empty() && self.admin.post_load(&events).await?.dropped > 0 {
                return Err("the gateway does not know the worker".into());
            }
            sleep(MIN_INTERVAL).await;
            // Elapsed: it is time for a heartbeat.
            let _ = timeout_at(schedule.next_full(), self.ledger.changed()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::Server;
    use axum::{
        Json, Router,
        extract::{Path, State},
        routing::{post, put},
    };
    use serde_json::{Value, json};
    use std::{net::SocketAddr, num::NonZeroU64};
    use tokio::sync::mpsc;

    type Calls = mpsc::Sender<(&'static str, Value)>;

    /// A gateway's admin API that tells of its calls.
    async fn gateway() -> (Server, mpsc::Receiver<(&'static str, Value)>) {
        gateway_on("127.0.0.1:0".parse().unwrap()).await
    }

    /// A load event with this many prefill tokens makes the gateway forget.
    const FORGET: u64 = 1234;

    async fn gateway_on(address: SocketAddr) -> (Server, mpsc::Receiver<(&'static str, Value)>) {
        let (calls, called) = mpsc::channel(1024);
        let worker = put(
            async |State(calls): State<Calls>, Path(id): Path<String>, Json(body): Json<Value>| {
                let _ = calls.send(("put", json!({"id": id, "body": body}))).await;
                Json(json!({}))
            },
        )
        .delete(async |State(calls): State<Calls>, Path(id): Path<String>| {
            let _ = calls.send(("delete", json!(id))).await;
            StatusCode::NO_CONTENT
        });
        let load = post(
            async |State(calls): State<Calls>, Json(events): Json<Value>| {
                let forget = events[0]["active_prefill_tokens"] == FORGET;
                let _ = calls.send(("load", events)).await;
                Json(json!({"accepted": 1, "dropped": u64::from(forget)}))
            },
        );
        let app = Router::new()
            .route("/workers/{id}", worker)
            .route("/worker_load", load)
            .with_state(calls);
        (Server::start(address, app).await.unwrap(), called)
    }

    fn reporter(server: &Server, ledger: &Arc<Ledger>) -> Reporter {
        let admin = format!("http://{}", server.address()).parse().unwrap();
        Reporter::new(&admin, "a/b é", registration(), Arc::clone(ledger))
    }

    fn registration() -> Registration {
        Registration {
            url: "http://127.0.0.1:1".into(),
            dp_ranks: vec![0, 1],
            kv_total_blocks: 10,
            max_num_batched_tokens: 20,
            draining: false,
            models: vec!["tiny".into()],
            ttl_ms: 10_000,
        }
    }

    fn ledger() -> Arc<Ledger> {
        Arc::new(Ledger::new(2, NonZeroU64::new(16).unwrap()))
    }

    #[tokio::test]
    async fn a_worker_registers_reports_each_change_and_deregisters() {
        let (server, mut called) = gateway().await;
        let ledger = ledger();
        let (leave, leaving) = watch::channel(false);
        let task = tokio::spawn(reporter(&server, &ledger).run(leaving));

        let (call, body) = called.recv().await.unwrap();
        assert_eq!(call, "put");
        assert_eq!(
            body,
            json!({"id": "a/b é", "body": {
                "url": "http://127.0.0.1:1", "dp_ranks": [0, 1], "kv_total_blocks": 10,
                "max_num_batched_tokens": 20, "draining": false, "models": ["tiny"],
            }})
        );
        let event = |rank: u32, blocks: u64, tokens: u64| {
            json!({
                "worker": "a/b é", "dp_rank": rank,
                "kv_used_blocks": blocks, "active_prefill_tokens": tokens,
            })
        };
        let first = called.recv().await.unwrap();
        assert_eq!(first, ("load", json!([event(0, 0, 0), event(1, 0, 0)])));

        let request = ledger.enter(20);
        // A heartbeat may be on its way with both ranks.
        let (_, events) = called.recv().await.unwrap();
        assert_eq!(events[0], event(0, 2, 20));
        drop(request);
        let (_, events) = called.recv().await.unwrap();
        assert_eq!(events[0], event(0, 0, 0));

        leave.send_replace(true);
        task.await.unwrap();
        let mut last = None;
        while let Ok(call) = called.try_recv() {
            last = Some(call);
        }
        assert_eq!(last, Some(("delete", json!("a/b é"))));
    }

    #[tokio::test]
    async fn a_gateway_that_has_forgotten_the_worker_is_told_of_it_again() {
        let (server, mut called) = gateway().await;
        let (_leave, leaving) = watch::channel(false);
        let ledger = ledger();
        let task = tokio::spawn(reporter(&server, &ledger).run(leaving));
        assert_eq!(called.recv().await.unwrap().0, "put");
        assert_eq!(called.recv().await.unwrap().0, "load");
        let _request = ledger.enter(FORGET);
        assert_eq!(called.recv().await.unwrap().0, "load");
        assert_eq!(called.recv().await.unwrap().0, "put");
        assert_eq!(called.recv().await.unwrap().0, "load");
        task.abort();
    }

    #[tokio::test]
    async fn a_worker_registers_with_a_gateway_that_is_started_after_it() {
        let address = {
            let (server, _) = gateway().await;
            server.address()
        };
        let admin = format!("http://{address}").parse().unwrap();
        let client = AdminClient::new(&admin);
        let registration = registration();
        assert!(client.put_worker("late", &registration).await.is_err());
        let (_leave, leaving) = watch::channel(false);
        let reporter = Reporter::new(&admin, "late", registration, ledger());
        let task = tokio::spawn(reporter.run(leaving));
        tokio::task::yield_now().await;
        let (_server, mut called) = gateway_on(address).await;
        assert_eq!(called.recv().await.unwrap().0, "put");
        task.abort();
    }
}
