//! What a routed request costs through the pool, beside plain `Balance`, and
//! what refusals, marks and threads cost.
//!
//! No metrics recorder is installed. `cargo bench --bench pool` prints the
//! ratios at the end.

use criterion::{BenchmarkId, Criterion};
use futures::FutureExt;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    sync::Barrier,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};
use tower::{
    Service,
    balance::p2c::Balance,
    load::{CompleteOnResponse, PendingRequestsDiscover},
};
use tower_overload::{
    busy::{BusyMark, BusySet, ErrorsOnly, RosterChanges, roster},
    pool::{
        WorkerPool, WorkerPoolBuilder,
        pick::{Affinity, LeastLoaded},
    },
};

/// A worker that answers at once, and is ready or never.
#[derive(Clone)]
struct Worker {
    ready: bool,
}

impl Service<u64> for Worker {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.ready {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok(request))
    }
}

type Changes = RosterChanges<u64, Worker>;
type Builder = WorkerPoolBuilder<u64, u64, ErrorsOnly, CompleteOnResponse>;
type Pool = WorkerPool<Changes, u64, ErrorsOnly, CompleteOnResponse>;

/// A pool of `workers`, and the marks of the first `busy` ones.
fn pool(workers: u64, busy: u64, configure: fn(Builder) -> Builder) -> (Pool, Vec<BusyMark>) {
    let set = BusySet::new();
    let (roster, changes) = roster();
    for worker in 0..workers {
        roster.insert(worker, Worker { ready: true });
    }
    let builder = WorkerPoolBuilder::new(set.clone())
        .policy(ErrorsOnly)
        .completion(CompleteOnResponse::default());
    let pool = configure(builder).build_any(changes);
    let marks = (0..busy).map(|worker| {
        let mut mark = set.busy_mark(worker);
        mark.set(None);
        mark
    });
    (pool, marks.collect())
}

/// Plain `Balance` over as many workers from the same kind of discovery, as
/// many of them not ready.
fn plain(workers: u64, not_ready: u64) -> Balance<PendingRequestsDiscover<Changes>, u64> {
    let (roster, changes) = roster();
    for worker in 0..workers {
        let ready = worker >= not_ready;
        roster.insert(worker, Worker { ready });
    }
    let completion = CompleteOnResponse::default();
    Balance::new(PendingRequestsDiscover::new::<u64>(changes, completion))
}

fn request<S: Service<u64, Response = u64>>(service: &mut S, n: u64) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    match service.poll_ready(&mut cx) {
        Poll::Ready(Ok(())) => {}
        _ => panic!("not ready"),
    }
    service.call(n).now_or_never().is_some_and(|r| r.is_ok())
}

fn busy_of(workers: u64, percent: u64) -> u64 {
    (workers * percent / 100).min(workers - 1)
}

const WORKERS: [u64; 4] = [8, 64, 512, 4096];
const PERCENT_BUSY: [u64; 4] = [0, 50, 90, 99];

fn routed(c: &mut Criterion) {
    let mut group = c.benchmark_group("routed");
    for workers in WORKERS {
        for percent in PERCENT_BUSY {
            let busy = busy_of(workers, percent);
            let id = format!("{workers} workers, {percent} % busy");
            let mut balance = plain(workers, busy);
            group.bench_function(BenchmarkId::new("Balance", &id), |b| {
                b.iter(|| request(&mut balance, black_box(1)));
            });
            let (mut pool, _marks) = pool(workers, busy, |pool| pool);
            group.bench_function(BenchmarkId::new("WorkerPool", &id), |b| {
                b.iter(|| request(&mut pool, black_box(1)));
            });
        }
    }
    group.finish();
}

