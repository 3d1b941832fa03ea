//! How the gateway chooses a worker, and what it knows of their load for that.

use super::{Upstream, worker::Tracker};
use clap::ValueEnum;
use tower_overload::{
    fleet::Id,
    front::Key,
    load::{WorkerCounts, WorkerLoad, WorkerMonitor, tracker::Cost},
    pool::{
        WorkerPoolBuilder,
        pick::{Affinity, LeastLoaded},
    },
};

/// How a worker is chosen among those that take requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Balance {
    /// The one with fewer requests, of two at random
    #[default]
    P2c,
    /// The one with the fewest requests of all
    LeastRequests,
    /// The one with the fewest prompt tokens in prefill of all
    LeastTokens,
    /// The one with the fewest KV blocks in use of all
    LeastBlocks,
    /// The same one for requests with the same --affinity-header, or else with
    /// the same head of the prompt, unless it is loaded above the others
    Affinity,
}

/// A count of a worker, and what a request adds to it.
#[derive(Clone, Copy)]
struct ByLoad {
    known: fn(&WorkerCounts) -> u64,
    of_request: fn(&Cost) -> u64,
}

impl Balance {
    fn by_load(self) -> Option<ByLoad> {
        match self {
            Self::P2c | Self::LeastRequests | Self::Affinity => None,
            Self::LeastTokens => Some(ByLoad {
                known: WorkerCounts::prefill_tokens,
                of_request: Cost::prefill_tokens,
            }),
            Self::LeastBlocks => Some(ByLoad {
                known: WorkerCounts::decode_blocks,
                of_request: Cost::prompt_blocks,
            }),
        }
    }

    /// Whether the prompts of requests have to be read for it.
    pub fn reads_prompts(self) -> bool {
        self == Self::Affinity || self.by_load().is_some()
    }
}

/// Who knows the load of the workers: the gateway itself, or what they report.
#[derive(Clone, Debug)]
pub struct Loads {
    monitor: WorkerMonitor<Id>,
    tracker: Option<Tracker>,
}

impl Loads {
    pub fn new(monitor: &WorkerMonitor<Id>, tracker: Option<&Tracker>) -> Self {
        Self {
            monitor: monitor.clone(),
            tracker: tracker.cloned(),
        }
    }

    /// Has the pool choose so.
    pub fn balance<P, C>(
        &self,
        balance: Balance,
        pool: WorkerPoolBuilder<Id, Upstream, P, C>,
    ) -> WorkerPoolBuilder<Id, Upstream, P, C> {
        if let Some(by) = balance.by_load() {
            let loads = self.clone();
            return pool
                .pick(LeastLoaded::of_all().by_load())
                .load(move |id: &Id| loads.of(id, by));
        }
        match balance {
            Balance::LeastRequests => pool.pick(LeastLoaded::of_all()),
            Balance::Affinity => pool.pick(Affinity::by(|request: &Upstream| {
                let key = request.extensions().get::<Key>();
                key.map(|key| key.0)
            })),
            Balance::P2c | Balance::LeastTokens | Balance::LeastBlocks => pool,
        }
    }

    fn of(&self, worker: &Id, by: ByLoad) -> Box<dyn WorkerLoad<Upstream>> {
        if let Some(tracker) = &self.tracker {
            return Box::new(tracker.counts(worker.clone()).by(by.known));
        }
        let counts = self.monitor.counts(worker.clone());
        Box::new(counts.by(by.known).and_sent(move |request: &Upstream| {
            let cost = request.extensions().get::<Cost>();
            cost.map_or(0, by.of_request)
        }))
    }
}
