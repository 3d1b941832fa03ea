use crate::cli::rate;
use clap::Args;
use std::time::Duration;

/// How fast each request is served; 0 is infinitely fast.
#[derive(Args, Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Prompt tokens a second of each request; 0 is infinitely fast
    #[arg(long, default_value = "8000", value_name = "RATE", value_parser = rate)]
    pub prefill_tokens_per_second: f64,

    /// Generated tokens a second of each request; 0 is infinitely fast
    #[arg(long, default_value = "50", value_name = "RATE", value_parser = rate)]
    pub decode_tokens_per_second: f64,
}

impl Timing {
    /// Everything at once.
    pub const INSTANT: Self = Self {
        prefill_tokens_per_second: 0.0,
        decode_tokens_per_second: 0.0,
    };

    /// How long after a request with `prompt_tokens` has entered the engine
    /// its `n`th token (from 0) is there. The prefill yields the first one.
    pub fn token_after(&self, prompt_tokens: u64, n: u64) -> Duration {
        time(prompt_tokens, self.prefill_tokens_per_second)
            .saturating_add(time(n, self.decode_tokens_per_second))
            .min(LONGEST)
    }
}

/// Longer than anybody waits, and short enough to be added to a clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn time(tokens: u64, per_second: f64) -> Duration {
    if per_second > 0.0 {
        Duration::try_from_secs_f64(tokens as f64 / per_second).unwrap_or(LONGEST)
    } else {
        Duration::ZERO
    }
}
