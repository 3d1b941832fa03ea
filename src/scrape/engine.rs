use super::text::Sample;
use crate::load::{LoadEvent, WorkerConfig};
use std::{collections::BTreeMap, fmt};

/// The blocks that stand for 100 % where an engine does not tell how many it
/// has. Shares are exact to a hundredth of a percent, which is finer than any
/// engine's own figure that comes without a count.
pub const STAND_IN_BLOCKS: u64 = 10_000;

/// Larger counts are no counts: this is as far as a sample, which is a
/// floating-point number, is exact.
const MAX_COUNT: u64 = 1 << 53;

/// How far two shares of one quantity can be apart when one of them is rounded
/// to two decimals.
const ROUNDED: f64 = 0.005 + 1e-9;

/// An inference engine whose metrics are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Engine {
    /// vLLM: `vllm:…`, ranks by the label `engine`.
    Vllm,
    /// SGLang: `sglang:…`, ranks by the label `dp_rank`.
    Sglang,
}

impl Engine {
    /// The engine's name: `vllm` or `sglang`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }

    const fn rank_label(self) -> &'static str {
        match self {
            Self::Vllm => "engine",
            Self::Sglang => "dp_rank",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What one text of metrics says of a worker. Pure: nothing here does I/O.
///
/// ```
/// use tower_overload::{
///     load::WorkerConfig,
///     scrape::{EngineReport, WaitingTokens},
/// };
///
/// let text = br#"
/// vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
/// vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0
/// vllm:request_prompt_tokens_sum{engine="0",model_name="tiny"} 5000.0
/// vllm:request_prompt_tokens_count{engine="0",model_name="tiny"} 10.0
/// vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="4096"} 1.0
/// "#;
/// let report = EngineReport::read(text)?;
///
/// // What the application knows stays; what it left open comes from the engine.
/// let config = report.complete(WorkerConfig::new([0])?.max_num_batched_tokens(8192));
/// assert_eq!(report.kv_blocks(), Some(4096));
///
/// let loads = report.loads(&"worker-0", &config, WaitingTokens::default());
/// assert_eq!(loads[0].kv_used_blocks, Some(1024));
/// assert_eq!(loads[0].active_prefill_tokens, Some(1500), "3 waiting, 500 tokens each");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EngineReport {
    engine: Engine,
    /// At least one, ascending, and below [`WorkerConfig::MAX_RANKS`].
    ranks: Vec<RankReport>,
    kv_blocks: Option<u64>,
    mean_prompt_tokens: Option<f64>,
    ignored: u64,
}

/// What one text of metrics says of one data-parallel rank. A figure that was
/// not there, or not a possible one, is `None`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RankReport {
    /// The data-parallel rank.
    pub dp_rank: u32,
    /// The share of the KV cache that is in use, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Requests that wait to be scheduled.
    pub waiting: Option<u64>,
    /// Requests that are being served.
    pub running: Option<u64>,
}

/// What a waiting request counts as in `active_prefill_tokens`.
///
/// Engines export how many requests wait, and thresholds are in prompt
/// tokens. What each request brings is not exported, so it has to be assumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitingTokens {
    /// As many tokens as the prompts that the engine has served had on
    /// average since it started, by its own figures. Until it has served one,
    /// the count is absent; with no request waiting it is 0.
    #[default]
    EngineMean,
    /// This many.
    Fixed(u64),
    /// Waiting requests are not reported: the prefill checks never hold by a
    /// scrape.
    Ignored,
}

/// A text from which no load can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnreadableMetrics {
    /// The last line has no end, so that its value may lack digits.
    Truncated,
    /// There is no metric in it by which an engine tells its load.
    UnknownEngine,
}

impl fmt::Display for UnreadableMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the metrics are cut off: the last line has no end",
            Self::UnknownEngine => {
                "there is no metric of an engine's load, expected those of vLLM or SGLang"
            }
        })
    }
}

impl std::error::Error for UnreadableMetrics {}

