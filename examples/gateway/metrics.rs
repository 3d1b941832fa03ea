//! What Prometheus sees.

use metrics::{Recorder, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::{convert::Infallible, fmt, sync::Arc, time::Duration};
use tokio::time::interval;
use tower_overload::{
    fleet::Id,
    load::WorkerMonitor,
    metrics::{Prefix, describe},
};

/// The recorder of a gateway, which is not the process's: there may be several.
#[derive(Clone)]
pub struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    monitor: WorkerMonitor<Id>,
}

impl Metrics {
    /// With a monitor that shows no series of workers that are gone.
    pub fn new(stale_after: Option<Duration>) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let monitor = with_local_recorder(&recorder, || {
            describe(&Prefix::default());
            WorkerMonitor::<()>::builder()
                .stale_after(stale_after)
                .worker_gauges(false)
                .build()
        });
        Self {
            handle: recorder.handle(),
            recorder: Arc::new(recorder),
            monitor,
        }
    }

    pub fn monitor(&self) -> &WorkerMonitor<Id> {
        &self.monitor
    }

    pub fn recorder(&self) -> Arc<dyn Recorder + Send + Sync> {
        self.recorder.clone()
    }

    /// Has handles that `what` makes be of this recorder.
    pub fn recorded<R>(&self, what: impl FnOnce() -> R) -> R {
        with_local_recorder(&*self.recorder, what)
    }

    pub fn text(&self) -> String {
        self.handle.render() + &self.monitor.worker_gauges()
    }

    /// The recorder keeps every sample of a histogram until somebody asks for
    /// them, and perhaps nobody does.
    pub async fn keep_small(self) -> Infallible {
        let mut interval = interval(Duration::from_secs(5));
        loop {
            interval.tick().await;
            self.handle.run_upkeep();
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
