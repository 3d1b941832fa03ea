//! Random histories of requests, against the sum of those that run, which is
//! worked out anew after each step.

use crate::support::{SIXTEEN, Served, WORKER, client, known, monitor, send, tracker};
use bytes::Bytes;
use futures::FutureExt;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::BodyExt;
use proptest::{collection::vec, option, prelude::*};
use tower_overload::load::tracker::Cost;

const RANKS: [u32; 2] = [0, 3];

/// Where requests are that do not count.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Debug)]
enum Step {
    /// Prompt tokens and rank.
    Send(u64, Option<u32>),
    /// The head of one that waits for it: a status, or `None` for a failure.
    Head(usize, Option<u16>),
    Frame(usize, Kind),
    /// The client gives up.
    Drop(usize),
    Refresh,
    /// The monitor forgets the worker, which is registered again.
    Return,
    /// Another worker gets the id.
    HandOver,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Data,
    Trailers,
    Error,
    End,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let tokens = prop_oneof![4 => 0..100_u64, 1 => Just(u64::MAX), 1 => Just(u64::MAX - 7)];
    let kind = prop_oneof![
        20 => Just(Kind::Data), 1 => Just(Kind::Trailers),
        1 => Just(Kind::Error), 1 => Just(Kind::End),
    ];
    let status = prop_oneof![
        6 => Just(Some(200)), 1 => Just(Some(529)), 1 => Just(Some(404)), 1 => Just(None),
    ];
    let which = || 0..8_usize;
    let step = prop_oneof![
        4 => (tokens, option::of(prop::sample::select(RANKS.to_vec())))
            .prop_map(|(tokens, rank)| Step::Send(tokens, rank)),
        4 => (which(), status).prop_map(|(n, status)| Step::Head(n, status)),
        20 => (which(), kind).prop_map(|(n, kind)| Step::Frame(n, kind)),
        2 => which().prop_map(Step::Drop),
        1 => Just(Step::Refresh),
        1 => Just(Step::Return),
        1 => Just(Step::HandOver),
    ];
    vec(step, 1..150)
}

/// A request as the rules see it.
struct Plain {
    rank: u32,
    prompt: u64,
    in_prefill: bool,
    output: u64,
}

impl Plain {
    fn blocks(&self) -> u128 {
        (u128::from(self.prompt) + u128::from(self.output)).div_ceil(16)
    }

    fn tokens(&self) -> u128 {
        u128::from(if self.in_prefill { self.prompt } else { 0 })
    }
}

fn sum<'a>(requests: impl Iterator<Item = &'a Plain>, rank: u32) -> (u128, u128) {
    let on_it = requests.filter(|plain| plain.rank == rank);
    on_it.fold((0, 0), |(tokens, blocks), plain| {
        (tokens + plain.tokens(), blocks + plain.blocks())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_reports_are_the_sums_of_what_runs(steps in steps()) {
        let monitor = monitor(RANKS);
        let tracker = tracker(&monitor).track_output_blocks(SIXTEEN);
        let (mut client, served) = client(&tracker.layer(WORKER).ranks(RANKS));
        let mut waiting: Vec<(Plain, _, Served)> = Vec::new();
        let mut running: Vec<(Plain, _, Served)> = Vec::new();
        let mut unreported = false;
        for step in steps {
            match step {
                Step::Send(tokens, rank) => {
                    let all = || waiting.iter().map(|(plain, ..)| plain)
                        .chain(running.iter().map(|(plain, ..)| plain));
                    let load = |rank: &u32| {
                        let (tokens, blocks) = sum(all(), *rank);
                        (blocks, tokens)
                    };
                    let least = RANKS.into_iter().min_by_key(load).unwrap();
                    let plain = Plain {
                        rank: rank.unwrap_or(least),
                        prompt: tokens,
                        in_prefill: true,
                        output: 0,
                    };
                    let mut cost = Cost::of_prompt(tokens, SIXTEEN);
                    if let Some(rank) = rank {
                        cost = cost.on_rank(rank);
                    }
                    let future = send(&mut client, cost);
                    let worker = served.try_recv().unwrap();
                    waiting.push((plain, future, worker));
                }
                Step::Head(n, status) if n < waiting.len() => {
                    let (plain, future, mut worker) = waiting.swap_remove(n);
                    match status {
                        Some(status) => worker.head(status),
                        None => worker.fail(),
                    }
                    let answer = future.now_or_never().unwrap();
                    prop_assert_eq!(answer.is_ok(), status.is_some());
                    if let (Ok(response), Some(200)) = (answer, status) {
                        running.push((plain, response.into_body(), worker));
                    }
                }
                Step::Frame(n, kind) if n < running.len() => {
                    let (plain, body, worker) = &mut running[n];
                    match kind {
                        Kind::Data => worker.data(),
                        Kind::Trailers => {
                            worker.frame(Ok(Frame::<Bytes>::trailers(HeaderMap::new())));
                        }
                        Kind::Error => worker.frame(Err("broken".into())),
                        Kind::End => worker.end(),
                    }
                    let frame = body.frame().now_or_never().unwrap();
                    plain.in_prefill = false;
                    plain.output += u64::from(matches!(kind, Kind::Data));
                    if !matches!(frame, Some(Ok(_))) {
                        running.swap_remove(n);
                    }
                }
                Step::Drop(n) if n < waiting.len() => drop(waiting.swap_remove(n)),
                Step::Drop(n) if n < running.len() => drop(running.swap_remove(n)),
                Step::Refresh => {
                    tracker.report(&WORKER);
                    unreported = false;
                }
                Step::Return => {
                    let config = tower_overload::load::WorkerConfig::new(RANKS).unwrap();
                    prop_assert!(monitor.remove(&WORKER));
                    monitor.configure_for_all(WORKER, config);
                    unreported = true;
                }
                Step::HandOver => {
                    tracker.hand_over(&WORKER);
                    waiting.iter_mut().for_each(|(plain, ..)| plain.rank = NOBODY);
                    running.iter_mut().for_each(|(plain, ..)| plain.rank = NOBODY);
                    unreported = false;
                }
                Step::Head(..) | Step::Frame(..) | Step::Drop(_) => {}
            }
            if unreported {
                continue;
            }
            for rank in RANKS {
                let all = waiting.iter().map(|(plain, ..)| plain)
                    .chain(running.iter().map(|(plain, ..)| plain));
                let (tokens, blocks) = sum(all, rank);
                let count = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
                prop_assert_eq!(known(&monitor, rank), (count(tokens), count(blocks)));
            }
        }
        drop((waiting, running));
        for rank in RANKS {
            prop_assert_eq!(known(&monitor, rank), (0, 0));
        }
        prop_assert!(!monitor.snapshot()[0].is_busy());
    }
}
