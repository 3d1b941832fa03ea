use std::{
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

/// What the requests in the engine occupy, for each data-parallel rank.
///
/// Requests go to the ranks in turn. The counts have no upper bound: like a
/// scheduler's, the ledger can show more blocks than the cache has, and it is
/// for admission and routing to see that it does not.
#[derive(Debug)]
pub struct Ledger {
    block_size: NonZeroU64,
    ranks: Box<[Rank]>,
    next: AtomicUsize,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Rank {
    prefill_tokens: AtomicU64,
    kv_blocks: AtomicU64,
    running: AtomicU64,
    served: AtomicU64,
    served_prompt_tokens: AtomicU64,
}

/// The requests of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankRequests {
    /// Requests in the engine.
    pub running: u64,
    /// Requests that have left it, finished or not.
    pub served: u64,
    /// The tokens of their prompts.
    pub served_prompt_tokens: u64,
}

/// What is occupied on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankLoad {
    /// Prompt tokens of requests that have not produced their first token.
    pub prefill_tokens: u64,
    /// KV blocks in use.
    pub kv_blocks: u64,
}

impl Ledger {
    /// An empty ledger; without a rank it gets one.
    pub fn new(ranks: u32, block_size: NonZeroU64) -> Self {
        Self {
            block_size,
            ranks: (0..ranks.max(1)).map(|_| Rank::default()).collect(),
            next: AtomicUsize::new(0),
            changed: Notify::new(),
        }
    }

    /// A request with a prompt of `prompt_tokens` enters, on the rank whose
    /// turn it is. What it occupies is free when the [`Occupancy`] is dropped.
    pub fn enter(self: &Arc<Self>, prompt_tokens: u64) -> Occupancy {
        let rank = self.next.fetch_add(1, Ordering::Relaxed) % self.ranks.len();
        let blocks = prompt_tokens.div_ceil(self.block_size.get());
        let counts = &self.ranks[rank];
        counts
            .prefill_tokens
            .fetch_add(prompt_tokens, Ordering::Relaxed);
        counts.kv_blocks.fetch_add(blocks, Ordering::Relaxed);
        counts.running.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
        Occupancy {
            ledger: Arc::clone(self),
            rank,
            prompt_tokens,
            prefill_tokens: prompt_tokens,
            tokens: prompt_tokens,
            blocks,
        }
    }

    /// What is occupied now, by rank.
    pub fn snapshot(&self) -> impl Iterator<Item = RankLoad> + '_ {
        self.ranks.iter().map(|rank| RankLoad {
            prefill_tokens: rank.prefill_tokens.load(Ordering::Relaxed),
            kv_blocks: rank.kv_blocks.load(Ordering::Relaxed),
        })
    }

    /// The requests there are and have been, by rank.
    pub fn requests(&self) -> impl Iterator<Item = RankRequests> + '_ {
        self.ranks.iter().map(|rank| RankRequests {
            running: rank.running.load(Ordering::Relaxed),
            served: rank.served.load(Ordering::Relaxed),
            served_prompt_tokens: rank.served_prompt_tokens.load(Ordering::Relaxed),
        })
    }

    /// Completes when something has changed since the last time it did.
    ///
    /// For one observer: changes are not counted, and of several that wait
    /// one is told. Cancel safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// What one request occupies; dropping it frees that.
#[derive(Debug)]
pub struct Occupancy {
    ledger: Arc<Ledger>,
    rank: usize,
    prompt_tokens: u64,
    prefill_tokens: u64,
    tokens: u64,
    blocks: u64,
}

impl Occupancy {
    /// The rank that the request is on.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The prefill is over: its tokens are no longer counted as such, and the
    /// blocks stay. Nothing happens the second time.
    pub fn end_prefill(&mut self) {
        let tokens = std::mem::take(&mut self.prefill_tokens);
        if tokens > 0 {
            self.counts()
                .prefill_tokens
                .fetch_sub(tokens, Ordering::Relaxed);
            self.ledger.changed.notify_one();
        }
    }

    /// One more token was generated.
    pub fn grow(&mut self) {
        self.tokens += 1;
        let blocks = self.tokens.div_ceil(self.ledger.block_size.get());
        let more = blocks - self.blocks;
        if more > 0 {
            self.blocks = blocks;
            self.counts().kv_blocks.fetch_add(more, Ordering::Relaxed);
            self.ledger.changed.notify_one();
        }
    }

    fn counts(&self) -> &Rank {
        &self.ledger.ranks[self.rank]
    }
}

impl Drop for Occupancy {
    fn drop(&mut self) {
        self.end_prefill();
        let counts = self.counts();
        counts.kv_blocks.fetch_sub(self.blocks, Ordering::Relaxed);
        counts.running.fetch_sub(1, Ordering::Relaxed);
        counts.served.fetch_add(1, Ordering::Relaxed);
        counts
            .served_prompt_tokens
            .fetch_add(self.prompt_tokens, Ordering::Relaxed);
        self.ledger.changed.notify_one();
    }
}
