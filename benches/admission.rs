//! What admission costs, side by side with what else limits concurrency:
//! Tower's `ConcurrencyLimit`, `LoadShed` over it, the bulkhead of
//! `tower-resilience`, and tokio's semaphore.
//!
//! ```text
//! cargo bench --bench admission
//! ```
//!
//! The ratios that matter are printed at the end.

use bytes::Bytes;
use criterion::{BenchmarkGroup, Criterion, measurement::WallTime};
use http::Response;
use http_body::Body;
use http_body_util::Full;
use std::{
    convert::Infallible,
    future::{Future, Pending, Ready, pending, ready},
    hint::black_box,
    pin::pin,
    sync::{Arc, Barrier},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Semaphore,
};
use tower::{
    Layer, Service, limit::ConcurrencyLimit, load::CompleteOnResponse, load_shed::LoadShed,
};
use tower_overload::admission::{EngineAdmission, EngineAdmissionLayer};
use tower_resilience_bulkhead::{Bulkhead, BulkheadLayer};

const MANY: usize = 1 << 20;

/// Answers at once.
#[derive(Clone)]
struct Echo;

impl Service<u64> for Echo {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok(request))
    }
}

/// Never answers.
#[derive(Clone)]
struct Stuck;

impl Service<u64> for Stuck {
    type Response = u64;
    type Error = Infallible;
    type Future = Pending<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: u64) -> Self::Future {
        pending()
    }
}

/// Answers at once, with a body of one frame.
#[derive(Clone)]
struct Page;

impl Service<u64> for Page {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: u64) -> Self::Future {
        ready(Ok(Response::new(Full::from("token"))))
    }
}

fn admission(slots: usize, queue: usize) -> EngineAdmission<Echo, CompleteOnResponse> {
    let layer = EngineAdmissionLayer::new(slots, queue).unwrap();
    layer.until_response().layer(Echo)
}

fn bulkhead(slots: usize) -> Bulkhead<Echo> {
    let layer = BulkheadLayer::builder().max_concurrent_calls(slots);
    let layer = layer.reject_when_full().build().unwrap();
    layer.layer(Echo)
}

fn request<S: Service<u64>>(service: &mut S) -> Result<S::Response, S::Error> {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    let response = pin!(service.call(black_box(1)));
    match response.poll(&mut cx) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("the engine answers at once"),
    }
}

fn read<B: Body + Unpin>(response: Response<B>) {
    let mut cx = Context::from_waker(Waker::noop());
    let mut body = pin!(response.into_body());
    while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut cx) {
        black_box(frame.is_ok());
    }
}

fn admitted(c: &mut Criterion) {
    let mut group = c.benchmark_group("admitted");
    let mut limit = ConcurrencyLimit::new(Echo, MANY);
    group.bench_function("ConcurrencyLimit", |b| {
        b.iter(|| request(&mut limit).unwrap())
    });
    let mut shed = LoadShed::new(ConcurrencyLimit::new(Echo, MANY));
    group.bench_function("LoadShed_ConcurrencyLimit", |b| {
        b.iter(|| request(&mut shed).unwrap())
    });
    let mut bulkhead = bulkhead(MANY);
    group.bench_function("bulkhead", |b| b.iter(|| request(&mut bulkhead).unwrap()));
    let mut ours = admission(MANY, 16);
    group.bench_function("EngineAdmission", |b| {
        b.iter(|| request(&mut ours).unwrap())
    });
    let layer = EngineAdmissionLayer::new(MANY, 16).unwrap();
    let mut ours = layer.until_response().backpressure().layer(Echo);
    group.bench_function("EngineAdmission_backpressure", |b| {
        b.iter(|| request(&mut ours).unwrap())
    });
    group.finish();
}

