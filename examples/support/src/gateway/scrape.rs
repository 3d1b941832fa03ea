//! The load of workers that do not report it: their own metrics, read at an
//! interval.

use super::{
    registry::Registry,
    stack::{Id, WorkerClient},
};
use futures::StreamExt;
use http::Uri;
use std::{pin::pin, sync::Weak, time::Duration};
use tokio::{
    task::{self, JoinHandle},
    time::Instant,
};
use tower_overload::{
    load::WorkerConfig,
    scrape::{EngineReport, PollerBuilder},
};

/// How the metrics of workers are read, by whom.
#[derive(Debug)]
pub(super) struct Scraping {
    registry: Weak<Registry>,
    interval: Duration,
}

impl Scraping {
    pub(super) fn new(registry: Weak<Registry>, interval: Duration) -> Self {
        Self { registry, interval }
    }

    /// Reads the metrics of a worker until the returned value is dropped.
    ///
    /// The counters go to the recorder that is the local one.
    pub(super) fn start(&self, id: &Id, client: WorkerClient) -> Option<ScrapeTask> {
        let poller = PollerBuilder::default()
            .interval(self.interval)
            .worker(id)
            .build(client, Uri::from_static("/metrics"));
        let poller = match poller {
            Ok(poller) => poller,
            Err(error) => {
                tracing::warn!(worker = &**id, %error, "the worker's metrics are not read");
                return None;
            }
        };
        let (registry, id) = (self.registry.clone(), id.clone());
        Some(ScrapeTask(tokio::spawn(async move {
            let mut reports = pin!(poller);
            while let Some(report) = reports.next().await {
                let Some(registry) = registry.upgrade() else {
                    return;
                };
                // One that failed is silence, and the poller has said so.
                if let Ok(report) = report {
                    registry.scraped(&id, task::id(), report);
                }
            }
        })))
    }
}

/// Reads a worker's metrics while it lives.
#[derive(Debug)]
pub(super) struct ScrapeTask(JoinHandle<()>);

impl Drop for ScrapeTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a registration says of a worker's capacity.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// With a rank 0, should it say nothing of ranks.
    pub(super) config: WorkerConfig,
    pub(super) has_ranks: bool,
}

impl Given {
    /// The worker's configuration: what is given, and the rest from its
    /// metrics.
    pub(super) fn complete(&self, report: &EngineReport) -> WorkerConfig {
        let config = self.config.clone();
        if self.has_ranks {
            report.complete(config)
        } else {
            report.complete_with_ranks(config)
        }
    }
}

/// What the registry keeps of a worker's metrics.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    pub(super) task: Option<ScrapeTask>,
    /// The last one that was of use, and when it was read.
    pub(super) report: Option<(EngineReport, Instant)>,
    /// When the worker last reported its load itself.
    pub(super) reported_itself: Option<Instant>,
}

impl Metrics {
    /// Whether a report that the task has read is of use. One that was to end
    /// may be at its last; and a worker that reports its load itself knows
    /// better than its metrics, as long as that report is good.
    pub(super) fn wants_from(&self, task: task::Id, good_for: Option<Duration>) -> bool {
        let is_current = self.task.as_ref().is_some_and(|it| it.0.id() == task);
        is_current && !self.reports_itself(good_for)
    }

    pub(super) fn reports_itself(&self, good_for: Option<Duration>) -> bool {
        self.reported_itself.is_some_and(|at| match good_for {
            Some(good_for) => at.elapsed() < good_for,
            None => true,
        })
    }
}
