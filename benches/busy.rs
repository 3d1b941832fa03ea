//! What routing through the busy filter costs, beside plain `Balance`, and
//! both through the `Buffer` that makes them cloneable.
//!
//! No metrics recorder is installed. `cargo bench --bench busy` prints the
//! ratios at the end.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use futures::FutureExt;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;
use tower::{
    BoxError, Layer, Service, ServiceExt,
    balance::p2c::Balance,
    buffer::Buffer,
    load::{CompleteOnResponse, PendingRequestsDiscover},
    util::BoxService,
};
use tower_overload::busy::{
    BusyDiscover, BusyFilter, BusyFilterLayer, BusyMark, BusySet, ErrorsOnly, RosterChanges, roster,
};

/// A worker that answers at once, and is ready or never.
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

type Marked = BusyDiscover<RosterChanges<u64, Worker>, ErrorsOnly, CompleteOnResponse>;
type Filtered = BusyFilter<Balance<PendingRequestsDiscover<Marked>, u64>>;

/// A filter over `workers`, the first `busy` of which are marked.
fn filtered(workers: u64, busy: u64) -> (Filtered, BusySet<u64>, Vec<BusyMark>) {
    let set = BusySet::new();
    let (roster, changes) = roster();
    for worker in 0..workers {
        roster.insert(worker, Worker { ready: true });
    }
    let completion = CompleteOnResponse::default;
    let discover = BusyDiscover::with(changes, set.clone(), ErrorsOnly, completion());
    let layer = BusyFilterLayer::new(discover.members());
    let discover = PendingRequestsDiscover::new::<u64>(discover, completion());
    let filter = layer.layer(Balance::new(discover));
    let marks = (0..busy).map(|worker| {
        let mut mark = set.busy_mark(worker);
        mark.set(None);
        mark
    });
    let marks = marks.collect();
    (filter, set, marks)
}

type Discovered = PendingRequestsDiscover<RosterChanges<u64, Worker>>;

/// Plain `Balance` over as many workers from the same kind of discovery, as
/// many of them not ready.
fn plain(workers: u64, not_ready: u64) -> Balance<Discovered, u64> {
    let (roster, changes) = roster();
    for worker in 0..workers {
        let ready = worker >= not_ready;
        roster.insert(worker, Worker { ready });
    }
    Balance::new(PendingRequestsDiscover::new::<u64>(
        changes,
        CompleteOnResponse::default(),
    ))
}

fn request<S: Service<u64, Response = u64>>(service: &mut S, n: u64) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    match service.poll_ready(&mut cx) {
        Poll::Ready(Ok(())) => {}
        _ => panic!("not ready"),
    }
    service.call(n).now_or_never().is_some_and(|r| r.is_ok())
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

fn routed(c: &mut Criterion) {
    let mut group = c.benchmark_group("routed");
    for workers in [8, 64, 512, 4096] {
        for percent in [0, 50, 90, 99] {
            let busy = (workers * percent / 100).min(workers - 1);
            let id = format!("{workers} workers, {percent} % busy");
            let mut balance = plain(workers, busy);
            group.bench_function(BenchmarkId::new("Balance", &id), |b| {
                b.iter(|| request(&mut balance, black_box(1)));
            });
            let (mut filter, _set, _marks) = filtered(workers, busy);
            group.bench_function(BenchmarkId::new("BusyFilter", &id), |b| {
                b.iter(|| request(&mut filter, black_box(1)));
            });
        }
    }
    group.finish();
}

/// As a gateway uses them: through the task of a `Buffer`.
fn buffered(c: &mut Criterion, runtime: &Runtime) {
    let mut group = c.benchmark_group("buffered");
    for workers in [8, 512] {
        let (filter, _set, _marks) = filtered(workers, 0);
        let kinds = [
            ("Buffer_Balance", through_buffer(runtime, plain(workers, 0))),
            ("Buffer_BusyFilter", through_buffer(runtime, filter)),
        ];
        for (name, mut service) in kinds {
            group.bench_function(BenchmarkId::new(name, workers), |b| {
                b.iter(|| {
                    runtime.block_on(async {
                        let ready = service.ready().await.unwrap();
                        ready.call(black_box(1)).await.unwrap()
                    })
                });
            });
        }
    }
    group.finish();
}

