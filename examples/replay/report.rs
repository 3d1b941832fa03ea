//! What a replay has come to.

use crate::replayer::sped_up;
use overload_examples::replay::Outcome;
use std::{collections::BTreeMap, fmt, time::Duration};

/// What a good answer is, in the time of the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objectives {
    /// The longest time to the first token.
    pub first_token: Duration,
    /// The longest time per token after the first.
    pub per_token: Duration,
}

impl Objectives {
    /// Objectives in the time of the trace, for a replay that is `speedup`
    /// times as fast.
    #[must_use]
    pub fn sped_up(self, speedup: f64) -> Self {
        Self {
            first_token: sped_up(self.first_token, speedup),
            per_token: sped_up(self.per_token, speedup),
        }
    }
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

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use overload_examples::replay::Pace;

    const OBJECTIVES: Objectives = Objectives {
        first_token: Duration::from_millis(100),
        per_token: Duration::from_millis(10),
    };

    fn succeeded(first_token: u64, per_token: u64) -> Outcome {
        Outcome::Succeeded(Pace {
            first_token: Duration::from_millis(first_token),
            per_token: Duration::from_millis(per_token),
        })
    }

    fn report(outcomes: impl IntoIterator<Item = Outcome>) -> Report {
        let mut report = Report::default();
        for outcome in outcomes {
            report.add(outcome, &OBJECTIVES);
        }
        report.finish(Duration::from_secs(2));
        report
    }

    #[test]
    fn a_request_is_good_if_it_meets_both_objectives() {
        let report = report([
            succeeded(100, 10),
            succeeded(101, 10),
            succeeded(100, 11),
            Outcome::Refused,
            Outcome::Failed("503".into()),
        ]);
        assert_eq!((report.offered(), report.succeeded()), (5, 3));
        assert_eq!((report.refused(), report.failed()), (1, 1));
        assert_eq!(report.good(), 1);
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let report = report((1..=200).rev().map(|ms| succeeded(ms, 0)));
        assert_eq!(report.first_token(50), Some(Duration::from_millis(100)));
        assert_eq!(report.first_token(99), Some(Duration::from_millis(198)));
        assert_eq!(report.first_token(100), Some(Duration::from_millis(200)));
        assert_eq!(report.first_token(0), Some(Duration::from_millis(1)));
    }

    #[test]
    fn the_table_has_every_figure() {
        let failed = || Outcome::Failed("status 503".into());
        let report = report([succeeded(40, 1), Outcome::Refused, failed(), failed()]);
        assert_eq!(
            report.to_string().lines().collect::<Vec<_>>(),
            [
                "offered                4    100.0 %         2.0/s",
                "succeeded              1     25.0 %         0.5/s",
                "refused (529)          1     25.0 %         0.5/s",
                "failed                 2     50.0 %         1.0/s",
                "goodput                1     25.0 %         0.5/s",
                "  failed: 2 × status 503",
                "TTFT p50            40.0 ms",
                "TTFT p99            40.0 ms",
                "took                 2.0 s",
            ]
        );
    }

    #[test]
    fn without_a_success_there_is_no_time() {
        let report = report([Outcome::Refused]);
        assert_eq!(report.first_token(50), None);
        assert!(report.to_string().contains("TTFT p50               –"));
    }
}
