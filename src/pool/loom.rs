//! Run with `RUSTFLAGS="--cfg tower_overload_loom" cargo test --lib --release loom`.

use super::{rows::Rows, watch::RowWatch};
use crate::{
    busy::{Attempt, BusySet, Members, Notifier, Observation, Seat, Watch},
    sync::{Arc, model},
};
use futures::task::{ArcWake, waker};
use loom::thread;
use std::sync::{
    self,
    atomic::{AtomicBool as Flag, Ordering::SeqCst},
};

/// One worker in a pool without services.
struct Pool {
    set: BusySet<u32>,
    rows: sync::Arc<Rows>,
    watch: sync::Arc<RowWatch>,
    seat: Arc<Seat>,
}

impl Pool {
    fn new(limit: u64) -> Self {
        let set = BusySet::new();
        let rows = sync::Arc::new(Rows::new(Members::new(), limit, std::time::Duration::ZERO));
        let row = rows.allocate(1, 0);
        let watch = sync::Arc::new(RowWatch::new(rows.clone(), row));
        let followed: sync::Arc<dyn Watch> = watch.clone();
        let seat = Seat::counted(set.place(0).attach(&followed), rows.clone(), row);
        Self {
            set,
            rows,
            watch,
            seat: Arc::new(seat),
        }
    }

    /// What a choice does, once it has found a row.
    fn choose(&self) -> Option<Attempt> {
        if self.rows.open() == 0 {
            return None;
        }
        enter(&self.seat)
    }

    fn is_idle(&self) -> bool {
        self.rows.in_flight() == 0
    }
}

fn enter(seat: &Arc<Seat>) -> Option<Attempt> {
    Attempt::claim(Seat::enter(seat.clone())?)
}

struct Woken(Flag);

impl ArcWake for Woken {
    fn wake_by_ref(woken: &sync::Arc<Self>) {
        woken.0.store(true, SeqCst);
    }
}

/// Parks as a request does: whether it sleeps, and whether it was woken.
struct Waiter {
    observation: Observation,
    woken: sync::Arc<Woken>,
}

impl Waiter {
    fn at(notifier: &Notifier) -> Self {
        Self {
            observation: notifier.observe(),
            woken: sync::Arc::new(Woken(Flag::new(false))),
        }
    }

    /// Looks, and sleeps if there is nothing and nothing has changed since.
    fn sleeps(&self, finds: impl FnOnce() -> bool) -> bool {
        let epoch = self.observation.epoch();
        if finds() {
            return false;
        }
        self.observation.register(&waker(self.woken.clone()));
        self.observation.epoch() == epoch
    }

    fn is_woken(&self) -> bool {
        self.woken.0.load(SeqCst)
    }
}

#[test]
fn loom_one_that_waits_for_an_open_worker_is_woken_by_the_mark_that_falls() {
    model(3, || {
        let pool = Pool::new(u64::MAX);
        let mut mark = pool.set.busy_mark(0);
        mark.set(None);
        let waiter = Waiter::at(pool.rows.members().notifier());
        let monitor = thread::spawn(move || mark.clear());
        let sleeps = waiter.sleeps(|| pool.choose().is_some());
        monitor.join().unwrap();
        assert!(!sleeps || waiter.is_woken(), "asleep while it is open");
        assert!(pool.choose().is_some());
        assert!(pool.is_idle());
    });
}

#[test]
fn loom_a_mark_that_was_set_before_the_choice_is_honoured_and_leaves_no_count() {
    model(3, || {
        let pool = Pool::new(u64::MAX);
        let mut mark = pool.set.busy_mark(0);
        let seat = pool.seat.clone();
        let monitor = thread::spawn(move || {
            mark.set(None);
            // Set: whoever chooses now has looked too late.
            assert!(enter(&seat).is_none());
            mark
        });
        // Races with it: before or after, and exact.
        drop(pool.choose());
        let mark = monitor.join().unwrap();
        assert!(pool.choose().is_none());
        assert_eq!((pool.rows.open(), pool.rows.members().open()), (0, 0));
        assert!(pool.is_idle());
        drop(mark);
        assert_eq!((pool.rows.open(), pool.rows.members().open()), (1, 1));
    });
}

#[test]
fn loom_one_that_waits_at_a_full_worker_is_woken_by_the_request_that_ends() {
    model(3, || {
        let pool = Pool::new(1);
        let first = pool.choose().expect("it has room");
        let waiter = Waiter::at(pool.rows.members().notifier());
        let ends = thread::spawn(move || drop(first));
        let sleeps = waiter.sleeps(|| pool.choose().is_some());
        ends.join().unwrap();
        assert!(!sleeps || waiter.is_woken(), "asleep while it has room");
        assert!(pool.is_idle());
        assert_eq!((pool.rows.open(), pool.rows.members().open()), (1, 1));
    });
}

#[test]
fn loom_a_limit_is_never_passed_and_the_row_opens_again() {
    model(2, || {
        let pool = Pool::new(1);
        let seat = pool.seat.clone();
        let other = thread::spawn(move || drop(enter(&seat)));
        let mine = enter(&pool.seat);
        assert!(pool.rows.in_flight() <= 2, "one is leaving at most");
        drop(mine);
        other.join().unwrap();
        assert!(pool.is_idle());
        assert_eq!((pool.rows.open(), pool.rows.members().open()), (1, 1));
    });
}

#[test]
fn loom_one_that_waits_for_the_own_service_of_a_worker_hears_of_its_mark() {
    model(3, || {
        let pool = Pool::new(u64::MAX);
        let mut mark = pool.set.busy_mark(0);
        let attempt = pool.choose().expect("it is open");
        let monitor = thread::spawn(move || {
            mark.set(None);
            mark
        });
        let waiter = Waiter::at(&pool.watch.own());
        let sleeps = waiter.sleeps(|| attempt.seat().is_none_or(Seat::is_excluded));
        let mark = monitor.join().unwrap();
        assert!(!sleeps || waiter.is_woken(), "it waits for a marked worker");
        drop((attempt, mark));
        assert!(pool.is_idle());
    });
}

#[test]
fn loom_a_worker_that_leaves_beside_a_choice_gives_its_row_back() {
    model(2, || {
        let pool = Pool::new(u64::MAX);
        let Pool {
            set,
            rows,
            watch,
            seat,
        } = pool;
        let chooser = thread::spawn({
            let seat = seat.clone();
            move || drop(enter(&seat))
        });
        set.retire(&0, seat.worker(), Some(seat.id()), false);
        drop(seat);
        chooser.join().unwrap();
        assert_eq!((rows.open(), rows.members().alive()), (0, 0));
        assert_eq!(rows.in_flight(), 0);
        assert_eq!(rows.allocate(1, 0), watch.row(), "it is free again");
    });
}
