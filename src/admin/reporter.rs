//! The worker's side of the admin API.

use super::AdminBody;
use crate::{
    BoxError,
    fleet::Registration,
    load::{DropReason, LoadEvent, ReportSchedule},
    sync::{Mutex, lock},
};
use bytes::Buf;
use http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap, convert::Infallible, fmt, future::poll_fn, pin::pin, sync::Arc,
    time::Duration,
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};
use tower_service::Service;

/// A rank sends at most one load event in this time.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
/// Every rank sends a load event at least this often.
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// A gateway that does not answer within this time is asked again.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// As much of an answer is kept. That to a registration shows the worker with
/// all its models, which may be longer and is not looked at.
const MAX_ANSWER: usize = 64 * 1024;
/// How long the gateway keeps a worker of which it hears nothing: ten of the
/// reports that are sent in any case.
const TTL: Duration = Duration::from_secs(10);
/// Attempts to register are this far apart at first, and then twice as far
/// each time, up to the second of the two.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Keeps a worker registered with a gateway, and its load known there, by means
/// of the gateway's [`FleetApi`](super::FleetApi).
///
/// It registers, sends what changes of the load at once (each rank at most
/// every 10 ms) and all of it at least once a second, and registers again when
/// the gateway does not know the worker any more, such as after a restart. Each
/// exchange ends after 2 s, and the next attempt is 50 ms to 1 s later, so a
/// gateway that is away costs nothing and is found again within seconds.
///
/// Nothing here waits for the network: a report replaces the one before it that
/// was not sent yet.
///
/// Dropping it is the worker's sudden death: the gateway finds out when it has
/// heard nothing for 10 s. [`leave`](Self::leave) says goodbye.
///
/// ```no_run
/// # #[cfg(feature = "upstream")]
/// # async fn example() -> Result<(), tower_overload::BoxError> {
/// use tower_overload::{
///     admin::Reporter, fleet::Registration, load::LoadEvent, upstream::HttpWorkerBuilder,
/// };
///
/// let gateway = HttpWorkerBuilder::new().build("http://10.0.0.9:9000")?;
/// let worker = Registration::at("http://10.0.0.1:8000").models(["tiny"]).dp_ranks([0]);
/// let reporter = Reporter::start(gateway, "worker-0", worker);
///
/// reporter.report(LoadEvent::new((), 0).kv_used_blocks(17))?; // whenever it changes
/// reporter.leave().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the worker is registered while this lives"]
pub struct Reporter<C> {
    gateway: Gateway<C>,
    shared: Arc<Shared>,
    task: JoinSet<Infallible>,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    registration: Registration,
    /// Raised when it changes.
    edition: u64,
    loads: BTreeMap<u32, LoadEvent<()>>,
}

impl Shared {
    /// The load of each rank, if the registration is of this edition.
    fn loads(&self, edition: u64) -> Option<Vec<LoadEvent<()>>> {
        let state = lock(&self.state);
        let loads = || state.loads.values().cloned().collect();
        (state.edition == edition).then(loads)
    }
}

impl State {
    fn of(registration: Registration) -> Self {
        let ranks = registration.dp_ranks.as_deref().unwrap_or(&[0]);
        Self {
            loads: ranks
                .iter()
                .map(|rank| (*rank, LoadEvent::new((), *rank)))
                .collect(),
            registration,
            edition: 0,
        }
    }
}