fn refused(c: &mut Criterion, runtime: &Runtime) {
    let mut group = c.benchmark_group("refused");
    let semaphore = Arc::new(Semaphore::new(1));
    let held = semaphore.clone().try_acquire_owned().unwrap();
    let mut shed = LoadShed::new(ConcurrencyLimit::with_semaphore(Echo, semaphore));
    group.bench_function("LoadShed_ConcurrencyLimit", |b| {
        b.iter(|| request(&mut shed).unwrap_err())
    });
    drop(held);

    let layer = BulkheadLayer::builder().max_concurrent_calls(1);
    let mut bulkhead = layer.reject_when_full().build().unwrap().layer(Stuck);
    let mut held = bulkhead.call(1);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(held.as_mut().poll(&mut cx).is_pending());
    // It refuses when a timer of no length has fired, which is at the next tick.
    group.bench_function("bulkhead", |b| {
        b.iter(|| runtime.block_on(bulkhead.call(black_box(1))).unwrap_err())
    });
    drop(held);

    let mut ours = admission(1, 0);
    let held = ours.call(1);
    group.bench_function("EngineAdmission", |b| {
        b.iter(|| request(&mut ours).unwrap_err())
    });
    drop(held);
    // The estimate of when to retry is known now.
    let held = ours.call(1);
    group.bench_function("EngineAdmission_with_retry_after", |b| {
        b.iter(|| request(&mut ours).unwrap_err())
    });
    drop(held);
    group.finish();
}

/// A request that waits until another one ends.
fn handed_over(c: &mut Criterion) {
    let mut group = c.benchmark_group("handed_over");
    group.bench_function("ConcurrencyLimit", |b| {
        let (mut running, mut waiting) = {
            let one = ConcurrencyLimit::new(Echo, 1);
            (one.clone(), one)
        };
        b.iter(|| {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(running.poll_ready(&mut cx).is_ready());
            let ends = running.call(1);
            assert!(waiting.poll_ready(&mut cx).is_pending());
            drop(ends);
            request(&mut waiting).unwrap()
        });
    });
    group.bench_function("EngineAdmission", |b| {
        let mut ours = admission(1, 1);
        b.iter(|| {
            let mut cx = Context::from_waker(Waker::noop());
            let ends = ours.call(1);
            let mut waiting = pin!(ours.call(1));
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            drop(ends);
            assert!(waiting.poll(&mut cx).is_ready());
        });
    });
    group.finish();
}

fn acquire(semaphore: &Semaphore) {
    let mut cx = Context::from_waker(Waker::noop());
    match pin!(semaphore.acquire()).poll(&mut cx) {
        Poll::Ready(permit) => drop(black_box(permit)),
        Poll::Pending => unreachable!("there are permits for all"),
    }
}

/// As many threads as cores, each with a clone of the service.
fn contended(c: &mut Criterion) {
    let mut group = c.benchmark_group("contended");
    let semaphore = Semaphore::new(MANY);
    group.bench_function("semaphore", |b| {
        b.iter_custom(|n| on_all_cores(n, || (), |()| acquire(&semaphore)))
    });
    contended_by(
        &mut group,
        "ConcurrencyLimit",
        ConcurrencyLimit::new(Echo, MANY),
    );
    let shed = LoadShed::new(ConcurrencyLimit::new(Echo, MANY));
    contended_by(&mut group, "LoadShed_ConcurrencyLimit", shed);
    contended_by(&mut group, "bulkhead", bulkhead(MANY));
    contended_by(&mut group, "EngineAdmission", admission(MANY, 16));
    group.finish();
}

fn contended_by<S>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, service: S)
where
    S: Service<u64> + Clone + Send,
{
    group.bench_function(name, |b| {
        b.iter_custom(|n| {
            on_all_cores(
                n,
                || service.clone(),
                |service| assert!(request(service).is_ok()),
            )
        })
    });
}

/// The time of `iterations` of `work` in each of as many threads as there are
/// cores, all at once, each with something that it has for itself.
fn on_all_cores<T: Send>(
    iterations: u64,
    own: impl Fn() -> T,
    work: impl Fn(&mut T) + Sync,
) -> Duration {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let barrier = Barrier::new(cores + 1);
    let (barrier, work) = (&barrier, &work);
    let runtime = &Handle::current();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores)
            .map(|_| {
                let mut own = own();
                scope.spawn(move || {
                    let _guard = runtime.enter();
                    barrier.wait();
                    for _ in 0..iterations {
                        work(&mut own);
                    }
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        for thread in threads {
            thread.join().unwrap();
        }
        start.elapsed()
    })
}

fn http(c: &mut Criterion) {
    let mut group = c.benchmark_group("http_body");
    let mut theirs = LoadShed::new(ConcurrencyLimit::new(Page, MANY));
    group.bench_function("LoadShed_ConcurrencyLimit", |b| {
        b.iter(|| read(request(&mut theirs).unwrap()))
    });
    let mut ours = EngineAdmissionLayer::new(MANY, 16).unwrap().layer(Page);
    group.bench_function("EngineAdmission", |b| {
        b.iter(|| read(request(&mut ours).unwrap()))
    });
    let mut limited = EngineAdmissionLayer::new(MANY, 16)
        .and_then(|layer| layer.with_first_token_limit(MANY))
        .unwrap()
        .layer(Page);
    group.bench_function("EngineAdmission_first_token_limit", |b| {
        b.iter(|| read(request(&mut limited).unwrap()))
    });
    group.finish();
}

fn recorder(c: &mut Criterion) {
    let mut group = c.benchmark_group("recorder");
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let mut ours = admission(MANY, 16);
        group.bench_function("admitted", |b| b.iter(|| request(&mut ours).unwrap()));
        let mut full = admission(1, 0);
        let held = full.call(1);
        group.bench_function("refused", |b| b.iter(|| request(&mut full).unwrap_err()));
        drop(held);
    });
    group.finish();
}

