//! How long a request waits, what wakes it, and how many wait.

use crate::support::{
    ALL_BUSY, Builder, Client, Fleet, Got, NO_WORKERS, NONE_REACHABLE, OK, REFUSED, Script,
    TOO_LONG, TOO_MANY, Worker, got, ms, secs, timed,
};
use futures::future::join_all;
use http::Request;
use std::{
    future::{Future, poll_fn},
    num::NonZeroU64,
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    task::{
        coop::{consume_budget, has_budget_remaining},
        yield_now,
    },
    time::{Instant, sleep},
};
use tokio_test::task::{Spawn, spawn};
use tower::Service;
use tower_overload::{BoxError, BusySet, busy::roster, pool::WorkerPoolBuilder};

const MAX_WAIT: Duration = secs(3);

/// A fleet whose only worker has a probe on its way that never ends.
async fn held() -> Fleet {
    held_with(|pool| pool).await
}

async fn held_with(configure: impl FnOnce(Builder) -> Builder) -> Fleet {
    let fleet = Fleet::with([Worker::new("a")], configure);
    fleet.suspect("a").await;
    fleet.worker("a").unready();
    fleet
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_millisecond() {
    for wait in [0, 1, 2, 999, 86_400_000, u64::MAX] {
        let fleet = held_with(|pool| pool.max_wait(ms(wait))).await;
        let longest = ms(wait).min(secs(86_400));
        assert_eq!(timed(fleet.send()).await, (TOO_LONG, longest));
    }
}

#[tokio::test(start_paused = true)]
async fn the_1025th_is_refused_at_once_and_a_place_that_is_given_up_is_free() {
    let fleet = held().await;
    let mut waits: Vec<_> = (0..1024).map(|_| spawn(fleet.call())).collect();
    for wait in &mut waits {
        assert!(wait.poll().is_pending());
    }
    assert_eq!(fleet.pool.waiting(), 1024);
    for _ in 0..3 {
        assert_eq!(timed(fleet.send()).await, (TOO_MANY, ms(0)));
    }
    drop(waits.swap_remove(512));
    assert_eq!(fleet.pool.waiting(), 1023);
    let mut next = spawn(fleet.call());
    assert!(next.poll().is_pending());
    assert_eq!(fleet.send().await, TOO_MANY);

    fleet.worker("a").script(Script::Serve);
    fleet.worker("a").ready();
    let (all, _) = timed(join_all(
        waits.into_iter().chain([next]).map(Spawn::into_inner),
    ))
    .await;
    assert!(all.iter().all(|result| got(result) == OK));
    fleet.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn where_nobody_may_wait_requests_are_served_or_refused_at_once() {
    let fleet = Fleet::with([Worker::new("a"), Worker::new("b")], |pool| {
        pool.max_waiting(0)
    });
    for _ in 0..10 {
        assert_eq!(fleet.send().await, OK);
    }
    fleet.worker("a").unready();
    fleet.worker("b").unready();
    assert_eq!(timed(fleet.send()).await, (TOO_MANY, ms(0)));
    fleet.assert_idle();
}

/// A worker that takes a piece of the task's budget to say that it is ready,
/// as tokio's own semaphores and channels do.
#[derive(Clone)]
struct Budgeted(Client);

impl Service<Request<()>> for Budgeted {
    type Response = <Client as Service<Request<()>>>::Response;
    type Error = BoxError;
    type Future = <Client as Service<Request<()>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        pin!(consume_budget()).poll(cx).map(Ok)
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        self.0.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_has_used_up_its_budget_is_not_taken_for_one_that_waits() {
    let (roster, changes) = roster();
    let pool = WorkerPoolBuilder::new(BusySet::new()).max_waiting(0);
    let mut pool = pool.build(changes);
    roster.insert("a", Budgeted(Worker::new("a").client()));
    let request = async move {
        let call = poll_fn(|cx| {
            while has_budget_remaining() {
                let _ = pin!(consume_budget()).poll(cx);
            }
            Poll::Ready(pool.call(Request::new(())))
        });
        call.await.await
    };
    let response = tokio::spawn(request).await.unwrap();
    assert_eq!(got(&response), OK);
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_is_cleared_wakes_all_that_wait() {
    let fleet = held().await;
    let probe = fleet.spawn();
    yield_now().await;
    let waits: Vec<_> = (0..50).map(|_| fleet.spawn()).collect();
    sleep(ms(700)).await;
    assert_eq!(fleet.pool.waiting(), 51);
    fleet.worker("a").script(Script::Serve);
    fleet.worker("a").ready();
    assert_eq!(probe.await.unwrap(), (OK, ms(700)));
    for wait in waits {
        assert_eq!(wait.await.unwrap(), (OK, ms(700)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_joins_wakes_all_that_wait() {
    let mut fleet = held().await;
    let waits: Vec<_> = (0..50).map(|_| fleet.spawn()).collect();
    sleep(ms(123)).await;
    fleet.add(Worker::new("b"));
    let mut served = 0;
    for wait in waits {
        match wait.await.unwrap() {
            (OK, after) => {
                assert_eq!(after, ms(123));
                served += 1;
            }
            // It waits for the worker that it has chosen.
            outcome => assert_eq!(outcome, (TOO_LONG, MAX_WAIT)),
        }
    }
    assert_eq!(served, 49);
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_ends_by_time_wakes_all_at_that_millisecond() {
    // One worker on probation keeps them waiting, the other one's mark ends.
    for end in [1, 17, 999, 1_500] {
        let fleet = Fleet::of([Worker::new("hangs"), Worker::new("b")]);
        fleet.suspect("hangs").await;
        fleet.worker("hangs").script(Script::Never);
        let mut mark = fleet.set.busy_mark("b");
        mark.set(None);
        let probe = fleet.spawn();
        yield_now().await;
        let waits: Vec<_> = (0..20).map(|_| fleet.spawn()).collect();
        yield_now().await;
        mark.set(Some(Instant::now() + ms(end)));
        let mut hanging = 0;
        for wait in waits {
            let outcome = tokio::time::timeout(secs(5), wait).await;
            match outcome {
                Ok(outcome) => assert_eq!(outcome.unwrap(), (OK, ms(end))),
                Err(_) => hanging += 1,
            }
        }
        // One more probe leaves after a second.
        assert_eq!(hanging, usize::from(end > 1_000));
        probe.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_moved_is_honoured_both_ways() {
    let fleet = held().await;
    let probe = fleet.spawn();
    yield_now().await;
    let mut fleet = fleet;
    fleet.add(Worker::new("b"));
    let start = Instant::now();
    let mut mark = fleet.set.busy_mark("b");
    mark.set(Some(start + ms(100)));
    let wait = fleet.spawn();
    yield_now().await;
    mark.set(Some(start + ms(300)));
    sleep(ms(200)).await;
    assert!(!wait.is_finished(), "later than it was");
    mark.set(Some(start + ms(250)));
    assert_eq!(wait.await.unwrap(), (OK, ms(250)), "and earlier again");
    probe.abort();
}

#[tokio::test(start_paused = true)]
async fn the_outcome_of_a_probe_decides_for_those_that_wait() {
    for (script, expected) in [
        (Script::ServeAfter(ms(400)), OK),
        (
            Script::Fail(std::io::ErrorKind::ConnectionRefused, ms(400)),
            Got::Unreachable,
        ),
    ] {
        let fleet = Fleet::of([Worker::new("a")]);
        fleet.suspect("a").await;
        fleet.worker("a").script(script);
        let probe = fleet.spawn();
        yield_now().await;
        fleet.worker("a").script(Script::Serve);
        let waits: Vec<_> = (0..20).map(|_| fleet.spawn()).collect();
        assert_eq!(probe.await.unwrap(), (expected, ms(400)));
        let others = match expected {
            OK => OK,
            _ => NONE_REACHABLE,
        };
        for wait in waits {
            assert_eq!(wait.await.unwrap(), (others, ms(400)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_given_up_has_the_next_one_probe_at_once() {
    let fleet = Fleet::of([Worker::new("a")]);
    fleet.suspect("a").await;
    fleet.worker("a").script(Script::Never);
    let probe = fleet.spawn();
    yield_now().await;
    let wait = fleet.spawn();
    sleep(ms(200)).await;
    fleet.worker("a").script(Script::Serve);
    probe.abort();
    assert_eq!(wait.await.unwrap(), (OK, ms(200)));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_ends_makes_room_below_the_limit_for_one_that_waits() {
    let limit = NonZeroU64::new(1).unwrap();
    let fleet = Fleet::with([Worker::new("a"), Worker::new("b")], |pool| {
        pool.max_in_flight(limit)
    });
    // One of them hangs on probation, so that nobody is refused as *all busy*.
    fleet.suspect("a").await;
    fleet.worker("a").unready();
    fleet.worker("b").script(Script::Stream);
    let drain = fleet.set.drain("a");
    let response = fleet.call().await.unwrap();
    assert_eq!(fleet.send().await, ALL_BUSY, "full counts as busy");
    drop(drain);
    let probe = fleet.spawn();
    yield_now().await;
    // The probe is the one request of the suspect: it is full as well.
    assert_eq!(fleet.send().await, ALL_BUSY);
    drop(response);
    fleet.worker("b").script(Script::Serve);
    assert_eq!(fleet.send().await, OK);
    probe.abort();
}

#[tokio::test(start_paused = true)]
async fn callers_that_leave_at_any_moment_take_nothing_along() {
    let fleet = Fleet::of([Worker::new("a"), Worker::new("b")]);
    fleet.suspect("a").await;
    fleet.worker("a").script(Script::Never);
    let mut mark = fleet.set.busy_mark("b");
    mark.set(None);
    let mut tasks: Vec<_> = (0..300).map(|_| Some(fleet.spawn())).collect();
    // The order of those that leave is any: a step prime to their number.
    for n in 0..200 {
        sleep(ms(if n % 3 == 0 { 7 } else { 0 })).await;
        if let Some(task) = tasks[n * 7 % 300].take() {
            task.abort();
        }
    }
    yield_now().await;
    let running = fleet.pool.in_flight() as usize;
    assert_eq!(fleet.pool.waiting() + running, 100);
    mark.clear();
    let mut served = 0;
    for task in tasks.iter_mut().flatten() {
        if let Ok(outcome) = tokio::time::timeout(ms(1), task).await {
            assert_eq!(outcome.unwrap().0, OK);
            served += 1;
        }
    }
    assert_eq!(served + running, 100, "every wake arrives");
    tasks.into_iter().flatten().for_each(|task| task.abort());
    yield_now().await;
    fleet.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn before_the_discovery_has_spoken_requests_wait_for_the_grace_and_no_longer() {
    let mut fleet = Fleet::with([], |pool| pool.startup_grace(secs(1)));
    assert_eq!(timed(fleet.send()).await, (NO_WORKERS, secs(1)));
    assert_eq!(timed(fleet.send()).await, (NO_WORKERS, ms(0)));

    fleet = Fleet::with([], |pool| pool.startup_grace(secs(1)));
    let wait = fleet.spawn();
    sleep(ms(300)).await;
    fleet.add(Worker::new("a"));
    assert_eq!(wait.await.unwrap(), (OK, ms(300)));
    fleet.roster.remove(&"a");
    assert_eq!(
        timed(fleet.send()).await,
        (NO_WORKERS, ms(0)),
        "it has spoken"
    );
}

#[tokio::test(start_paused = true)]
async fn the_grace_is_within_max_wait() {
    let fleet = Fleet::with([], |pool| pool.startup_grace(secs(10)).max_wait(secs(2)));
    assert_eq!(timed(fleet.send()).await, (TOO_LONG, secs(2)));
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_takes_the_last_worker_ends_the_waits_for_it() {
    let fleet = held().await;
    let probe = fleet.spawn();
    yield_now().await;
    let waits: Vec<_> = (0..10).map(|_| fleet.spawn()).collect();
    sleep(ms(100)).await;
    fleet.worker("a").script(REFUSED);
    fleet.worker("a").ready();
    assert_eq!(probe.await.unwrap().0, Got::Unreachable);
    for wait in waits {
        assert_eq!(wait.await.unwrap(), (NONE_REACHABLE, ms(100)));
    }
}
