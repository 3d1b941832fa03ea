//! Choices of one's own: what they see, and what becomes of what they say.

use crate::{
    pick::{IDS, plain, running, streaming},
    support::{Fleet, Id, OK, Worker, by, secs},
};
use http::Request;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};
use tokio::time::timeout;
use tower_overload::{
    BusySet,
    busy::BusyMark,
    pool::pick::{Candidate, OpenWorkers, Pick},
};

/// What a choice does with the first worker that it sees, before it chooses it.
type Meddle = Box<dyn Fn(&str) + Send + Sync>;

struct Meddling {
    meddle: Meddle,
    asked: Arc<AtomicUsize>,
}

impl Pick<Request<()>> for Meddling {
    fn pick(
        &self,
        _: &Request<()>,
        workers: &OpenWorkers<'_, Request<()>>,
    ) -> Option<Candidate<Request<()>>> {
        assert!(!workers.is_empty() && workers.random() < workers.len());
        self.asked.fetch_add(1, SeqCst);
        let candidate = workers.get(0)?;
        (self.meddle)(candidate.name());
        Some(candidate)
    }
}

#[tokio::test(start_paused = true)]
async fn a_choice_that_has_closed_meanwhile_is_made_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let marks = Arc::new(Mutex::new(Vec::<BusyMark>::new()));
    let set = Arc::new(Mutex::new(None::<BusySet<Id>>));
    let (held, known) = (marks.clone(), set.clone());
    // The first three that are chosen become busy at that moment.
    let meddle = move |name: &str| {
        let mut held = held.lock().unwrap();
        if held.len() < 3 {
            let id = IDS.into_iter().find(|id| *id == name).unwrap();
            let mut mark = known.lock().unwrap().as_ref().unwrap().busy_mark(id);
            mark.set(None);
            held.push(mark);
        }
    };
    let pick = Meddling {
        meddle: Box::new(meddle),
        asked: asked.clone(),
    };
    let fleet = Fleet::with(IDS.map(Worker::new), |pool| pool.pick(pick));
    *set.lock().unwrap() = Some(fleet.set.clone());
    assert_eq!(fleet.send().await, OK);
    assert_eq!(asked.load(SeqCst), 4);
    let calls: usize = IDS.iter().map(|id| fleet.worker(id).calls()).sum();
    assert_eq!(calls, 1, "those that have closed got nothing");
    fleet.assert_idle();
}

/// Remembers the first worker that it has seen, and wants no other.
#[derive(Default)]
struct Insisting(Mutex<Option<Candidate<Request<()>>>>);

impl Pick<Request<()>> for Insisting {
    fn pick(
        &self,
        _: &Request<()>,
        workers: &OpenWorkers<'_, Request<()>>,
    ) -> Option<Candidate<Request<()>>> {
        let mut first = self.0.lock().unwrap();
        if first.is_none() {
            *first = workers.get(0);
        }
        first.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_choice_that_insists_on_a_closed_worker_keeps_nobody_waiting() {
    let fleet = Fleet::with(IDS.map(Worker::new), |pool| pool.pick(Insisting::default()));
    let first = by(&fleet.call().await.unwrap()).to_owned();
    let id = IDS.into_iter().find(|id| **id == first).unwrap();
    let drain = fleet.set.drain(id);
    let sent = timeout(secs(1), fleet.send()).await;
    assert_eq!(sent, Ok(OK));
    drop(drain);
    // Another connection under the same id is another worker.
    fleet.roster.insert(id, fleet.worker(id).client());
    assert_eq!(timeout(secs(1), fleet.send()).await, Ok(OK));
    fleet.assert_idle();
}

/// Leaves every choice to the default.
struct Undecided;

impl<Req> Pick<Req> for Undecided {
    fn pick(&self, _: &Req, _: &OpenWorkers<'_, Req>) -> Option<Candidate<Req>> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn a_choice_that_is_undecided_leaves_it_to_the_default() {
    let shares = running(&streaming(|pool| pool.pick(Undecided)), 400, plain).await;
    for id in IDS {
        assert!((95..=105).contains(&shares.of(id)), "{:?}", shares.of);
    }
}

/// Sees what a choice may see of each worker.
#[derive(Clone, Default)]
struct Watching(Arc<Mutex<Seen>>);

/// Requests in flight, load and weight, by name.
type Seen = BTreeMap<String, (u64, u64, u64)>;

impl<Req> Pick<Req> for Watching {
    fn pick(&self, _: &Req, workers: &OpenWorkers<'_, Req>) -> Option<Candidate<Req>> {
        let open = (0..workers.len()).filter_map(|at| workers.get(at));
        let seen = open.map(|it| {
            (
                it.name().to_owned(),
                (it.in_flight(), it.load(), it.weight()),
            )
        });
        *self.0.lock().unwrap() = seen.collect();
        assert!(
            workers.get(workers.len()).is_none(),
            "closed ones are not seen"
        );
        (0..workers.len())
            .filter_map(|at| workers.get(at))
            .find(|it| it.name() == "a")
    }
}

#[tokio::test(start_paused = true)]
async fn a_choice_sees_the_open_workers_with_their_load_and_weight() {
    let watching = Watching::default();
    let pick = watching.clone();
    let fleet = streaming(|pool| {
        pool.pick(pick)
            .weight(|id| if *id == "a" { 5 } else { 1 })
            .load(|_| || 42)
    });
    let _drain = fleet.set.drain("d");
    let shares = running(&fleet, 3, plain).await;
    assert_eq!(shares.of("a"), 3);
    let seen = watching.0.lock().unwrap().clone();
    let expected = [("a", (2, 42, 5)), ("b", (0, 42, 1)), ("c", (0, 42, 1))];
    assert_eq!(seen, expected.map(|(id, it)| (id.to_owned(), it)).into());
}
