//! What was measured, as a table that can be read again.

use overload_examples::cli::UsageError;
use std::{fmt::Write, fs, path::Path};

/// One point of a curve. Times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    pub workload: String,
    /// N
    pub slots: usize,
    /// Q; `None` without a cap.
    pub queue: Option<usize>,
    pub layers: String,
    /// Times the capacity.
    pub load: f64,
    /// Requests a second that were offered.
    pub offered: f64,
    /// Good answers a second.
    pub good: f64,
    /// Their service times in percent of the time of all slots.
    pub of_capacity: f64,
    pub first_token_p50: Option<f64>,
    pub first_token_p99: Option<f64>,
    /// Percent of the requests.
    pub refused: f64,
    /// A refusal's time in the gateway.
    pub refusal_p50: Option<f64>,
    pub refusal_p99: Option<f64>,
    /// Only of those that ended with the gateway's own verdict. Some of them had
    /// been to a worker before, and only then the other was not asked either.
    pub own_refusal_p99: Option<f64>,
    /// Requests without a first token when the client gave up.
    pub unanswered: u64,
    /// Requests with any other answer than one, or a refusal.
    pub failed: u64,
    /// Percent of all cores that this process used.
    pub cpu: Option<f64>,
    /// Percent that everything else used.
    pub others: Option<f64>,
}

const COLUMNS: [&str; 18] = [
    "workload",
    "N",
    "Q",
    "layers",
    "load ×",
    "offered /s",
    "good /s",
    "good, % of capacity",
    "TTFT p50 ms",
    "TTFT p99 ms",
    "refused %",
    "refusal p50 ms",
    "refusal p99 ms",
    "gateway's own p99 ms",
    "unanswered",
    "failed",
    "CPU %",
    "others' CPU %",
];

const NONE: &str = "–";

/// The head of the table.
pub fn header() -> String {
    let rule = ["---"; COLUMNS.len()].join("|");
    format!("| {} |\n|{rule}|\n", COLUMNS.join(" | "))
}

/// All of the table.
pub fn table(points: &[Point]) -> String {
    points
        .iter()
        .fold(header(), |table, point| table + &point.row())
}

impl Point {
    /// Its line of the table.
    pub fn row(&self) -> String {
        let or_none = |value: Option<f64>, digits: usize| {
            value.map_or(NONE.into(), |value| format!("{value:.digits$}"))
        };
        let cells = [
            self.workload.clone(),
            self.slots.to_string(),
            self.queue.map_or(NONE.into(), |queue| queue.to_string()),
            self.layers.clone(),
            self.load.to_string(),
            format!("{:.1}", self.offered),
            format!("{:.1}", self.good),
            format!("{:.1}", self.of_capacity),
            or_none(self.first_token_p50, 1),
            or_none(self.first_token_p99, 1),
            format!("{:.1}", self.refused),
            or_none(self.refusal_p50, 3),
            or_none(self.refusal_p99, 3),
            or_none(self.own_refusal_p99, 3),
            self.unanswered.to_string(),
            self.failed.to_string(),
            or_none(self.cpu, 0),
            or_none(self.others, 0),
        ];
        format!("| {} |\n", cells.join(" | "))
    }

    fn parse(row: &str) -> Option<Self> {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let cells: &[&str; COLUMNS.len()] = cells.get(1..=COLUMNS.len())?.try_into().ok()?;
        let number = |cell: usize| cells[cell].parse().ok();
        let or_none = |cell: usize| match cells[cell] {
            NONE => Some(None),
            number => number.parse().ok().map(Some),
        };
        Some(Self {
            workload: cells[0].into(),
            slots: cells[1].parse().ok()?,
            queue: match cells[2] {
                NONE => None,
                queue => Some(queue.parse().ok()?),
            },
            layers: cells[3].into(),
            load: number(4)?,
            offered: number(5)?,
            good: number(6)?,
            of_capacity: number(7)?,
            first_token_p50: or_none(8)?,
            first_token_p99: or_none(9)?,
            refused: number(10)?,
            refusal_p50: or_none(11)?,
            refusal_p99: or_none(12)?,
            own_refusal_p99: or_none(13)?,
            unanswered: cells[14].parse().ok()?,
            failed: cells[15].parse().ok()?,
            cpu: or_none(16)?,
            others: or_none(17)?,
        })
    }
}

