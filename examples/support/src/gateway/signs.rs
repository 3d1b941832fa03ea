//! What shows that a worker is there, and ends its marks.

use super::{
    registry::Registry,
    stack::{Id, Upstream, WorkerClient},
};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Request, uri::PathAndQuery};
use http_body_util::{BodyExt, Full};
use std::{
    fmt,
    pin::pin,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tower::Service;
use tower_overload::busy::BusySet;

/// Where a worker is marked: in the set of each of its models.
#[derive(Clone)]
pub(super) struct SignsOfLife(Arc<Inner>);

struct Inner {
    id: Id,
    sets: RwLock<Vec<BusySet<Id>>>,
}

impl SignsOfLife {
    pub(super) fn of(id: Id) -> Self {
        Self(Arc::new(Inner {
            id,
            sets: RwLock::default(),
        }))
    }

    /// The worker serves other models from here on.
    pub(super) fn mark_in(&self, sets: impl Iterator<Item = BusySet<Id>>) {
        let mut ours = self.0.sets.write().unwrap_or_else(PoisonError::into_inner);
        *ours = sets.collect();
    }

    /// It has left: what is seen of it later is of no other.
    pub(super) fn end(&self) {
        self.mark_in([].into_iter());
    }

    /// It was reached from here.
    pub(super) fn reached(&self) {
        self.each(|set, id| set.reached(id));
    }

    /// It said something, or something was heard of it.
    pub(super) fn alive(&self) {
        self.each(|set, id| set.alive(id));
    }

    fn each(&self, say: impl Fn(&BusySet<Id>, &Id)) {
        let sets = self.0.sets.read().unwrap_or_else(PoisonError::into_inner);
        sets.iter().for_each(|set| say(set, &self.0.id));
    }
}

impl fmt::Debug for SignsOfLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SignsOfLife").field(&self.0.id).finish()
    }
}

/// How workers are asked whether they are there, beside the requests that they
/// get.
#[derive(Clone, Debug)]
pub struct HealthChecks {
    /// What is asked for: an answer with a status of success is a sign of life.
    pub path: PathAndQuery,
    /// How often, and how long an answer may take.
    pub interval: Duration,
}

/// As many workers are asked at once.
const AT_ONCE: usize = 64;

/// Asks all workers of the registry, over and over.
pub(super) async fn ask(registry: Arc<Registry>, checks: HealthChecks) {
    let mut rounds = interval(checks.interval);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let asked = stream::iter(registry.clients()).map(|(signs, client)| {
            let checks = &checks;
            async move {
                let is_well = is_well(client, &checks.path);
                if timeout(checks.interval, is_well).await == Ok(true) {
                    signs.reached();
                    signs.alive();
                }
            }
        });
        asked.buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

async fn is_well(mut client: WorkerClient, path: &PathAndQuery) -> bool {
    let mut request: Upstream = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = path.clone().into();
    let Ok(response) = client.call(request).await else {
        return false;
    };
    let is_success = response.status().is_success();
    // To its end, so that the connection is of use again.
    let mut body = pin!(response.into_body());
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return false;
        }
    }
    is_success
}
