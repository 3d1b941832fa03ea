//! Who is in the pool, what becomes of those who leave, and the driver.

use crate::support::{
    Client, Fleet, Got, Id, NO_WORKERS, NONE_REACHABLE, OK, REFUSED, Script, TOO_LONG, Worker, got,
    ms, secs, send, timed,
};
use futures::{future::join_all, stream};
use http::Request;
use std::{io, time::Duration};
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};
use tower::discover::Change;
use tower_overload::{BusySet, pool::WorkerPool};

#[path = "../support/metrics.rs"]
mod metrics;
use metrics::recorded;

const MAX_WAIT: Duration = secs(3);

#[tokio::test(start_paused = true)]
async fn while_one_worker_comes_and_goes_each_millisecond_all_are_answered_in_their_wait() {
    for beside_unready in [false, true] {
        // It never comes to its share of what waits for the other one.
        let mut fleet = Fleet::with([], |pool| pool.slow_start(Duration::ZERO));
        if beside_unready {
            fleet.add(Worker::new("unready"));
            fleet.worker("unready").unready();
        }
        let flapping = Worker::doing("flaps", Script::ServeAfter(ms(2)));
        let mut tasks = Vec::new();
        for n in 0..2_000 {
            match n % 2 {
                0 => fleet.roster.insert("flaps", flapping.client()),
                _ => fleet.roster.remove(&"flaps"),
            }
            tasks.push(fleet.spawn());
            sleep(ms(1)).await;
        }
        let outcomes = join_all(tasks).await;
        let outcomes: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
        for (got, after) in &outcomes {
            assert!([OK, NO_WORKERS, TOO_LONG].contains(got), "{got:?}");
            assert!(*after <= MAX_WAIT + ms(2), "{after:?}");
        }
        let served = outcomes.iter().filter(|(got, _)| *got == OK).count();
        // Beside one that is never ready, some wait for that one.
        assert!(
            served >= if beside_unready { 300 } else { 1_000 },
            "{served}"
        );
        fleet.assert_idle();
        fleet.roster.remove(&"flaps");
        let _ = fleet.send().await;
        assert_eq!(flapping.clients(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_replaced_each_millisecond_serves_every_request() {
    let fleet = Fleet::of([]);
    let worker = Worker::doing("a", Script::ServeAfter(ms(5)));
    let mut tasks = Vec::new();
    for _ in 0..1_000 {
        fleet.roster.insert("a", worker.client());
        tasks.push(fleet.spawn());
        sleep(ms(1)).await;
    }
    for outcome in join_all(tasks).await {
        assert_eq!(outcome.unwrap(), (OK, ms(5)));
    }
    let members = fleet.pool.members();
    assert_eq!(
        (members.alive(), members.usable(), members.eligible()),
        (1, 1, 1)
    );
    assert_eq!(worker.clients(), 1, "those that were replaced are dropped");
}

#[tokio::test(start_paused = true)]
async fn the_removal_of_a_worker_sends_those_that_wait_for_it_elsewhere_at_once() {
    for has_driver in [false, true] {
        let mut fleet = Fleet::of([Worker::new("a")]);
        if has_driver {
            tokio::spawn(fleet.pool.driver());
        }
        fleet.worker("a").unready();
        let waits: Vec<_> = (0..10).map(|_| fleet.spawn()).collect();
        sleep(ms(100)).await;
        fleet.add(Worker::new("b"));
        sleep(ms(100)).await;
        assert!(
            waits.iter().all(|wait| !wait.is_finished()),
            "a wait is for one worker"
        );
        fleet.roster.remove(&"a");
        for wait in waits {
            assert_eq!(wait.await.unwrap(), (OK, ms(200)), "driver: {has_driver}");
        }
        assert_eq!(fleet.worker("a").clients(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_removal_of_the_last_worker_answers_those_that_wait_for_it() {
    let fleet = Fleet::of([Worker::new("a")]);
    fleet.worker("a").unready();
    let waits: Vec<_> = (0..10).map(|_| fleet.spawn()).collect();
    sleep(ms(100)).await;
    fleet.roster.remove(&"a");
    for wait in waits {
        assert_eq!(wait.await.unwrap(), (NO_WORKERS, ms(100)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_mark_sends_those_that_wait_for_its_worker_elsewhere_at_once() {
    for drain in [false, true] {
        let mut fleet = Fleet::of([Worker::new("a")]);
        fleet.worker("a").unready();
        let wait = fleet.spawn();
        sleep(ms(100)).await;
        fleet.add(Worker::new("b"));
        let mut mark = fleet.set.busy_mark("a");
        let drained = drain.then(|| fleet.set.drain("a"));
        if !drain {
            mark.set(Some(Instant::now() + secs(1)));
        }
        assert_eq!(wait.await.unwrap(), (OK, ms(100)));
        drop(drained);
        assert_eq!(fleet.worker("a").calls(), 0);
        fleet.assert_idle();
    }
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_comes_while_its_worker_says_that_it_is_not_ready_is_seen() {
    // It is asked in the call, then in the response future, and parks there.
    for asked_before in [0, 1] {
        let fleet = Fleet::of(["a", "b"].map(Worker::new));
        let drain = fleet.set.drain("b");
        let (mut mark, mut asked) = (fleet.set.busy_mark("a"), 0);
        fleet.worker("a").unready_and(move || {
            if asked == asked_before {
                mark.set(None);
            }
            asked += 1;
        });
        let call = fleet.call();
        drop(drain);
        let (result, after) = timed(call).await;
        assert_eq!(
            (got(&result), after),
            (OK, ms(0)),
            "asked {asked_before} times before"
        );
    }
}

#[test]
fn a_worker_whose_service_fails_is_out_until_it_is_inserted_again() {
    recorded(|scrape| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(async {
            let fleet = Fleet::of(["a", "b"].map(Worker::new));
            fleet.worker("a").script(Script::Stream);
            let drain = fleet.set.drain("b");
            let streaming = fleet.call().await.unwrap();
            drop(drain);
            fleet.worker("a").break_service();
            let drain = fleet.set.drain("b");
            assert_eq!(fleet.send().await, NONE_REACHABLE);
            drop(drain);
            for _ in 0..20 {
                assert_eq!(fleet.send().await, OK);
            }
            assert_eq!(fleet.worker("a").calls(), 1);
            assert_eq!(fleet.worker("a").clients(), 0);
            assert_eq!(
                (fleet.pool.members().alive(), fleet.pool.in_flight()),
                (1, 1)
            );
            let errors = || scrape.value("worker_service_errors_total", &[]);
            assert_eq!(errors(), Some(1.0));

            let mark = fleet.set.drain("b");
            assert_eq!(fleet.send().await, NONE_REACHABLE);
            fleet.worker("a").ready();
            fleet.worker("a").script(Script::Serve);
            assert_eq!(fleet.send().await, NONE_REACHABLE, "nobody has inserted it");
            fleet.roster.insert("a", fleet.worker("a").client());
            assert_eq!(fleet.send().await, OK);
            drop((mark, streaming));
            fleet.assert_idle();
            assert_eq!(errors(), Some(1.0));
        });
    });
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_while_requests_wait_for_it_sends_all_of_them_elsewhere() {
    let mut fleet = Fleet::of([Worker::new("a")]);
    fleet.worker("a").unready();
    let waits: Vec<_> = (0..10).map(|_| fleet.spawn()).collect();
    sleep(ms(50)).await;
    fleet.add(Worker::new("b"));
    fleet.worker("a").break_service();
    for wait in waits {
        assert_eq!(wait.await.unwrap(), (OK, ms(50)));
    }
    assert_eq!(fleet.pool.members().alive(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_removed_worker_has_goes_on_and_marks_nothing() {
    let mut fleet = Fleet::of([Worker::doing("a", Script::Stream)]);
    let response = fleet.call().await.unwrap();
    let failing = Script::Fail(io::ErrorKind::ConnectionReset, ms(100));
    fleet.worker("a").script(failing);
    let lost = fleet.spawn();
    yield_now().await;
    let old = fleet.worker("a").clone();
    fleet.roster.remove(&"a");
    assert_eq!(fleet.send().await, NO_WORKERS);
    assert_eq!(
        (fleet.pool.members().alive(), fleet.pool.in_flight()),
        (0, 2)
    );
    fleet.add(Worker::new("a"));
    assert_eq!(lost.await.unwrap().0, Got::Unreachable);
    assert_eq!(fleet.send().await, OK, "the new one was not lost");
    assert_eq!(fleet.pool.in_flight(), 1);
    old.end_streams();
    assert_eq!(got(&Ok(response)), OK);
    fleet.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn a_driver_drops_what_was_removed_from_an_idle_pool() {
    let fleet = Fleet::of([Worker::new("a"), Worker::new("b")]);
    let driver = tokio::spawn(fleet.pool.driver());
    yield_now().await;
    assert_eq!(fleet.pool.members().alive(), 2);
    fleet.roster.remove(&"a");
    yield_now().await;
    assert_eq!(fleet.pool.members().alive(), 1);
    assert_eq!(
        (fleet.worker("a").clients(), fleet.worker("b").clients()),
        (0, 1)
    );
    assert!(!driver.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_driver_ends_marks_at_their_time_while_nothing_is_asked() {
    let fleet = Fleet::of([Worker::new("a")]);
    tokio::spawn(fleet.pool.driver());
    let (start, members) = (Instant::now(), fleet.pool.members());
    let mut mark = fleet.set.busy_mark("a");
    mark.set(Some(start + secs(60)));
    sleep(ms(1)).await;
    assert_eq!((members.usable(), members.eligible()), (1, 0));
    mark.set(Some(start + ms(250)));
    sleep(ms(248)).await;
    assert_eq!(members.eligible(), 0);
    sleep(ms(1)).await;
    yield_now().await;
    assert_eq!(members.eligible(), 1, "at its millisecond");

    // And of one that fails: down for a second, on probation then.
    fleet.worker("a").script(REFUSED);
    let _ = fleet.send().await;
    assert_eq!(members.usable(), 0);
    sleep(ms(999)).await;
    assert_eq!(members.usable(), 0);
    sleep(ms(1)).await;
    yield_now().await;
    assert_eq!(members.usable(), 1);
}

#[tokio::test(start_paused = true)]
async fn drivers_end_with_the_last_clone_and_hold_nothing() {
    let fleet = Fleet::of([Worker::new("a")]);
    let drivers = [(); 2].map(|()| tokio::spawn(fleet.pool.driver()));
    let never_polled = fleet.pool.driver();
    assert_eq!(fleet.send().await, OK);
    let (worker, members) = (fleet.worker("a").clone(), fleet.pool.members());
    let clone = fleet.pool.clone();
    drop(fleet);
    sleep(secs(1)).await;
    assert!(drivers.iter().all(|driver| !driver.is_finished()));
    drop(clone);
    for driver in drivers {
        driver.await.unwrap();
    }
    assert_eq!((worker.clients(), members.alive()), (0, 0));
    never_polled.await;
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_or_run_outlive_the_last_clone() {
    let fleet = Fleet::of([Worker::doing("a", Script::ServeAfter(ms(10)))]);
    let running = fleet.call();
    fleet.worker("a").unready();
    let waiting = tokio::spawn(timed(fleet.call()));
    yield_now().await;
    let worker = fleet.worker("a").clone();
    drop(fleet);
    assert_eq!(got(&running.await), OK);
    worker.ready();
    let (result, after) = waiting.await.unwrap();
    assert_eq!((got(&result), after), (OK, ms(20)));
    drop(result);
    assert_eq!(worker.clients(), 0);
}

type Said = Result<Change<Id, Client>, &'static str>;

#[test]
fn when_the_discovery_fails_or_ends_the_members_stay() {
    for fails in [false, true] {
        recorded(|scrape| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build();
            runtime.unwrap().block_on(async {
                let worker = Worker::new("a");
                let mut said: Vec<Said> = vec![Ok(Change::Insert("a", worker.client()))];
                if fails {
                    said.push(Err("no discovery"));
                    said.push(Ok(Change::Remove("a")));
                }
                let pool: WorkerPool<_, Request<()>> =
                    WorkerPool::new(stream::iter(said), BusySet::new());
                for _ in 0..3 {
                    assert_eq!(send(pool.clone()).await, OK);
                }
                let errors = scrape.value("discovery_errors_total", &[]);
                assert_eq!(errors, Some(f64::from(u8::from(fails))));
                assert_eq!(pool.members().alive(), 1);
            });
        });
    }
}
