//! What a worker tells its gateway, or the gateways of a fleet over NATS.

use crate::engine::Ledger;
use std::{convert::Infallible, sync::Arc};
use tokio::{sync::oneshot, task::JoinSet, time::sleep};
use tower_overload::{
    BoxError,
    admin::Reporter,
    load::LoadEvent,
    nats::{MIN_REPORT_INTERVAL, Publisher},
    upstream::HttpWorker,
};

/// Who tells.
#[derive(Debug)]
pub(crate) enum Report {
    /// To the admin API of one gateway.
    Http(Reporter<HttpWorker>),
    /// To all of a fleet.
    Nats(Publisher),
}

impl Report {
    /// Tells each change of `ledger`.
    pub(crate) async fn follow(&self, ledger: Arc<Ledger>) -> Infallible {
        loop {
            for (rank, load) in (0_u32..).zip(ledger.snapshot()) {
                let event = LoadEvent::new((), rank)
                    .kv_used_blocks(load.kv_blocks)
                    .active_prefill_tokens(load.prefill_tokens);
                // The worker declares all of its ranks.
                let _ = match self {
                    Self::Http(reporter) => reporter.report(event),
                    Self::Nats(publisher) => publisher.report(event),
                };
            }
            ledger.changed().await;
            sleep(MIN_REPORT_INTERVAL).await;
        }
    }

    /// Says goodbye.
    pub(crate) async fn leave(self) {
        let left = match self {
            Self::Http(reporter) => reporter.leave().await,
            Self::Nats(publisher) => publisher.leave().await.map_err(BoxError::from),
        };
        match left {
            Ok(()) => tracing::info!("left the gateway"),
            Err(error) => tracing::warn!(error, "cannot leave the gateway"),
        }
    }
}

/// Tells in the background, until it says goodbye or is dropped.
#[derive(Debug)]
pub(crate) struct Telling {
    leave: oneshot::Sender<()>,
    task: JoinSet<()>,
}

impl Telling {
    pub(crate) fn start(report: Report, ledger: Arc<Ledger>) -> Self {
        let (leave, left) = oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(async move {
            tokio::select! {
                never = report.follow(ledger) => match never {},
                _ = left => {}
            }
            report.leave().await;
        });
        Self { leave, task }
    }

    /// Completes when the gateway knows, or cannot be told.
    pub(crate) async fn leave(mut self) {
        // It is gone only if it has panicked.
        let _ = self.leave.send(());
        while self.task.join_next().await.is_some() {}
    }
}
