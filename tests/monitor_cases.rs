//! The shared cases, against the monitor alone: which workers it marks busy.

mod support {
    pub mod cases;
}

use std::collections::BTreeSet;
use support::cases::{self, Fleet};
use tower_overload::{
    busy::BusySet,
    load::{LoadEvent, ThresholdUpdate, ThresholdsHandle, WorkerConfig, WorkerMonitor},
};

struct MonitorOnly {
    monitor: WorkerMonitor<String>,
    thresholds: ThresholdsHandle,
    busy: BusySet<String>,
    seen: BTreeSet<String>,
}

impl MonitorOnly {
    fn new() -> Self {
        let busy = BusySet::new();
        let (monitor, thresholds) = WorkerMonitor::for_model("tiny", busy.clone());
        Self {
            monitor,
            thresholds,
            busy,
            seen: BTreeSet::new(),
        }
    }
}

impl Fleet for MonitorOnly {
    fn thresholds(&mut self, update: ThresholdUpdate) {
        self.thresholds.update(update).unwrap();
    }

    fn configure(&mut self, worker: &str, config: WorkerConfig) {
        self.seen.insert(worker.to_owned());
        self.monitor.configure_for_all(worker.to_owned(), config);
    }

    fn load(&mut self, event: LoadEvent<String>) {
        self.seen.insert(event.worker.clone());
        let _dropped = self.monitor.observe(event);
    }

    fn remove(&mut self, worker: &str) {
        self.monitor.remove(&worker.to_owned());
    }

    fn refused(&mut self, _: &str) {
        panic!("a monitor sees no requests");
    }

    fn completed(&mut self, _: &str) {
        // Ends a lease, and there is none: load is not its business.
    }

    fn excluded(&mut self) -> BTreeSet<String> {
        let marked = |worker: &&String| self.busy.is_busy(worker);
        let marked: BTreeSet<String> = self.seen.iter().filter(marked).cloned().collect();
        let snapshot = self.monitor.snapshot();
        let busy = snapshot.into_iter().filter(|worker| worker.is_busy());
        let busy: BTreeSet<String> = busy.map(|worker| worker.worker).collect();
        assert_eq!(busy, marked, "the snapshot says what the marks say");
        marked
    }

    fn verdict(&mut self) -> Option<&'static str> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn every_case_without_a_refusal_holds_for_the_monitor_alone() {
    let mut with_refusals = Vec::new();
    for case in cases::all() {
        if case.has_refusals() {
            with_refusals.push(case.name);
        } else {
            cases::run(&case, &mut MonitorOnly::new()).await;
        }
    }
    // The lease that a refusal starts is not the monitor's.
    assert_eq!(
        with_refusals,
        [
            "a refusal leases the worker for a second",
            "a completed response ends the lease early, a load event does not",
        ]
    );
}