impl EngineReport {
    /// Reads a text of Prometheus' format.
    ///
    /// Lines of other metrics are passed over. A line that is not of the
    /// format, a value that is not a possible one and a rank that is not a
    /// number below [`WorkerConfig::MAX_RANKS`] are passed over as well and
    /// counted by [`ignored`](Self::ignored). The time this takes grows with
    /// the length of the text, the memory with the ranks.
    ///
    /// Engines number their ranks from 0. A gauge of a rank stays with the
    /// recorder when the rank is gone, so one that could have any number would
    /// let a worker fill the memory with ranks that are new each time.
    ///
    /// # Errors
    ///
    /// The text is cut off, or has no metric of an engine that is understood.
    pub fn read(text: &[u8]) -> Result<Self, UnreadableMetrics> {
        Self::read_by(text, None)
    }

    /// As [`read`](Self::read), with ranks told apart by this label instead of
    /// the engine's own.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_with_rank_label(text: &[u8], label: &str) -> Result<Self, UnreadableMetrics> {
        Self::read_by(text, Some(label))
    }

    pub(super) fn read_by(text: &[u8], label: Option<&str>) -> Result<Self, UnreadableMetrics> {
        if !text.is_empty() && !text.ends_with(b"\n") {
            return Err(UnreadableMetrics::Truncated);
        }
        let mut readings = [Reading::new(Engine::Vllm), Reading::new(Engine::Sglang)];
        let mut ignored = 0;
        for line in text.split(|byte| *byte == b'\n') {
            match Sample::read(line) {
                Ok(Some(sample)) => {
                    for reading in &mut readings {
                        reading.take(&sample, label);
                    }
                }
                Ok(None) => {}
                Err(_) => ignored += 1,
            }
        }
        let reading = readings.into_iter().find(|it| !it.ranks.is_empty());
        let mut report = reading.ok_or(UnreadableMetrics::UnknownEngine)?.report();
        report.ignored += ignored;
        Ok(report)
    }

    /// The engine that wrote the text. Should there be metrics of several,
    /// it is vLLM.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Its data-parallel ranks, ascending; there is at least one.
    pub fn ranks(&self) -> &[RankReport] {
        &self.ranks
    }

    /// The KV blocks of a rank, as the engine tells it; of ranks that differ,
    /// the most. For SGLang these are pages, or tokens if it does not tell the
    /// size of its pages.
    pub fn kv_blocks(&self) -> Option<u64> {
        self.kv_blocks
    }

    /// The tokens of a prompt that the engine has served, on average.
    pub fn mean_prompt_tokens(&self) -> Option<f64> {
        self.mean_prompt_tokens
    }

    /// How many lines and values were passed over because they could not be
    /// read or were not possible.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// The configuration that the application has of the worker, with what it
    /// leaves open filled in: the blocks of a rank, which are
    /// [`STAND_IN_BLOCKS`] if the engine does not tell.
    #[must_use]
    pub fn complete(&self, config: WorkerConfig) -> WorkerConfig {
        match config.given() {
            (Some(_), _) => config,
            (None, _) => config.kv_total_blocks(self.kv_blocks.unwrap_or(STAND_IN_BLOCKS)),
        }
    }

    /// As [`complete`](Self::complete), with the ranks that the metrics have
    /// in place of those of `config`: for a worker of which the application
    /// does not know them.
    #[must_use]
    pub fn complete_with_ranks(&self, config: WorkerConfig) -> WorkerConfig {
        let ranks = self.ranks.iter().map(|rank| rank.dp_rank);
        self.complete(config.with_ranks(ranks.collect()))
    }

    /// The loads of the ranks, for a worker that is configured as `config`.
    ///
    /// The share of the cache in use becomes `kv_used_blocks` of the blocks in
    /// `config`, to the nearest block, so that the share that a threshold is
    /// compared with is the engine's to within half a block, and exactly the
    /// engine's where that is a whole number of blocks. The worker is who the
    /// application says; nothing in a text can name another.
    pub fn loads<K: Clone>(
        &self,
        worker: &K,
        config: &WorkerConfig,
        waiting: WaitingTokens,
    ) -> Vec<LoadEvent<K>> {
        let blocks = config.given().0.filter(|blocks| *blocks > 0);
        let blocks = blocks.unwrap_or(STAND_IN_BLOCKS);
        let used = |usage: f64| (usage * blocks as f64).round() as u64;
        let loads = self.ranks.iter().map(|rank| {
            LoadEvent::new(worker.clone(), rank.dp_rank)
                .kv_used_blocks(rank.kv_usage.map(used))
                .active_prefill_tokens(rank.waiting.and_then(|n| self.tokens(n, waiting)))
        });
        loads.collect()
    }

    /// The tokens that `n` waiting requests stand for.
    fn tokens(&self, n: u64, waiting: WaitingTokens) -> Option<u64> {
        match waiting {
            WaitingTokens::EngineMean if n == 0 => Some(0),
            WaitingTokens::EngineMean => {
                let tokens = self.mean_prompt_tokens? * n as f64;
                (tokens <= MAX_COUNT as f64).then_some(tokens.round() as u64)
            }
            WaitingTokens::Fixed(each) => Some(n.saturating_mul(each)),
            WaitingTokens::Ignored => None,
        }
    }
}

