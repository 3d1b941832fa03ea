//! What admission costs, side by side with Tower's `LoadShed` over
//! `ConcurrencyLimit` and with tokio's semaphore.
//!
//! ```text
//! cargo bench --bench admission
//! ```
//!
//! The ratios that matter are printed at the end.

use bytes::Bytes;
use criterion::Criterion;
use http::Response;
use http_body::Body;
use http_body_util::Full;
use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    hint::black_box,
    pin::pin,
    sync::{Arc, Barrier},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;
use tower::{
    BoxError, Layer, Service, limit::ConcurrencyLimit, load::CompleteOnResponse,
    load_shed::LoadShed,
};
use tower_overload::admission::{EngineAdmission, EngineAdmissionLayer};

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

fn request<S: Service<u64, Error = BoxError>>(service: &mut S) -> Result<S::Response, BoxError> {
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
    let mut theirs = LoadShed::new(ConcurrencyLimit::new(Echo, MANY));
    group.bench_function("tower", |b| b.iter(|| request(&mut theirs).unwrap()));
    let mut ours = admission(MANY, 16);
    group.bench_function("ours", |b| b.iter(|| request(&mut ours).unwrap()));
    group.finish();
}

fn refused(c: &mut Criterion) {
    let mut group = c.benchmark_group("refused");
    let semaphore = Arc::new(Semaphore::new(1));
    let held = semaphore.clone().try_acquire_owned().unwrap();
    let mut theirs = LoadShed::new(ConcurrencyLimit::with_semaphore(Echo, semaphore));
    group.bench_function("tower", |b| b.iter(|| request(&mut theirs).unwrap_err()));
    drop(held);

    let mut ours = admission(1, 0);
    let held = ours.call(1);
    group.bench_function("ours", |b| b.iter(|| request(&mut ours).unwrap_err()));
    drop(held);
    // The estimate of when to retry is known now.
    let held = ours.call(1);
    group.bench_function("ours_with_retry_after", |b| {
        b.iter(|| request(&mut ours).unwrap_err())
    });
    drop(held);
    group.finish();
}

fn acquire(semaphore: &Semaphore) {
    let mut cx = Context::from_waker(Waker::noop());
    match pin!(semaphore.acquire()).poll(&mut cx) {
        Poll::Ready(permit) => drop(black_box(permit)),
        Poll::Pending => unreachable!("there are permits for all"),
    }
}

fn contended(c: &mut Criterion) {
    let mut group = c.benchmark_group("two_threads");
    let semaphore = Semaphore::new(MANY);
    group.bench_function("semaphore", |b| {
        b.iter_custom(|n| two_threads(n, || (), |()| acquire(&semaphore)))
    });
    let theirs = LoadShed::new(ConcurrencyLimit::new(Echo, MANY));
    group.bench_function("tower", |b| {
        b.iter_custom(|n| {
            two_threads(
                n,
                || theirs.clone(),
                |service| {
                    request(service).unwrap();
                },
            )
        })
    });
    let ours = admission(MANY, 16);
    group.bench_function("ours", |b| {
        b.iter_custom(|n| {
            two_threads(
                n,
                || ours.clone(),
                |service| {
                    request(service).unwrap();
                },
            )
        })
    });
    group.finish();
}

/// The time of `iterations` of `work` in each of two threads at once, each
/// with something that it has for itself.
fn two_threads<T>(iterations: u64, own: impl Fn() -> T, work: impl Fn(&mut T) + Sync) -> Duration
where
    T: Send,
{
    let own = [own(), own()].map(std::sync::Mutex::new);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let barrier = Barrier::new(3);
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            scope.spawn(|| {
                let mine = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let mut mine = own[mine].lock().unwrap();
                barrier.wait();
                for _ in 0..iterations {
                    work(&mut mine);
                }
            })
        });
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
    group.bench_function("tower", |b| b.iter(|| read(request(&mut theirs).unwrap())));
    let mut ours = EngineAdmissionLayer::new(MANY, 16).unwrap().layer(Page);
    group.bench_function("ours", |b| b.iter(|| read(request(&mut ours).unwrap())));
    let mut limited = EngineAdmissionLayer::new(MANY, 16)
        .and_then(|layer| layer.with_first_token_limit(MANY))
        .unwrap()
        .layer(Page);
    group.bench_function("ours_first_token_limit", |b| {
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
        let ours = two_threads(n, || ours.clone(), |s| drop(black_box(request(s))));
        let theirs = two_threads(n, || (), |()| acquire(&semaphore));
        (
            ours.as_nanos() as f64 / n as f64,
            theirs.as_nanos() as f64 / n as f64,
        )
    });
    let (mut ours, mut theirs): (Vec<f64>, Vec<f64>) = times.unzip();
    ours.sort_by(f64::total_cmp);
    theirs.sort_by(f64::total_cmp);
    report("two threads, ours / semaphore", (ours[12], theirs[12]), 1.0);
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    admitted(&mut criterion);
    refused(&mut criterion);
    contended(&mut criterion);
    http(&mut criterion);
    recorder(&mut criterion);
    criterion.final_summary();

    println!();
    ratios();
}
