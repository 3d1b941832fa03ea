//! What a request gets while no worker is open.

use crate::support::{
    ALL_BUSY, AT_CAPACITY, Fleet, Got, NO_WORKERS, NONE_REACHABLE, OK, REFUSED, Script, TOO_LONG,
    Worker, by, ms, secs, send, timed,
};
use http::Request;
use std::num::NonZeroU64;
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};
use tower::Service;
use tower_overload::{ServiceOverloaded, Unreachable, busy::roster, pool::WorkerPool};

#[tokio::test(start_paused = true)]
async fn each_reason_has_its_verdict_at_once() {
    let fleet = Fleet::of(["a", "b", "c"].map(Worker::new));
    let empty = Fleet::of([]);
    assert_eq!(timed(empty.send()).await, (NO_WORKERS, ms(0)));
    let drains = ["a", "b", "c"].map(|id| fleet.set.drain(id));
    assert_eq!(timed(fleet.send()).await, (NONE_REACHABLE, ms(0)));
    let mut mark = fleet.set.busy_mark("a");
    mark.set(None);
    assert_eq!(
        fleet.send().await,
        NONE_REACHABLE,
        "busy and draining is draining"
    );
    let [a, b, c] = drains;
    drop(a);
    assert_eq!(
        timed(fleet.send()).await,
        (ALL_BUSY, ms(0)),
        "one is only busy"
    );
    drop((b, c));
    assert_eq!(fleet.send().await, OK);
    fleet.set.refused(&"b", None);
    fleet.set.refused(&"c", Some(secs(2)));
    assert_eq!(
        timed(fleet.send()).await,
        (ALL_BUSY, ms(0)),
        "busy, leased, leased"
    );
}