/// The samples of one engine, as they come.
struct Reading {
    engine: Engine,
    ranks: BTreeMap<u32, RankReading>,
    blocks: Option<u64>,
    pages: Option<u64>,
    page_size: Option<u64>,
    capacity_tokens: Option<u64>,
    /// Of the histogram of prompts, then of the two counters.
    prompts: [Mean; 2],
    ignored: u64,
}

#[derive(Default)]
struct RankReading {
    usage: Option<f64>,
    older_usage: Option<f64>,
    used_tokens: Option<u64>,
    capacity_tokens: Option<u64>,
    waiting: Option<u64>,
    running: Option<u64>,
}

#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    /// A value that is not finite spoils it, as it should.
    fn get(self) -> Option<f64> {
        let mean = self.sum / self.count;
        (self.count > 0.0 && (0.0..=MAX_COUNT as f64).contains(&mean)).then_some(mean)
    }
}

impl Reading {
    fn new(engine: Engine) -> Self {
        Self {
            engine,
            ranks: BTreeMap::new(),
            blocks: None,
            pages: None,
            page_size: None,
            capacity_tokens: None,
            prompts: [Mean::default(); 2],
            ignored: 0,
        }
    }

    /// Several samples of one name and rank are tensor-parallel or pipeline
    /// ranks, priorities or processes that show the same scheduler, so the
    /// largest counts and they are never added up.
    fn take(&mut self, sample: &Sample<'_>, label: Option<&str>) {
        let Some(rest) = sample.name.strip_prefix(self.engine.as_str()) else {
            return;
        };
        // Where colons are not allowed, exporters write underscores.
        let Some(name) = rest.strip_prefix([':', '_']) else {
            return;
        };
        let value = sample.value;
        match (self.engine, name) {
            (Engine::Vllm, "kv_cache_usage_perc") | (Engine::Sglang, "token_usage") => {
                self.rank(sample, label, share(value), |rank| &mut rank.usage);
            }
            (Engine::Vllm, "gpu_cache_usage_perc") => {
                self.rank(sample, label, share(value), |rank| &mut rank.older_usage);
            }
            (Engine::Vllm, "num_requests_waiting")
            | (Engine::Sglang, "num_queue_reqs" | "num_waiting_reqs") => {
                self.rank(sample, label, count(value), |rank| &mut rank.waiting);
            }
            (Engine::Vllm, "num_requests_running") | (Engine::Sglang, "num_running_reqs") => {
                self.rank(sample, label, count(value), |rank| &mut rank.running);
            }
            (Engine::Sglang, "num_used_tokens") => {
                self.rank(sample, label, count(value), |rank| &mut rank.used_tokens);
            }
            (Engine::Sglang, "max_total_num_tokens") => {
                // 0 until the engine is ready.
                let tokens = count(value).filter(|tokens| *tokens > 0);
                self.rank(sample, label, tokens, |rank| &mut rank.capacity_tokens);
                raise(&mut self.capacity_tokens, tokens);
            }
            (Engine::Sglang, "num_pages") => self.capacity(count(value), |it| &mut it.pages),
            (Engine::Sglang, "page_size") => self.capacity(count(value), |it| &mut it.page_size),
            (Engine::Vllm, "cache_config_info") => {
                // `None` until the engine has counted them.
                let blocks = sample.label("num_gpu_blocks").filter(|it| it != "None");
                if let Some(blocks) = blocks {
                    let blocks = blocks.parse().ok().filter(|blocks| *blocks <= MAX_COUNT);
                    self.capacity(blocks, |it| &mut it.blocks);
                }
            }
            (Engine::Vllm, "request_prompt_tokens_sum")
            | (Engine::Sglang, "prompt_tokens_histogram_sum") => self.prompts[0].sum += value,
            (Engine::Vllm, "request_prompt_tokens_count")
            | (Engine::Sglang, "prompt_tokens_histogram_count") => self.prompts[0].count += value,
            (Engine::Sglang, "prompt_tokens_total") => self.prompts[1].sum += value,
            (Engine::Sglang, "num_requests_total") => self.prompts[1].count += value,
            _ => {}
        }
    }

