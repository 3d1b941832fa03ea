//! Run with `RUSTFLAGS="--cfg tower_overload_loom" cargo test --lib --release loom`.

use super::{
    BusySet, Members,
    worker::{Check, SeatId, Watch, WorkerState},
};
use crate::sync::model;
use futures::task::{ArcWake, waker};
use loom::thread;
use std::{
    sync::Arc,
    sync::atomic::{AtomicBool as Flag, Ordering::SeqCst},
};
use tokio::time::Instant;

fn watch(members: &Members) -> Arc<dyn Watch> {
    Arc::new(members.clone())
}

struct Woken(Flag);

impl ArcWake for Woken {
    fn wake_by_ref(woken: &std::sync::Arc<Self>) {
        woken.0.store(true, SeqCst);
    }
}

/// What an endpoint does in `poll_ready`.
fn poll(state: &WorkerState, seat: SeatId, woken: &std::sync::Arc<Woken>) -> bool {
    state.is_open()
        || state.check(seat, false, Instant::now(), &waker(woken.clone())) == Check::Open
}

#[test]
fn loom_a_parked_endpoint_is_woken_by_whatever_frees_it() {
    model(3, || {
        let set = BusySet::<u32>::new();
        let members = Members::new();
        let (state, seat) = set.place(0).attach(&watch(&members));
        let mut mark = set.busy_mark(0);
        mark.set(None);
        let monitor = thread::spawn(move || {
            mark.clear();
            mark
        });
        let woken = std::sync::Arc::new(Woken(Flag::new(false)));
        let open = poll(&state, seat, &woken);
        let mark = monitor.join().unwrap();
        assert!(open || woken.0.load(SeqCst), "asleep while it is free");
        assert!(poll(&state, seat, &woken));
        assert_eq!((members.usable(), members.eligible()), (1, 1));
        drop(mark);
        state.detach(seat);
        assert_eq!((members.alive(), members.usable()), (0, 0));
    });
}

#[test]
fn loom_an_endpoint_that_waits_for_its_own_service_hears_of_a_mark() {
    model(3, || {
        let set = BusySet::<u32>::new();
        let members = Members::new();
        let (state, seat) = set.place(0).attach(&watch(&members));
        let mut mark = set.busy_mark(0);
        let monitor = thread::spawn(move || {
            mark.set(None);
            mark
        });
        let woken = std::sync::Arc::new(Woken(Flag::new(false)));
        // Its service is pending: it looks whether it may go on waiting.
        let waits = state.is_open() && state.watch(seat, false, &waker(woken.clone()));
        let mark = monitor.join().unwrap();
        assert!(!waits || woken.0.load(SeqCst), "no timer is armed");
        drop(mark);
        state.detach(seat);
    });
}

#[test]
fn loom_marks_of_two_kinds_race_and_the_counts_are_right() {
    model(3, || {
        let set = BusySet::<u32>::new();
        let members = Members::new();
        let (state, seat) = set.place(0).attach(&watch(&members));
        let drain = set.drain(0);
        let operator = thread::spawn(move || drop(drain));
        let mut mark = set.busy_mark(0);
        mark.set(None);
        let woken = std::sync::Arc::new(Woken(Flag::new(false)));
        assert!(!poll(&state, seat, &woken));
        operator.join().unwrap();
        assert_eq!((members.usable(), members.eligible()), (1, 0));
        woken.0.store(false, SeqCst);
        assert!(!poll(&state, seat, &woken));
        mark.clear();
        assert!(woken.0.load(SeqCst));
        assert_eq!((members.usable(), members.eligible()), (1, 1));
        state.detach(seat);
    });
}

#[test]
fn loom_a_failing_endpoint_is_woken_when_most_of_those_that_are_left_fail() {
    model(3, || {
        let set = BusySet::<u32>::new();
        let members = Members::new();
        let (state, seat) = set.place(0).attach(&watch(&members));
        let (well, of_well) = set.place(1).attach(&watch(&members));
        for _ in 0..5 {
            state.failed(seat, None);
        }
        let leaves = thread::spawn(move || well.detach(of_well));
        let woken = std::sync::Arc::new(Woken(Flag::new(false)));
        let task = waker(woken.clone());
        let turn = members.turns().observe();
        turn.register(&task);
        let ignores = members.ignores_failing();
        let open = state.check(seat, ignores, Instant::now(), &task) == Check::Open;
        leaves.join().unwrap();
        assert!(open || woken.0.load(SeqCst), "asleep while it is free");
        assert!(members.ignores_failing());
        state.detach(seat);
    });
}

#[test]
fn loom_a_worker_that_leaves_while_it_is_marked_leaves_nothing() {
    model(2, || {
        let set = BusySet::<u32>::new();
        let members = Members::new();
        let (state, seat) = set.place(0).attach(&watch(&members));
        let mut mark = set.busy_mark(0);
        let monitor = thread::spawn(move || {
            mark.set(None);
            drop(mark);
        });
        set.forget(&0);
        let late = thread::spawn({
            let state = state.clone();
            move || state.failed_to_connect(seat)
        });
        state.detach(seat);
        monitor.join().unwrap();
        late.join().unwrap();
        assert_eq!(
            (members.alive(), members.usable(), members.eligible()),
            (0, 0, 0)
        );
        assert!(!set.marks(&0).is_excluded());
        assert_eq!(set.len(), 0);
    });
}
