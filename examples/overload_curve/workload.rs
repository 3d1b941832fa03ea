//! What is sent: requests of random or recorded lengths, at random or recorded
//! times.

use clap::ValueEnum;
use overload_examples::{
    cli::UsageError,
    engine::Timing,
    replay::{Arrival, parse_trace},
};
use std::{fs, num::NonZeroU32, path::Path, time::Duration};

/// Where requests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Poisson arrivals; prompts of 2,048 tokens on average, exponentially up
    /// to 8,192, and answers of 14 to 42, uniformly: close to the Azure trace,
    /// but for its rare long answers
    Poisson,
    /// Arrivals and lengths of Azure's code completion trace
    Azure,
    /// Arrivals and lengths of Mooncake's conversation trace
    Mooncake,
    /// Those of the trace in --trace
    Trace,
}

impl Workload {
    pub fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Azure => "azure",
            Self::Mooncake => "mooncake",
            Self::Trace => "trace",
        }
    }

    /// How many tokens of an answer come at a time: an event for every token of
    /// the long ones would make this a benchmark of sockets.
    pub fn stream_interval(self) -> NonZeroU32 {
        let tokens = match self {
            Self::Poisson | Self::Azure | Self::Trace => 4,
            Self::Mooncake => 32,
        };
        NonZeroU32::new(tokens).expect("none is 0")
    }
}

/// The speed of an engine in the time of the traces.
pub const REAL_TIME: Timing = Timing {
    prefill_tokens_per_second: 8000.0,
    decode_tokens_per_second: 50.0,
};

/// How long an engine that is not full takes for a request.
pub fn service_time(timing: &Timing, request: &Arrival) -> Duration {
    let last = request.generated_tokens.saturating_sub(1);
    timing.token_after(request.prompt_tokens.into(), last.into())
}

/// Requests in the order of their arrival, without end.
#[derive(Debug)]
pub struct Traffic {
    pub workload: Workload,
    /// For the random workload only their lengths matter.
    requests: Vec<Arrival>,
}

fn read(option: &'static str, file: &Path) -> Result<Vec<Arrival>, UsageError> {
    let bad = |error: String| UsageError::new(option, file.display(), error);
    let text = fs::read_to_string(file).map_err(|error| bad(error.to_string()))?;
    let trace = parse_trace(&text).map_err(|error| bad(error.to_string()))?;
    if let Some(left_out) = &trace.left_out {
        eprintln!("{}: {left_out}", file.display());
    }
    Ok(trace.arrivals)
}

impl Traffic {
    /// The requests of `workload`: random ones, or those of a trace that is
    /// among `data` or is `trace`. Says on stderr what it leaves out of it.
    pub fn load(
        workload: Workload,
        data: &Path,
        trace: Option<&Path>,
        seed: u64,
    ) -> Result<Self, UsageError> {
        let requests = match (workload, trace) {
            (Workload::Poisson, _) => random_lengths(&mut Random::new(seed)),
            (Workload::Azure, _) => read("--data", &data.join("azure_code_2023.csv"))?,
            (Workload::Mooncake, _) => {
                read("--data", &data.join("mooncake_conversation_timing.csv"))?
            }
            (Workload::Trace, Some(trace)) => read("--trace", trace)?,
            (Workload::Trace, None) => {
                return Err(UsageError::new(
                    "--workloads",
                    "trace",
                    "expected a --trace",
                ));
            }
        };
        Ok(Self { workload, requests })
    }

    pub fn requests(&self) -> &[Arrival] {
        &self.requests
    }

    /// The mean service time, in the time of the traces.
    pub fn mean_service_time(&self) -> f64 {
        let times = self.requests.iter();
        let sum: f64 = times
            .map(|request| service_time(&REAL_TIME, request).as_secs_f64())
            .sum();
        sum / self.requests.len() as f64
    }