impl<C, B> Reporter<C>
where
    C: Service<Request<AdminBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
    C::Error: Into<BoxError>,
    C::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// Registers `worker` with the gateway that `client` reaches, from now on.
    /// Its requests have no host: an
    /// [`HttpWorker`](crate::upstream::HttpWorker) at the URL of the admin API
    /// adds it.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that has its timer enabled.
    pub fn start(client: C, worker: &str, registration: Registration) -> Self {
        let gateway = Gateway {
            client,
            worker: worker.into(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State::of(registration)),
            changed: Notify::new(),
        });
        let mut task = JoinSet::new();
        task.spawn(report(gateway.clone(), shared.clone()));
        Self {
            gateway,
            shared,
            task,
        }
    }

    /// The load of one rank is this; a count that it does not have is as it
    /// was.
    ///
    /// # Errors
    ///
    /// The registration does not have the rank.
    pub fn report(&self, event: LoadEvent<()>) -> Result<(), DropReason> {
        let mut state = lock(&self.shared.state);
        let Some(load) = state.loads.get_mut(&event.dp_rank) else {
            return Err(DropReason::UndeclaredRank);
        };
        let before = load.clone();
        *load = LoadEvent::new((), event.dp_rank)
            .active_decode_blocks(event.active_decode_blocks.or(before.active_decode_blocks))
            .kv_used_blocks(event.kv_used_blocks.or(before.kv_used_blocks))
            .active_prefill_tokens(event.active_prefill_tokens.or(before.active_prefill_tokens));
        let has_changed = *load != before;
        drop(state);
        if has_changed {
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    /// The worker is another one from now on, such as one that drains. The load
    /// of ranks that stay is as it was.
    pub fn update(&self, registration: Registration) {
        let mut next = State::of(registration);
        let mut state = lock(&self.shared.state);
        next.edition = state.edition.wrapping_add(1);
        for (rank, load) in &mut next.loads {
            if let Some(known) = state.loads.remove(rank) {
                *load = known;
            }
        }
        *state = next;
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Says goodbye, also if no registration was answered: one may have
    /// arrived. A worker of the gateway's configuration stays known there.
    ///
    /// Cancel safe: nothing is reported from its first poll on.
    ///
    /// # Errors
    ///
    /// The gateway does not answer within 2 s, or not with success. The worker
    /// goes all the same, when its time to live is over.
    pub async fn leave(mut self) -> Result<(), BoxError> {
        // A registration that is under way must not come after the goodbye.
        self.task.shutdown().await;
        self.gateway.leave().await
    }
}

async fn report<C, B>(gateway: Gateway<C>, shared: Arc<Shared>) -> Infallible
where
    C: Service<Request<AdminBody>, Response = Response<B>> + Clone,
    C::Error: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
{
    let mut backoff = Backoff::new();
    loop {
        let edition = gateway.register(&shared, &mut backoff).await;
        match gateway.send_loads(&shared, edition, &mut backoff).await {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(
                    worker = &*gateway.worker,
                    error,
                    "load is not accepted, registering again"
                );
                backoff.pause().await;
            }
        }
    }
}

/// The pause before the next attempt. It begins anew when load is accepted, and
/// not when the worker is registered: a gateway may do the one and not the other.
struct Backoff(Duration);

impl Backoff {
    fn new() -> Self {
        Self(BACKOFF.0)
    }

    async fn pause(&mut self) {
        sleep(self.0).await;
        self.0 = (self.0 * 2).min(BACKOFF.1);
    }
}

/// The gateway, as one worker talks to it.
#[derive(Clone)]
struct Gateway<C> {
    client: C,
    worker: Arc<str>,
}

impl<C, B> Gateway<C>
where
    C: Service<Request<AdminBody>, Response = Response<B>> + Clone,
    C::Error: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
{
    /// Registers the worker, and returns the edition of its registration.
    async fn register(&self, shared: &Shared, backoff: &mut Backoff) -> u64 {
        let worker = &*self.worker;
        let mut warned = false;
        loop {
            let (registration, edition) = {
                let state = lock(&shared.state);
                (state.registration.clone(), state.edition)
            };
            match self.put(&registration).await {
                Ok(()) => {
                    tracing::info!(worker, url = registration.url, "registered");
                    return edition;
                }
                Err(error) if warned => tracing::debug!(worker, error, "cannot register"),
                Err(error) => {
                    warned = true;
                    tracing::warn!(worker, error, "cannot register, trying on");
                }
            }
            backoff.pause().await;
        }
    }

    /// Sends load events until the registration is another one, or the gateway
    /// takes one for a stranger's or does not answer.
    async fn send_loads(
        &self,
        shared: &Shared,
        edition: u64,
        backoff: &mut Backoff,
    ) -> Result<(), BoxError> {
        let mut schedule = None;
        loop {
            let now = Instant::now();
            let Some(loads) = shared.loads(edition) else {
                return Ok(());
            };
            let schedule =
                schedule.get_or_insert_with(|| ReportSchedule::new(loads.len(), MAX_INTERVAL, now));
            let events: Vec<_> = schedule
                .due(loads, now)
                .map(|(_, load)| Load::of(&self.worker, &load))
                .collect();
            if !events.is_empty() {
                if self.post(&events).await?.dropped > 0 {
                    return Err("the gateway does not know the worker or its ranks".into());
                }
                *backoff = Backoff::new();
            }
            sleep(MIN_INTERVAL).await;
            // Elapsed: it is time for a heartbeat.
            let _ = timeout_at(schedule.next_full(), shared.changed.notified()).await;
        }
    }

    async fn put(&self, registration: &Registration) -> Result<(), BoxError> {
        let body = serde_json::to_vec(&Worker::of(registration))?;
        self.exchange(Method::PUT, self.path(), body).await?;
        Ok(())
    }

    async fn post(&self, events: &[Load<'_>]) -> Result<Taken, BoxError> {
        let body = serde_json::to_vec(events)?;
        let path = "/worker_load".to_owned();
        let answer = self.exchange(Method::POST, path, body).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    async fn leave(&self) -> Result<(), BoxError> {
        let path = self.path() + "?leaving=true";
        self.exchange(Method::DELETE, path, Vec::new()).await?;
        Ok(())
    }

    fn path(&self) -> String {
        const KEPT: &AsciiSet = &NON_ALPHANUMERIC
            .remove(b'-')
            .remove(b'.')
            .remove(b'_')
            .remove(b'~')
            .remove(b':');
        format!("/workers/{}", utf8_percent_encode(&self.worker, KEPT))
    }

    async fn exchange(
        &self,
        method: Method,
        path: String,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, BoxError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(CONTENT_TYPE, "application/json")
            .body(AdminBody::new(body))?;
        let mut client = self.client.clone();
        let exchange = async {
            poll_fn(|cx| client.poll_ready(cx))
                .await
                .map_err(Into::into)?;
            let response = client.call(request).await.map_err(Into::into)?;
            let (head, body) = response.into_parts();
            let answer = read(body).await?;
            if head.status.is_success() {
                return Ok(answer);
            }
            let status = head.status;
            Err(Refused { status, answer }.into())
        };
        timeout(ANSWER_WITHIN, exchange).await?
    }
}

/// To its end, so that the connection is of use again.
async fn read<B>(body: B) -> Result<Vec<u8>, BoxError>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let mut body = pin!(body);
    let mut read = Vec::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(mut data) = frame.map_err(Into::into)?.into_data() else {
            continue;
        };
        while data.has_remaining() {
            let chunk = data.chunk();
            let kept = chunk.len().min(MAX_ANSWER - read.len());
            read.extend_from_slice(&chunk[..kept]);
            let taken = chunk.len();
            data.advance(taken);
        }
    }
    Ok(read)
}

/// All that a worker says of itself: `null` is that it does not know.
#[derive(Serialize)]
struct Worker<'a> {
    url: &'a str,
    dp_ranks: Option<&'a [u32]>,
    kv_total_blocks: Option<u64>,
    max_num_batched_tokens: Option<u64>,
    draining: bool,
    models: Option<&'a [String]>,
    loras: BTreeMap<&'a str, &'a str>,
    ttl_ms: u128,
}

