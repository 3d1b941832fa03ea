//! Requests that are sent again: where to, for how long, and how many.

use crate::support::{
    AT_CAPACITY, Builder, Fleet, Got, OK, Pool, REFUSED, Script, TOO_LONG, Worker, by, got, ms,
    secs, send, timed,
};
use futures::future::join_all;
use http::Request;
use std::{collections::HashSet, io, time::Duration};
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};
use tower::{Service, ServiceExt, retry::Retry};
use tower_overload::{
    BoxError, BusySet,
    busy::{RetryBudget, RetryRefused, Trail, roster},
    pool::{
        WorkerPoolBuilder,
        pick::{Affinity, LeastLoaded},
    },
};

const IDS: [&str; 4] = ["a", "b", "c", "d"];

fn unbounded() -> RetryBudget {
    RetryBudget::with_rate(1_000_000, 1_000.0)
}

/// Workers that refuse and stay open all the same: nothing but the request
/// knows where it has been.
struct Refusing {
    workers: [Worker; 4],
    pool: Pool,
}

impl Refusing {
    fn new(configure: impl FnOnce(Builder) -> Builder) -> Self {
        let set = BusySet::<&str>::builder().lease(Duration::ZERO);
        let (roster, changes) = roster();
        let pool = configure(WorkerPoolBuilder::new(set.build().unwrap())).build(changes);
        let workers = IDS.map(|id| Worker::doing(id, Script::Status(529, None)));
        for worker in &workers {
            roster.insert(worker.id, worker.client());
        }
        Self { workers, pool }
    }

