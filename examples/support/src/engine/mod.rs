//! A mock engine: real accounting and real timing, and no model.
//!
//! A request that enters the engine has its prompt tokens counted as prefill
//! on one data-parallel rank, and occupies KV blocks there for its prompt and
//! for every token that it has generated so far. Its first token ends its
//! prefill; when it leaves, finished or not, its blocks are free again.
//!
//! [`Ledger`] is the accounting and [`Timing`] the clockwork, both without
//! any I/O. [`Generation`] is one request that passes through them. By itself
//! each is as fast as if it were alone; a [`Batch`] is what makes them share.

mod batch;
mod generation;
mod ledger;
mod timing;

pub use batch::{Batch, Share};
pub use generation::Generation;
pub use ledger::{Ledger, Occupancy, RankLoad, RankRequests};
pub use timing::Timing;

/// The text of the `n`th token (from 0) of every answer.
pub fn token(n: u64) -> &'static str {
    const WORDS: [&str; 8] = [
        " tokens", " flow", " while", " the", " queue", " stays", " short", " and",
    ];
    match n {
        0 => "and",
        n => WORDS[((n - 1) % 8) as usize],
    }
}
