//! When the tokens of a request in the mock engine are there.

use futures::FutureExt;
use overload_examples::engine::{Batch, Generation, Ledger, Timing};
use std::{
    future::poll_fn,
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    sync::Arc,
};
use tokio::time::Instant;

fn ledger() -> Arc<Ledger> {
    Arc::new(Ledger::new(1, NonZeroU64::new(16).unwrap()))
}

const SLOW: Timing = Timing {
    prefill_tokens_per_second: 1000.0,
    decode_tokens_per_second: 50.0,
};

async fn next(generation: &mut Generation) -> Option<(u64, u64)> {
    poll_fn(|cx| generation.poll_token(cx)).await
}

#[tokio::test(start_paused = true)]
async fn tokens_come_when_they_are_due() {
    let ledger = ledger();
    let start = Instant::now();
    let mut generation = Generation::enter(&ledger, SLOW, 100, 1, 3);
    let mut at = Vec::new();
    while let Some(token) = next(&mut generation).await {
        at.push((token.1, start.elapsed().as_millis()));
    }
    assert_eq!(at, [(0, 100), (1, 120), (2, 140)]);
    assert_eq!(generation.generated(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_first_token_ends_the_prefill() {
    let ledger = ledger();
    let load = || ledger.snapshot().next().unwrap();
    let mut generation = Generation::enter(&ledger, SLOW, 32, 1, 2);
    assert!(next(&mut generation).now_or_never().is_none());
    assert_eq!((load().prefill_tokens, load().kv_blocks), (32, 2));
    next(&mut generation).await;
    assert_eq!((load().prefill_tokens, load().kv_blocks), (0, 3));
    drop(generation);
    assert_eq!((load().prefill_tokens, load().kv_blocks), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn choices_are_generated_side_by_side() {
    let ledger = ledger();
    let start = Instant::now();
    let mut generation = Generation::enter(&ledger, SLOW, 0, 2, 2);
    let mut tokens = Vec::new();
    while let Some(token) = next(&mut generation).await {
        tokens.push(token);
    }
    assert_eq!(tokens, [(0, 0), (1, 0), (0, 1), (1, 1)]);
    assert_eq!(start.elapsed().as_millis(), 20);
}

#[tokio::test(start_paused = true)]
async fn tokens_come_an_interval_at_a_time_and_the_rest_at_the_end() {
    let start = Instant::now();
    let interval = NonZeroU32::new(3).unwrap();
    let mut generation = Generation::enter(&ledger(), SLOW, 100, 1, 6).every(interval);
    let mut at = Vec::new();
    while next(&mut generation).await.is_some() {
        at.push(start.elapsed().as_millis());
    }
    assert_eq!(at, [100, 160, 160, 160, 200, 200]);
}

#[tokio::test(start_paused = true)]
async fn two_in_a_batch_of_one_take_twice_as_long_until_one_leaves() {
    let ledger = ledger();
    let batch = Arc::new(Batch::new(1, NonZeroUsize::MIN));
    let start = Instant::now();
    let enter = || Generation::enter(&ledger, SLOW, 100, 1, 2).in_batch(&batch);
    let (mut first, second) = (enter(), enter());
    next(&mut first).await;
    assert_eq!(start.elapsed().as_millis(), 200);
    drop(second);
    next(&mut first).await;
    assert_eq!(start.elapsed().as_millis(), 220);
}

#[test]
fn an_infinitely_fast_engine_needs_no_timer() {
    let ledger = ledger();
    let mut generation = Generation::enter(&ledger, Timing::INSTANT, 1000, 1, 2);
    // Outside of a runtime a timer would panic.
    assert_eq!(next(&mut generation).now_or_never(), Some(Some((0, 0))));
    assert_eq!(next(&mut generation).now_or_never(), Some(Some((0, 1))));
    assert_eq!(next(&mut generation).now_or_never(), Some(None));
}
