//! Who tells the monitor, and in which order.

use super::account::{Account, Load};
use crate::{
    load::LoadEvent,
    sync::{Mutex, lock},
    unwind::FirstPanic,
};
use std::mem;

/// An account, and the duty to report what it says.
///
/// A report wakes others, so it is made without the lock; and of two reports
/// the later must be the last to arrive. So one thread at a time reports. It
/// looks again when it has, and reports what others have changed meanwhile.
pub(super) struct Reports<K> {
    book: Mutex<Book<K>>,
}

struct Book<K> {
    account: Account,
    event: Event<K>,
}

/// The event that reports are written into. Who takes it out has the duty.
enum Event<K> {
    Here(LoadEvent<K>),
    Out,
}

impl<K> Reports<K> {
    pub(super) fn new(worker: K) -> Self {
        let event = Event::Here(LoadEvent::new(worker, 0));
        Self {
            book: Mutex::new(Book {
                account: Account::default(),
                event,
            }),
        }
    }

    /// Changes the account, and tells what there is to report.
    ///
    /// If another thread is telling, it will tell of this change as well. A
    /// panic of `tell` is left in `panic`, and keeps no report back.
    pub(super) fn change(
        &self,
        change: impl FnOnce(&mut Account),
        mut tell: impl FnMut(&LoadEvent<K>),
        panic: &mut FirstPanic,
    ) {
        let mut book = lock(&self.book);
        change(&mut book.account);
        let mut event = match mem::replace(&mut book.event, Event::Out) {
            Event::Here(event) => event,
            Event::Out => return,
        };
        while let Some((dp_rank, load)) = book.account.next_report() {
            drop(book);
            write(&mut event, dp_rank, load);
            panic.catch(|| tell(&event));
            book = lock(&self.book);
        }
        book.event = Event::Here(event);
    }
}

fn write<K>(event: &mut LoadEvent<K>, dp_rank: u32, load: Load) {
    event.dp_rank = dp_rank;
    event.active_decode_blocks = Some(load.decode_blocks);
    event.active_prefill_tokens = Some(load.prefill_tokens);
}

/// Run with `RUSTFLAGS="--cfg tower_overload_loom" cargo test --lib --release loom`.
#[cfg(all(test, tower_overload_loom))]
mod loom_tests {
    use super::*;
    use crate::{
        load::tracker::{Cost, account::Share},
        sync::{Arc, model},
    };
    use loom::thread;

    /// A worker without a monitor, and what it was last told.
    struct Worker {
        reports: Reports<()>,
        told: Mutex<(u64, u64)>,
    }

    impl Worker {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                reports: Reports::new(()),
                told: Mutex::new((0, 0)),
            })
        }

        fn change(&self, change: impl FnOnce(&mut Account)) {
            let tell = |event: &LoadEvent<()>| {
                let counts = (event.active_prefill_tokens, event.active_decode_blocks);
                *lock(&self.told) = (counts.0.unwrap(), counts.1.unwrap());
            };
            let mut panic = FirstPanic::default();
            self.reports.change(change, tell, &mut panic);
            panic.resume();
        }

        fn begin(&self, cost: Cost) -> Share {
            let mut share = None;
            self.change(|account| share = Some(account.begin(cost)));
            share.unwrap()
        }

        fn told(&self) -> (u64, u64) {
            *lock(&self.told)
        }
    }

    #[test]
    fn loom_the_last_report_is_the_latest_sum() {
        model(3, || {
            let worker = Worker::new();
            let other = worker.clone();
            let thread = thread::spawn(move || {
                let mut share = other.begin(Cost::new(3, 1));
                other.change(|account| account.end_prefill(&mut share));
                share
            });
            let first = worker.begin(Cost::new(5, 2));
            let second = thread.join().unwrap();
            assert_eq!(worker.told(), (5, 3));
            let other = worker.clone();
            let thread = thread::spawn(move || other.change(|account| account.end(&second)));
            worker.change(|account| account.end(&first));
            thread.join().unwrap();
            assert_eq!(worker.told(), (0, 0));
            assert!(lock(&worker.reports.book).account.is_empty());
        });
    }

    #[test]
    fn loom_a_refresh_does_not_bring_back_an_older_sum() {
        model(3, || {
            let worker = Worker::new();
            let share = worker.begin(Cost::new(5, 2));
            let other = worker.clone();
            let thread = thread::spawn(move || other.change(Account::refresh));
            worker.change(|account| account.end(&share));
            thread.join().unwrap();
            assert_eq!(worker.told(), (0, 0));
            assert!(lock(&worker.reports.book).account.is_empty());
        });
    }
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;
    use crate::load::tracker::Cost;

    #[test]
    fn who_tells_and_changes_again_meanwhile_tells_of_that_as_well() {
        let reports = Reports::new("a");
        let mut panic = FirstPanic::default();
        let mut told = Vec::new();
        let mut more = Some(Cost::new(2, 1));
        let mut inner = FirstPanic::default();
        let begin = |cost| {
            move |account: &mut Account| {
                account.begin(cost);
            }
        };
        reports.change(
            begin(Cost::new(1, 1)),
            |event| {
                told.push(event.active_prefill_tokens.unwrap());
                if let Some(cost) = more.take() {
                    let nobody = |_: &_| panic!("the first one has the duty");
                    reports.change(begin(cost), nobody, &mut inner);
                }
            },
            &mut panic,
        );
        assert_eq!(told, [1, 3]);
        inner.resume();
        panic.resume();
    }

    #[test]
    fn a_panic_of_one_report_does_not_keep_the_next_ones_back() {
        let reports = Reports::new("a");
        let mut told = Vec::new();
        let mut panic = FirstPanic::default();
        reports.change(
            |account| {
                for rank in 0..3 {
                    account.begin(Cost::new(1, 1).on_rank(rank));
                }
            },
            |event| {
                told.push(event.dp_rank);
                assert!(event.dp_rank != 1, "a waker that panics");
            },
            &mut panic,
        );
        assert_eq!(told, [0, 1, 2]);
        let resumed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| panic.resume()));
        assert!(resumed.is_err(), "it is not swallowed");
        let mut told = 0;
        reports.change(
            |account| {
                account.begin(Cost::new(1, 1));
            },
            |_| told += 1,
            &mut FirstPanic::default(),
        );
        assert_eq!(told, 1, "the duty was given back");
    }
}
