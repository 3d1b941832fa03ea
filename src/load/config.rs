use super::rank::Capacity;
use std::{borrow::Cow, fmt, num::NonZeroU64};

/// What a worker is: its data-parallel ranks and their capacities.
///
/// ```
/// use tower_overload::load::WorkerConfig;
///
/// let config = WorkerConfig::new([0, 1])?
///     .kv_total_blocks(4096)
///     .max_num_batched_tokens(8192);
/// assert_eq!(config.ranks(), [0, 1]);
///
/// assert!(WorkerConfig::new([]).is_err(), "a worker without ranks could never be busy");
/// # Ok::<_, tower_overload::load::InvalidWorkerConfig>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    ranks: Vec<u32>,
    kv_total_blocks: Option<u64>,
    max_num_batched_tokens: Option<u64>,
    worker_type: Cow<'static, str>,
}

impl WorkerConfig {
    /// The most ranks that a worker may declare. The cost of a load event
    /// grows with the ranks of its worker.
    pub const MAX_RANKS: usize = 1024;

    /// A worker with these ranks and unknown capacities.
    ///
    /// # Errors
    ///
    /// No ranks, more than [`MAX_RANKS`](Self::MAX_RANKS), or the same one twice.
    pub fn new(ranks: impl IntoIterator<Item = u32>) -> Result<Self, InvalidWorkerConfig> {
        let mut ranks: Vec<u32> = ranks.into_iter().take(Self::MAX_RANKS + 1).collect();
        if ranks.is_empty() {
            return Err(InvalidWorkerConfig::NoRanks);
        }
        if ranks.len() > Self::MAX_RANKS {
            return Err(InvalidWorkerConfig::TooManyRanks);
        }
        ranks.sort_unstable();
        if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(InvalidWorkerConfig::DuplicateRank(twice[0]));
        }
        Ok(Self {
            ranks,
            kv_total_blocks: None,
            max_num_batched_tokens: None,
            worker_type: Cow::Borrowed("decode"),
        })
    }

    /// KV blocks that each rank has. Unknown by default; while it is
    /// unknown or 0, the decode check cannot hold.
    #[must_use]
    pub fn kv_total_blocks(mut self, blocks: impl Into<Option<u64>>) -> Self {
        self.kv_total_blocks = blocks.into();
        self
    }

    /// Tokens that each rank takes into one batch. Unknown by default;
    /// while it is unknown or 0, the fractional prefill check cannot hold.
    #[must_use]
    pub fn max_num_batched_tokens(mut self, tokens: impl Into<Option<u64>>) -> Self {
        self.max_num_batched_tokens = tokens.into();
        self
    }

    /// The label `worker_type` of the worker's gauges; `decode` by default.
    #[must_use]
    pub fn worker_type(mut self, worker_type: impl Into<Cow<'static, str>>) -> Self {
        self.worker_type = worker_type.into();
        self
    }

    /// The declared ranks, ascending.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// What the checks compare with.
    pub(super) fn capacity(&self) -> Capacity {
        Capacity {
            kv_total_blocks: self.kv_total_blocks.and_then(NonZeroU64::new),
            max_num_batched_tokens: self.max_num_batched_tokens.and_then(NonZeroU64::new),
        }
    }

    /// The same configuration for other ranks: at least one, ascending, distinct
    /// and no more than [`MAX_RANKS`](Self::MAX_RANKS).
    #[cfg(feature = "scrape")]
    pub(crate) fn with_ranks(mut self, ranks: Vec<u32>) -> Self {
        self.ranks = ranks;
        self
    }

    /// The capacities as they were given.
    pub(crate) fn given(&self) -> (Option<u64>, Option<u64>) {
        (self.kv_total_blocks, self.max_num_batched_tokens)
    }

    pub(super) fn label(&self) -> &str {
        &self.worker_type
    }
}

/// A worker's configuration was refused, and nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidWorkerConfig {
    /// No rank is declared.
    NoRanks,
    /// More than [`WorkerConfig::MAX_RANKS`] ranks are declared.
    TooManyRanks,
    /// The rank is declared more than once.
    DuplicateRank(u32),
}

impl fmt::Display for InvalidWorkerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX: usize = WorkerConfig::MAX_RANKS;
        match self {
            Self::NoRanks => write!(f, "no data-parallel ranks, allowed: 1 to {MAX}"),
            Self::TooManyRanks => {
                write!(f, "too many data-parallel ranks, allowed: 1 to {MAX}")
            }
            Self::DuplicateRank(rank) => write!(
                f,
                "data-parallel rank {rank} is given twice, allowed: each rank once"
            ),
        }
    }
}

impl std::error::Error for InvalidWorkerConfig {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_bounded_and_distinct() {
        let max = WorkerConfig::MAX_RANKS as u32;
        assert!(WorkerConfig::new(0..max).is_ok());
        assert_eq!(
            WorkerConfig::new(0..),
            Err(InvalidWorkerConfig::TooManyRanks)
        );
        assert_eq!(WorkerConfig::new([]), Err(InvalidWorkerConfig::NoRanks));
        assert_eq!(
            WorkerConfig::new([3, 1, 3]),
            Err(InvalidWorkerConfig::DuplicateRank(3))
        );
        assert_eq!(WorkerConfig::new([3, 1]).unwrap().ranks(), [1, 3]);
    }
}
