//! What a load event costs, and how that depends on the number of workers.
//!
//! Events arrive in random order, so that at 100,000 workers the state of a
//! worker is not in a near cache when its event comes. No recorder and no
//! subscriber is installed. A summary with events per second and the ratios
//! follows the measurements.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::{
    collections::BTreeMap,
    hint::black_box,
    sync::Mutex,
    time::{Duration, Instant},
};
use tower_overload::{
    busy::BusySet,
    load::{LoadEvent, ThresholdUpdate, ThresholdsHandle, WorkerConfig, WorkerMonitor},
};

/// A load from a random number below 256.
type Blocks = fn(u64) -> u64;

const KINDS: [(&str, Blocks); 3] = [
    ("free", |random| random),
    ("busy", |random| BLOCKS - random % 100),
    ("flipping", |random| 730 + random),
];
const WORKERS: [u64; 3] = [10, 1_000, 100_000];
const BLOCKS: u64 = 1_000;

/// The best nanoseconds per item of each measurement, for the summary.
static BEST: Mutex<BTreeMap<String, f64>> = Mutex::new(BTreeMap::new());

fn note(name: &str, items: u64, took: Duration) {
    let nanos = took.as_secs_f64() * 1e9 / items as f64;
    let mut best = BEST.lock().unwrap();
    let entry = best.entry(name.to_owned()).or_insert(f64::INFINITY);
    *entry = entry.min(nanos);
}

fn fleet(workers: u64) -> (WorkerMonitor<u64>, ThresholdsHandle) {
    let (monitor, thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
    let update = ThresholdUpdate::new()
        .active_decode_blocks(0.85)
        .active_prefill_tokens(10_000);
    thresholds.update(update).unwrap();
    for worker in 0..workers {
        let config = WorkerConfig::new([0]).unwrap().kv_total_blocks(BLOCKS);
        monitor.configure_for_all(worker, config);
    }
    (monitor, thresholds)
}

/// A sequence without pattern (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn event(&mut self, workers: u64, blocks: Blocks) -> LoadEvent<u64> {
        let random = self.next();
        LoadEvent::new((random >> 16) % workers, 0)
            .active_decode_blocks(blocks(random & 0xff))
            .active_prefill_tokens(random & 0xfff)
    }
}

fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("event");
    group.throughput(Throughput::Elements(1));
    for (kind, blocks) in KINDS {
        for workers in WORKERS {
            let (monitor, _) = fleet(workers);
            let mut random = Random(0x9e37_79b9_7f4a_7c15);
            for worker in 0..workers {
                let mut event = random.event(workers, blocks);
                event.worker = worker;
                monitor.observe(event).unwrap();
            }
            let name = format!("{kind}/{workers}");
            group.bench_function(&name, |bencher| {
                bencher.iter_custom(|iterations| {
                    let start = Instant::now();
                    for _ in 0..iterations {
                        let event = random.event(workers, blocks);
                        black_box(monitor.observe(black_box(event))).unwrap();
                    }
                    let took = start.elapsed();
                    if iterations > 1_000 {
                        note(&name, iterations, took);
                    }
                    took
                });
            });
        }
    }

    for workers in WORKERS {
        const BATCH: u64 = 256;
        let (monitor, _) = fleet(workers);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let name = format!("free, in batches of {BATCH}/{workers}");
        group.throughput(Throughput::Elements(BATCH));
        group.bench_function(&name, |bencher| {
            let batch = || -> Vec<_> {
                let events = (0..BATCH).map(|_| random.event(workers, |random| random));
                events.collect()
            };
            bencher.iter_batched(
                batch,
                |events| {
                    let start = Instant::now();
                    black_box(monitor.observe_all(&events));
                    note(&name, BATCH, start.elapsed());
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// The one pass over all workers that follows a threshold change.
fn passes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("threshold pass");
    for workers in WORKERS {
        let (monitor, thresholds) = fleet(workers);
        for worker in 0..workers {
            let event = LoadEvent::new(worker, 0).active_decode_blocks(500);
            monitor.observe(event).unwrap();
        }
        group.throughput(Throughput::Elements(workers));
        let kinds = [
            ("no verdict changes", [0.8, 0.9]),
            ("every verdict changes", [0.4, 0.6]),
        ];
        for (kind, decode) in kinds {
            let name = format!("{kind}/{workers}");
            // So that the first pass, too, changes what it should.
            let mut turn = 1;
            group.bench_function(&name, |bencher| {
                bencher.iter_custom(|iterations| {
                    let mut took = Duration::ZERO;
                    for _ in 0..iterations {
                        turn = 1 - turn;
                        let update = ThresholdUpdate::new().active_decode_blocks(decode[turn]);
                        thresholds.update(update).unwrap();
                        let event = LoadEvent::new(0, 0).active_decode_blocks(500);
                        let start = Instant::now();
                        black_box(monitor.observe(event)).unwrap();
                        took += start.elapsed();
                    }
                    note(&name, iterations * workers, took);
                    took
                });
            });
        }
    }
    group.finish();
}

fn summary(_: &mut Criterion) {
    let best = BEST.lock().unwrap();
    println!("\nbest of all samples, per event or per worker of a pass:");
    for (name, nanos) in &*best {
        let kind = name.split('/').next().unwrap();
        let ratio = best
            .get(&format!("{kind}/{}", WORKERS[0]))
            .map_or(f64::NAN, |base| nanos / base);
        println!(
            "{name:<40} {nanos:>8.1} ns {:>8.2} M/s {ratio:>6.2} x of {} workers",
            1e3 / nanos,
            WORKERS[0]
        );
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    targets = events, passes, summary
}
criterion_main!(benches);
