//! Real threads: no wake is lost, and no verdict comes from a moment that
//! never was.

use crate::support::{Fleet, Got, OK, Pool, REFUSED, Script, Worker, got, ms, secs, send};
use futures::FutureExt;
use http::Request;
use std::{
    future::{Future, poll_fn},
    num::NonZeroU64,
    pin::pin,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};
use tokio::{runtime::Runtime, sync::watch, task::JoinSet, time::Instant};
use tower::Service;
use tower_overload::{
    BusySet,
    busy::{Roster, roster},
    pool::{
        WorkerPoolBuilder,
        pick::{Candidate, OpenWorkers, Pick},
    },
};

const DAY: Duration = secs(86_400);

fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(4).enable_time().build().unwrap()
}

/// A pool where whoever finds nobody open waits for a day: one worker of it is
/// being probed for as long.
struct Waiting {
    set: BusySet<&'static str>,
    pool: Pool,
    roster: Roster<&'static str, crate::support::Client>,
    _probe: <Pool as Service<Request<()>>>::Future,
}

impl Waiting {
    async fn new(limit: Option<u64>) -> Self {
        let set = BusySet::<&str>::builder()
            .cooldown(ms(1))
            .probe_timeout(DAY);
        let set: BusySet<&str> = set.build().unwrap();
        let (roster, changes) = roster();
        let mut pool = WorkerPoolBuilder::new(set.clone()).max_wait(DAY);
        if let Some(limit) = limit.and_then(NonZeroU64::new) {
            pool = pool.max_in_flight(limit);
        }
        let mut pool: Pool = pool.build(changes);
        let held = Worker::doing("held", REFUSED);
        roster.insert("held", held.client());
        assert_eq!(send(pool.clone()).await, Got::Unreachable);
        tokio::time::sleep(ms(5)).await;
        held.script(Script::Never);
        let probe = pool.call(Request::new(()));
        assert_eq!(held.calls(), 2);
        Self {
            set,
            pool,
            roster,
            _probe: probe,
        }
    }
}

/// Sends a request; whether it had to wait.
async fn waited(pool: &mut Pool) -> bool {
    let mut call = pin!(pool.call(Request::new(())));
    let first = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
    let (result, waited) = match first {
        Poll::Ready(result) => (result, false),
        Poll::Pending => (call.await, true),
    };
    assert!(result.is_ok(), "{:?}", result.err());
    waited
}

/// All tasks end; `left` says what is missing if they do not.
async fn ended(mut tasks: JoinSet<()>, left: impl Fn() -> String) {
    let all = async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    };
    // Only so that a wake that is lost is a failure, and not a hang.
    let all = tokio::time::timeout(secs(120), all).await;
    assert!(all.is_ok(), "asleep: {}", left());
}

#[test]
fn of_a_hundred_thousand_waits_each_ends_with_the_mark() {
    const WAITS: usize = 100_000;
    const CALLERS: usize = 64;
    let runtime = runtime();
    runtime.block_on(async {
        let fleet = Waiting::new(None).await;
        fleet.roster.insert("a", Worker::new("a").client());
        let mut mark = fleet.set.busy_mark("a");
        mark.set(None);
        let waits = Arc::new(AtomicUsize::new(0));
        let answered = Arc::new(AtomicUsize::new(0));
        let (rounds, round) = watch::channel(0_usize);
        let mut tasks = JoinSet::new();
        for _ in 0..CALLERS {
            let (mut pool, mut round) = (fleet.pool.clone(), round.clone());
            let (waits, answered) = (waits.clone(), answered.clone());
            tasks.spawn(async move {
                while round.changed().await.is_ok() {
                    if waited(&mut pool).await {
                        waits.fetch_add(1, SeqCst);
                    }
                    answered.fetch_add(1, SeqCst);
                }
            });
        }
        let (pool, counted) = (fleet.pool.clone(), waits.clone());
        let flips = thread::spawn(move || {
            let mut n = 0;
            while counted.load(SeqCst) < WAITS {
                mark.set(None);
                rounds.send(n).unwrap();
                // It falls when all wait, or while the others are parking.
                let enough = [CALLERS, CALLERS / 2, CALLERS - 1, 1][n % 4];
                while pool.waiting() < enough {
                    thread::yield_now();
                }
                // At any moment of who comes next.
                (0..n % 97 * 7).for_each(|_| std::hint::spin_loop());
                mark.clear();
                n += 1;
                // The next round begins when each has its answer.
                while answered.load(SeqCst) < n * CALLERS {
                    thread::yield_now();
                }
            }
        });
        let counted = waits.clone();
        ended(tasks, move || format!("after {counted:?} waits")).await;
        flips.join().unwrap();
        assert!(waits.load(SeqCst) >= WAITS);
        assert_eq!((fleet.pool.in_flight(), fleet.pool.waiting()), (1, 0));
    });
}

#[test]
fn a_place_below_the_limit_goes_from_each_to_the_next() {
    const REQUESTS: usize = 10_000;
    for limit in [1, 3] {
        let runtime = runtime();
        runtime.block_on(async {
            let fleet = Waiting::new(Some(limit)).await;
            fleet.roster.insert("a", Worker::new("a").client());
            let left = Arc::new(AtomicUsize::new(REQUESTS));
            let mut tasks = JoinSet::new();
            for _ in 0..16 {
                let (mut pool, left) = (fleet.pool.clone(), left.clone());
                tasks.spawn(async move {
                    while left
                        .fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1))
                        .is_ok()
                    {
                        let call = pool.call(Request::new(()));
                        // Others see the worker full meanwhile.
                        tokio::task::yield_now().await;
                        call.await.unwrap();
                    }
                });
            }
            let counted = left.clone();
            ended(tasks, move || format!("{counted:?} to go")).await;
            assert_eq!((fleet.pool.in_flight(), fleet.pool.waiting()), (1, 0));
            assert_eq!(fleet.pool.members().eligible(), 2);
        });
    }
}

