//! The four curves: which layers are there, and what is behind them.

use crate::{
    gateway::{Gateway, GatewayConfig, Observer},
    workload::{REAL_TIME, Traffic},
};
use clap::ValueEnum;
use overload_examples::{engine::Timing, replay::Arrival, worker::WorkerConfig};
use std::{io, num::NonZeroUsize, rc::Rc, time::Duration};
use tower_overload::{admission::Limits, load::ThresholdUpdate};

/// Which layers are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A balancer, and workers that take whatever comes
    Nothing,
    /// The gateway keeps requests away from workers that report much load;
    /// the workers take whatever comes
    Filter,
    /// The workers take N requests and let Q wait; the gateway asks one, and
    /// after a refusal another, whatever it knows
    Cap,
    /// Both, and a worker that has refused is left alone for a while
    Both,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Filter => "filter only",
            Self::Cap => "cap only",
            Self::Both => "both",
        }
    }

    pub fn has_cap(self) -> bool {
        matches!(self, Self::Cap | Self::Both)
    }

    fn has_filter(self) -> bool {
        matches!(self, Self::Filter | Self::Both)
    }
}

pub const WORKERS: usize = 2;
const BLOCK: u64 = 16;
/// The share of the KV cache above which a worker is busy.
const THRESHOLD: f64 = 0.9;
/// A good answer is at most so many times slower per token than an engine that
/// is not full.
const SLOWER: f64 = 2.0;

/// A workload, and a fleet that is as fast as suits it.
#[derive(Clone, Debug)]
pub struct Setting {
    pub traffic: Rc<Traffic>,
    pub slots: usize,
    pub queue: usize,
    /// Requests a second that the engines serve when all slots are in use:
    /// workers × N / mean service time. Computed, not measured.
    pub capacity: f64,
    pub timing: Timing,
    /// How many times faster that is than [`REAL_TIME`].
    speedup: f64,
    mean_service: Duration,
    longest_prefill: Duration,
    kv_total_blocks: u64,
}

impl Setting {
    pub fn new(traffic: Rc<Traffic>, slots: usize, queue: usize, capacity: f64, seed: u64) -> Self {
        let in_real_time = traffic.mean_service_time();
        let mean_service = (WORKERS * slots) as f64 / capacity;
        let speedup = in_real_time / mean_service;
        let timing = Timing {
            prefill_tokens_per_second: REAL_TIME.prefill_tokens_per_second * speedup,
            decode_tokens_per_second: REAL_TIME.decode_tokens_per_second * speedup,
        };
        let longest = traffic.requests().iter();
        let longest = longest.map(|request| request.prompt_tokens).max();
        let in_cache = traffic.tokens_in_cache(slots, seed) / THRESHOLD;
        Self {
            slots,
            queue,
            capacity,
            mean_service: Duration::from_secs_f64(mean_service),
            longest_prefill: timing.token_after(longest.unwrap_or(0).into(), 0),
            kv_total_blocks: (in_cache / BLOCK as f64).ceil() as u64,
            timing,
            speedup,
            traffic,
        }
    }

    /// The requests of `duration` at `rate` a second on average.
    pub fn arrivals(&self, rate: f64, duration: Duration, seed: u64) -> Vec<Arrival> {
        self.traffic.arrivals(rate, duration, self.speedup, seed)
    }

    /// The latest first token of a good answer: one mean service time after an
    /// engine that is not full would have it.
    pub fn first_token_within(&self, request: &Arrival) -> Duration {
        self.timing.token_after(request.prompt_tokens.into(), 0) + self.mean_service
    }

    /// The longest time per token of a good answer.
    pub fn per_token_within(&self) -> Duration {
        Duration::from_secs_f64(SLOWER / self.timing.decode_tokens_per_second)
    }

    /// From the first request until what is measured is a steady state: all
    /// slots have been in use several times.
    pub fn warm_up(&self) -> Duration {
        (self.mean_service * 5 / 2).max(Duration::from_millis(300))
    }

    /// From the last request until nothing that has no first token yet can
    /// become good.
    pub fn patience(&self) -> Duration {
        self.longest_prefill + self.mean_service
    }

    /// At most; a point ends earlier if all of its requests have.
    pub fn duration(&self, window: Duration) -> Duration {
        self.warm_up() + window + self.patience()
    }

    pub async fn start(&self, mode: Mode, observer: Observer) -> io::Result<Gateway> {
        Gateway::start(GatewayConfig {
            observer: Some(observer),
            ..self.config(mode, WORKERS)?
        })
        .await
    }

    /// A gateway with so many workers in it.
    pub fn config(&self, mode: Mode, workers: usize) -> io::Result<GatewayConfig> {
        let default = GatewayConfig::default();
        Ok(GatewayConfig {
            embedded_workers: Some(workers),
            embedded: self.worker(mode)?,
            thresholds: if mode.has_filter() {
                ThresholdUpdate::new().active_decode_blocks(THRESHOLD)
            } else {
                ThresholdUpdate::new()
            },
            lease: if mode == Mode::Both {
                default.lease
            } else {
                Duration::ZERO
            },
            ..default
        })
    }

    /// Each of its workers.
    pub fn worker(&self, mode: Mode) -> io::Result<WorkerConfig> {
        let limits = if mode.has_cap() {
            Some(Limits::new(self.slots, self.queue).map_err(io::Error::other)?)
        } else {
            None
        };
        Ok(WorkerConfig {
            limits,
            timing: self.timing,
            batch: NonZeroUsize::new(self.slots),
            stream_interval: self.traffic.workload.stream_interval(),
            kv_total_blocks: self.kv_total_blocks,
            ..WorkerConfig::default()
        })
    }
}
