//! What a gateway knows of its workers' load by itself: the requests that it
//! has sent them.
//!
//! Load events arrive late and, from an engine without telemetry, never: a
//! burst of long prompts is dispatched before the first report says that the
//! worker was full after two of them. A [`LoadTracker`] counts instead. Its
//! [layer](LoadTracker::layer) goes around the client of each worker, and a
//! cost function of the application says what a request costs:
//!
//! | count | from | to |
//! |---|---|---|
//! | `active_prefill_tokens` | dispatch | the first token of a [stream of events](crate::sse), or the first frame of another body |
//! | `active_decode_blocks`: the prompt's | dispatch | the end of the body |
//! | `active_decode_blocks`: the output's, if [they are tracked](LoadTracker::track_output_blocks) | each token that begins a block | the end of the body |
//!
//! The sums go to the [`WorkerMonitor`] at once, so a worker is marked busy
//! before the next request is routed:
//!
//! ```
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use std::{convert::Infallible, num::NonZeroU64};
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_overload::{
//!     busy::BusySet,
//!     load::{ThresholdUpdate, WorkerConfig, WorkerMonitor, tracker::{Cost, LoadTracker}},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_overload::BoxError> {
//! let (monitor, thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
//! thresholds.update(ThresholdUpdate::new().active_prefill_tokens(1000))?;
//! monitor.configure_for_all("worker-0", WorkerConfig::new([0])?);
//!
//! let block_size = NonZeroU64::new(16).expect("it is not 0");
//! let tracker = LoadTracker::new(monitor.clone(), move |request: &Request<String>| {
//!     Cost::of_prompt(request.body().split_whitespace().count() as u64, block_size)
//! });
//! let mut client = ServiceBuilder::new()
//!     .layer(tracker.layer("worker-0"))
//!     .service_fn(|_: Request<String>| async {
//!         Ok::<_, Infallible>(Response::new(Full::new(bytes::Bytes::from("tokens"))))
//!     });
//!
//! let request = Request::new("word ".repeat(2000));
//! let response = client.ready().await?.call(request);
//! assert!(monitor.snapshot()[0].is_busy(), "from its dispatch");
//! let mut body = response.await?.into_body();
//! assert!(monitor.snapshot()[0].is_busy(), "the head says nothing");
//! body.frame().await;
//! assert!(!monitor.snapshot()[0].is_busy(), "there is the first token");
//! # Ok(())
//! # }
//! ```
//!
//! # Where it goes
//!
//! Inside of the balanced set, around the client of each worker: then a
//! request that is sent again is counted on the worker that it was sent to,
//! and only there. A layer above the balancer does not know the worker.
//!
//! # When a request is over
//!
//! When its body has ended, has failed or was dropped; when the response is
//! an error by its status (4xx, 5xx), of which the body is no output; when
//! the service fails; when the response future is dropped; when the service
//! panics. Whichever comes first takes off exactly what the request has
//! added, once, however large that was: the sums are exact, and the largest
//! number is reported for those that are larger.
//!
//! # Ranks
//!
//! The worker puts a request on one of its data-parallel ranks, and unless
//! the [cost](Cost::on_rank) says which one, that is not known here. It is
//! counted on the least loaded one of [those that are
//! declared](TrackLoadLayer::ranks), rank 0 by default, which is what a worker
//! does that balances its ranks. One that does not is shown more even than it
//! is.
//!
//! It stays on that rank to its end. While the worker's configuration does not
//! have the rank, its reports are dropped and counted by the monitor.
//!
//! # Evidence ages
//!
//! A monitor forgets what was reported 30 s ago, and a request may run for
//! longer without a change to report. [`LoadTracker::keep_fresh`] reports what
//! still runs in time.
//!
//! A worker may also leave the monitor and come back, with requests of ours
//! still running: the next report says all of them, and
//! [`LoadTracker::report`] makes one at once. If it is another worker that
//! comes under the same id, [`LoadTracker::hand_over`] first says so: what runs
//! on the one before is not its load. Reports about a worker that the monitor
//! does not know are dropped and counted there.
//!
//! # What it costs you
//!
//! * It is one gateway's view. With several, each sees its own requests, so a
//!   worker's own reports and its cap remain what protects it from their sum.
//! * A cost is an estimate: what the engine has cached, evicts or
//!   preempts is not seen. The output is not known before it comes.
//! * **The last writer wins.** `active_decode_blocks` and
//!   `active_prefill_tokens` are reported beside the worker's own
//!   `kv_used_blocks`, which is never touched. If the worker reports the same
//!   two counts, reports overwrite each other: take them off its events.
//! * A request takes a lock of its own worker three times (dispatch, first
//!   frame, end) and the monitor's as often; more only when the output
//!   takes another block. Nothing is allocated for it, but for an answer that
//!   is a stream of events what [reading it](crate::sse) takes. It is read to
//!   its first token; further only if the blocks of the output count.
//!
//! # Panics
//!
//! Nothing here panics by itself, except [`KeepFresh`] where there is no
//! timer. If a waker that a mark wakes does, the panic reaches the caller when
//! everything is counted and reported; it goes no further if the caller is
//! unwinding already. A cost function that panics has counted nothing.

mod account;
mod cost;
mod fresh;
mod future;
mod layer;
mod output;
mod report;
mod service;
mod worker;

#[cfg(all(test, not(tower_overload_loom)))]
mod tests;

pub use cost::Cost;
pub use fresh::KeepFresh;
pub use future::ResponseFuture;
pub use layer::TrackLoadLayer;
pub use output::{Frames, OneToken, OutputTokens, StreamTokens};
pub use service::TrackLoad;
pub use worker::Tracked;

use super::{WorkerCounts, WorkerMonitor};
use crate::{WorkerId, unwind::FirstPanic};
use account::Account;
use std::{fmt, num::NonZeroU64, sync::Arc};
use worker::Fleet;

/// Counts the load of workers by the requests that are sent to them, and
/// reports it to a [`WorkerMonitor`]. See the [module](self) for what counts
/// and for how long.
///
/// A handle: clones count the same workers. `C` is the cost of a request, a
/// `Fn(&R) -> Cost`, and `T` the tokens of a frame, an [`OutputTokens`].
pub struct LoadTracker<K, C, T = StreamTokens> {
    fleet: Arc<Fleet<K>>,
    cost: C,
    frames: Frames<T>,
}

impl<K, C> LoadTracker<K, C> {
    /// Reports to `monitor`. `cost` is called with each request, before it is
    /// dispatched.
    pub fn new(monitor: WorkerMonitor<K>, cost: C) -> Self {
        Self {
            fleet: Arc::new(Fleet::new(monitor)),
            cost,
            frames: Frames::untracked(),
        }
    }
}

impl<K, C, T> LoadTracker<K, C, T> {
    /// Counts the blocks of the output as well, as it streams (default: those
    /// of the prompt only).
    ///
    /// The output first fills the last block of the prompt, if the cost says
    /// that there is room ([`Cost::of_prompt`]), and then takes one more for
    /// each `block_size` tokens. Give the block size of the cost, or the first
    /// of them is counted early or late.
    #[must_use]
    pub fn track_output_blocks(mut self, block_size: NonZeroU64) -> Self {
        self.frames.block_size = Some(block_size);
        self
    }

    /// How many tokens a frame of a response carries: an [`OutputTokens`], of
    /// which each response gets a clone. Without it they are
    /// [`StreamTokens`]: what the events of a stream say, and of another body
    /// each data frame is one token.
    ///
    /// Only asked with [`track_output_blocks`](Self::track_output_blocks), or
    /// until the prefill is over.
    #[must_use]
    pub fn output_tokens<U>(self, tokens: U) -> LoadTracker<K, C, U> {
        LoadTracker {
            fleet: self.fleet,
            cost: self.cost,
            frames: self.frames.counting(tokens),
        }
    }
}

impl<K, C, T> LoadTracker<K, C, T>
where
    K: WorkerId,
    C: Clone,
    T: Clone,
{
    /// The layer for the client of one worker. All layers for the same worker
    /// count together.
    ///
    /// The worker is forgotten when none of its layers, services and requests
    /// is left.
    pub fn layer(&self, worker: K) -> TrackLoadLayer<C, T> {
        let worker = self.fleet.join(worker);
        TrackLoadLayer::new(worker, self.cost.clone(), self.frames.clone())
    }
}

impl<K: WorkerId, C, T> LoadTracker<K, C, T> {
    /// The counts of a worker, at any time: what runs on it now, a request that
    /// is being sent included. To choose workers by.
    ///
    /// The worker is tracked while the handle lives.
    pub fn counts(&self, worker: K) -> WorkerCounts {
        let worker = self.fleet.join(worker);
        worker.counts().clone().owned_by(Arc::new(worker))
    }

    /// Whether anything of the worker is there: a layer, a service, a request
    /// or a handle.
    pub(crate) fn has(&self, worker: &K) -> bool {
        self.fleet.get(worker).is_some()
    }

    /// Reports again what runs on a worker, such as after the monitor has
    /// forgotten it. Without running requests there is nothing to report.
    pub fn report(&self, worker: &K) {
        if let Some(worker) = self.fleet.get(worker) {
            let mut panic = FirstPanic::default();
            worker::refresh(&*worker, &mut panic);
            panic.resume();
        }
    }

    /// Another worker has this id from now on, such as one at another address:
    /// what runs on the one before counts no more, and its end takes nothing
    /// off. Requests that begin after this are those of the new one; its ranks
    /// are those of the old one until [others](TrackLoadLayer::ranks) are
    /// declared.
    ///
    /// Call it before the new one gets a request.
    pub fn hand_over(&self, worker: &K) {
        if let Some(worker) = self.fleet.get(worker) {
            let mut panic = FirstPanic::default();
            worker.change(&mut Account::hand_over, &mut panic);
            panic.resume();
        }
    }
}

impl<K, C, T> LoadTracker<K, C, T> {
    /// Reports again what runs on all workers, three times within the time
    /// that a count is good for the monitor; for ever. Where counts do not
    /// age there is nothing to do, nor where they are never good.
    ///
    /// Drop it to stop. Cancel safe: it holds no request and no worker, and
    /// another one goes on where it was dropped.
    ///
    /// # Panics
    ///
    /// When it is polled outside of a tokio runtime that has its timer enabled.
    pub fn keep_fresh(&self) -> KeepFresh<K> {
        KeepFresh::new(self.fleet.clone())
    }
}

impl<K, C: Clone, T: Clone> Clone for LoadTracker<K, C, T> {
    fn clone(&self) -> Self {
        Self {
            fleet: self.fleet.clone(),
            cost: self.cost.clone(),
            frames: self.frames.clone(),
        }
    }
}

impl<K, C, T> fmt::Debug for LoadTracker<K, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadTracker")
            .field("monitor", &self.fleet.monitor)
            .field("block_size", &self.frames.block_size)
            .finish_non_exhaustive()
    }
}
