//! What the requests in the mock engine occupy.

use futures::FutureExt;
use overload_examples::engine::{Ledger, RankRequests};
use std::{num::NonZeroU64, sync::Arc};

fn ledger(ranks: u32) -> Arc<Ledger> {
    Arc::new(Ledger::new(ranks, NonZeroU64::new(16).unwrap()))
}

fn loads(ledger: &Ledger) -> Vec<(u64, u64)> {
    ledger
        .snapshot()
        .map(|load| (load.prefill_tokens, load.kv_blocks))
        .collect()
}

#[test]
fn prefill_counts_until_the_first_token_and_blocks_until_the_end() {
    let ledger = ledger(1);
    let mut request = ledger.enter(33);
    assert_eq!(loads(&ledger), [(33, 3)]);
    request.end_prefill();
    assert_eq!(loads(&ledger), [(0, 3)]);
    for _ in 0..15 {
        request.grow();
    }
    assert_eq!(loads(&ledger), [(0, 3)], "48 tokens fill three blocks");
    request.grow();
    assert_eq!(loads(&ledger), [(0, 4)]);
    drop(request);
    assert_eq!(loads(&ledger), [(0, 0)]);
}

#[test]
fn a_request_that_leaves_during_its_prefill_frees_both() {
    let ledger = ledger(1);
    let first = ledger.enter(10);
    let second = ledger.enter(100);
    drop(first);
    assert_eq!(loads(&ledger), [(100, 7)]);
    drop(second);
    assert_eq!(loads(&ledger), [(0, 0)]);
}

#[test]
fn requests_are_running_until_they_are_served() {
    let ledger = ledger(1);
    let requests = || ledger.requests().next().unwrap();
    let first = ledger.enter(10);
    let _second = ledger.enter(5);
    assert_eq!(
        requests(),
        RankRequests {
            running: 2,
            ..RankRequests::default()
        }
    );
    drop(first);
    let one_left = RankRequests {
        running: 1,
        served: 1,
        served_prompt_tokens: 10,
    };
    assert_eq!(requests(), one_left);
}

#[test]
fn requests_go_to_the_ranks_in_turn() {
    let ledger = ledger(3);
    let requests: Vec<_> = (1..=4).map(|n| ledger.enter(n)).collect();
    assert_eq!(loads(&ledger), [(5, 2), (2, 1), (3, 1)]);
    assert_eq!(requests[3].rank(), 0);
}

#[test]
fn an_observer_hears_of_every_kind_of_change() {
    let ledger = ledger(1);
    let heard = || ledger.changed().now_or_never().is_some();
    assert!(!heard());
    let mut request = ledger.enter(16);
    assert!(heard() && !heard());
    request.end_prefill();
    assert!(heard() && !heard());
    request.grow();
    assert!(heard() && !heard());
    request.grow();
    assert!(!heard(), "the second token of a block changes nothing");
    drop(request);
    assert!(heard() && !heard());
}
