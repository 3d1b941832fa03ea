//! The load of workers that do not report it: their own metrics.

use super::{
    Fleet, Id, SignsOfLife,
    fleet::WeakFleet,
    worker::{Learned, Loads},
};
use crate::{
    BoxError,
    busy::Observation,
    load::WorkerConfig,
    scrape::{EngineReport, PollerBuilder, STAND_IN_BLOCKS, ScrapeError, WaitingTokens},
    sync::lock,
};
use bytes::Bytes;
use futures::{
    FutureExt, StreamExt,
    future::{AbortHandle, Abortable, BoxFuture},
    stream::{BoxStream, FuturesUnordered},
};
use http::{Request, Response, Uri};
use http_body::Body;
use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Instant;
use tower_service::Service;

/// Reads the metrics of the workers of a fleet; made by [`Fleet::scrape`].
#[must_use = "futures do nothing unless polled"]
pub struct Scraping(BoxFuture<'static, ()>);

impl<S, M> Fleet<S, M>
where
    S: Clone + Send + 'static,
    M: Send + Sync + 'static,
{
    /// Reads `/metrics` of every worker once in an interval, by means of the
    /// client that `client` takes from its service, and takes its load and what
    /// its registration does not say of its capacity from there. Spawn it.
    ///
    /// A worker that reports its load itself knows better than its metrics, for
    /// as long as that report is good. That metrics can be read is a [sign of
    /// life](super::SignsOfLife), and does not keep a worker that has to
    /// [report itself](super::Origin::Reported): metrics do not say whose they
    /// are.
    ///
    /// Completes when the fleet is gone. Cancel safe: what was read is counted.
    ///
    /// # Panics
    ///
    /// When it is polled outside of a tokio runtime that has its timer enabled.
    pub fn scrape<C, F, B, RB>(&self, every: Duration, client: F) -> Scraping
    where
        F: Fn(&S) -> C + Send + 'static,
        C: Service<Request<B>, Response = Response<RB>, Future: Send, Error: Into<BoxError>>
            + Send
            + 'static,
        B: Default + Send + 'static,
        RB: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let poller = move |fleet: &Fleet<S, M>, worker: &Looked<S>| {
            let client = client(&worker.service);
            let poller = fleet.recorded(|| {
                let poller = PollerBuilder::default().interval(every).worker(&worker.id);
                poller.build(client, Uri::from_static("/metrics"))
            });
            match poller {
                Ok(poller) => Some(poller.boxed()),
                Err(error) => {
                    tracing::warn!(worker = &*worker.id, %error, "the worker's metrics are not read");
                    None
                }
            }
        };
        let changes = self.changed().observe();
        Scraping(Box::pin(read(self.downgrade(), changes, poller)))
    }
}

type Reports = BoxStream<'static, Result<EngineReport, ScrapeError>>;

/// The next report of a worker, and the rest of them.
type Next = (Id, Option<Result<EngineReport, ScrapeError>>, Reports);

/// A worker whose metrics are read until it is dropped.
struct Read {
    incarnation: u64,
    abort: AbortHandle,
}

