//! The shared cases, against the whole stack: monitor, set, discovery and pool.

use crate::support::{
    cases::{self, Fleet},
    serves::Serves,
};
use futures::FutureExt;
use std::collections::BTreeSet;
use tower::{Service, load::CompleteOnResponse};
use tower_overload::{
    ServiceOverloaded, Unavailable,
    busy::{BusySet, ErrorsOnly, Roster, RosterChanges, roster},
    load::{LoadEvent, ThresholdUpdate, ThresholdsHandle, WorkerConfig, WorkerMonitor},
    pool::{WorkerPool, WorkerPoolBuilder},
};

struct WholeStack {
    monitor: WorkerMonitor<String>,
    thresholds: ThresholdsHandle,
    set: BusySet<String>,
    roster: Roster<String, Serves>,
    stack: WorkerPool<RosterChanges<String, Serves>, (), ErrorsOnly, CompleteOnResponse>,
    registered: BTreeSet<String>,
}

impl WholeStack {
    fn new() -> Self {
        // The cases are about what marks say, not about what asks whether
        // they are true.
        let set = BusySet::<String>::builder()
            .probe_after(None)
            .build()
            .unwrap();
        let (monitor, thresholds) = WorkerMonitor::for_model("tiny", set.clone());
        let (roster, changes) = roster();
        let pool = WorkerPoolBuilder::new(set.clone())
            .policy(ErrorsOnly)
            .completion(CompleteOnResponse::default());
        Self {
            monitor,
            thresholds,
            set,
            roster,
            stack: pool.build_any(changes),
            registered: BTreeSet::new(),
        }
    }
}

impl Fleet for WholeStack {
    fn thresholds(&mut self, update: ThresholdUpdate) {
        self.thresholds.update(update).unwrap();
    }

    fn configure(&mut self, worker: &str, config: WorkerConfig) {
        self.monitor.configure_for_all(worker.to_owned(), config);
        if self.registered.insert(worker.to_owned()) {
            self.roster.insert(worker.to_owned(), Serves);
        }
    }

    fn load(&mut self, event: LoadEvent<String>) {
        let known = self.registered.contains(&event.worker);
        let dropped = self.monitor.observe(&event).is_err();
        assert!(known || dropped, "{event:?} is of nobody");
    }

    fn remove(&mut self, worker: &str) {
        let worker = worker.to_owned();
        self.monitor.remove(&worker);
        self.roster.remove(&worker);
        self.set.forget(&worker);
        self.registered.remove(&worker);
    }

    fn refused(&mut self, worker: &str) {
        self.set.refused(&worker.to_owned(), None);
    }

    fn completed(&mut self, worker: &str) {
        self.set.completed(&worker.to_owned());
    }

    fn excluded(&mut self) -> BTreeSet<String> {
        let excluded = self.set.snapshot().into_iter().map(|(worker, _)| worker);
        excluded.collect()
    }

    fn verdict(&mut self) -> &'static str {
        match self.stack.call(()).now_or_never().expect("no worker waits") {
            Ok(()) => "dispatch",
            Err(error) if ServiceOverloaded::find_in(&*error).is_some() => "overloaded",
            Err(error) if Unavailable::find_in(&*error).is_some() => "unavailable",
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_case_holds() {
    let cases = cases::all();
    assert_eq!(
        cases.len(),
        include_str!("../data/monitor.jsonl").lines().count()
    );
    for case in cases {
        cases::run(&case, &mut WholeStack::new()).await;
    }
}
