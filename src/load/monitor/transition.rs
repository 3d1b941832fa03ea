//! What is logged of workers that become busy or free.

use super::super::{
    Thresholds,
    rank::{Capacity, FreshCounts},
};
use std::{fmt, num::NonZeroU64, sync::Arc as Shared};

/// A worker that became busy or free, and the numbers that did it; logged
/// when the lock is released.
pub(super) struct Transition<K> {
    pub(super) worker: K,
    pub(super) model: Shared<str>,
    pub(super) to: To,
    pub(super) ranks: usize,
    pub(super) dp_rank: u32,
    pub(super) counts: FreshCounts,
    pub(super) capacity: Capacity,
    pub(super) thresholds: Thresholds,
}

#[derive(Clone, Copy)]
pub(super) enum To {
    Busy,
    Free,
    Stale,
}

impl<K: fmt::Display> Transition<K> {
    pub(super) fn log(&self) {
        macro_rules! log {
            ($message:literal) => {
                tracing::info!(
                    worker = %self.worker,
                    model = &*self.model,
                    ranks = self.ranks,
                    dp_rank = self.dp_rank,
                    active_decode_blocks = self.counts.active_decode_blocks,
                    kv_used_blocks = self.counts.kv_used_blocks,
                    active_prefill_tokens = self.counts.active_prefill_tokens,
                    kv_total_blocks = self.capacity.kv_total_blocks.map(NonZeroU64::get),
                    max_num_batched_tokens =
                        self.capacity.max_num_batched_tokens.map(NonZeroU64::get),
                    active_decode_blocks_threshold = self.thresholds.active_decode_blocks(),
                    active_prefill_tokens_threshold = self.thresholds.active_prefill_tokens(),
                    active_prefill_tokens_threshold_frac =
                        self.thresholds.active_prefill_tokens_frac(),
                    $message
                )
            };
        }
        match self.to {
            To::Busy => log!("worker is busy"),
            To::Free => log!("worker is free"),
            To::Stale => log!("worker is free: the evidence of its load went stale"),
        }
    }
}
