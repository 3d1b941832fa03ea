//! The gate under every interleaving of a few threads.
//!
//! ```text
//! RUSTFLAGS="--cfg tower_overload_loom" cargo test --lib --release loom
//! ```

use super::*;
use crate::sync::model;
use ::loom::{future::block_on, sync::atomic::AtomicUsize, thread};
use std::future::poll_fn;

fn gate(slots: u32, queue: u32) -> Arc<Gate> {
    Arc::new(Gate::new(slots, queue))
}

fn arrive(gate: &Arc<Gate>) -> Decision {
    Gate::arrive(gate, true)
}

fn admitted(gate: &Arc<Gate>) -> Permit {
    match arrive(gate) {
        Decision::Admitted(permit) => permit,
        other => panic!("not admitted: {other:?}"),
    }
}

fn wait(mut waiter: Waiter) -> Result<Permit, Closed> {
    block_on(poll_fn(|cx| waiter.poll_slot(cx)))
}

/// In the engine until the drop, and counted there.
struct Inside<'a> {
    inside: &'a AtomicUsize,
    _permit: Permit,
}

fn enter(inside: &AtomicUsize, permit: Permit, slots: usize) -> Inside<'_> {
    let others = inside.fetch_add(1, Ordering::SeqCst);
    assert!(others < slots, "more in the engine than there are slots");
    Inside {
        inside,
        _permit: permit,
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

fn at_rest(gate: &Gate) {
    let now = gate.snapshot();
    assert_eq!((now.in_engine, now.queued), (0, 0));
    assert!(lock(&gate.state).waiters.is_empty());
}

#[test]
fn two_slots_for_three_callers_are_never_three_and_nobody_is_left_behind() {
    model(2, || {
        let gate = gate(2, 3);
        let inside = Arc::new(AtomicUsize::new(0));
        let caller = |gate: Arc<Gate>, inside: Arc<AtomicUsize>| {
            move || {
                let permit = match arrive(&gate) {
                    Decision::Admitted(permit) => permit,
                    Decision::Waits(waiter) => wait(waiter).expect("the gate is open"),
                    other => panic!("there is a place for all: {other:?}"),
                };
                drop(enter(&inside, permit, 2));
            }
        };
        let threads = [(); 2].map(|()| thread::spawn(caller(gate.clone(), inside.clone())));
        caller(gate.clone(), inside)();
        for thread in threads {
            thread.join().unwrap();
        }
        at_rest(&gate);
    });
}

#[test]
fn a_release_and_an_arrival_at_once_lose_no_wake() {
    model(3, || {
        let gate = gate(1, 1);
        let permit = admitted(&gate);
        let arrival = {
            let gate = gate.clone();
            thread::spawn(move || match arrive(&gate) {
                Decision::Admitted(permit) => drop(permit),
                Decision::Waits(waiter) => drop(wait(waiter).expect("the gate is open")),
                other => panic!("there is a slot or a place: {other:?}"),
            })
        };
        drop(permit);
        arrival.join().unwrap();
        at_rest(&gate);
    });
}

#[test]
fn an_arrival_does_not_overtake_the_one_that_waits() {
    model(3, || {
        let gate = gate(1, 1);
        let permit = admitted(&gate);
        let Decision::Waits(mut first) = arrive(&gate) else {
            panic!("the slot is taken");
        };
        let release = thread::spawn(move || drop(permit));
        let second = arrive(&gate);
        // Before the release there is no place, after it there is no slot.
        assert!(matches!(second, Decision::Full | Decision::Waits(_)));
        release.join().unwrap();
        let granted = block_on(poll_fn(|cx| first.poll_slot(cx)));
        assert!(granted.is_ok());
        drop((first, granted, second));
        at_rest(&gate);
    });
}

#[test]
fn a_slot_granted_to_one_that_leaves_goes_to_the_next() {
    model(3, || {
        let gate = gate(2, 2);
        let permits = (admitted(&gate), admitted(&gate));
        let (Decision::Waits(first), Decision::Waits(second)) = (arrive(&gate), arrive(&gate))
        else {
            panic!("both slots are taken");
        };
        let release = thread::spawn(move || drop(permits.0));
        let leave = thread::spawn(move || drop(first));
        drop(wait(second).expect("the gate is open"));
        release.join().unwrap();
        leave.join().unwrap();
        drop(permits.1);
        at_rest(&gate);
    });
}

#[test]
fn a_wait_that_ends_by_time_and_a_grant_at_once_lose_no_slot() {
    model(3, || {
        let gate = gate(1, 2);
        let permit = admitted(&gate);
        let (Decision::Waits(mut first), Decision::Waits(second)) = (arrive(&gate), arrive(&gate))
        else {
            panic!("the slot is taken");
        };
        let release = thread::spawn(move || drop(permit));
        let ended = thread::spawn(move || match first.give_up() {
            Ended::Granted(permit) => drop(permit),
            Ended::Left => {}
            Ended::Closed => panic!("the gate is open"),
        });
        drop(wait(second).expect("the gate is open"));
        release.join().unwrap();
        ended.join().unwrap();
        at_rest(&gate);
    });
}

#[test]
fn a_lowered_limit_and_a_release_at_once_keep_the_lower_limit() {
    model(3, || {
        let gate = gate(2, 1);
        let permits = (admitted(&gate), admitted(&gate));
        let Decision::Waits(waiter) = arrive(&gate) else {
            panic!("both slots are taken");
        };
        let shrink = {
            let gate = gate.clone();
            thread::spawn(move || gate.set_slots(1))
        };
        let release = thread::spawn(move || drop(permits.0));
        shrink.join().unwrap();
        release.join().unwrap();
        // The waiter got in before the limit was lowered, or waits for the
        // second release: in both cases what is in use adds up.
        let now = gate.snapshot();
        assert!(matches!((now.in_engine, now.queued), (1, 1) | (2, 0)));
        drop(permits.1);
        drop(wait(waiter).expect("the gate is open"));
        at_rest(&gate);
    });
}

#[test]
fn a_raised_limit_and_arrivals_at_once_lose_no_wake() {
    model(3, || {
        let gate = gate(1, 2);
        let permit = admitted(&gate);
        let arrival = {
            let gate = gate.clone();
            thread::spawn(move || match arrive(&gate) {
                Decision::Admitted(permit) => permit,
                Decision::Waits(waiter) => wait(waiter).expect("the gate is open"),
                other => panic!("there is a place: {other:?}"),
            })
        };
        gate.set_slots(2);
        let second = arrival.join().unwrap();
        assert_eq!(gate.snapshot().in_engine, 2);
        drop((permit, second));
        at_rest(&gate);
    });
}

#[test]
fn a_close_reaches_whoever_waits_or_comes() {
    model(3, || {
        let gate = gate(1, 2);
        let permit = admitted(&gate);
        let Decision::Waits(waiter) = arrive(&gate) else {
            panic!("the slot is taken");
        };
        let close = {
            let gate = gate.clone();
            thread::spawn(move || gate.close())
        };
        let arrival = {
            let gate = gate.clone();
            thread::spawn(move || match arrive(&gate) {
                Decision::Waits(waiter) => assert!(wait(waiter).is_err(), "nothing is released"),
                Decision::Closed => {}
                other => panic!("neither waits nor is sent away: {other:?}"),
            })
        };
        assert!(wait(waiter).is_err(), "nothing is released");
        close.join().unwrap();
        arrival.join().unwrap();
        drop(permit);
        at_rest(&gate);
    });
}

#[test]
fn a_close_and_a_release_at_once_answer_the_waiter_once() {
    model(3, || {
        let gate = gate(1, 1);
        let permit = admitted(&gate);
        let Decision::Waits(waiter) = arrive(&gate) else {
            panic!("the slot is taken");
        };
        let close = {
            let gate = gate.clone();
            thread::spawn(move || gate.close())
        };
        let release = thread::spawn(move || drop(permit));
        drop(wait(waiter));
        close.join().unwrap();
        release.join().unwrap();
        assert!(matches!(arrive(&gate), Decision::Closed));
        at_rest(&gate);
    });
}

#[test]
fn a_freed_place_reaches_the_caller_that_parks() {
    model(3, || {
        let gate = gate(1, 1);
        let permit = admitted(&gate);
        let Decision::Waits(queued) = arrive(&gate) else {
            panic!("the slot is taken");
        };
        let caller = {
            let gate = gate.clone();
            thread::spawn(move || {
                let mut reservation = None;
                let place = block_on(poll_fn(|cx| {
                    if reservation.is_none() {
                        match Gate::reserve(&gate, cx.waker()) {
                            Decision::Admitted(permit) => {
                                return Poll::Ready(Place::Slot(permit));
                            }
                            Decision::Waits(waiter) => reservation = Some(waiter),
                            other => panic!("a caller that parks is never refused: {other:?}"),
                        }
                    }
                    reservation.as_mut().unwrap().poll_reserved(cx)
                }));
                if let (Place::Queue, Some(waiter)) = (place, reservation) {
                    drop(wait(waiter).expect("the gate is open"));
                }
            })
        };
        let release = thread::spawn(move || drop(permit));
        drop(queued);
        caller.join().unwrap();
        release.join().unwrap();
        at_rest(&gate);
    });
}

#[test]
fn a_first_token_limit_that_comes_and_a_release_at_once_lose_no_slot() {
    model(3, || {
        let gate = gate(2, 2);
        let permit = admitted(&gate);
        let limit = {
            let gate = gate.clone();
            thread::spawn(move || gate.set_first_token_limit(Some(1)))
        };
        let caller = {
            let gate = gate.clone();
            thread::spawn(move || match arrive(&gate) {
                Decision::Admitted(permit) => permit,
                other => panic!("there is room: {other:?}"),
            })
        };
        drop(permit);
        let mut counted = caller.join().unwrap();
        limit.join().unwrap();
        counted.first_token();
        assert_eq!(gate.snapshot().awaiting_first_token, 0);
        let held = admitted(&gate);
        // There is a slot, or not, but no room under the second limit.
        let Decision::Waits(waiter) = arrive(&gate) else {
            panic!("two await their first token");
        };
        drop(held);
        drop((wait(waiter).expect("the gate is open"), counted));
        at_rest(&gate);
    });
}
