use std::fmt;

/// What one data-parallel rank of a worker reports about its load.
///
/// A count that is `None` says nothing: the last known value stays. An
/// explicit 0 replaces it.
///
/// ```
/// use tower_overload::load::LoadEvent;
///
/// let event = LoadEvent::new("worker-0", 0)
///     .active_decode_blocks(86)
///     .active_prefill_tokens(0);
/// assert_eq!(event.kv_used_blocks, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadEvent<K> {
    /// The worker that the load belongs to.
    pub worker: K,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// KV blocks in use by decoding, as a router counts them.
    pub active_decode_blocks: Option<u64>,
    /// KV blocks in use, as the worker itself counts them.
    pub kv_used_blocks: Option<u64>,
    /// Prompt tokens that wait for or are in prefill.
    pub active_prefill_tokens: Option<u64>,
}

impl<K> LoadEvent<K> {
    /// An event without counts.
    pub const fn new(worker: K, dp_rank: u32) -> Self {
        Self {
            worker,
            dp_rank,
            active_decode_blocks: None,
            kv_used_blocks: None,
            active_prefill_tokens: None,
        }
    }

    /// Reports the blocks in use by decoding, as a router counts them.
    #[must_use]
    pub fn active_decode_blocks(mut self, blocks: impl Into<Option<u64>>) -> Self {
        self.active_decode_blocks = blocks.into();
        self
    }

    /// Reports the blocks in use, as the worker itself counts them.
    #[must_use]
    pub fn kv_used_blocks(mut self, blocks: impl Into<Option<u64>>) -> Self {
        self.kv_used_blocks = blocks.into();
        self
    }

    /// Reports the prompt tokens that wait for or are in prefill.
    #[must_use]
    pub fn active_prefill_tokens(mut self, tokens: impl Into<Option<u64>>) -> Self {
        self.active_prefill_tokens = tokens.into();
        self
    }

    /// Whether it says anything of the load, and not only that the worker is
    /// there.
    pub(crate) const fn has_counts(&self) -> bool {
        self.active_decode_blocks.is_some()
            || self.kv_used_blocks.is_some()
            || self.active_prefill_tokens.is_some()
    }
}

/// Why a load event was dropped. It changed nothing and was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// The worker is not configured, or not any more.
    UnregisteredWorker,
    /// The worker's configuration does not declare the rank.
    UndeclaredRank,
}

impl DropReason {
    /// The reason as a label: `unregistered_worker` or `undeclared_rank`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnregisteredWorker => "unregistered_worker",
            Self::UndeclaredRank => "undeclared_rank",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnregisteredWorker => "load event dropped: the worker is not registered",
            Self::UndeclaredRank => "load event dropped: the worker does not declare the rank",
        })
    }
}

impl std::error::Error for DropReason {}