/// Reads the table that an earlier run has written.
pub fn read(file: &Path) -> Result<Vec<Point>, UsageError> {
    let bad = |error: &str| UsageError::new("--from", file.display(), error);
    let text = fs::read_to_string(file).map_err(|error| bad(&error.to_string()))?;
    let header = header();
    let (_, rows) = text
        .split_once(&header)
        .ok_or_else(|| bad("expected the table of an earlier run"))?;
    rows.lines()
        .take_while(|row| row.starts_with('|'))
        .map(|row| Point::parse(row).ok_or_else(|| bad(&format!("a bad row: {row}"))))
        .collect()
}

/// The points of one curve, by load. Without a cap there is no Q, and the curve
/// is that of every Q.
pub fn curve<'a>(
    points: &'a [Point],
    workload: &str,
    (slots, queue): (usize, usize),
    layers: &str,
) -> Vec<&'a Point> {
    let mut curve: Vec<&Point> = points
        .iter()
        .filter(|point| {
            point.workload == workload
                && point.slots == slots
                && point.queue.is_none_or(|q| q == queue)
                && point.layers == layers
        })
        .collect();
    curve.sort_by(|a, b| a.load.total_cmp(&b.load));
    curve
}

/// Every pair of N and Q, in the order of the table. Where no curve has a cap
/// Q is 0.
pub fn fleets(points: &[Point], workload: &str) -> Vec<(usize, usize)> {
    let mut fleets = Vec::new();
    let of_workload = || points.iter().filter(|point| point.workload == workload);
    for point in of_workload() {
        let fleet = match point.queue {
            Some(queue) => (point.slots, queue),
            None if of_workload().any(|p| p.slots == point.slots && p.queue.is_some()) => continue,
            None => (point.slots, 0),
        };
        if !fleets.contains(&fleet) {
            fleets.push(fleet);
        }
    }
    fleets
}

/// Every workload, in the order of the table.
pub fn workloads(points: &[Point]) -> Vec<&str> {
    let mut workloads: Vec<&str> = Vec::new();
    for point in points {
        if !workloads.contains(&&*point.workload) {
            workloads.push(&point.workload);
        }
    }
    workloads
}

/// What it comes to: each fleet at its highest load.
///
/// The plateau is the mean goodput of the loads from 1.5 up to the one before
/// the highest.
pub fn summary(points: &[Point]) -> String {
    let mut text = String::from(
        "| workload | N, Q | layers | highest load × | goodput, % of plateau of both layers \
         | TTFT p99, times that at 0.8 | refusal p99 ms | gateway's own p99 ms |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for workload in workloads(points) {
        for fleet in fleets(points, workload) {
            let both = curve(points, workload, fleet, "both");
            let highest = both.last().map_or(0.0, |point| point.load);
            let plateau: Vec<f64> = both
                .iter()
                .filter(|point| (1.5..highest).contains(&point.load))
                .map(|point| point.of_capacity)
                .collect();
            let plateau = plateau.iter().sum::<f64>() / plateau.len() as f64;
            for layers in ["nothing", "filter only", "cap only", "both"] {
                let curve = curve(points, workload, fleet, layers);
                let Some(last) = curve.last() else { continue };
                let usual = curve.iter().find(|point| point.load == 0.8);
                let times = usual
                    .and_then(|usual| Some(last.first_token_p99? / usual.first_token_p99?))
                    .map_or(NONE.into(), |times| format!("{times:.2}"));
                let share = 100.0 * last.of_capacity / plateau;
                let share = if share.is_finite() {
                    format!("{share:.1}")
                } else {
                    NONE.into()
                };
                let ms = |time: Option<f64>| time.map_or(NONE.into(), |time| format!("{time:.3}"));
                // Writing to a String does not fail.
                let _ = writeln!(
                    text,
                    "| {workload} | {}, {} | {layers} | {} | {share} | {times} | {} | {} |",
                    fleet.0,
                    fleet.1,
                    last.load,
                    ms(last.refusal_p99),
                    ms(last.own_refusal_p99),
                );
            }
        }
    }
    text
}