#[test]
fn a_worker_that_is_replaced_by_another_thread_was_always_there() {
    let runtime = runtime();
    runtime.block_on(async {
        let fleet = Fleet::with([Worker::new("a")], |pool| pool.max_wait(DAY));
        let done = Arc::new(AtomicBool::new(false));
        let (worker, roster) = (fleet.worker("a").clone(), fleet.roster.clone());
        let is_done = done.clone();
        let replaces = thread::spawn(move || {
            while !is_done.load(SeqCst) {
                roster.insert("a", worker.client());
                thread::yield_now();
            }
        });
        let mut tasks = JoinSet::new();
        for _ in 0..8 {
            let mut pool = fleet.pool.clone();
            tasks.spawn(async move {
                for _ in 0..5_000 {
                    let result = pool.call(Request::new(())).await;
                    assert_eq!(got(&result), OK);
                }
            });
        }
        ended(tasks, || "a request".into()).await;
        done.store(true, SeqCst);
        replaces.join().unwrap();
        assert_eq!(fleet.send().await, OK);
        assert_eq!(
            (fleet.pool.members().alive(), fleet.worker("a").clients()),
            (1, 1)
        );
        fleet.assert_idle();
    });
}

#[test]
fn callers_that_leave_take_no_wake_along() {
    let runtime = runtime();
    runtime.block_on(async {
        let fleet = Waiting::new(Some(1)).await;
        fleet.roster.insert("a", Worker::new("a").client());
        let left = Arc::new(AtomicUsize::new(5_000));
        let mut tasks = JoinSet::new();
        for n in 0..16_u32 {
            let (mut pool, left) = (fleet.pool.clone(), left.clone());
            tasks.spawn(async move {
                while left
                    .fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1))
                    .is_ok()
                {
                    let call = pool.call(Request::new(()));
                    if n % 4 == 0 {
                        // Woken or not, it leaves after a look.
                        let mut call = pin!(call);
                        let _ = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
                        tokio::task::yield_now().await;
                    } else {
                        call.await.unwrap();
                    }
                }
            });
        }
        let counted = left.clone();
        ended(tasks, move || format!("{counted:?} to go")).await;
        assert_eq!((fleet.pool.in_flight(), fleet.pool.waiting()), (1, 0));
    });
}

/// Runs something when it is woken.
struct OnWake<F>(F);

impl<F: Fn() + Send + Sync> Wake for OnWake<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// Leaves every choice to the default.
struct Undecided;

impl<Req> Pick<Req> for Undecided {
    fn pick(&self, _: &Req, _: &OpenWorkers<'_, Req>) -> Option<Candidate<Req>> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_just_being_replaced_is_waited_for() {
    // Whoever applies the replacement stops in the middle of it.
    let (within, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let stops = Arc::new(AtomicBool::new(false));
    let weight = {
        let (within, go_on, stops) = (within.clone(), go_on.clone(), stops.clone());
        move |_: &_| {
            if stops.load(SeqCst) {
                within.wait();
                go_on.wait();
            }
            1
        }
    };
    let fleet = Fleet::with([Worker::new("a"), Worker::new("b")], |pool| {
        pool.weight(weight).pick(Undecided)
    });
    let _drain = fleet.set.drain("b");
    assert_eq!(fleet.send().await, OK);

    // It begins while a request ends a mark, before it looks for a worker.
    let mut mark = fleet.set.busy_mark("b");
    mark.set(Some(Instant::now() + ms(1)));
    let (pool, roster) = (fleet.pool.clone(), fleet.roster.clone());
    let (client, replacing) = (Mutex::new(Some(fleet.worker("a").client())), stops.clone());
    let thread = Arc::new(Mutex::new(None));
    let started = thread.clone();
    let waker = Waker::from(Arc::new(OnWake(move || {
        let Some(client) = client.lock().unwrap().take() else {
            return;
        };
        replacing.store(true, SeqCst);
        roster.insert("a", client);
        let mut pool = pool.clone();
        let replace = thread::spawn(move || drop(pool.call(Request::new(()))));
        *started.lock().unwrap() = Some(replace);
        within.wait();
    })));
    let mut driver = pin!(fleet.pool.driver());
    let mut cx = Context::from_waker(&waker);
    assert!(driver.as_mut().poll(&mut cx).is_pending());
    // The clock has moved, and no timer knows yet.
    let _ = tokio::time::advance(ms(1)).now_or_never();
    assert!(thread.lock().unwrap().is_none());

    let mut call = tokio_test::task::spawn(fleet.call());
    assert!(thread.lock().unwrap().is_some(), "the mark has ended");
    assert!(call.poll().is_pending(), "no worker is gone for good");
    stops.store(false, SeqCst);
    go_on.wait();
    let replace = thread.lock().unwrap().take().unwrap();
    replace.join().unwrap();
    assert!(call.is_woken());
    assert_eq!(got(&call.await), OK);
}
