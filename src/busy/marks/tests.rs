//! What sets a mark, and what ends it.

use super::*;

const TIMES: Times = Times {
    lease: Duration::from_secs(1),
    max_lease: Duration::from_secs(30),
    cooldown: Duration::from_secs(1),
    max_cooldown: Duration::from_secs(4),
    probe_timeout: Duration::from_secs(1),
    probe_after: Some(Duration::from_secs(10)),
};
const BUSY_WITH_OURS: Witness = Witness {
    completed_since: false,
    idle: false,
};

fn standing(marks: &Marks) -> Standing {
    marks.outlook().stands.honoured
}
const MS: Duration = Duration::from_millis(1);

fn after(start: Instant, ms: u64) -> Instant {
    start + Duration::from_millis(ms)
}

#[test]
fn every_mark_excludes_by_itself_and_ends_by_itself() {
    let start = Instant::now();
    let mut marks = Marks::default();
    assert_eq!(standing(&marks), Standing::Open);

    marks.set_busy(Some(after(start, 5)), None);
    marks.refused(start, None, BUSY_WITH_OURS, &TIMES);
    marks.failed_to_connect(start, &TIMES);
    marks.drain();
    for _ in 0..5 {
        marks.failed(start, None, &TIMES);
    }
    assert_eq!(marks.bits(), EXCLUDED | TROUBLED);
    assert_eq!(marks.outlook().until, Some(after(start, 5)));

    marks.expire(after(start, 5));
    assert_eq!(marks.bits() & Mark::Busy.bit(), 0);
    marks.expire(after(start, 1000));
    assert_eq!(marks.bits(), Mark::Draining.bit() | SUSPECT | TROUBLED);
    marks.undrain();
    assert_eq!(standing(&marks), Standing::Suspect);
    marks.reached();
    assert_eq!(standing(&marks), Standing::Suspect, "it fails still");
    for _ in 0..5 {
        assert_ne!(marks.bits(), 0);
        marks.succeeded();
        assert_eq!(standing(&marks), Standing::Open);
    }
    assert_eq!(marks.bits(), 0);
}

#[test]
fn a_completion_ends_a_lease_and_a_refusal_from_before_it_brings_none() {
    let start = Instant::now();
    let mut marks = Marks::default();
    for named in [None, Some(Duration::from_secs(20))] {
        marks.refused(start, named, BUSY_WITH_OURS, &TIMES);
        assert_eq!(standing(&marks), Standing::Shed);
        let lease = named.unwrap_or(TIMES.lease);
        assert_eq!(marks.outlook().until, Some(start + lease));
        marks.completed();
        assert_eq!(standing(&marks), Standing::Open);
    }
    let late = Witness {
        completed_since: true,
        idle: false,
    };
    marks.refused(start, None, late, &TIMES);
    assert_eq!(standing(&marks), Standing::Open);
}

#[test]
fn where_nothing_can_complete_a_name_does_not_lengthen_the_lease() {
    let start = Instant::now();
    let idle = Witness {
        completed_since: false,
        idle: true,
    };
    for (named, lease) in [(30_000, 1000), (200, 200)] {
        let mut marks = Marks::default();
        let named = Duration::from_millis(named);
        marks.refused(start, Some(named), idle, &TIMES);
        assert_eq!(marks.outlook().until, Some(after(start, lease)));
    }
}

#[test]
fn a_worker_that_fails_is_excluded_until_one_request_begins_well_and_trusted_after_five() {
    let mut now = Instant::now();
    let mut marks = Marks::default();
    for _ in 0..4 {
        marks.failed(now, None, &TIMES);
        assert_eq!(standing(&marks), Standing::Open);
    }
    for cooldown in [1, 2, 4, 4] {
        marks.failed(now, None, &TIMES);
        let outlook = marks.outlook();
        assert_eq!(outlook.stands.honoured, Standing::Unusable);
        assert_eq!(outlook.stands.ignored, Standing::Open);
        marks.succeeded();
        assert_eq!(standing(&marks), Standing::Unusable, "it was sent before");
        now += Duration::from_secs(cooldown);
        marks.expire(now);
        assert_eq!(standing(&marks), Standing::Suspect);
        marks.dispatched(now, &TIMES).unwrap();
        assert_eq!(standing(&marks), Standing::Held);
    }
    marks.begins_well();
    assert_eq!(standing(&marks), Standing::Open);
    marks.failed(now, None, &TIMES);
    assert_eq!(standing(&marks), Standing::Unusable, "one is enough");
    now += Duration::from_secs(4);
    marks.expire(now);
    (0..5).for_each(|_| marks.succeeded());
    assert_eq!(marks.bits(), 0);
    for _ in 0..4 {
        marks.failed(now, None, &TIMES);
    }
    assert_eq!(standing(&marks), Standing::Open, "it is trusted again");
}

#[test]
fn a_failure_counts_as_load_for_as_long_as_a_success_takes() {
    let now = Instant::now();
    let mut marks = Marks::default();
    assert_eq!(marks.failed(now, None, &TIMES), TIMES.cooldown);
    marks.took(300 * MS);
    assert_eq!(marks.failed(now, Some(MS), &TIMES), 299 * MS);
    assert_eq!(marks.failed(now, Some(400 * MS), &TIMES), Duration::ZERO);
    marks.took(Duration::MAX / 16);
    let longest = marks.failed(now, None, &TIMES);
    assert_eq!(longest, LONGEST_HANDICAP);
}