    /// The requests of `duration` at `rate` a second on average, for engines
    /// that are `speedup` times as fast as in the time of the traces.
    ///
    /// A trace is sped up as the engines are, and as many copies of it as the
    /// rate takes begin at random times of it: more users, and not a faster
    /// clock, so that its bursts stay as long as they were beside a request.
    pub fn arrivals(&self, rate: f64, duration: Duration, speedup: f64, seed: u64) -> Vec<Arrival> {
        let mut random = Random::new(seed);
        let arrivals = if self.workload == Workload::Poisson {
            let mut requests = self.requests.iter().cycle();
            let mut at = 0.0;
            std::iter::from_fn(|| {
                at += random.exponential() / rate;
                let request = requests.next().filter(|_| at < duration.as_secs_f64())?;
                Some((at, *request))
            })
            .collect()
        } else {
            let count = (rate * duration.as_secs_f64()).ceil() as usize;
            self.copies(rate / speedup, count, &mut random)
        };
        // What is left after whole copies is made up for by the clock.
        let scale = match arrivals.last() {
            Some((last, _)) if self.workload != Workload::Poisson => {
                duration.as_secs_f64() / last.max(f64::MIN_POSITIVE)
            }
            _ => 1.0,
        };
        arrivals
            .into_iter()
            .map(|(at, request)| Arrival {
                at: Duration::from_secs_f64(at * scale),
                ..request
            })
            .collect()
    }

    /// The first `count` requests, in the time of the trace, of as many copies
    /// as have at least `rate`.
    fn copies(&self, rate: f64, count: usize, random: &mut Random) -> Vec<(f64, Arrival)> {
        let len = self.requests.len();
        let times: Vec<f64> = self.requests.iter().map(|r| r.at.as_secs_f64()).collect();
        // A copy begins again after a gap as long as others.
        let span = times[len - 1] * (1.0 + 1.0 / len as f64);
        let copies = (rate * span / len as f64).ceil().max(1.0) as usize;
        // Enough for one that begins with a burst.
        let each = (16 * count / copies).max(64).min(count);
        let mut arrivals: Vec<(f64, Arrival)> = (0..copies)
            .flat_map(|_| {
                let begin = random.unit() * span;
                let first = times.partition_point(|at| *at < begin);
                let (times, requests) = (&times, &self.requests);
                (first..first + each).map(move |n| {
                    let at = times[n % len] + span * (n / len) as f64;
                    (at - begin, requests[n % len])
                })
            })
            .collect();
        arrivals.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        arrivals.truncate(count);
        arrivals
    }

    /// The tokens that `slots` running requests have in the KV cache together,
    /// and do not exceed for 95 % of the time.
    pub fn tokens_in_cache(&self, slots: usize, seed: u64) -> f64 {
        const DRAWS: usize = 2000;
        let mut random = Random::new(seed);
        // Who looks at a random time sees a request the likelier the longer it
        // runs, halfway through its answer on average.
        let mut until = 0.0;
        let ends: Vec<f64> = self
            .requests
            .iter()
            .map(|request| {
                until += service_time(&REAL_TIME, request).as_secs_f64();
                until
            })
            .collect();
        let mut sums: Vec<f64> = (0..DRAWS)
            .map(|_| {
                (0..slots)
                    .map(|_| {
                        let at = random.unit() * until;
                        let drawn = ends.partition_point(|end| *end < at);
                        let request = self.requests[drawn.min(ends.len() - 1)];
                        f64::from(request.prompt_tokens) + f64::from(request.generated_tokens) / 2.0
                    })
                    .sum()
            })
            .collect();
        sums.sort_unstable_by(f64::total_cmp);
        sums[DRAWS * 95 / 100]
    }
}

fn random_lengths(random: &mut Random) -> Vec<Arrival> {
    (0..10_000)
        .map(|_| Arrival {
            at: Duration::ZERO,
            prompt_tokens: (2048.0 * random.exponential()).clamp(1.0, 8192.0) as u32,
            generated_tokens: 14 + (29.0 * random.unit()) as u32,
        })
        .collect()
}

/// SplitMix64: the same numbers for the same seed, on every machine and with
/// every version of anything.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 up to, and without, 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// With a mean of 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}
