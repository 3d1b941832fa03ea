//! Beside a worker that hangs, each request has its answer in its own time.

use crate::support::{ALL_BUSY, Fleet, Got, OK, Script, TOO_LONG, Worker, ms, secs, send, timed};
use futures::future::join_all;
use http::Request;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::sleep;
use tower::{ServiceBuilder, limit::ConcurrencyLimit};
use tower_overload::{BusySet, busy::roster, pool::WorkerPool};

const MAX_WAIT: Duration = secs(3);

/// Sends `n` requests, `every` so often, and waits for those that have an
/// answer within a minute after the last one; `None` for the others.
async fn offered(fleet: &Fleet, n: usize, every: Duration) -> Vec<Option<(Got, Duration)>> {
    let mut tasks = Vec::new();
    for _ in 0..n {
        tasks.push(fleet.spawn());
        sleep(every).await;
    }
    sleep(secs(60)).await;
    let outcome = |task: tokio::task::JoinHandle<_>| async move {
        if task.is_finished() {
            return Some(task.await.unwrap());
        }
        task.abort();
        let _ = task.await;
        None
    };
    join_all(tasks.into_iter().map(outcome)).await
}

#[tokio::test(start_paused = true)]
async fn beside_a_suspect_that_hangs_each_request_but_the_probes_is_answered_in_its_own_wait() {
    let fleet = Fleet::of([Worker::new("hangs"), Worker::new("busy")]);
    fleet.suspect("hangs").await;
    fleet.worker("hangs").script(Script::Never);
    let mut mark = fleet.set.busy_mark("busy");
    mark.set(None);

    let probed = fleet.worker("hangs").calls();
    let outcomes = offered(&fleet, 600, ms(50)).await;
    // One a second while requests come, and while they wait for another 3 s.
    let probes = fleet.worker("hangs").calls() - probed;
    assert!((30..=34).contains(&probes), "{probes} probes");
    let answered: Vec<_> = outcomes.into_iter().flatten().collect();
    assert_eq!(
        answered.len(),
        600 - probes,
        "a request that was sent is not cut"
    );
    for (got, after) in answered {
        assert_eq!(got, TOO_LONG);
        assert_eq!(after, MAX_WAIT);
    }
    assert_eq!(fleet.worker("busy").calls(), 0);
    fleet.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn with_a_time_limit_around_the_worker_each_of_600_is_answered() {
    let (hangs, calls) = (
        Worker::doing("hangs", Script::Never),
        Arc::new(AtomicUsize::new(0)),
    );
    let set = BusySet::new();
    let (roster, changes) = roster();
    let pool: WorkerPool<_, Request<()>> = WorkerPool::new(changes, set.clone());
    let limited = |worker: &Worker| {
        let calls = calls.clone();
        ServiceBuilder::new()
            .map_request(move |request: Request<()>| {
                calls.fetch_add(1, SeqCst);
                request
            })
            .timeout(secs(2))
            .service(worker.client())
    };
    hangs.script(crate::support::REFUSED);
    roster.insert("hangs", limited(&hangs));
    assert_eq!(send(pool.clone()).await, Got::Unreachable);
    hangs.script(Script::Never);
    roster.insert("busy", limited(&Worker::new("busy")));
    let mut mark = set.busy_mark("busy");
    mark.set(None);
    sleep(secs(1)).await;

    let mut tasks = Vec::new();
    for _ in 0..600 {
        tasks.push(tokio::spawn(timed(send(pool.clone()))));
        sleep(ms(50)).await;
    }
    let mut sent = 0;
    for task in tasks {
        match task.await.unwrap() {
            (Got::Other, after) => {
                assert!(after >= secs(2) && after <= MAX_WAIT + secs(2), "{after:?}");
                sent += 1;
            }
            (got, after) => assert_eq!((got, after), (TOO_LONG, MAX_WAIT)),
        }
    }
    // A probe that is given up has the next request probe at once.
    assert_eq!(sent, calls.load(SeqCst) - 1);
    assert_eq!((pool.in_flight(), pool.waiting()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn of_sixty_callers_those_not_taken_in_time_are_answered_then() {
    let worker = Worker::doing("one", Script::ServeAfter(secs(1)));
    let (roster, changes) = roster();
    let pool: WorkerPool<_, Request<()>> = WorkerPool::new(changes, BusySet::new());
    roster.insert("one", ConcurrencyLimit::new(worker.client(), 1));

    let callers = (0..60).map(|_| timed(send(pool.clone())));
    let outcomes = join_all(callers).await;
    let served = outcomes.iter().filter(|(got, _)| *got == OK);
    let times: Vec<_> = served.map(|(_, after)| after.as_secs()).collect();
    // The fourth place and the end of the waits come at the same instant.
    assert!(times == [1, 2, 3] || times == [1, 2, 3, 4], "{times:?}");
    let late = outcomes.iter().filter(|(got, _)| *got != OK);
    for (got, after) in late {
        assert_eq!((*got, *after), (TOO_LONG, MAX_WAIT));
    }
    assert_eq!((pool.in_flight(), pool.waiting()), (0, 0));
    assert_eq!(send(pool).await, OK, "what was given up keeps no place");
}

#[tokio::test(start_paused = true)]
async fn of_eight_workers_one_that_hangs_takes_one_request_a_second_and_delays_none() {
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let fleet = Fleet::of(ids.map(|id| Worker::doing(id, Script::ServeAfter(ms(20)))));
    fleet.suspect("a").await;
    fleet.worker("a").script(Script::Never);

    let before = fleet.worker("a").calls();
    let outcomes = offered(&fleet, 600, ms(50)).await;
    let probes = fleet.worker("a").calls() - before;
    assert!((1..=31).contains(&probes), "{probes} probes");
    let answered: Vec<_> = outcomes.into_iter().flatten().collect();
    assert_eq!(answered.len(), 600 - probes);
    assert!(answered.iter().all(|outcome| *outcome == (OK, ms(20))));
    fleet.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_answers_after_the_probe_timeout_is_back_with_its_first_answer() {
    let fleet = Fleet::of([Worker::new("slow")]);
    fleet.suspect("slow").await;
    fleet.worker("slow").script(Script::ServeAfter(ms(2_500)));

    let waits: Vec<_> = (0..10).map(|_| fleet.spawn()).collect();
    let mut times = Vec::new();
    for wait in waits {
        let (got, after) = wait.await.unwrap();
        assert_eq!(got, OK);
        times.push(after.as_millis());
    }
    times.sort_unstable();
    // Probes leave at 0, 1 and 2 s; the first answer, at 2.5 s, lets all others go.
    assert_eq!(
        times,
        [
            2_500, 3_500, 4_500, 5_000, 5_000, 5_000, 5_000, 5_000, 5_000, 5_000
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_answers_after_max_wait_serves_its_probes_and_those_that_come_then() {
    let fleet = Fleet::of([Worker::new("slower")]);
    fleet.suspect("slower").await;
    fleet.worker("slower").script(Script::ServeAfter(ms(3_500)));

    let waits: Vec<_> = (0..10).map(|_| fleet.spawn()).collect();
    let mut served = 0;
    for wait in waits {
        match wait.await.unwrap() {
            (OK, after) => {
                assert!(after >= ms(3_500) && after <= MAX_WAIT + ms(3_500));
                served += 1;
            }
            outcome => assert_eq!(outcome, (TOO_LONG, MAX_WAIT)),
        }
    }
    assert!((3..=4).contains(&served), "{served} probes within the wait");
    fleet.worker("slower").script(Script::Serve);
    assert_eq!(fleet.send().await, OK);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_never_ready_takes_a_wait_from_those_that_chose_it_only() {
    let fleet = Fleet::of(["never", "a", "b", "c"].map(Worker::new));
    fleet.worker("never").unready();
    let outcomes = offered(&fleet, 400, ms(10)).await;
    let outcomes: Vec<_> = outcomes.into_iter().map(Option::unwrap).collect();
    for outcome in &outcomes {
        assert!(
            [(OK, ms(0)), (TOO_LONG, MAX_WAIT)].contains(outcome),
            "{outcome:?}"
        );
    }
    // Those that wait for it count as its load, so that it is not chosen.
    let late = outcomes.iter().filter(|(got, _)| *got == TOO_LONG).count();
    assert!((1..=20).contains(&late), "{late} waited");
    fleet.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn an_unready_suspect_holds_the_others_for_no_longer_than_a_probe_may() {
    let fleet = Fleet::of([Worker::new("a")]);
    fleet.suspect("a").await;
    fleet.worker("a").unready();
    let outcomes = offered(&fleet, 100, ms(50)).await;
    for outcome in outcomes.into_iter().map(Option::unwrap) {
        assert_eq!(outcome, (TOO_LONG, MAX_WAIT));
    }
    assert_eq!(fleet.worker("a").calls(), 1, "the one that made it suspect");
    fleet.assert_idle();
    fleet.worker("a").ready();
    fleet.worker("a").script(Script::Serve);
    assert_eq!(fleet.send().await, OK);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_waits_out_nobody_once_another_worker_is_free() {
    let fleet = Fleet::of([Worker::new("hangs"), Worker::new("busy")]);
    fleet.suspect("hangs").await;
    fleet.worker("hangs").script(Script::Never);
    let mut mark = fleet.set.busy_mark("busy");
    mark.set(None);
    let probe = fleet.spawn();
    sleep(ms(10)).await;
    let waits: Vec<_> = (0..20).map(|_| fleet.spawn()).collect();
    sleep(ms(500)).await;
    mark.clear();
    for wait in waits {
        assert_eq!(wait.await.unwrap(), (OK, ms(500)));
    }
    assert!(!probe.is_finished());
    probe.abort();
    let _ = probe.await;
    fleet.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn while_the_only_reachable_worker_is_busy_and_the_other_is_down_nobody_waits() {
    let fleet = Fleet::of([Worker::new("down"), Worker::new("busy")]);
    fleet.suspect("down").await;
    let mut mark = fleet.set.busy_mark("busy");
    mark.set(None);
    assert_eq!(fleet.send().await, Got::Unreachable, "the probe fails");
    assert_eq!(timed(fleet.send()).await, (ALL_BUSY, ms(0)));
}
