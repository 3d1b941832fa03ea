//! What workers report about their load, and when they are busy.
//!
//! A request that is sent to a worker whose KV cache is nearly full, or whose
//! prefill queue is long, waits there while another worker idles. So workers
//! report their load, a [`WorkerMonitor`] compares it with the thresholds
//! that an operator has set, and marks those that are above them *busy* in a
//! [`BusySet`](crate::busy::BusySet), by which routing excludes them:
//!
//! ```
//! use tower_overload::{
//!     busy::BusySet,
//!     load::{LoadEvent, ThresholdUpdate, WorkerConfig, WorkerMonitor},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (monitor, thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
//! thresholds.update(ThresholdUpdate::new().active_decode_blocks(0.85))?;
//! monitor.configure_for_all("worker-0", WorkerConfig::new([0])?.kv_total_blocks(100));
//!
//! monitor.observe(LoadEvent::new("worker-0", 0).active_decode_blocks(85))?;
//! assert!(!monitor.snapshot()[0].is_busy(), "at the threshold is not above it");
//!
//! monitor.observe(LoadEvent::new("worker-0", 0).active_decode_blocks(86))?;
//! assert!(monitor.snapshot()[0].is_busy());
//! # Ok(())
//! # }
//! ```
//!
//! # When a worker is busy
//!
//! Every check is off until its threshold is set, and comparisons are strict.
//! A rank is busy when any check holds:
//!
//! | check | holds when |
//! |---|---|
//! | decode | blocks in use / `kv_total_blocks` > threshold |
//! | absolute prefill | `active_prefill_tokens` > threshold |
//! | fractional prefill | `active_prefill_tokens` > threshold × `max_num_batched_tokens` |
//!
//! and a worker when all its declared ranks are. Two counts of blocks exist,
//! `kv_used_blocks` (the worker's own) and `active_decode_blocks` (a
//! router's view): they come from different publishers, neither overwrites
//! the other, and either is enough. A rank that never reported is free. A
//! check whose capacity is unknown or 0 cannot hold.
//!
//! # What nobody reports
//!
//! An engine may have no telemetry, and reports of any arrive late. A gateway
//! can count the load of the requests that it has sent by itself, see
//! [`tracker`].
//!
//! # Evidence ages
//!
//! A count is good for 30 s after the event that reported it
//! ([`WorkerMonitorBuilder::stale_after`]). A stale count holds no check, and
//! a mark falls when its evidence does, by itself: a worker that falls silent
//! is eligible again.
//!
//! # Several models
//!
//! Load belongs to the worker, thresholds to the model: each model that a
//! worker serves judges it by its own, and marks it in its own set. See
//! [`WorkerMonitor::add_model`] and [`WorkerMonitor::configure`].
//!
//! # When changes take effect
//!
//! A threshold change is stored at once and takes effect, for all workers,
//! with the next load or configuration event of any worker that is not
//! dropped. That event costs one pass over all workers; any other event costs
//! the same however many workers there are. A configuration change judges its
//! worker at once.
//!
//! # What an operator sees
//!
//! - gauges of the counts of each worker and rank, 0 once the worker is gone;
//! - counters of the events that were accepted, and dropped by reason;
//! - per model and threshold, how many workers never gave a signal that could
//!   reach it, because they report nothing but zeros or no capacity is known;
//! - a `tracing` event at `INFO` for each worker that becomes busy or free, with
//!   the numbers of the rank that decided it. That evidence went stale is
//!   logged when the worker is judged next.
//!
//! # Panics
//!
//! Nothing here panics by itself. If a waker that a mark wakes does, the
//! panic reaches the caller, after every mark that had to change has changed;
//! it goes no further if the caller is unwinding already.

mod config;
mod counts;
mod drive;
mod events;
mod few;
mod follow;
mod gauges;
mod monitor;
mod rank;
mod schedule;
mod thresholds;
pub mod tracker;

pub use config::{InvalidWorkerConfig, WorkerConfig};
pub use counts::{LoadBy, WithSent, WorkerCounts, WorkerLoad};
pub use drive::Drive;
pub use events::{DropReason, LoadEvent};
#[cfg(feature = "nats")]
pub(crate) use follow::Counted;
pub use follow::Follow;
pub use monitor::{
    DEFAULT_STALE_AFTER, DuplicateModel, ModelVerdict, Observed, RankSnapshot, UnknownModel,
    WorkerMonitor, WorkerMonitorBuilder, WorkerSnapshot,
};
pub use schedule::ReportSchedule;
pub use thresholds::{
    Change, InvalidThreshold, ModelThresholds, ThresholdUpdate, Thresholds, ThresholdsHandle,
};
