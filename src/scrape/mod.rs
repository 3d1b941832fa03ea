//! Load of stock engines: their own Prometheus metrics, read again and again.
//!
//! vLLM and SGLang know nothing of this crate, and tell how loaded they are on
//! `/metrics` all the same. A [`Poller`] asks one worker for it at an interval
//! and yields an [`EngineReport`] each time, which becomes the worker's
//! configuration and its load events:
//!
//! ```
//! use futures::StreamExt;
//! use http::{Request, Response};
//! use http_body_util::{Empty, Full};
//! use bytes::Bytes;
//! use std::{convert::Infallible, pin::pin};
//! use tower::service_fn;
//! use tower_overload::{
//!     busy::BusySet,
//!     load::{ThresholdUpdate, WorkerConfig, WorkerMonitor},
//!     scrape::{PollerBuilder, WaitingTokens},
//! };
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (monitor, thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
//! thresholds.update(ThresholdUpdate::new().active_decode_blocks(0.85))?;
//!
//! // In real life, an HTTP client that does not follow redirections.
//! let client = service_fn(|_: Request<Empty<Bytes>>| async {
//!     Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(
//!         "vllm:kv_cache_usage_perc{engine=\"0\"} 0.9\n\
//!          vllm:kv_cache_usage_perc{engine=\"1\"} 0.86\n\
//!          vllm:cache_config_info{engine=\"0\",num_gpu_blocks=\"4096\"} 1.0\n",
//!     ))))
//! });
//! let uri = "http://10.0.0.1:8000/metrics".parse()?;
//! let mut reports = pin!(PollerBuilder::default().worker("worker-0").build(client, uri)?);
//!
//! // What the application knows of the worker; here, nothing but its batch.
//! let known = WorkerConfig::new([0])?.max_num_batched_tokens(8192);
//! let mut configured = None;
//! # let mut scrapes = 0;
//! while let Some(report) = reports.next().await {
//!     // A scrape that failed is silence: what was reported before it ages.
//!     let Ok(report) = report else { continue };
//!     let config = report.complete_with_ranks(known.clone());
//!     if configured.as_ref() != Some(&config) {
//!         monitor.configure("worker-0", config.clone(), ["tiny"])?;
//!         configured = Some(config.clone());
//!     }
//!     monitor.observe_all(&report.loads(&"worker-0", &config, WaitingTokens::default()));
//! #   scrapes += 1;
//! #   if scrapes == 2 { break }
//! }
//! assert!(monitor.snapshot()[0].is_busy(), "both of its ranks are above 0.85");
//! # Ok(())
//! # }
//! ```
//!
//! Drop the poller before the worker is removed from the monitor, or a report
//! that comes late configures it anew. A worker that reports its load by
//! other means as well needs no poller: both report `kv_used_blocks` and
//! `active_prefill_tokens`, and the later of the two would count.
//!
//! # What is read
//!
//! | of | vLLM | SGLang |
//! |---|---|---|
//! | KV cache in use, from 0 to 1 | `vllm:kv_cache_usage_perc`, else `vllm:gpu_cache_usage_perc` | `sglang:token_usage`; `sglang:num_used_tokens` / `sglang:max_total_num_tokens` where that is the same share, not rounded |
//! | blocks of a rank | `num_gpu_blocks` of `vllm:cache_config_info` | `sglang:num_pages`, else `sglang:max_total_num_tokens` / `sglang:page_size` |
//! | waiting requests | `vllm:num_requests_waiting` | `sglang:num_queue_reqs` |
//! | running requests | `vllm:num_requests_running` | `sglang:num_running_reqs` |
//! | tokens of a prompt, on average | `vllm:request_prompt_tokens` (sum / count) | `sglang:prompt_tokens_histogram` (sum / count), else `sglang:prompt_tokens_total` / `sglang:num_requests_total` |
//! | rank | label `engine` | label `dp_rank` |
//!
//! An underscore in place of the colon is understood. A sample without the
//! rank's label is of rank 0; `tp_rank`, `pp_rank`, `priority` and other labels
//! tell views of one scheduler apart, of which the largest counts.
//!
//! Which version exports what:
//!
//! | engine | version | |
//! |---|---|---|
//! | vLLM | V0 engine | `gpu_cache_usage_perc`; no `engine` label |
//! | vLLM | V1 engine, up to 0.9 | `gpu_cache_usage_perc`; `engine` on the gauges |
//! | vLLM | 0.10 | both names of the usage |
//! | vLLM | 0.12 and later | `kv_cache_usage_perc` only, which 0.11 does by default |
//! | SGLang | 0.4 | `token_usage`, `num_used_tokens`; `model_name` is the only label |
//! | SGLang | 0.5 | also `max_total_num_tokens` and, in later ones, `num_pages` and `page_size`; `tp_rank`, `pp_rank`, and `dp_rank` with data parallelism |
//!
//! SGLang needs `--enable-metrics`; without it there is no `/metrics`. Its
//! `/v1/loads?format=prometheus`, which needs no option, is understood too.
//! vLLM with `--disable-log-stats` has a `/metrics` without these: such a
//! scrape fails.
//!
//! # How it becomes load
//!
//! - *Blocks.* Engines export a share, and thresholds are on a share. It
//!   becomes `kv_used_blocks` of the worker's `kv_total_blocks`: of those that
//!   the application has configured, else of the engine's own, else of
//!   [`STAND_IN_BLOCKS`]. The largest error is half a block.
//! - *Waiting requests* are no tokens. They become `active_prefill_tokens` as
//!   [`WaitingTokens`] says; prompts that are in prefill already are not
//!   exported and not counted. If that is not what the thresholds are meant
//!   for, use [`WaitingTokens::Ignored`] and leave the prefill checks off.
//! - *Anything that cannot be*, such as a share of NaN or 1.2 or a negative
//!   count, is absent and counted. It never becomes another figure, and the
//!   other figures of the text stand.
//!
//! # What a worker can do to the gateway
//!
//! It chooses the answer, so nothing in it is trusted: the body is bounded in
//! size and time, only ranks below
//! [`MAX_RANKS`](crate::load::WorkerConfig::MAX_RANKS) are read, so that there
//! are no more of them in all, and a text is of the worker that was asked,
//! whatever it says.
//!
//! # Metrics
//!
//! `…_frontend_scrapes_total{outcome}` and
//! `…_frontend_scrape_values_ignored_total`, for all workers together; see
//! [`ScrapeError::as_str`].

mod engine;
mod error;
mod poller;
mod text;

pub use engine::{
    Engine, EngineReport, RankReport, STAND_IN_BLOCKS, UnreadableMetrics, WaitingTokens,
};
pub use error::{InvalidPoller, ScrapeError};
pub use poller::{Poller, PollerBuilder};