    fn rank<T: PartialOrd>(
        &mut self,
        sample: &Sample<'_>,
        label: Option<&str>,
        value: Option<T>,
        slot: impl FnOnce(&mut RankReading) -> &mut Option<T>,
    ) {
        let label = sample.label(label.unwrap_or(self.engine.rank_label()));
        let dp_rank = match label.as_deref() {
            None => Ok(0),
            // No sign: `parse` would take one.
            Some(text) if text.starts_with('+') => Err(()),
            Some(text) => text.parse::<u32>().map_err(|_| ()),
        };
        match dp_rank {
            Ok(dp_rank) if (dp_rank as usize) < WorkerConfig::MAX_RANKS => {
                self.ignored += u64::from(value.is_none());
                raise(slot(self.ranks.entry(dp_rank).or_default()), value);
            }
            _ => self.ignored += 1,
        }
    }

    fn capacity(&mut self, value: Option<u64>, slot: impl FnOnce(&mut Self) -> &mut Option<u64>) {
        match value {
            // 0 until the engine is ready.
            Some(0) => {}
            Some(_) => raise(slot(self), value),
            None => self.ignored += 1,
        }
    }

    fn report(self) -> EngineReport {
        let pages = || {
            let tokens = self.capacity_tokens?;
            Some((tokens / self.page_size.unwrap_or(1)).max(1))
        };
        let ranks = self.ranks.iter().map(|(dp_rank, rank)| RankReport {
            dp_rank: *dp_rank,
            kv_usage: rank.usage(),
            waiting: rank.waiting,
            running: rank.running,
        });
        EngineReport {
            engine: self.engine,
            ranks: ranks.collect(),
            kv_blocks: self.blocks.or(self.pages).or_else(pages),
            mean_prompt_tokens: self.prompts.into_iter().find_map(Mean::get),
            ignored: self.ignored,
        }
    }
}

impl RankReading {
    /// SGLang rounds its share to two decimals, and tells the two counts that
    /// it is the quotient of, unless another pool than the one of tokens is
    /// fuller: the quotient is taken if it is the same share.
    fn usage(&self) -> Option<f64> {
        let usage = self.usage.or(self.older_usage);
        let exact = match (self.used_tokens, self.capacity_tokens) {
            (Some(used), Some(capacity)) => share(used as f64 / capacity as f64),
            _ => None,
        };
        match (usage, exact) {
            (Some(usage), Some(exact)) if (usage - exact).abs() > ROUNDED => Some(usage),
            (usage, exact) => exact.or(usage),
        }
    }
}

fn share(value: f64) -> Option<f64> {
    (0.0..=1.0).contains(&value).then_some(value)
}

fn count(value: f64) -> Option<u64> {
    let is_count = (0.0..=MAX_COUNT as f64).contains(&value) && value.fract() == 0.0;
    is_count.then_some(value as u64)
}

fn raise<T: PartialOrd>(slot: &mut Option<T>, value: Option<T>) {
    if value > *slot {
        *slot = value;
    }
}