type Choice = (&'static str, fn(Builder) -> Builder);

const CHOICES: [Choice; 6] = [
    ("of two", |pool| pool),
    ("of two, by load", |pool| {
        pool.load(|id: &u64| {
            let id = *id;
            move || id
        })
        .pick(LeastLoaded::of(2).by_load())
    }),
    ("of five", |pool| pool.pick(LeastLoaded::of(5))),
    ("of all", |pool| pool.pick(LeastLoaded::of_all())),
    ("of all, by load", |pool| {
        pool.load(|id: &u64| {
            let id = *id;
            move || id
        })
        .pick(LeastLoaded::of_all().by_load())
    }),
    ("affinity", |pool| {
        pool.pick(Affinity::by(|request: &u64| Some(*request)))
    }),
];

fn choices(c: &mut Criterion) {
    let mut group = c.benchmark_group("choices");
    for workers in [8, 512] {
        for (name, configure) in CHOICES {
            let (mut pool, _marks) = pool(workers, 0, configure);
            group.bench_function(BenchmarkId::new(name, workers), |b| {
                b.iter(|| request(&mut pool, black_box(1)));
            });
        }
    }
    group.finish();
}

fn refused(c: &mut Criterion) {
    let mut group = c.benchmark_group("all busy");
    for workers in [8, 1_000, 100_000] {
        let (mut pool, _marks) = pool(workers, workers, |pool| pool);
        group.bench_function(BenchmarkId::new("WorkerPool", workers), |b| {
            b.iter(|| assert!(!request(&mut pool, black_box(1))));
        });
    }
    group.finish();
}

/// The least time per call over several batches, which noise can only raise;
/// the batches of the two take turns.
fn least_of_two(mut a: impl FnMut(), mut b: impl FnMut()) -> (f64, f64) {
    const CALLS: u32 = 10_000;
    let time = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| f());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    (0..60).fold((f64::INFINITY, f64::INFINITY), |least, _| {
        (least.0.min(time(&mut a)), least.1.min(time(&mut b)))
    })
}

/// The shortest time for which so many threads need for as many requests each.
fn at_once(pool: &Pool, threads: usize) -> Duration {
    const REQUESTS: u64 = 200_000;
    let run = || {
        let start = Barrier::new(threads + 1);
        thread::scope(|scope| {
            let runs: Vec<_> = (0..threads)
                .map(|_| {
                    let (mut pool, start) = (pool.clone(), &start);
                    scope.spawn(move || {
                        start.wait();
                        (0..REQUESTS).for_each(|n| assert!(request(&mut pool, black_box(n))));
                    })
                })
                .collect();
            start.wait();
            let begin = Instant::now();
            runs.into_iter().for_each(|run| run.join().expect("served"));
            begin.elapsed()
        })
    };
    (0..10).map(|_| run()).min().unwrap_or_default()
}

/// The shortest time per mark that is set or cleared, over all workers.
fn flip(workers: u64) -> Duration {
    let (mut pool, mut marks) = pool(workers, workers, |pool| pool);
    assert!(!request(&mut pool, 1));
    let run = |marks: &mut [BusyMark]| {
        let start = Instant::now();
        marks.iter_mut().for_each(BusyMark::clear);
        marks.iter_mut().for_each(|mark| mark.set(None));
        start.elapsed() / (2 * workers as u32)
    };
    (0..20).map(|_| run(&mut marks)).min().unwrap_or_default()
}

fn summary() {
    println!("\nrouted request (least of 60 batches, taking turns)");
    let mut worst: f64 = 0.0;
    for workers in WORKERS {
        for percent in PERCENT_BUSY {
            let busy = busy_of(workers, percent);
            let mut balance = plain(workers, busy);
            let (mut pool, _marks) = pool(workers, busy, |pool| pool);
            let (plain, ours) = least_of_two(
                || assert!(request(&mut balance, black_box(1))),
                || assert!(request(&mut pool, black_box(1))),
            );
            worst = worst.max(ours / plain);
            println!(
                "  {workers:>5} workers, {percent:>2} % busy: {ours:6.1} ns, \
                 Balance {plain:6.1} ns, ratio {:.2}",
                ours / plain
            );
        }
    }
    println!("  worst ratio {worst:.2} (aim: at most 0.35)");

    let (mut small, _marks) = pool(8, 8, |pool| pool);
    let (mut large, _marks) = pool(100_000, 100_000, |pool| pool);
    let (few, many) = least_of_two(
        || assert!(!request(&mut small, black_box(1))),
        || assert!(!request(&mut large, black_box(1))),
    );
    println!("all busy: 8 workers {few:.1} ns, 100,000 {many:.1} ns (aim: at most 35, the same)");

    let (shared, _marks) = pool(64, 0, |pool| pool);
    let (one, two) = (at_once(&shared, 1), at_once(&shared, 2));
    let speedup = 2.0 * one.as_secs_f64() / two.as_secs_f64();
    println!("two threads: {speedup:.2} × the requests of one (aim: at least 1.3)");

    println!(
        "a flip of a mark: 100 workers {:?}, 100,000 {:?} (aim: below 150 ns)",
        flip(100),
        flip(100_000)
    );
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .sample_size(20)
        .configure_from_args();
    routed(&mut criterion);
    choices(&mut criterion);
    refused(&mut criterion);
    criterion.final_summary();
    if std::env::args().any(|arg| arg == "--bench") {
        summary();
    }
}