impl Drop for Read {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

async fn read<S: Clone, M>(
    fleet: WeakFleet<S, M>,
    changes: Observation,
    poller: impl Fn(&Fleet<S, M>, &Looked<S>) -> Option<Reports>,
) {
    let mut workers: HashMap<Id, Read> = HashMap::new();
    let mut reports = FuturesUnordered::new();
    let mut seen = 0;
    loop {
        let next = poll_fn(|cx| {
            changes.register(cx.waker());
            if changes.epoch() != seen {
                return Poll::Ready(None);
            }
            match reports.poll_next_unpin(cx) {
                Poll::Ready(Some(next)) => Poll::Ready(Some(next)),
                // Without any, a change brings the next.
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            }
        });
        let next = next.await;
        let Some(fleet) = fleet.upgrade() else {
            return;
        };
        match next {
            None => {
                seen = changes.epoch();
                let now = fleet.looked();
                let is_there = |id: &Id, read: &Read| {
                    // By id, as they come.
                    let at = now.binary_search_by(|worker| worker.id.cmp(id));
                    at.is_ok_and(|at| now[at].incarnation == read.incarnation)
                };
                workers.retain(|id, read| is_there(id, read));
                for worker in now {
                    if workers.contains_key(&worker.id) {
                        continue;
                    }
                    if let Some(stream) = poller(&fleet, &worker) {
                        let (abort, registration) = AbortHandle::new_pair();
                        let next = next_of(worker.id.clone(), stream);
                        reports.push(Abortable::new(next, registration));
                        let read = Read {
                            incarnation: worker.incarnation,
                            abort,
                        };
                        workers.insert(worker.id, read);
                    }
                }
            }
            // Its worker has left.
            Some(Err(_)) => {}
            Some(Ok((id, report, stream))) => {
                let Some(read) = workers.get_mut(&id).filter(|read| !read.abort.is_aborted())
                else {
                    continue;
                };
                match report {
                    Some(Ok(report)) => read.take(&fleet, &id, report),
                    // One that failed is silence, and the poller has said so.
                    Some(Err(_)) => {}
                    None => continue,
                }
                let (abort, registration) = AbortHandle::new_pair();
                read.abort = abort;
                reports.push(Abortable::new(next_of(id, stream), registration));
            }
        }
    }
}

/// A worker as its metrics are read.
struct Looked<S> {
    id: Id,
    incarnation: u64,
    service: S,
}

impl<S: Clone, M> Fleet<S, M> {
    /// All workers, by id.
    fn looked(&self) -> Vec<Looked<S>> {
        let state = lock(&self.inner.state);
        let workers = state.workers.iter();
        let workers = workers.filter_map(|(id, entry)| {
            let wanted = entry.wanted.as_ref()?;
            Some(Looked {
                id: id.clone(),
                incarnation: wanted.plan.incarnation,
                service: wanted.plan.service.clone(),
            })
        });
        workers.collect()
    }

    fn signs(&self, id: &Id, incarnation: u64) -> Option<SignsOfLife> {
        let state = lock(&self.inner.state);
        let plan = &state.wanted(id)?.plan;
        (plan.incarnation == incarnation).then(|| plan.signs.clone())
    }

    /// Takes what the metrics of a worker say. Returns its configuration if
    /// that is as it was, and its load is to be taken. `None` if the worker has
    /// gone, is another one, or knows better.
    fn learn(&self, id: &Id, incarnation: u64, learned: Learned) -> Option<WorkerConfig> {
        let inner = &*self.inner;
        let mut state = lock(&inner.state);
        let revision = state.next();
        let worker = state.wanted_mut(id)?;
        let is_it = worker.plan.incarnation == incarnation;
        if !is_it || worker.reports_itself(inner.monitor.stale_after()) {
            return None;
        }
        let given = worker.registration.check(inner.default_model.as_deref());
        let config = learned.complete(&worker.registration, given.ok()?.given);
        worker.plan.load = learned.load.clone();
        worker.learned = learned;
        if config != worker.plan.config {
            // With its load, that is.
            worker.plan.config = config;
            worker.plan.revision = revision;
            drop(state);
            inner.settled([id.clone()]);
            return None;
        }
        Some(config)
    }
}

fn next_of(id: Id, mut reports: Reports) -> BoxFuture<'static, Next> {
    async move {
        let next = reports.next().await;
        (id, next, reports)
    }
    .boxed()
}

impl Read {
    fn take<S: Clone, M>(&self, fleet: &Fleet<S, M>, id: &Id, report: EngineReport) {
        if let Some(signs) = fleet.signs(id, self.incarnation) {
            signs.reached();
            signs.alive();
        }
        let now = Instant::now();
        let ranks = report.ranks().iter().map(|rank| rank.dp_rank).collect();
        let blocks = report.kv_blocks().unwrap_or(STAND_IN_BLOCKS);
        let loads: Arc<Loads> =
            Arc::new(move |id, config| report.loads(id, config, WaitingTokens::default()));
        let learned = Learned {
            kv_total_blocks: Some(blocks),
            dp_ranks: Some(ranks),
            load: Some((now, loads.clone())),
        };
        if let Some(config) = fleet.learn(id, self.incarnation, learned) {
            fleet.observe_at(&loads(id, &config), now);
        }
    }
}

impl Future for Scraping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Scraping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scraping").finish_non_exhaustive()
    }
}
