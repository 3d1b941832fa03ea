//! How good a choice is: how soon requests of recorded traces get their first
//! token from simulated workers behind the real pool.
//!
//! `cargo bench --bench routing` prints the tables. Nothing is timed: the clock
//! is paused, and the figures are those of the simulated workers.

#[path = "../tests/support/routing.rs"]
mod routing;

use routing::{Choice, Outcome, Scenario, Sessions, Trace, one_queue, simulate};
use std::env;

const RUNS: u32 = 3;

const CHOICES: [(&str, Choice); 7] = [
    ("random", Choice::Random),
    ("two, by requests (the default)", Choice::Two),
    ("least of all, by requests", Choice::LeastOfAll),
    ("two, by tokens", Choice::TwoByTokens),
    ("least of all, by tokens", Choice::LeastOfAllByTokens),
    (
        "least of all, by reports once a second",
        Choice::LeastOfAllByReports,
    ),
    (
        "the same, with what was sent since",
        Choice::LeastOfAllByReportsAndSent,
    ),
];

const CHOICES_WITH_A_CACHE: [(&str, Choice); 4] = [
    ("two, by requests (the default)", Choice::Two),
    ("least of all, by tokens", Choice::LeastOfAllByTokens),
    ("affinity, by requests", Choice::Affinity),
    ("affinity, by tokens", Choice::AffinityByTokens),
];

type Columns<'a> = [(&'a str, Scenario); 4];

fn header(columns: &Columns<'_>) {
    let names = columns.iter().map(|(name, _)| *name);
    row("choice", names.map(str::to_owned));
    println!("|---|{}", "---|".repeat(columns.len()));
}

fn row(name: &str, cells: impl Iterator<Item = String>) {
    println!("| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
}

fn rows(columns: &Columns<'_>, choices: &[(&str, Choice)], cell: impl Fn(Outcome) -> String) {
    for (name, choice) in choices {
        let outcome = |scenario| simulate(scenario, *choice, RUNS);
        row(
            name,
            columns.iter().map(|(_, scenario)| cell(outcome(scenario))),
        );
    }
}

fn main() {
    // `cargo test --benches` asks whether it starts, and test runners for a
    // list.
    if env::args().any(|argument| argument == "--list") {
        return;
    }
    let is_test = env::args().any(|argument| argument == "--test");
    let most = if is_test { 200 } else { usize::MAX };
    let scenario = |trace, load, sessions| Scenario::new(trace, most, load, sessions);

    let plain = |trace, load| scenario(trace, load, Sessions::None);
    let columns = [
        ("Azure, 0.5", plain(Trace::AzureCode, 0.5)),
        ("Azure, 0.7", plain(Trace::AzureCode, 0.7)),
        ("Mooncake, 0.5", plain(Trace::Mooncake, 0.5)),
        ("Mooncake, 0.7", plain(Trace::Mooncake, 0.7)),
    ];
    let cell = |outcome: Outcome| format!("{:.1} %, {:.1} s", 100.0 * outcome.soon, outcome.p99);
    header(&columns);
    rows(&columns, &CHOICES, cell);
    let bounds = columns.iter().map(|(_, scenario)| one_queue(scenario));
    row("one queue for all workers", bounds.map(cell));
    println!();

    let cached = |trace, sessions| scenario(trace, 0.5, sessions);
    let columns = [
        ("Azure", cached(Trace::AzureCode, Sessions::Many)),
        ("Azure, one hot", cached(Trace::AzureCode, Sessions::OneHot)),
        ("Mooncake", cached(Trace::Mooncake, Sessions::Many)),
        (
            "Mooncake, one hot",
            cached(Trace::Mooncake, Sessions::OneHot),
        ),
    ];
    header(&columns);
    rows(&columns, &CHOICES_WITH_A_CACHE, |outcome| {
        let [soon, hits] = [outcome.soon, outcome.hits].map(|share| 100.0 * share);
        format!("{soon:.1} %, {hits:.0} % hits")
    });
}
