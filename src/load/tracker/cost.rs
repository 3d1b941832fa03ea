use super::account::room_after;
use std::num::NonZeroU64;

/// What a request costs the worker that it is sent to, as far as that is
/// known before it runs. The default is nothing.
///
/// ```
/// use std::num::NonZeroU64;
/// use tower_overload::load::tracker::Cost;
///
/// let block_size = NonZeroU64::new(16).unwrap();
/// let cost = Cost::of_prompt(100, block_size);
/// assert_eq!((cost.prefill_tokens(), cost.prompt_blocks()), (100, 7));
///
/// // 64 of its tokens are in the worker's cache already.
/// let cached = cost.with_prefill_tokens(36);
/// assert_eq!((cached.prefill_tokens(), cached.prompt_blocks()), (36, 7));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Cost {
    pub(super) prefill_tokens: u64,
    pub(super) prompt_blocks: u64,
    /// Tokens that the last block of the prompt has room for.
    pub(super) room: u64,
    pub(super) dp_rank: Option<u32>,
}

impl Cost {
    /// So many tokens to prefill, and so many KV blocks for the prompt, which
    /// fills them: the first generated token takes another block.
    pub const fn new(prefill_tokens: u64, prompt_blocks: u64) -> Self {
        Self {
            prefill_tokens,
            prompt_blocks,
            room: 0,
            dp_rank: None,
        }
    }

    /// A prompt of so many tokens, in blocks of `block_size` tokens of which
    /// the last may be filled in part.
    pub const fn of_prompt(prompt_tokens: u64, block_size: NonZeroU64) -> Self {
        Self {
            prefill_tokens: prompt_tokens,
            prompt_blocks: prompt_tokens.div_ceil(block_size.get()),
            room: room_after(prompt_tokens, block_size),
            dp_rank: None,
        }
    }

    /// Another number of tokens to prefill, such as those of the prompt that
    /// are not cached.
    pub const fn with_prefill_tokens(mut self, tokens: u64) -> Self {
        self.prefill_tokens = tokens;
        self
    }

    /// The data-parallel rank that the request will run on. Without one it is
    /// counted on the least loaded of the worker's ranks.
    pub const fn on_rank(mut self, dp_rank: u32) -> Self {
        self.dp_rank = Some(dp_rank);
        self
    }

    /// Tokens that count as in prefill until the first body frame.
    pub const fn prefill_tokens(&self) -> u64 {
        self.prefill_tokens
    }

    /// KV blocks that count as in use until the end of the body.
    pub const fn prompt_blocks(&self) -> u64 {
        self.prompt_blocks
    }

    /// The data-parallel rank, if it is known.
    pub const fn dp_rank(&self) -> Option<u32> {
        self.dp_rank
    }
}
