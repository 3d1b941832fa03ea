//! The results as a table, and those over time as lines that can be read again.

use super::measure::{Cost, Step};
use overload_examples::cli::UsageError;
use std::{fs, path::Path};

const COLUMNS: [&str; 12] = [
    "it",
    "load ×",
    "offered /s",
    "three alone, good /s",
    "with it, good /s",
    "of the three, %",
    "failed in the first 2 s, %",
    "failed after, %",
    "longest wait ms",
    "three alone, longest wait ms",
    "it is asked /s",
    "others' CPU %",
];

const NONE: &str = "–";
const CSV: &str = "it,load,seconds,three_alone_good_percent,good_percent,failed_percent\n";

/// The head of the table.
pub fn header() -> String {
    let rule = ["---"; COLUMNS.len()].join("|");
    format!("| {} |\n|{rule}|\n", COLUMNS.join(" | "))
}

/// All of the table.
pub fn table(costs: &[Cost]) -> String {
    costs
        .iter()
        .fold(header(), |table, cost| table + &row(cost))
}

/// A line of it.
pub fn row(cost: &Cost) -> String {
    let or_none = |value: Option<f64>, digits: usize| {
        value.map_or(NONE.into(), |value| format!("{value:.digits$}"))
    };
    let cells: [String; COLUMNS.len()] = [
        cost.kind.into(),
        cost.load.to_string(),
        format!("{:.1}", cost.offered),
        format!("{:.1}", cost.alone),
        format!("{:.1}", cost.good),
        format!("{:.1}", cost.of_alone),
        format!("{:.1}", cost.failed_before),
        format!("{:.1}", cost.failed_after),
        format!("{:.0}", cost.longest_wait),
        format!("{:.0}", cost.longest_alone),
        or_none(cost.asked, 1),
        or_none(cost.others, 0),
    ];
    format!("| {} |\n", cells.join(" | "))
}

/// All steps.
pub fn csv(steps: &[Step]) -> String {
    steps.iter().fold(CSV.into(), |csv, step| {
        let Step {
            kind,
            load,
            at,
            alone,
            good,
            failed,
        } = step;
        csv + &format!("{kind},{load},{at},{alone:.1},{good:.1},{failed:.1}\n")
    })
}

/// Reads the steps that an earlier run has written.
pub fn read(file: &Path) -> Result<Vec<Step>, UsageError> {
    let bad = |error: &str| UsageError::new("--from", file.display(), error);
    let text = fs::read_to_string(file).map_err(|error| bad(&error.to_string()))?;
    let lines = text.strip_prefix(CSV);
    lines
        .ok_or_else(|| bad("expected the sick.csv of an earlier run"))?
        .lines()
        .map(|line| parse(line).ok_or_else(|| bad(&format!("a bad line: {line}"))))
        .collect()
}

fn parse(line: &str) -> Option<Step> {
    let cells: Vec<&str> = line.split(',').collect();
    let [kind, load, at, alone, good, failed] = cells[..] else {
        return None;
    };
    Some(Step {
        kind: kind.into(),
        load: load.parse().ok()?,
        at: at.parse().ok()?,
        alone: alone.parse().ok()?,
        good: good.parse().ok()?,
        failed: failed.parse().ok()?,
    })
}
