//! How the requests of a batch share the speed of the mock engine.

use overload_examples::engine::{Batch, Share};
use std::{num::NonZeroUsize, sync::Arc, time::Duration};
use tokio::time::{Instant, advance};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn batch(ranks: u32, size: usize) -> Arc<Batch> {
    Arc::new(Batch::new(ranks, NonZeroUsize::new(size).unwrap()))
}

/// How far the work of `share` has come, in whole milliseconds.
fn done(share: &Share) -> u64 {
    let more = (0..).find(|more| share.wait(ms(*more)).is_some());
    more.unwrap() - 1
}

#[tokio::test(start_paused = true)]
async fn up_to_a_batch_everyone_has_the_full_speed() {
    let batch = batch(1, 2);
    let first = batch.enter(0);
    advance(ms(10)).await;
    let second = batch.enter(0);
    assert_eq!(first.wait(ms(30)), Some(ms(20)));
    assert_eq!(second.wait(ms(20)), Some(ms(20)));
    advance(ms(20)).await;
    assert_eq!(first.wait(ms(30)), None);
    assert_eq!(second.wait(ms(20)), None);
}

#[tokio::test(start_paused = true)]
async fn beyond_a_batch_the_speed_is_shared_and_comes_back() {
    let batch = batch(1, 2);
    let mut shares: Vec<_> = (0..4).map(|_| batch.enter(0)).collect();
    for (after, reached) in [(10, 5), (15, 15), (10, 25)] {
        advance(ms(after)).await;
        assert_eq!(done(&shares[0]), reached);
        shares.pop();
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_asks_again_and_is_on_time() {
    let batch = batch(1, 1);
    let shares: Vec<_> = (0..10).map(|_| batch.enter(0)).collect();
    let (start, mut asked) = (Instant::now(), 0);
    while let Some(wait) = shares[0].wait(ms(100)) {
        advance(wait).await;
        asked += 1;
        assert!(asked < 20);
    }
    let took = start.elapsed();
    assert!((ms(1000)..ms(1002)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_share_ends_with_its_drop() {
    let batch = batch(2, 1);
    let first = batch.enter(0);
    let second = batch.enter(0);
    let elsewhere = batch.enter(1);
    advance(ms(10)).await;
    assert_eq!(first.wait(ms(5)), None);
    assert_eq!(first.wait(ms(6)), Some(ms(1)));
    assert_eq!(elsewhere.wait(ms(10)), None);
    drop(second);
    advance(ms(10)).await;
    assert_eq!(first.wait(ms(15)), None);
    assert_eq!(first.wait(ms(16)), Some(ms(1)));
}