fn through_buffer<S>(runtime: &Runtime, service: S) -> BoxService<u64, u64, BoxError>
where
    S: Service<u64, Response = u64, Error = BoxError, Future: Send> + Send + 'static,
{
    let _guard = runtime.enter();
    BoxService::new(Buffer::new(service, 64))
}

fn refused(c: &mut Criterion) {
    let mut group = c.benchmark_group("all busy");
    for workers in [8, 1_000, 100_000] {
        let (mut filter, _set, _marks) = filtered(workers, workers);
        group.bench_function(BenchmarkId::new("BusyFilter", workers), |b| {
            b.iter(|| assert!(!request(&mut filter, black_box(1))));
        });
    }
    group.finish();
}

fn flips(c: &mut Criterion) {
    let mut group = c.benchmark_group("flips");
    for workers in [10, 1_000, 100_000] {
        let (mut filter, _set, mut marks) = filtered(workers, workers);
        assert!(!request(&mut filter, 1));
        group.throughput(Throughput::Elements(2 * workers));
        group.bench_function(
            BenchmarkId::new("all workers, free and busy", workers),
            |b| {
                b.iter_batched(
                    || (),
                    |()| {
                        marks.iter_mut().for_each(BusyMark::clear);
                        marks.iter_mut().for_each(|mark| mark.set(None));
                    },
                    BatchSize::PerIteration,
                );
            },
        );
    }
    let (mut filter, set, _marks) = filtered(64, 32);
    let mut flipping = set.busy_mark(63);
    group.throughput(Throughput::Elements(1));
    group.bench_function("a request between two flips, of 64 workers", |b| {
        b.iter(|| {
            flipping.set(None);
            assert!(request(&mut filter, black_box(1)));
            flipping.clear();
        });
    });
    group.finish();
}

fn summary() {
    println!("\nrouted request (least of 60 batches, taking turns)");
    let mut worst: f64 = 0.0;
    for workers in [8, 64, 512, 4096] {
        for percent in [0, 50, 90, 99] {
            let busy = (workers * percent / 100).min(workers - 1);
            let mut balance = plain(workers, busy);
            let (mut filter, _set, _marks) = filtered(workers, busy);
            let (plain, ours) = least_of_two(
                || assert!(request(&mut balance, black_box(1))),
                || assert!(request(&mut filter, black_box(1))),
            );
            worst = worst.max(ours / plain);
            println!(
                "  {workers:>5} workers, {percent:>2} % busy: {ours:6.1} ns, \
                 Balance {plain:6.1} ns, ratio {:.2}",
                ours / plain
            );
        }
    }
    println!("  worst ratio {worst:.2} (aim: at most 1.2)");

    println!("all busy");
    let (mut small, _set, _marks) = filtered(8, 8);
    let (mut large, _set, _marks) = filtered(100_000, 100_000);
    let (few, many) = least_of_two(
        || assert!(!request(&mut small, black_box(1))),
        || assert!(!request(&mut large, black_box(1))),
    );
    println!("  8 workers: {few:.1} ns, 100,000 workers: {many:.1} ns");
    println!("  ratio {:.2} (aim: at most 35 ns, and 1.5)", many / few);

    let (mut filter, _set, mut marks) = filtered(100_000, 100_000);
    assert!(!request(&mut filter, 1));
    let mut flip = Duration::MAX;
    for _ in 0..10 {
        let start = Instant::now();
        marks.iter_mut().for_each(BusyMark::clear);
        marks.iter_mut().for_each(|mark| mark.set(None));
        flip = flip.min(start.elapsed() / 200_000);
    }
    println!("a flip of 100,000 workers: {flip:?} a worker (aim: below 100 ns)");
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let _guard = runtime.enter();
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .sample_size(20)
        .configure_from_args();
    routed(&mut criterion);
    buffered(&mut criterion, &runtime);
    refused(&mut criterion);
    flips(&mut criterion);
    criterion.final_summary();
    if std::env::args().any(|arg| arg == "--bench") {
        summary();
    }
}