#[test]
fn a_sign_of_life_brings_the_next_probe_and_no_storm_of_them() {
    let start = Instant::now();
    let mut now = start;
    let mut marks = Marks::default();
    for _ in 0..6 {
        marks.failed_to_connect(now, &TIMES);
        now = marks.outlook().until.unwrap();
        marks.expire(now);
    }
    marks.failed_to_connect(now, &TIMES);
    marks.seen_alive(now, &TIMES);
    assert_eq!(marks.outlook().until, Some(now + TIMES.cooldown));
    marks.seen_alive(after(now, 1500), &TIMES);
    assert_eq!(standing(&marks), Standing::Suspect);
    marks.reached();
    assert_eq!(standing(&marks), Standing::Open);
}

#[test]
fn a_worker_that_is_busy_by_the_same_counts_is_asked_now_and_then() {
    let start = Instant::now();
    let ask_at = Some(after(start, 10_000));
    let mut marks = Marks::default();
    marks.set_busy(None, ask_at);
    for at in [3000, 9999] {
        marks.keep_busy(None, Some(after(start, at + 10_000)));
        marks.expire(after(start, at));
        assert_eq!(standing(&marks), Standing::Shed);
        assert_eq!(marks.outlook().until, ask_at);
    }
    let now = after(start, 10_000);
    marks.expire(now);
    assert_eq!(standing(&marks), Standing::Suspect);
    assert_eq!(marks.dispatched(now, &TIMES), None, "nobody waits for it");
    assert_eq!(standing(&marks), Standing::Shed);
    assert_eq!(marks.outlook().until, Some(after(start, 20_000)));
    marks.expire(after(start, 20_000));
    marks.at_work(after(start, 20_000), &TIMES);
    assert_eq!(standing(&marks), Standing::Shed);
    marks.set_busy(None, Some(after(start, 25_000)));
    assert_eq!(marks.outlook().until, Some(after(start, 25_000)));
}

#[test]
fn a_named_lease_is_bounded() {
    let start = Instant::now();
    let mut marks = Marks::default();
    marks.refused(start, Some(Duration::MAX), BUSY_WITH_OURS, &TIMES);
    assert_eq!(marks.outlook().until, Some(start + TIMES.max_lease));
}

#[test]
fn failures_double_the_cooldown_up_to_its_cap_and_a_success_resets_it() {
    let mut now = Instant::now();
    let mut marks = Marks::default();
    for cooldown in [1, 2, 4, 4] {
        marks.failed_to_connect(now, &TIMES);
        marks.failed_to_connect(now + MS, &TIMES);
        let until = now + Duration::from_secs(cooldown);
        assert_eq!(marks.outlook().until, Some(until));
        now = until;
        marks.expire(now);
        assert!(
            marks.dispatched(now, &TIMES).is_some(),
            "the first request is the probe"
        );
        assert!(marks.dispatched(now, &TIMES).is_none(), "and there is one");
    }
    marks.reached();
    marks.failed_to_connect(now, &TIMES);
    assert_eq!(marks.outlook().until, Some(now + TIMES.cooldown));
}

#[test]
fn a_probe_holds_the_others_back_until_it_is_answered_given_up_or_too_old() {
    let start = Instant::now();
    let mut marks = Marks::default();
    marks.failed_to_connect(start, &TIMES);
    let now = after(start, 1000);
    marks.expire(now);
    let first = marks.dispatched(now, &TIMES).unwrap();
    assert_eq!(marks.outlook().until, Some(after(start, 2000)));
    assert_eq!(
        standing(&marks),
        Standing::Held,
        "callers wait for the outcome instead of being refused"
    );
    marks.probe_abandoned(first);
    assert_eq!(standing(&marks), Standing::Suspect);

    let second = marks.dispatched(now, &TIMES).unwrap();
    marks.probe_abandoned(first);
    assert_eq!(
        standing(&marks),
        Standing::Held,
        "the second is still on its way"
    );
    marks.expire(after(start, 2000));
    assert_eq!(standing(&marks), Standing::Suspect);
    marks.dispatched(after(start, 2000), &TIMES).unwrap();
    marks.probe_abandoned(second);
    assert_eq!(standing(&marks), Standing::Held, "and now the third is");
}

#[test]
fn a_worker_on_probation_that_cannot_be_probed_is_not_usable() {
    let start = Instant::now();
    let mut marks = Marks::default();
    marks.failed_to_connect(start, &TIMES);
    marks.expire(after(start, 1000));
    marks.set_busy(None, None);
    assert_eq!(standing(&marks), Standing::Unusable);
    marks.clear_busy();
    marks.refused(after(start, 1000), None, BUSY_WITH_OURS, &TIMES);
    assert_eq!(standing(&marks), Standing::Unusable);
    marks.reached();
    assert_eq!(standing(&marks), Standing::Shed, "it has answered");
}

#[test]
fn a_successor_inherits_what_is_said_of_the_id_only() {
    let start = Instant::now();
    let mut marks = Marks::default();
    marks.set_busy(None, None);
    marks.drain();
    marks.refused(start, None, BUSY_WITH_OURS, &TIMES);
    marks.failed_to_connect(start, &TIMES);
    let bits = marks.for_successor().bits();
    assert_eq!(bits, Mark::Busy.bit() | Mark::Draining.bit());
}
