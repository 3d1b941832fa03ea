use super::Objectives;
use std::{collections::BTreeMap, fmt, time::Duration};

/// How one request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of the answer has arrived.
    Succeeded(Pace),
    /// Status 529.
    Refused,
    /// Anything else, in few words.
    Failed(String),
    /// The client had no more patience. If the first token had arrived, this
    /// is how long it took, from when it was due.
    GaveUp(Option<Duration>),
}

/// When the tokens of an answer arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// From the time that the trace says to the first token.
    pub first_token: Duration,
    /// From the first token to the last one, divided by the tokens after the
    /// first.
    pub per_token: Duration,
}

/// What a replay has come to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Sorted by [`finish`](Report::finish).
    first_tokens: Vec<Duration>,
    refused: usize,
    failures: BTreeMap<String, usize>,
    good: usize,
    took: Duration,
}

impl Report {
    /// Counts one more request.
    pub fn add(&mut self, outcome: Outcome, objectives: &Objectives) {
        match outcome {
            Outcome::Succeeded(pace) => {
                self.first_tokens.push(pace.first_token);
                let good = pace.first_token <= objectives.first_token
                    && pace.per_token <= objectives.per_token;
                self.good += usize::from(good);
            }
            Outcome::Refused => self.refused += 1,
            Outcome::Failed(how) => *self.failures.entry(how).or_default() += 1,
            Outcome::GaveUp(_) => {
                let how = "the client gave up".into();
                *self.failures.entry(how).or_default() += 1;
            }
        }
    }

    /// All requests are counted, and that took so long.
    pub fn finish(&mut self, took: Duration) {
        self.first_tokens.sort_unstable();
        self.took = took;
    }

    /// All requests that were sent.
    pub fn offered(&self) -> usize {
        self.succeeded() + self.refused() + self.failed()
    }

    /// The requests whose answer arrived in full.
    pub fn succeeded(&self) -> usize {
        self.first_tokens.len()
    }

    /// The requests that were answered with 529.
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// The requests that ended in any other way.
    pub fn failed(&self) -> usize {
        self.failures.values().sum()
    }

    /// The requests that met both objectives.
    pub fn good(&self) -> usize {
        self.good
    }

    /// The time to first token that `percent` of the successful requests
    /// did not exceed.
    pub fn first_token(&self, percent: usize) -> Option<Duration> {
        let rank = (self.succeeded() * percent).div_ceil(100).max(1);
        self.first_tokens.get(rank - 1).copied()
    }

    fn per_second(&self, requests: usize) -> f64 {
        requests as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

/// The table at the end.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = |name: &str, requests: usize| {
            let share = 100.0 * requests as f64 / self.offered().max(1) as f64;
            let rate = self.per_second(requests);
            writeln!(f, "{name:<14}{requests:>10}{share:>9.1} %{rate:>12.1}/s")
        };
        counts("offered", self.offered())?;
        counts("succeeded", self.succeeded())?;
        counts("refused (529)", self.refused())?;
        counts("failed", self.failed())?;
        counts("goodput", self.good())?;
        for (how, requests) in &self.failures {
            writeln!(f, "  failed: {requests} × {how}")?;
        }
        for percent in [50, 99] {
            let name = format!("TTFT p{percent}");
            match self.first_token(percent) {
                Some(time) => writeln!(f, "{name:<14}{:>10.1} ms", millis(time))?,
                None => writeln!(f, "{name:<14}{:>10}", "–")?,
            }
        }
        write!(f, "{:<14}{:>10.1} s", "took", self.took.as_secs_f64())
    }
}

pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
