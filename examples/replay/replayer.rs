//! Replays a trace of real requests, and shows how far it has come.

use crate::report::{Objectives, Report};
use http::Uri;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use overload_examples::replay::{Arrival, Outcome, Requests, open_loop};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// What is replayed, and where.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The requests, in the order of their arrival.
    pub arrivals: Vec<Arrival>,
    /// The gateway's public address.
    pub url: Uri,
    /// The model that the requests are for.
    pub model: String,
    /// How many times faster than in the trace.
    pub speedup: f64,
    /// In the time of the trace.
    pub objectives: Objectives,
}

impl Replay {
    /// Sends every request at its time, and completes when the last one has
    /// ended, or when `stop` has: the requests that have not ended by then
    /// are cancelled and not counted.
    ///
    /// While it runs a bar on stderr shows the progress, if that is a
    /// terminal.
    pub async fn run(&self, stop: impl Future<Output = ()>) -> Report {
        let requests = Arc::new(Requests::new(
            &self.url,
            &self.model,
            self.arrivals.iter().map(|it| it.prompt_tokens).max(),
        ));
        let objectives = self.objectives.sped_up(self.speedup);
        let bar = progress_bar(self.arrivals.len());
        let mut report = Report::default();
        let start = Instant::now();
        let due = |arrival: &Arrival| start + sped_up(arrival.at, self.speedup);
        open_loop(
            self.arrivals.iter().map(|arrival| (due(arrival), *arrival)),
            |due, arrival| {
                let requests = Arc::clone(&requests);
                async move { requests.send(arrival, due).await }
            },
            |ended| {
                let outcome = ended.unwrap_or_else(|error| Outcome::Failed(error.to_string()));
                report.add(outcome, &objectives);
                bar.inc(1);
                bar.set_message(format!(
                    "{} ok, {} refused, {} failed",
                    report.succeeded(),
                    report.refused(),
                    report.failed(),
                ));
            },
            stop,
        )
        .await;
        bar.finish_and_clear();
        report.finish(start.elapsed());
        report
    }
}

/// A time of the trace in the time of the replay.
pub fn sped_up(time: Duration, speedup: f64) -> Duration {
    /// Longer than anybody waits, and short enough to be added to a clock.
    const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    Duration::try_from_secs_f64(time.as_secs_f64() / speedup)
        .unwrap_or(LONGEST)
        .min(LONGEST)
}

/// Draws nothing unless stderr is a terminal.
fn progress_bar(requests: usize) -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    let bar = ProgressBar::with_draw_target(Some(requests as u64), target);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}
