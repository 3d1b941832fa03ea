//! Requests that are given up, and foreign code that panics: nothing stays
//! taken, and the pool works for the next.

use crate::support::{
    ALL_BUSY, Fleet, NONE_REACHABLE, OK, REFUSED, Script, Worker, got, ms, secs, timed,
};
use futures::FutureExt;
use http::Request;
use std::{
    num::NonZeroU64,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};
use tokio::{task::yield_now, time::sleep};
use tokio_test::task::spawn;
use tower_overload::pool::pick::{Candidate, OpenWorkers, Pick};

/// A fleet whose only worker takes one request.
fn single(script: Script) -> Fleet {
    let limit = NonZeroU64::new(1).unwrap();
    Fleet::with([Worker::doing("a", script)], |pool| {
        pool.max_in_flight(limit)
    })
}

/// Runs something that panics, without the report of it.
fn panics<T>(run: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(run)).is_err()
}

#[tokio::test(start_paused = true)]
async fn a_response_future_can_be_dropped_in_every_state() {
    let fleet = single(Script::Never);
    for polls in 0..3 {
        // On its way.
        let mut call = spawn(fleet.call());
        (0..polls).for_each(|_| assert!(call.poll().is_pending()));
        assert_eq!(fleet.pool.in_flight(), 1);
        assert_eq!(fleet.send().await, ALL_BUSY);
        drop(call);
        fleet.assert_idle();

        // With a worker that is not ready.
        fleet.worker("a").unready();
        let mut call = spawn(fleet.call());
        (0..polls).for_each(|_| assert!(call.poll().is_pending()));
        assert_eq!(fleet.pool.in_flight(), 1);
        assert_eq!(fleet.pool.waiting(), usize::from(polls > 0));
        drop(call);
        fleet.assert_idle();
        assert_eq!(fleet.worker("a").clients(), 1, "its clone is gone");

        // With a worker that has become ready, and the request is not sent yet.
        let mut call = spawn(fleet.call());
        (0..polls).for_each(|_| assert!(call.poll().is_pending()));
        fleet.worker("a").ready();
        drop(call);
        fleet.assert_idle();

        // With an answer that nobody has read.
        let drain = fleet.set.drain("a");
        drop(fleet.call());
        drop(drain);
        fleet.assert_idle();
    }
    assert_eq!(fleet.worker("a").calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_gives_up_its_place_and_nobody_elses_wake() {
    let fleet = Fleet::of([Worker::new("a")]);
    fleet.suspect("a").await;
    fleet.worker("a").script(Script::Never);
    let mut probe = spawn(fleet.call());
    assert!(probe.poll().is_pending());
    let mut waits: Vec<_> = (0..9).map(|_| Some(spawn(fleet.call()))).collect();
    for wait in waits.iter_mut().flatten() {
        assert!(wait.poll().is_pending());
    }
    assert_eq!((fleet.pool.in_flight(), fleet.pool.waiting()), (1, 9));
    fleet.worker("a").script(Script::Serve);
    // All of them are woken, and the first two leave before they have looked.
    drop(probe);
    assert!(waits.iter().flatten().all(|wait| wait.is_woken()));
    (waits[0], waits[1]) = (None, None);
    for wait in waits.iter_mut().flatten() {
        assert!(wait.poll().is_ready());
    }
    drop(waits);
    fleet.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dropped_in_any_state_has_the_next_one_probe() {
    for (unready, polls) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let fleet = single(Script::Never);
        fleet.suspect("a").await;
        fleet.worker("a").script(Script::Never);
        if unready {
            fleet.worker("a").unready();
        }
        let mut probe = spawn(fleet.call());
        (0..polls).for_each(|_| assert!(probe.poll().is_pending()));
        let mut wait = spawn(fleet.call());
        assert!(wait.poll().is_pending(), "it is being probed");
        drop(probe);
        assert!(wait.is_woken());
        fleet.worker("a").ready();
        fleet.worker("a").script(Script::Serve);
        assert!(wait.poll().is_ready());
        drop(wait);
        assert_eq!(timed(fleet.send()).await, (OK, ms(0)));
        fleet.assert_idle();
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_comes_too_late_does_not_end_the_turn_of_the_next() {
    let fleet = Fleet::of([Worker::new("a")]);
    fleet.suspect("a").await;
    fleet.worker("a").script(Script::Never);
    let first = fleet.spawn();
    sleep(secs(1)).await;
    let second = fleet.spawn();
    yield_now().await;
    let mut wait = spawn(fleet.call());
    assert!(wait.poll().is_pending());
    first.abort();
    yield_now().await;
    let _ = wait.poll();
    assert_eq!((fleet.pool.in_flight(), fleet.pool.waiting()), (1, 1));
    second.abort();
    yield_now().await;
    assert!(wait.is_woken());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_dropped_or_ends_gives_its_place_back_once() {
    let fleet = single(Script::Stream);
    let response = fleet.call().await.unwrap();
    assert_eq!((fleet.send().await, fleet.pool.in_flight()), (ALL_BUSY, 1));
    drop(response);
    fleet.assert_idle();
    let response = fleet.call().await.unwrap();
    fleet.worker("a").end_streams();
    let body = http_body_util::BodyExt::collect(response.into_body());
    assert_eq!(fleet.pool.in_flight(), 1);
    let _ = body.await;
    fleet.assert_idle();
    assert!(fleet.call().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_kept_after_its_answer_takes_no_place() {
    for script in [
        REFUSED,
        Script::Other,
        Script::Status(529, None),
        Script::Serve,
    ] {
        let fleet = single(script.clone());
        let mut call = spawn(fleet.call());
        let call = tokio::time::timeout(ms(1), std::future::poll_fn(|_| call.poll())).await;
        assert!(call.is_ok());
        fleet.assert_idle();

        let fleet = single(script);
        let mut call = Box::pin(fleet.call());
        let result = (&mut call).await;
        drop(result);
        fleet.assert_idle();
        drop(call);
        fleet.assert_idle();
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_with_an_error_that_says_nothing_is_over_although_its_future_is_kept() {
    let fleet = Fleet::of([Worker::new("a")]);
    fleet.suspect("a").await;
    fleet.worker("a").script(Script::Other);
    let mut probe = Box::pin(fleet.call());
    assert!((&mut probe).await.is_err());
    fleet.worker("a").script(Script::Serve);
    assert_eq!(timed(fleet.send()).await, (OK, ms(0)));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_workers_service_reaches_its_caller_and_takes_nothing() {
    let fleet = single(Script::PanicInCall);
    fleet.suspect("a").await;
    for _ in 0..3 {
        fleet.worker("a").script(Script::PanicInCall);
        assert!(panics(|| fleet.call()));
        fleet.assert_idle();

        // In the response future: it was not ready before.
        fleet.worker("a").unready();
        let mut call = fleet.call();
        assert!((&mut call).now_or_never().is_none());
        fleet.worker("a").ready();
        assert!(panics(|| (&mut call).now_or_never()));
        drop(call);
        fleet.assert_idle();

        fleet.worker("a").script(Script::PanicInFuture);
        let call = fleet.call();
        assert!(panics(|| call.now_or_never()));
        fleet.assert_idle();

        fleet.worker("a").panic_when_polled();
        assert!(panics(|| fleet.call()));
        fleet.assert_idle();
        fleet.worker("a").unready();
        let mut call = fleet.call();
        assert!((&mut call).now_or_never().is_none());
        fleet.worker("a").panic_when_polled();
        assert!(panics(|| (&mut call).now_or_never()));
        drop(call);
        fleet.assert_idle();

        fleet.worker("a").ready();
        fleet.worker("a").panic_when_cloned(true);
        assert!(panics(|| fleet.call()));
        fleet.worker("a").panic_when_cloned(false);
        fleet.assert_idle();
    }
    fleet.worker("a").script(Script::Serve);
    assert_eq!(
        timed(fleet.send()).await,
        (OK, ms(0)),
        "no probe stayed taken"
    );
}

static PICK_PANICS: AtomicBool = AtomicBool::new(false);

struct Panicking;

impl<Req> Pick<Req> for Panicking {
    fn pick(&self, _: &Req, workers: &OpenWorkers<'_, Req>) -> Option<Candidate<Req>> {
        let candidate = workers.get(0);
        assert!(!PICK_PANICS.load(SeqCst), "pick panics");
        candidate
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_choice_takes_nothing() {
    let fleet = Fleet::with([Worker::new("a")], |pool| pool.pick(Panicking));
    fleet.suspect("a").await;
    fleet.worker("a").script(Script::Never);
    let mut probe = spawn(fleet.call());
    let mut wait = spawn(fleet.call());
    assert!(probe.poll().is_pending() && wait.poll().is_pending());
    PICK_PANICS.store(true, SeqCst);
    drop(probe);
    assert!(panics(|| wait.poll()));
    assert!(panics(|| fleet.call()));
    drop(wait);
    fleet.assert_idle();
    PICK_PANICS.store(false, SeqCst);
    fleet.worker("a").script(Script::Serve);
    assert_eq!(timed(fleet.send()).await, (OK, ms(0)));
}

#[tokio::test(start_paused = true)]
async fn a_discovery_that_panics_has_ended_and_its_workers_stay() {
    use tower::{Service, discover::Change};
    use tower_overload::{BusySet, pool::WorkerPool};
    let worker = Worker::new("a");
    let mut said = Some(worker.client());
    let discovery = futures::stream::poll_fn(move |_| match said.take() {
        Some(client) => Some(Ok::<_, std::io::Error>(Change::Insert("a", client))).into(),
        None => panic!("the discovery panics"),
    });
    let mut pool: WorkerPool<_, Request<()>> = WorkerPool::new(discovery, BusySet::new());
    let driver = tokio::spawn(pool.driver());
    assert!(panics(|| pool.call(Request::new(()))));
    for _ in 0..3 {
        assert_eq!(got(&pool.call(Request::new(())).await), OK);
    }
    yield_now().await;
    assert!(!driver.is_finished(), "nor does it end the driver");
    assert_eq!((pool.members().alive(), pool.in_flight()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_worker_joins_leaves_the_others_as_they_are() {
    let fleet = Fleet::with([Worker::new("a")], |pool| {
        pool.weight(|id| {
            assert_ne!(*id, "b", "the weight panics");
            1
        })
    });
    assert_eq!(fleet.send().await, OK);
    fleet.roster.insert("b", Worker::new("b").client());
    assert!(panics(|| fleet.call()));
    assert_eq!(fleet.send().await, OK);
    assert_eq!(fleet.pool.members().alive(), 1);
    let _drain = fleet.set.drain("a");
    assert_eq!(fleet.send().await, NONE_REACHABLE);
}
