//! Random histories of a fleet, against the rules written down plainly: what
//! is known is kept as it was reported, and who is busy is worked out anew
//! whenever somebody asks.

use proptest::{collection::vec, option, prelude::*, sample::subsequence};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::{Instant, advance};
use tower_overload::{
    busy::{BusySet, Mark},
    load::{Change, LoadEvent, ThresholdUpdate, ThresholdsHandle, WorkerConfig, WorkerMonitor},
};

const MODELS: [&str; 2] = ["x", "y"];
const WORKERS: u8 = 3;
const RANKS: [u32; 3] = [0, 1, 2];
const STALE_AFTER: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
enum Step {
    Thresholds(
        usize,
        Option<Option<f64>>,
        Option<Option<u64>>,
        Option<Option<f64>>,
    ),
    Configure(u8, Vec<u32>, [Option<u64>; 2], Vec<&'static str>),
    Load(u8, u32, [Option<u64>; 3]),
    Remove(u8),
    Advance(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let decode = prop::sample::select(vec![-0.5, 0.0, 0.07, 0.29, 0.5, 1.0, 1.5, f64::NAN]);
    let frac = prop::sample::select(vec![-1.0, 0.0, 0.5, 1.5, f64::INFINITY]);
    let count = || option::of(0..12_u64);
    let step = prop_oneof![
        2 => (
            0..MODELS.len(),
            option::of(option::of(decode)),
            option::of(option::of(0..12_u64)),
            option::weighted(0.3, option::of(frac)),
        )
            .prop_map(|(model, decode, tokens, frac)| Step::Thresholds(model, decode, tokens, frac)),
        3 => (
            0..WORKERS,
            subsequence(RANKS.to_vec(), 1..=RANKS.len()),
            [count(), count()],
            subsequence(MODELS.to_vec(), 0..=MODELS.len()),
        )
            .prop_map(|(id, ranks, capacity, models)| Step::Configure(id, ranks, capacity, models)),
        10 => (0..WORKERS, 0..4_u32, [count(), count(), count()])
            .prop_map(|(id, rank, counts)| Step::Load(id, rank, counts)),
        1 => (0..WORKERS).prop_map(Step::Remove),
        3 => prop::sample::select(vec![1, 30, 50, 99, 100]).prop_map(Step::Advance),
    ];
    vec(step, 1..60)
}

#[derive(Clone, Copy, Default)]
struct Thresholds {
    decode: Option<f64>,
    tokens: Option<u64>,
    frac: Option<f64>,
}

/// For each of the three counts, its value and when it was reported.
type Counts = [Option<(u64, Instant)>; 3];

#[derive(Default)]
struct Worker {
    ranks: BTreeMap<u32, Counts>,
    blocks: Option<u64>,
    batch: Option<u64>,
    models: Vec<&'static str>,
}

#[derive(Default)]
struct Plain {
    stored: [Thresholds; 2],
    in_effect: [Thresholds; 2],
    workers: BTreeMap<u8, Worker>,
}

impl Plain {
    fn busy(&self, id: u8, model: usize, now: Instant) -> bool {
        let thresholds = self.in_effect[model];
        self.workers.get(&id).is_some_and(|worker| {
            let serves = worker.models.contains(&MODELS[model]);
            let busy = |counts: &Counts| rank_busy(thresholds, worker, counts, now);
            serves && worker.ranks.values().all(busy)
        })
    }
}

fn rank_busy(thresholds: Thresholds, worker: &Worker, counts: &Counts, now: Instant) -> bool {
    let fresh = counts.map(|count| match count {
        Some((value, reported)) if now < reported + STALE_AFTER => value,
        _ => 0,
    });
    let [decode, used, tokens] = fresh;
    let mut busy = false;
    if let (Some(threshold), Some(total @ 1..)) = (thresholds.decode, worker.blocks) {
        busy |= decode as f64 / total as f64 > threshold;
        busy |= used as f64 / total as f64 > threshold;
    }
    if let Some(threshold) = thresholds.tokens {
        busy |= tokens > threshold;
    }
    if let (Some(threshold), Some(batch @ 1..)) = (thresholds.frac, worker.batch) {
        busy |= tokens as f64 > threshold * batch as f64;
    }
    busy
}

struct Real {
    monitor: WorkerMonitor<u8>,
    models: Vec<(ThresholdsHandle, BusySet<u8>)>,
}

impl Real {
    fn new() -> Self {
        let monitor = WorkerMonitor::builder().stale_after(STALE_AFTER).build();
        let models = MODELS.map(|model| {
            let busy = BusySet::new();
            (monitor.add_model(model, busy.clone()).unwrap(), busy)
        });
        Self {
            monitor,
            models: models.into(),
        }
    }
}

fn change<T>(change: Option<Option<T>>) -> Change<T> {
    match change {
        None => Change::Keep,
        Some(None) => Change::Clear,
        Some(Some(value)) => Change::Set(value),
    }
}

/// Applies a step to both; they agree on whether it is accepted.
async fn apply(step: Step, real: &Real, plain: &mut Plain) {
    let now = Instant::now();
    match step {
        Step::Thresholds(model, decode, tokens, frac) => {
            let update = ThresholdUpdate::new()
                .active_decode_blocks(change(decode))
                .active_prefill_tokens(change(tokens))
                .active_prefill_tokens_frac(change(frac));
            let accepted = real.models[model].0.update(update).is_ok();
            let valid = decode.flatten().is_none_or(|t| (0.0..=1.0).contains(&t))
                && frac.flatten().is_none_or(|t| t.is_finite() && t >= 0.0);
            assert_eq!(accepted, valid);
            if valid {
                let stored = &mut plain.stored[model];
                stored.decode = decode.unwrap_or(stored.decode);
                stored.tokens = tokens.unwrap_or(stored.tokens);
                stored.frac = frac.unwrap_or(stored.frac);
            }
        }
        Step::Configure(id, ranks, [blocks, batch], models) => {
            let config = WorkerConfig::new(ranks.clone())
                .unwrap()
                .kv_total_blocks(blocks)
                .max_num_batched_tokens(batch);
            real.monitor.configure(id, config, &models).unwrap();
            let worker = plain.workers.entry(id).or_default();
            let known = |rank| (rank, worker.ranks.get(&rank).copied().unwrap_or_default());
            worker.ranks = ranks.into_iter().map(known).collect();
            (worker.blocks, worker.batch, worker.models) = (blocks, batch, models);
            plain.in_effect = plain.stored;
        }
        Step::Load(id, rank, counts) => {
            let event = LoadEvent::new(id, rank)
                .active_decode_blocks(counts[0])
                .kv_used_blocks(counts[1])
                .active_prefill_tokens(counts[2]);
            let accepted = real.monitor.observe(event).is_ok();
            let known = plain
                .workers
                .get_mut(&id)
                .and_then(|worker| worker.ranks.get_mut(&rank));
            assert_eq!(accepted, known.is_some());
            if let Some(known) = known {
                for (known, count) in known.iter_mut().zip(counts) {
                    *known = count.map(|count| (count, now)).or(*known);
                }
                plain.in_effect = plain.stored;
            }
        }
        Step::Remove(id) => {
            let removed = real.monitor.remove(&id);
            assert_eq!(removed, plain.workers.remove(&id).is_some());
        }
        Step::Advance(ms) => advance(Duration::from_millis(ms)).await,
    }
}

/// They agree on every worker, in the marks and in the snapshot.
fn compare(real: &Real, plain: &Plain) {
    let now = Instant::now();
    for id in 0..WORKERS {
        let snapshot = real.monitor.worker(&id);
        assert_eq!(snapshot.is_some(), plain.workers.contains_key(&id));
        for (model, (_, marks)) in real.models.iter().enumerate() {
            let busy = plain.busy(id, model, now);
            let marked = marks.marks(&id).has(Mark::Busy);
            assert_eq!(marked, busy, "worker {id}, {}", MODELS[model]);
            if let Some(shown) = snapshot
                .as_ref()
                .and_then(|worker| worker.is_busy_for(MODELS[model]))
            {
                assert_eq!(shown, busy, "worker {id}, {}", MODELS[model]);
            }
        }
        let ranks = snapshot.map(|worker| worker.ranks).unwrap_or_default();
        for rank in ranks {
            let worker = &plain.workers[&id];
            let counts = &worker.ranks[&rank.dp_rank];
            let busy = (0..MODELS.len()).any(|model| {
                worker.models.contains(&MODELS[model])
                    && rank_busy(plain.in_effect[model], worker, counts, now)
            });
            assert_eq!(rank.busy, busy, "worker {id}, rank {}", rank.dp_rank);
            let fresh = counts.map(|count| {
                let (value, reported) = count?;
                (now < reported + STALE_AFTER).then_some(value)
            });
            let shown = [
                rank.active_decode_blocks,
                rank.kv_used_blocks,
                rank.active_prefill_tokens,
            ];
            assert_eq!(shown, fresh);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_monitor_agrees_with_the_plain_rules(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (real, mut plain) = (Real::new(), Plain::default());
            for step in steps {
                apply(step, &real, &mut plain).await;
                compare(&real, &plain);
            }
        });
    }
}