impl<'a> Worker<'a> {
    fn of(registration: &'a Registration) -> Self {
        let loras = registration.loras.iter();
        Self {
            url: &registration.url,
            dp_ranks: registration.dp_ranks.as_deref(),
            kv_total_blocks: registration.kv_total_blocks,
            max_num_batched_tokens: registration.max_num_batched_tokens,
            draining: registration.draining,
            models: registration.models.as_deref(),
            loras: loras.map(|(name, base)| (&**name, &**base)).collect(),
            ttl_ms: TTL.as_millis(),
        }
    }
}

#[derive(Serialize)]
struct Load<'a> {
    worker: &'a str,
    dp_rank: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_decode_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_used_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_prefill_tokens: Option<u64>,
}

impl<'a> Load<'a> {
    fn of(worker: &'a str, load: &LoadEvent<()>) -> Self {
        Self {
            worker,
            dp_rank: load.dp_rank,
            active_decode_blocks: load.active_decode_blocks,
            kv_used_blocks: load.kv_used_blocks,
            active_prefill_tokens: load.active_prefill_tokens,
        }
    }
}

/// What the gateway has taken.
#[derive(Deserialize)]
struct Taken {
    dropped: u64,
}

/// The gateway has answered, and not with success.
#[derive(Debug)]
struct Refused {
    status: StatusCode,
    answer: Vec<u8>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = String::from_utf8_lossy(&self.answer);
        write!(f, "the gateway answered {}: {answer}", self.status)
    }
}

impl std::error::Error for Refused {}

impl<C> fmt::Debug for Reporter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter")
            .field("worker", &self.gateway.worker)
            .finish_non_exhaustive()
    }
}