    fn calls(&self) -> Vec<usize> {
        self.workers.iter().map(Worker::calls).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_sent_again_goes_where_it_has_not_been_by_any_choice() {
    let by_key = || Affinity::by(|_: &Request<()>| Some(1)).floor(1_000);
    for choice in 0..4 {
        let refusing = Refusing::new(|pool| match choice {
            0 => pool,
            1 => pool.pick(LeastLoaded::of_all()),
            2 => pool.pick(LeastLoaded::of(2).by_load()),
            _ => pool.pick(by_key()),
        });
        let policy = RetryRefused::with_budget(3, unbounded());
        for n in 1..50 {
            let service = Retry::new(policy.clone(), refusing.pool.clone());
            assert_eq!(send(service).await, AT_CAPACITY);
            assert_eq!(
                refusing.calls(),
                [n; 4],
                "each was asked once, by choice {choice}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_been_everywhere_is_not_left_without_a_worker() {
    let refusing = Refusing::new(|pool| pool);
    let policy = RetryRefused::with_budget(7, unbounded());
    assert_eq!(
        send(Retry::new(policy, refusing.pool.clone())).await,
        AT_CAPACITY
    );
    let calls = refusing.calls();
    assert_eq!(calls.iter().sum::<usize>(), 8);
    assert!(calls.iter().all(|calls| *calls >= 1), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_or_lost_is_served_by_another() {
    for (script, error) in [
        (Script::Status(529, Some(5)), false),
        (REFUSED, true),
        (Script::Fail(io::ErrorKind::ConnectionReset, ms(0)), true),
    ] {
        let fleet = Fleet::of(IDS.map(Worker::new));
        for id in ["a", "b", "c"] {
            fleet.worker(id).script(script.clone());
        }
        let policy = RetryRefused::with_budget(3, unbounded());
        for _ in 0..20 {
            let service = Retry::new(policy.clone(), fleet.pool.clone());
            let response = service.oneshot(Request::new(())).await.unwrap();
            assert_eq!(by(&response), "d");
        }
        let asked = ["a", "b", "c"].map(|id| fleet.worker(id).calls());
        assert!(asked.iter().all(|calls| *calls <= 1), "{asked:?}, {error}");
    }
}

/// A pool whose worker *held* is being probed for as long as the test runs.
async fn beside_held(worker: Worker) -> (Pool, impl Sized) {
    let set = BusySet::<&str>::builder()
        .cooldown(secs(20))
        .probe_timeout(secs(3_600));
    let set = set.build().unwrap();
    let (roster, changes) = roster();
    let pool: Pool = WorkerPoolBuilder::new(set).build(changes);
    let held = Worker::doing("held", REFUSED);
    roster.insert("held", held.client());
    assert_eq!(send(pool.clone()).await, Got::Unreachable);
    sleep(secs(20)).await;
    held.script(Script::Never);
    let probe = pool.clone().call(Request::new(()));
    roster.insert(worker.id, worker.client());
    (pool, (probe, roster))
}

#[tokio::test(start_paused = true)]
async fn all_attempts_of_a_request_wait_no_longer_than_max_wait_together() {
    for (after, until) in [(0, 3), (1, 3), (2, 3), (3, 3), (7, 7)] {
        let failing = Script::Fail(io::ErrorKind::ConnectionReset, secs(after));
        let (pool, _held) = beside_held(Worker::doing("fails", failing)).await;
        let policy = RetryRefused::with_budget(3, unbounded());
        // On its way it is not cut, and what it has waited for is the answer.
        let outcome = timed(send(Retry::new(policy, pool))).await;
        assert_eq!(outcome, (Got::Unreachable, secs(until)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_says_since_when_it_waits_is_believed() {
    let (pool, _held) = beside_held(Worker::new("a")).await;
    let since = |ago: u64| {
        let mut request = Request::new(());
        let trail = Trail::new().since(Instant::now() - secs(ago));
        request.extensions_mut().insert(trail);
        request
    };
    let (result, after) = timed(pool.clone().call(since(10))).await;
    assert_eq!(
        (got(&result), after),
        (OK, ms(0)),
        "an open worker needs no wait"
    );

    let (pool, _held) = beside_held(Worker::doing("a", REFUSED)).await;
    assert_eq!(send(pool.clone()).await, Got::Unreachable);
    for (ago, wait) in [(9, 0), (3, 0), (1, 2), (0, 3)] {
        let (result, after) = timed(pool.clone().call(since(ago))).await;
        assert_eq!((got(&result), after), (TOO_LONG, secs(wait)));
    }
}

/// As many requests as there are places are in flight on the workers, when the
/// first of them is killed.
async fn killed(
    ids: &[&'static str],
    in_flight: usize,
    policy: impl Fn(&Fleet) -> RetryRefused,
) -> Vec<Got> {
    let script = Script::Killable(secs(5));
    let workers = ids.iter().map(|id| Worker::doing(id, script.clone()));
    let fleet = Fleet::with(workers, |pool| pool.pick(LeastLoaded::of_all()));
    let policy = policy(&fleet);
    let mut tasks = Vec::new();
    for _ in 0..in_flight {
        tasks.push(tokio::spawn(send(Retry::new(
            policy.clone(),
            fleet.pool.clone(),
        ))));
    }
    sleep(secs(1)).await;
    assert_eq!(fleet.pool.in_flight() as usize, in_flight);
    assert_eq!(fleet.worker(ids[0]).calls(), in_flight / ids.len());
    fleet.worker(ids[0]).kill();
    let outcomes = join_all(tasks).await;
    assert_eq!(
        fleet.worker(ids[0]).calls(),
        in_flight / ids.len(),
        "it gets no more"
    );
    fleet.assert_idle();
    outcomes.into_iter().map(Result::unwrap).collect()
}

fn lost(outcomes: &[Got]) -> usize {
    assert!(
        outcomes
            .iter()
            .all(|got| [OK, Got::Unreachable].contains(got))
    );
    outcomes
        .iter()
        .filter(|got| **got == Got::Unreachable)
        .count()
}

#[tokio::test(start_paused = true)]
async fn when_one_of_three_workers_dies_with_200_of_600_requests_the_others_serve_them() {
    let outcomes = killed(&["a", "b", "c"], 600, |fleet| {
        let pool = fleet.pool.clone();
        let budget = RetryBudget::new().in_flight(move || pool.in_flight());
        RetryRefused::with_budget(2, budget)
    });
    assert_eq!(lost(&outcomes.await), 0);
}

#[tokio::test(start_paused = true)]
async fn when_one_of_two_workers_dies_the_other_serves_what_it_had() {
    let outcomes = killed(&["a", "b"], 600, |fleet| {
        let pool = fleet.pool.clone();
        let budget = RetryBudget::new().in_flight(move || pool.in_flight());
        RetryRefused::with_budget(2, budget)
    });
    assert_eq!(lost(&outcomes.await), 0);
}

#[tokio::test(start_paused = true)]
async fn lost_requests_are_sent_again_within_their_share_of_what_is_in_flight() {
    // One is not in flight any more when it asks, whatever the others are.
    for (percent, again) in [(0, 10), (10, 59), (30, 179)] {
        let outcomes = killed(&["a", "b", "c"], 600, |fleet| {
            let pool = fleet.pool.clone();
            let budget = RetryBudget::with_rate(0, 0.0).in_flight(move || pool.in_flight());
            RetryRefused::with_budget(2, budget.lost_percent(percent))
        });
        assert_eq!(200 - lost(&outcomes.await), again, "{percent} %");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_that_was_served_leaves_the_budget() {
    let fleet = Fleet::of(["a", "b"].map(Worker::new));
    let budget = RetryBudget::with_rate(0, 0.0)
        .in_flight(|| 0)
        .lost_percent(0);
    let policy = RetryRefused::with_budget(1, budget);
    for _ in 0..10 {
        fleet.worker("a").script(Script::Killable(secs(1)));
        fleet.worker("b").script(Script::ServeAfter(secs(2)));
        let drain = fleet.set.drain("b");
        let service = || send(Retry::new(policy.clone(), fleet.pool.clone()));
        let tasks: Vec<_> = (0..10).map(|_| tokio::spawn(service())).collect();
        yield_now().await;
        drop(drain);
        fleet.worker("a").kill();
        for outcome in join_all(tasks).await {
            assert_eq!(outcome.unwrap(), OK);
        }
        fleet.roster.insert("a", fleet.worker("a").client());
    }
}

#[tokio::test(start_paused = true)]
async fn the_names_of_those_asked_are_those_of_the_errors() {
    let fleet = Fleet::of(IDS.map(|id| Worker::doing(id, REFUSED)));
    let mut asked = HashSet::new();
    for _ in 0..4 {
        let error: BoxError = fleet.call().await.unwrap_err();
        let unreachable = tower_overload::Unreachable::find_in(&*error).unwrap();
        asked.insert(unreachable.worker().unwrap().to_owned());
    }
    assert_eq!(asked, HashSet::from(IDS.map(str::to_owned)));
}
