//! What a monitor shows of workers.

use super::super::rank::{FreshCounts, Moment};
use super::{
    marks::Entry,
    models::{Model, Models},
};
use std::sync::Arc as Shared;

impl Entry {
    pub(super) fn snapshot<K: Clone>(
        &self,
        key: &K,
        models: &Models<K>,
        now: Moment,
    ) -> Option<WorkerSnapshot<K>> {
        let worker = self.worker.as_ref()?;
        let judges = || {
            let models = worker.seats.iter().map(|seat| models.get(seat.model));
            models.flatten()
        };
        let ranks = worker.ranks.iter().map(|rank| {
            let FreshCounts {
                active_decode_blocks,
                kv_used_blocks,
                active_prefill_tokens,
            } = rank.load.fresh(now);
            let busy = |model: &Model<K>| {
                let until = rank
                    .load
                    .busy_until(&model.thresholds, &worker.capacity, now);
                until != Moment::NEVER
            };
            RankSnapshot {
                dp_rank: rank.dp_rank,
                active_decode_blocks,
                kv_used_blocks,
                active_prefill_tokens,
                busy: judges().any(busy),
            }
        });
        let models = worker.seats.iter().filter_map(|seat| {
            Some(ModelVerdict {
                model: models.get(seat.model)?.name.clone(),
                busy: !seat.busy_until.is_over(now),
            })
        });
        let (kv_total_blocks, max_num_batched_tokens) = worker.config.given();
        Some(WorkerSnapshot {
            worker: key.clone(),
            models: models.collect(),
            ranks: ranks.collect(),
            kv_total_blocks,
            max_num_batched_tokens,
        })
    }
}

/// What a monitor knows about a worker at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerSnapshot<K> {
    /// The worker.
    pub worker: K,
    /// What each model that it serves makes of its load.
    pub models: Vec<ModelVerdict>,
    /// Its ranks, ascending.
    pub ranks: Vec<RankSnapshot>,
    /// KV blocks of each rank, as configured.
    pub kv_total_blocks: Option<u64>,
    /// Tokens that each rank takes into one batch, as configured.
    pub max_num_batched_tokens: Option<u64>,
}

impl<K> WorkerSnapshot<K> {
    /// Whether the worker is busy for at least one of its models.
    pub fn is_busy(&self) -> bool {
        self.models.iter().any(|model| model.busy)
    }

    /// Whether the worker is busy for the model; `None` if it does not serve it.
    pub fn is_busy_for(&self, model: &str) -> Option<bool> {
        let verdict = self
            .models
            .iter()
            .find(|verdict| &*verdict.model == model)?;
        Some(verdict.busy)
    }
}

/// What one model makes of the load of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelVerdict {
    /// The model.
    pub model: Shared<str>,
    /// Whether the worker is marked busy for it.
    pub busy: bool,
}

/// What a monitor knows about one rank of a worker. A count is the last one
/// reported, or `None` if there was none or it is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankSnapshot {
    /// The data-parallel rank.
    pub dp_rank: u32,
    /// KV blocks in use by decoding, as a router counts them.
    pub active_decode_blocks: Option<u64>,
    /// KV blocks in use, as the worker itself counts them.
    pub kv_used_blocks: Option<u64>,
    /// Prompt tokens that wait for or are in prefill.
    pub active_prefill_tokens: Option<u64>,
    /// Whether the rank is busy by the thresholds of at least one model of
    /// the worker.
    pub busy: bool,
}

/// How many load events were accepted and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Events that were taken into account.
    pub accepted: u64,
    /// Events for workers or ranks that are not configured.
    pub dropped: u64,
}