/// The time of one call of `ours` and of `theirs`, in nanoseconds: the median
/// of batches that take turns, so that what disturbs one disturbs the other.
fn paired(mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (f64, f64) {
    const BATCHES: usize = 2_001;
    const CALLS: u32 = 500;

    fn batch(work: &mut impl FnMut()) -> Duration {
        let start = Instant::now();
        for _ in 0..CALLS {
            work();
        }
        start.elapsed()
    }

    let (mut ours, mut theirs): (Vec<_>, Vec<_>) = (0..BATCHES)
        .map(|_| (batch(&mut ours), batch(&mut theirs)))
        .unzip();
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[BATCHES / 2].as_nanos() as f64 / f64::from(CALLS)
    };
    (median(&mut ours), median(&mut theirs))
}

fn report(what: &str, (ours, theirs): (f64, f64), target: f64) {
    let ratio = ours / theirs;
    let verdict = if ratio <= target { "met" } else { "MISSED" };
    println!("{what}: {ours:.1} ns / {theirs:.1} ns = {ratio:.2} (at most {target:.2}: {verdict})");
}

fn ratios() {
    let mut ours = admission(MANY, 16);
    let mut theirs = LoadShed::new(ConcurrencyLimit::new(Echo, MANY));
    let times = paired(
        || drop(black_box(request(&mut ours))),
        || drop(black_box(request(&mut theirs))),
    );
    report("admitted, ours / tower", times, 0.75);

    let semaphore = Arc::new(Semaphore::new(1));
    let _held = semaphore.clone().try_acquire_owned().unwrap();
    let mut theirs = LoadShed::new(ConcurrencyLimit::with_semaphore(Echo, semaphore));
    let mut ours = admission(1, 0);
    let held = ours.call(1);
    let times = paired(
        || drop(black_box(request(&mut ours))),
        || drop(black_box(request(&mut theirs))),
    );
    report("refused, ours / tower", times, 0.5);
    drop(held);
    let _held = ours.call(1);
    let times = paired(
        || drop(black_box(request(&mut ours))),
        || drop(black_box(request(&mut theirs))),
    );
    report("refused with a retry-after, ours / tower", times, 0.5);

    let semaphore = Semaphore::new(MANY);
    let ours = admission(MANY, 16);
    let times = (0..25).map(|_| {
        let n = 20_000;
        let ours = on_all_cores(n, || ours.clone(), |s| drop(black_box(request(s))));
        let theirs = on_all_cores(n, || (), |()| acquire(&semaphore));
        (
            ours.as_nanos() as f64 / n as f64,
            theirs.as_nanos() as f64 / n as f64,
        )
    });
    let (mut ours, mut theirs): (Vec<f64>, Vec<f64>) = times.unzip();
    ours.sort_by(f64::total_cmp);
    theirs.sort_by(f64::total_cmp);
    report(
        "on all cores, ours / semaphore",
        (ours[12], theirs[12]),
        1.0,
    );
}

fn main() {
    // The bulkhead makes timers.
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let _guard = runtime.enter();
    let mut criterion = Criterion::default().configure_from_args();
    admitted(&mut criterion);
    refused(&mut criterion, &runtime);
    handed_over(&mut criterion);
    contended(&mut criterion);
    http(&mut criterion);
    recorder(&mut criterion);
    criterion.final_summary();

    println!();
    ratios();
}
