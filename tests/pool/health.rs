//! What is held against a worker that fails, and what ends it.

use crate::{
    pick::Running,
    support::{
        ALL_BUSY, AT_CAPACITY, Fleet, Got, Id, OK, REFUSED, Script, Worker, ms, secs, timed,
    },
};
use http_body_util::BodyExt;
use std::io;
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};
use tower_overload::{
    BusySet,
    busy::{BusyMark, Mark},
    load::{LoadEvent, ThresholdUpdate, WorkerConfig, WorkerMonitor},
    pool::pick::LeastLoaded,
};

const FAILS: Got = Got::Served(500);

fn failing() -> Script {
    Script::Status(500, None)
}

/// Sends requests to one worker only.
async fn only(fleet: &Fleet, id: &'static str, others: &[&'static str], n: usize) -> Vec<Got> {
    let drains: Vec<_> = others.iter().map(|other| fleet.set.drain(other)).collect();
    let mut got = Vec::new();
    for _ in 0..n {
        got.push(fleet.send().await);
    }
    drop(drains);
    assert!(fleet.worker(id).calls() >= n);
    got
}

/// Sends one request to a worker of `a`, `b` and `c`.
async fn only_to(fleet: &Fleet, id: Id) -> Running {
    let others = ["a", "b", "c"].into_iter().filter(|other| *other != id);
    let _drains: Vec<_> = others.map(|other| fleet.set.drain(other)).collect();
    fleet.call().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_mark_a_worker_failing_and_one_request_finds_out_after_a_second() {
    let fleet = Fleet::of([Worker::new("a"), Worker::new("b"), Worker::new("c")]);
    fleet.worker("a").script(failing());
    assert_eq!(only(&fleet, "a", &["b", "c"], 4).await, [FAILS; 4]);
    assert!(!fleet.set.marks(&"a").is_excluded());
    assert_eq!(only(&fleet, "a", &["b", "c"], 1).await, [FAILS]);
    assert!(fleet.set.marks(&"a").has(Mark::Failing));
    let state = fleet.set.mark_states(&"a").pop().unwrap();
    assert_eq!(state.mark(), Mark::Failing);
    assert_eq!(
        (state.failures_in_a_row(), state.failures_of_last_32()),
        (5, 5)
    );
    assert_eq!(
        (state.since(), state.until()),
        (Some(Instant::now()), Some(Instant::now() + secs(1)))
    );

    for cooldown in [1, 2, 4, 8, 16, 30, 30] {
        let before = fleet.worker("a").calls();
        for _ in 0..20 {
            assert_eq!(fleet.send().await, OK, "while it is marked");
        }
        sleep(secs(cooldown) - ms(1)).await;
        assert_eq!(fleet.send().await, OK);
        assert_eq!(fleet.worker("a").calls(), before, "{cooldown} s");
        sleep(ms(1)).await;
        while fleet.worker("a").calls() == before {
            fleet.send().await;
        }
        assert!(fleet.set.marks(&"a").has(Mark::Failing), "it failed again");
    }
    sleep(secs(30)).await;
    fleet.worker("a").script(Script::Serve);
    let before = fleet.worker("a").calls();
    while fleet.worker("a").calls() < before + 10 {
        assert_eq!(fleet.send().await, OK);
    }
    assert_eq!(fleet.set.mark_states(&"a").len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_half_the_time_is_failing_and_one_that_fails_a_third_is_not() {
    for (one_in, is_failing) in [(2, true), (3, false)] {
        let fleet = Fleet::of([Worker::new("a"), Worker::new("b")]);
        let _drain = fleet.set.drain("b");
        let mut requests = 0;
        while !fleet.set.marks(&"a").has(Mark::Failing) && requests < 400 {
            fleet.worker("a").script(match requests % one_in {
                0 => failing(),
                _ => Script::Serve,
            });
            fleet.send().await;
            requests += 1;
        }
        // It is alone: what it can be reached by is all that fails.
        assert_eq!(fleet.set.marks(&"a").has(Mark::Failing), is_failing);
        assert!(!is_failing || requests <= 32, "{requests}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_request_is_to_blame_for_is_no_failure_and_ends_none() {
    let fleet = Fleet::of([Worker::new("a"), Worker::new("b")]);
    fleet.worker("a").script(Script::Status(404, None));
    let all = only(&fleet, "a", &["b"], 100).await;
    assert_eq!(all, [Got::Served(404); 100]);
    fleet.worker("a").script(Script::Other);
    only(&fleet, "a", &["b"], 100).await;
    assert!(!fleet.set.marks(&"a").is_excluded());
    assert_eq!(fleet.pool.members().eligible(), 2);
}

#[tokio::test(start_paused = true)]
async fn where_most_workers_fail_the_mark_keeps_no_request_away() {
    let fleet = Fleet::of(["a", "b", "c", "d"].map(Worker::new));
    let members = fleet.pool.members();
    for id in ["a", "b"] {
        (0..5).for_each(|_| fleet.set.failed(&id));
    }
    let _ = fleet.send().await;
    assert!(!members.ignores_failing(), "half are not more than half");
    assert_eq!((members.usable(), members.eligible()), (2, 2));
    for _ in 0..50 {
        fleet.send().await;
    }
    assert_eq!(fleet.worker("a").calls() + fleet.worker("b").calls(), 0);

    (0..5).for_each(|_| fleet.set.failed(&"c"));
    assert!(members.ignores_failing());
    assert_eq!((members.usable(), members.eligible()), (4, 4));
    for _ in 0..200 {
        assert_eq!(fleet.send().await, OK);
    }
    for id in ["a", "b", "c", "d"] {
        assert!(fleet.worker(id).calls() > 0, "{id}");
    }
    // Two of three that can be reached are more than half as well.
    fleet.set.well(&"c");
    assert!(!members.ignores_failing());
    fleet.set.unreachable(&"d");
    assert!(members.ignores_failing());
    fleet.set.reached(&"d");
    assert!(!members.ignores_failing());
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_for_a_failing_worker_are_told_when_most_fail() {
    let fleet = Fleet::of(["a", "b"].map(Worker::new));
    // One is failing and not to be asked yet; the other one takes nobody.
    (0..5).for_each(|_| fleet.set.failed(&"a"));
    fleet.worker("b").unready();
    let waiting = fleet.spawn();
    sleep(ms(100)).await;
    assert!(!waiting.is_finished());
    fleet.set.unreachable(&"b");
    let (got, after) = waiting.await.unwrap();
    assert_eq!((got, after), (OK, ms(100)));
    assert_eq!(fleet.worker("a").calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_connection_lost_among_many_is_one_failure_and_one_alone_is_a_mark() {
    let fleet = Fleet::of([Worker::doing("a", Script::Stream)]);
    let lost = Script::Fail(io::ErrorKind::ConnectionReset, ms(0));
    let streaming = fleet.call().await.unwrap();
    fleet.worker("a").script(lost);
    for _ in 0..4 {
        assert_eq!(fleet.send().await, Got::Unreachable);
        assert!(!fleet.set.marks(&"a").is_excluded());
    }
    drop(streaming);
    assert_eq!(fleet.send().await, Got::Unreachable);
    assert!(fleet.set.marks(&"a").has(Mark::Unreachable));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_was_sent_before_the_last_completion_leases_nothing() {
    let fleet = Fleet::of([Worker::doing("a", Script::Stream)]);
    let streaming = fleet.call().await.unwrap();
    fleet.worker("a").script(Script::Late(ms(10), 529));
    let refused = fleet.spawn();
    sleep(ms(5)).await;
    drop(streaming);
    assert_eq!(refused.await.unwrap().0, AT_CAPACITY);
    assert!(!fleet.set.marks(&"a").is_excluded(), "there is room again");
}

#[tokio::test(start_paused = true)]
async fn what_an_application_says_of_a_worker_counts_as_what_a_request_finds_out() {
    let fleet = Fleet::of([Worker::new("a"), Worker::new("b"), Worker::new("c")]);
    let set = &fleet.set;
    fleet.send().await;
    set.unreachable(&"a");
    assert!(set.marks(&"a").has(Mark::Unreachable));
    set.reached(&"a");
    assert!(!set.marks(&"a").is_excluded());

    (0..5).for_each(|_| set.failed(&"a"));
    assert!(set.marks(&"a").has(Mark::Failing));
    set.reached(&"a");
    assert!(
        set.marks(&"a").has(Mark::Failing),
        "a connection is no answer"
    );
    set.well(&"a");
    assert!(!set.marks(&"a").is_excluded());

    // One that cannot be reached again and again is passed over for longer,
    // until there is a sign of life, however often that was wrong.
    let end = |set: &BusySet<_>| set.mark_states(&"a")[0].until().unwrap();
    for _ in 0..3 {
        for _ in 0..6 {
            set.unreachable(&"a");
            sleep(secs(40)).await;
            set.sweep();
        }
        set.unreachable(&"a");
        assert_eq!(end(set), Instant::now() + secs(30));
        set.alive(&"a");
        assert_eq!(end(set), Instant::now() + secs(1));
        sleep(secs(1)).await;
        set.sweep();
    }
    set.sweep();
    assert!(!set.marks(&"a").is_excluded());
    // It is for those that are known.
    set.alive(&"nobody");
    set.reached(&"nobody");
    set.well(&"nobody");
    assert!(set.mark_states(&"nobody").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_back_is_used_within_a_second_of_its_first_signs_of_life() {
    const IDS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let fleet = Fleet::of(IDS.map(|id| Worker::doing(id, REFUSED)));
    for _ in 0..600 {
        let _ = fleet.send().await;
        sleep(ms(200)).await;
    }
    // The marks last for half a minute by now.
    let longest = IDS.iter().filter_map(|id| fleet.set.mark_states(id).pop());
    let longest = longest.filter_map(|state| state.until()).max().unwrap();
    assert!(longest - Instant::now() > secs(2));

    IDS.iter()
        .for_each(|id| fleet.worker(id).script(Script::Serve));
    IDS.iter().for_each(|id| fleet.set.alive(id));
    sleep(secs(1)).await;
    for _ in 0..200 {
        assert_eq!(fleet.send().await, OK);
    }
    assert_eq!(fleet.pool.members().eligible(), 8);
    let idle = IDS.iter().filter(|id| fleet.worker(id).calls() == 0);
    assert_eq!(idle.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_connected_ends_the_wait_of_the_others_before_it_is_answered() {
    let fleet = Fleet::of([Worker::doing("a", REFUSED)]);
    assert_eq!(fleet.send().await, Got::Unreachable);
    fleet.worker("a").script(Script::ServeAfter(secs(20)));
    sleep(secs(1)).await;
    let probe = fleet.spawn();
    yield_now().await;
    let other = fleet.spawn();
    sleep(ms(10)).await;
    assert_eq!(fleet.worker("a").calls(), 2, "one finds out, and one waits");
    fleet.set.reached(&"a");
    assert_eq!(probe.await.unwrap(), (OK, secs(20)));
    assert_eq!(other.await.unwrap(), (OK, secs(20) + ms(10)));
}

/// A worker of `a` and `b` is busy by one gauge; whoever knows says so again
/// every second.
struct Stuck {
    fleet: Fleet,
    monitor: WorkerMonitor<&'static str>,
}

impl Stuck {
    fn new() -> Self {
        let fleet = Fleet::of([Worker::new("a")]);
        let (monitor, thresholds) = WorkerMonitor::for_model("tiny", fleet.set.clone());
        let update = ThresholdUpdate::new().active_decode_blocks(0.9);
        thresholds.update(update).unwrap();
        let config = WorkerConfig::new([0]).unwrap().kv_total_blocks(Some(100));
        monitor.configure("a", config, ["tiny"]).unwrap();
        let stuck = Self { fleet, monitor };
        stuck.report(99);
        stuck
    }

    fn report(&self, blocks: u64) {
        let event = LoadEvent::new("a", 0).kv_used_blocks(Some(blocks));
        self.monitor.observe(event).unwrap();
    }

    /// Reports each second, and sends a request after it; how many of them
    /// were served, and after which seconds.
    async fn served(&self, seconds: u64, blocks: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut served = Vec::new();
        for n in 1..=seconds {
            sleep(secs(1)).await;
            self.report(blocks(n));
            match self.fleet.send().await {
                OK => served.push(n),
                got => assert_eq!(got, ALL_BUSY),
            }
        }
        served
    }
}

#[tokio::test(start_paused = true)]
async fn a_gauge_that_is_stuck_does_not_exclude_its_worker_for_ever() {
    let stuck = Stuck::new();
    assert_eq!(stuck.fleet.send().await, ALL_BUSY);
    let served = stuck.served(60, |_| 99).await;
    assert!((4..=8).contains(&served.len()), "{served:?}");
    assert!(served[0] >= 8 && served[0] <= 13, "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_counts_change_is_busy_for_as_long_as_they_say_so() {
    let stuck = Stuck::new();
    let served = stuck.served(60, |n| 95 + n % 2).await;
    assert!(served.is_empty(), "{served:?}");
    stuck.report(10);
    assert_eq!(stuck.fleet.send().await, OK);
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_that_is_at_work_for_us_is_not_asked() {
    let stuck = Stuck::new();
    stuck.report(0);
    stuck.fleet.worker("a").script(Script::Stream);
    let streaming = stuck.fleet.call().await.unwrap();
    let served = stuck.served(60, |_| 99).await;
    assert!(served.is_empty(), "{served:?}");
    drop(streaming);
}

#[tokio::test(start_paused = true)]
async fn the_mark_of_an_application_is_asked_about_as_well() {
    let fleet = Fleet::of([Worker::new("a")]);
    let mut mark: BusyMark = fleet.set.busy_mark("a");
    mark.set(None);
    assert_eq!(fleet.send().await, ALL_BUSY);
    sleep(secs(13)).await;
    assert_eq!(fleet.send().await, OK);
    assert_eq!(fleet.send().await, ALL_BUSY, "one, and no other one yet");
    sleep(secs(13)).await;
    assert_eq!(fleet.send().await, OK);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_comes_is_brought_up_to_its_share_within_a_second() {
    let mut fleet = Fleet::of(["a", "b", "c"].map(|id| Worker::doing(id, Script::Stream)));
    let mut running = Vec::new();
    for _ in 0..300 {
        running.push(fleet.call().await.unwrap());
    }
    fleet.add(Worker::doing("new", Script::Stream));
    // Whoever comes is brought up; by how much at which time.
    for (until, most) in [(0, 20), (250, 60), (500, 120)] {
        let n = (until / 250) as usize;
        for _ in 0..40 {
            running.push(fleet.call().await.unwrap());
        }
        assert!(fleet.worker("new").calls() <= most, "{n}");
        sleep(ms(250)).await;
    }
    sleep(ms(250)).await;
    for _ in 0..40 {
        running.push(fleet.call().await.unwrap());
    }
    assert!(
        fleet.worker("new").calls() > 30,
        "its share, after a second"
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_start_keeps_no_request_from_the_only_worker_with_room() {
    let mut fleet = Fleet::of([Worker::doing("a", Script::Stream)]);
    let mut running = Vec::new();
    for _ in 0..50 {
        running.push(fleet.call().await.unwrap());
    }
    let mut mark = fleet.set.busy_mark("a");
    fleet.add(Worker::new("new"));
    mark.set(None);
    for _ in 0..20 {
        assert_eq!(timed(fleet.send()).await, (OK, ms(0)));
    }
    assert_eq!(fleet.worker("new").calls(), 20);
}

#[tokio::test(start_paused = true)]
async fn by_load_too_a_failure_counts_as_a_request_for_as_long_as_one_takes() {
    let loads = |id: &Id| {
        let load = if *id == "a" { 0 } else { 100 };
        move || load
    };
    let ids = ["a", "b", "c"].map(|id| Worker::doing(id, Script::Stream));
    let fleet = Fleet::with(ids, |pool| {
        pool.load(loads).pick(LeastLoaded::of_all().by_load())
    });
    // One request is with each of the others, and has all of their load.
    let _drain = fleet.set.drain("a");
    let mut drained = fleet.set.drain("b");
    let _of_c = fleet.call().await.unwrap();
    drop(std::mem::replace(&mut drained, fleet.set.drain("c")));
    let _of_b = fleet.call().await.unwrap();
    drop((_drain, drained));

    fleet.worker("a").script(failing());
    for _ in 0..20 {
        let _ = fleet.call().await;
    }
    assert!(fleet.worker("a").calls() <= 2, "as loaded as the others");
    sleep(secs(1)).await;
    let before = fleet.worker("a").calls();
    assert_eq!(fleet.send().await, FAILS, "a success would be over by now");
    assert_eq!(fleet.worker("a").calls(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_answers_break_off_is_excluded_for_longer_each_time() {
    let fleet = Fleet::of([Worker::new("a"), Worker::new("b"), Worker::new("c")]);
    (0..5).for_each(|_| fleet.set.failed(&"a"));
    fleet.send().await;
    for cooldown in [1, 2, 4, 8] {
        assert!(fleet.set.marks(&"a").has(Mark::Failing));
        sleep(secs(cooldown)).await;
        // Its first frame ends the probation, and the rest does not come.
        fleet.worker("a").script(Script::Breaks);
        let mut body = only_to(&fleet, "a").await.into_body();
        assert!(body.frame().await.unwrap().is_ok());
        assert!(!fleet.set.marks(&"a").is_excluded());
        assert!(body.frame().await.unwrap().is_err());
        let state = fleet.set.mark_states(&"a").pop().unwrap();
        assert_eq!(
            state.until(),
            Some(Instant::now() + secs(2 * cooldown)),
            "one failure is enough, and it is not forgotten"
        );
    }
    sleep(secs(16)).await;
    fleet.worker("a").script(Script::Serve);
    for _ in 0..5 {
        drop(only_to(&fleet, "a").await.into_body().collect().await);
    }
    for _ in 0..4 {
        fleet.worker("a").script(failing());
        drop(only_to(&fleet, "a").await);
        assert!(!fleet.set.marks(&"a").is_excluded(), "it is trusted again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_although_it_says_that_it_lives_is_believed_once() {
    let fleet = Fleet::of([Worker::new("a"), Worker::new("b"), Worker::new("c")]);
    fleet.worker("a").script(failing());
    (0..5).for_each(|_| fleet.set.failed(&"a"));
    fleet.send().await;
    for cooldown in [1, 2, 4, 8, 16, 30] {
        fleet.set.alive(&"a");
        let state = fleet.set.mark_states(&"a").pop().unwrap();
        assert_eq!(state.until(), Some(Instant::now() + secs(cooldown)));
        sleep(secs(cooldown)).await;
        drop(only_to(&fleet, "a").await);
    }
}
