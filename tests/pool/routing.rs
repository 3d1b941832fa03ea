//! How soon first tokens come under the choices of a pool, by simulation. The
//! choices draw at random, so the margins are wide; `benches/routing.rs` has the
//! figures.

#[allow(dead_code)] // The benchmark has more choices.
#[path = "../support/routing.rs"]
mod simulation;

use simulation::{Choice, Scenario, Sessions, Trace, simulate};

const REQUESTS: usize = 1_500;

/// Of a hundred requests on the trace with the most unequal prompts, at half of
/// what the workers can do, those whose first token is soon there.
fn soon(sessions: Sessions, choice: Choice) -> f64 {
    let scenario = Scenario::new(Trace::Mooncake, REQUESTS, 0.5, sessions);
    let outcome = simulate(&scenario, choice, 3);
    println!("{sessions:?}, {choice:?}: {outcome:?}");
    100.0 * outcome.soon
}

#[test]
fn tokens_say_more_than_requests() {
    let default = soon(Sessions::None, Choice::Two);
    let by_tokens = soon(Sessions::None, Choice::LeastOfAllByTokens);
    assert!(by_tokens >= 84.0, "{by_tokens}");
    assert!(by_tokens >= default + 12.0, "{by_tokens} to {default}");
}

#[test]
fn affinity_costs_nothing_with_many_sessions_nor_with_a_hot_one() {
    for sessions in [Sessions::Many, Sessions::OneHot] {
        let without = soon(sessions, Choice::LeastOfAllByTokens);
        let with = soon(sessions, Choice::AffinityByTokens);
        assert!(with >= without - 1.5, "{with} to {without}");
    }
}
