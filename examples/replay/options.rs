//! What is replayed, where, and how fast.

use crate::{replayer::Replay, report::Objectives};
use clap::Parser;
use http::Uri;
use overload_examples::{
    cli::{UsageError, base_url, name, positive, whole},
    replay::{Trace, parse_trace},
};
use std::{path::PathBuf, time::Duration};

/// Replays a trace of requests against a gateway: an open loop on the clock of
/// the trace.
#[derive(Clone, Debug, Parser)]
#[command(name = "replay")]
pub struct ReplayArgs {
    /// The trace, in the form in which it is published: Azure's LLM inference
    /// traces of 2023 and 2024 and BurstGPT's as CSV, Mooncake's and Bailian's
    /// as JSON lines. Lines that are no requests are left out, and counted
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,

    /// The public address of the gateway
    #[arg(long, value_parser = base_url, required_unless_present = "embedded")]
    pub url: Option<Uri>,

    /// Starts a gateway with two mock workers in this process and replays
    /// against that; the mock engines are as much faster as the requests
    #[arg(long, conflicts_with = "url")]
    pub embedded: bool,

    /// How many times faster than in the trace requests arrive
    #[arg(long, default_value = "1", value_name = "X", value_parser = positive)]
    pub speedup: f64,

    /// Only the first N requests of the trace
    #[arg(long, value_name = "N", value_parser = whole(1..=usize::MAX))]
    pub limit: Option<usize>,

    /// The model that the requests are for
    #[arg(long, default_value = "tiny", value_parser = name)]
    pub model: String,

    /// The longest time to the first token of a good answer, in the time of
    /// the trace: it is divided by the speed-up
    #[arg(long, default_value = "2000", value_name = "MS", value_parser = positive)]
    pub ttft_ms: f64,

    /// The longest time per token after the first of a good answer, in the
    /// time of the trace
    #[arg(long, default_value = "100", value_name = "MS", value_parser = positive)]
    pub tpot_ms: f64,
}

impl ReplayArgs {
    /// Reads the trace.
    ///
    /// # Errors
    ///
    /// If there is no such file or it is no trace.
    pub fn load(&self) -> Result<Trace, UsageError> {
        let file = self.trace.display();
        let bad = |error: &dyn std::fmt::Display| {
            UsageError::new(
                "--trace",
                file.to_string(),
                format!("expected a trace: {error}"),
            )
        };
        let text = std::fs::read_to_string(&self.trace).map_err(|error| bad(&error))?;
        let mut trace = parse_trace(&text).map_err(|error| bad(&error))?;
        trace.arrivals.truncate(self.limit.unwrap_or(usize::MAX));
        Ok(trace)
    }

    /// The replay of `trace` against the gateway at `url`.
    pub fn replay(&self, trace: Trace, url: Uri) -> Replay {
        let objective = |ms: f64| Duration::try_from_secs_f64(ms / 1000.0).unwrap_or(Duration::MAX);
        Replay {
            arrivals: trace.arrivals,
            url,
            model: self.model.clone(),
            speedup: self.speedup,
            objectives: Objectives {
                first_token: objective(self.ttft_ms),
                per_token: objective(self.tpot_ms),
            },
        }
    }
}