#[tokio::test(start_paused = true)]
async fn of_four_workers_the_one_without_a_mark_gets_every_request() {
    let ids = ["a", "b", "c", "d"];
    let fleet = Fleet::of(ids.map(Worker::new));
    let mut marks = ids.map(|id| fleet.set.busy_mark(id));
    for free in 0..4 {
        marks.iter_mut().for_each(|mark| mark.set(None));
        marks[free].clear();
        for _ in 0..50 {
            assert_eq!(by(&fleet.call().await.unwrap()), ids[free]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_its_worker_and_leases_it_for_its_time() {
    for (script, is_at_work, lease) in [
        (Script::Status(529, None), true, secs(1)),
        (Script::Status(529, Some(4)), true, secs(4)),
        // None of ours is there that could end it early.
        (Script::Status(529, Some(4)), false, secs(1)),
    ] {
        let fleet = Fleet::of([Worker::doing("a", Script::Stream)]);
        let _at_work = match is_at_work {
            true => Some(fleet.call().await.unwrap()),
            false => None,
        };
        fleet.worker("a").script(script);
        let start = Instant::now();
        let error = fleet.call().await.unwrap_err();
        let refused = ServiceOverloaded::find_in(&*error).unwrap();
        assert_eq!(refused.worker(), Some("a"));
        fleet.worker("a").script(Script::Serve);
        sleep(lease - ms(1)).await;
        assert_eq!(fleet.send().await, ALL_BUSY);
        sleep(ms(1)).await;
        assert_eq!(fleet.send().await, OK);
        assert_eq!(start.elapsed(), lease);
    }
}

#[tokio::test(start_paused = true)]
async fn a_completed_response_ends_a_lease_and_a_status_that_is_no_refusal_makes_none() {
    let fleet = Fleet::of([Worker::doing("a", Script::Stream)]);
    let response = fleet.call().await.unwrap();
    fleet.worker("a").script(Script::Status(529, None));
    assert_eq!(fleet.send().await, AT_CAPACITY);
    assert_eq!(fleet.send().await, ALL_BUSY);
    drop(response);
    for status in [404, 500, 503] {
        fleet.worker("a").script(Script::Status(status, None));
        assert_eq!(fleet.send().await, Got::Served(status));
    }
    fleet.worker("a").script(Script::Other);
    assert_eq!(fleet.send().await, Got::Other);
    assert_eq!(
        fleet.send().await,
        Got::Other,
        "nor does an error that says nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_connection_names_its_worker_which_is_unreachable_for_longer_each_time() {
    let fleet = Fleet::of([Worker::doing("a", REFUSED)]);
    for cooldown in [1, 2, 4, 8, 16, 30, 30] {
        let error = fleet.call().await.unwrap_err();
        assert_eq!(Unreachable::find_in(&*error).unwrap().worker(), Some("a"));
        assert_eq!(timed(fleet.send()).await, (NONE_REACHABLE, ms(0)));
        sleep(secs(cooldown) - ms(1)).await;
        assert_eq!(fleet.send().await, NONE_REACHABLE);
        sleep(ms(1)).await;
    }
    fleet.worker("a").script(Script::Status(500, None));
    assert_eq!(
        fleet.send().await,
        Got::Served(500),
        "any answer shows that it is there"
    );
    for _ in 0..3 {
        assert_eq!(fleet.send().await, Got::Served(500));
    }
}

#[tokio::test(start_paused = true)]
async fn on_probation_a_worker_is_usable_only_while_it_can_be_probed() {
    let fleet = Fleet::of([Worker::new("a")]);
    fleet.suspect("a").await;
    let members = fleet.pool.members();
    let mut mark = fleet.set.busy_mark("a");
    mark.set(None);
    assert_eq!(timed(fleet.send()).await, (NONE_REACHABLE, ms(0)));
    assert_eq!((members.usable(), members.eligible()), (0, 0));
    mark.clear();
    assert_eq!((members.usable(), members.eligible()), (1, 1));
    fleet.worker("a").script(Script::Never);
    let probe = fleet.spawn();
    yield_now().await;
    assert_eq!(
        (members.usable(), members.eligible()),
        (1, 1),
        "it is being probed"
    );
    let wait = fleet.spawn();
    sleep(ms(10)).await;
    mark.set(None);
    assert_eq!(wait.await.unwrap(), (NONE_REACHABLE, ms(10)));
    probe.abort();
}

#[tokio::test(start_paused = true)]
async fn on_probation_a_full_worker_cannot_be_probed_and_is_not_usable() {
    let limit = NonZeroU64::new(2).unwrap();
    let fleet = Fleet::with([Worker::doing("a", Script::Never)], |pool| {
        pool.max_in_flight(limit)
    });
    let hanging = fleet.spawn();
    yield_now().await;
    fleet.suspect("a").await;
    fleet.worker("a").script(Script::Never);
    let probe = fleet.spawn();
    sleep(ms(500)).await;
    // It is probed, then full: for this one nobody finds out any more.
    assert_eq!(timed(fleet.send()).await, (NONE_REACHABLE, ms(500)));
    hanging.abort();
    yield_now().await;
    fleet.worker("a").script(Script::Serve);
    assert_eq!(timed(fleet.send()).await, (OK, ms(0)));
    probe.abort();
}

#[tokio::test(start_paused = true)]
async fn a_worker_with_as_many_requests_as_it_may_have_counts_as_busy() {
    let limit = NonZeroU64::new(3).unwrap();
    let workers = ["a", "b"].map(|id| Worker::doing(id, Script::Stream));
    let fleet = Fleet::with(workers, |pool| pool.max_in_flight(limit));
    let mut responses = Vec::new();
    for _ in 0..6 {
        responses.push(fleet.call().await.unwrap());
    }
    let members = fleet.pool.members();
    for id in ["a", "b"] {
        assert_eq!(
            responses
                .iter()
                .filter(|response| by(response) == id)
                .count(),
            3
        );
    }
    assert_eq!(timed(fleet.send()).await, (ALL_BUSY, ms(0)));
    assert_eq!(
        (members.usable(), members.eligible(), fleet.pool.in_flight()),
        (2, 0, 6)
    );
    let (gone, stays) = (responses.swap_remove(0), responses.len());
    let id = by(&gone).to_owned();
    drop(gone);
    assert_eq!(
        (members.eligible(), fleet.pool.in_flight()),
        (1, stays as u64)
    );
    let response = fleet.call().await.unwrap();
    assert_eq!(by(&response), id, "the one that has room");
    assert_eq!(fleet.send().await, ALL_BUSY);
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_for_a_workers_own_service_count_for_its_limit() {
    let limit = NonZeroU64::new(2).unwrap();
    let fleet = Fleet::with([Worker::new("a")], |pool| pool.max_in_flight(limit));
    fleet.worker("a").unready();
    let waits = [fleet.spawn(), fleet.spawn()];
    yield_now().await;
    assert_eq!(timed(fleet.send()).await, (ALL_BUSY, ms(0)));
    assert_eq!((fleet.pool.in_flight(), fleet.pool.waiting()), (2, 2));
    for wait in waits {
        assert_eq!(wait.await.unwrap(), (TOO_LONG, secs(3)));
    }
    fleet.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_given_once_and_the_pool_works_for_the_next() {
    let fleet = Fleet::of([Worker::new("a")]);
    let mut mark = fleet.set.busy_mark("a");
    for _ in 0..3 {
        mark.set(None);
        assert_eq!(fleet.send().await, ALL_BUSY);
        mark.clear();
        assert_eq!(fleet.send().await, OK);
    }
}

#[tokio::test(start_paused = true)]
async fn pools_that_share_marks_have_members_of_their_own() {
    let one = Fleet::of([Worker::new("a")]);
    let worker = Worker::new("a");
    let (roster, changes) = roster();
    let mut other: WorkerPool<_, Request<()>> = WorkerPool::new(changes, one.set.clone());
    roster.insert("a", worker.client());
    assert_eq!((one.send().await, send(other.clone()).await), (OK, OK));
    one.roster.remove(&"a");
    assert_eq!(
        (one.send().await, send(other.clone()).await),
        (NO_WORKERS, OK)
    );
    one.roster.insert("a", worker.client());
    worker.script(REFUSED);
    assert_eq!(
        one.send().await,
        Got::Unreachable,
        "and the mark is for both"
    );
    assert_eq!(send(other.clone()).await, NONE_REACHABLE);
    sleep(secs(1)).await;
    worker.script(Script::Serve);
    let response = other.call(Request::new(())).await.unwrap();
    assert_eq!(by(&response), "a");
    assert_eq!(one.send().await, OK);
}
