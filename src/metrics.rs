//! Every metric of the crate in one table, and how handles to it are made.
//!
//! The crate speaks through the [`metrics`] facade: without a recorder
//! installed a handle does nothing. Handles are made once, when a layer or a
//! set is made, so install the recorder first. Names start with a prefix,
//! `dynamo` unless the application says otherwise, so that dashboards made
//! for the reference keep working.
//!
//! ```
//! use tower_overload::metrics::{METRICS, Prefix};
//!
//! let prefix = Prefix::default();
//! for metric in METRICS {
//!     println!("{} ({:?}): {}", metric.name(&prefix), metric.kind(), metric.help());
//! }
//! ```
//!
//! The facade cannot unregister a series. The gauges of a worker that is gone
//! are set to 0. Where workers come under ever new ids, have the monitor keep
//! them from the recorder and show [them as
//! text](crate::load::WorkerMonitor::worker_gauges), where the series end with
//! the worker.

use metrics::{Counter, Gauge, Histogram, KeyName, Label, Level, Metadata};
use std::borrow::Cow;

/// What every metric's name starts with; `dynamo` by default.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Prefix(Cow<'static, str>);

impl Prefix {
    /// A prefix of the application's own. Names are made as `{prefix}_{rest}`.
    pub fn new(prefix: impl Into<Cow<'static, str>>) -> Self {
        Self(prefix.into())
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self(Cow::Borrowed("dynamo"))
    }
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// A distribution.
    Histogram,
}

/// One metric: a row of [`METRICS`].
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    rest: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
}

impl Metric {
    const fn new(
        rest: &'static str,
        kind: Kind,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            rest,
            kind,
            labels,
            help,
        }
    }

    /// The full name under `prefix`.
    pub fn name(&self, prefix: &Prefix) -> String {
        format!("{}_{}", prefix.0, self.rest)
    }

    /// Counter, gauge or histogram.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The names of its labels.
    pub const fn labels(&self) -> &'static [&'static str] {
        self.labels
    }

    /// What it says, for people.
    pub const fn help(&self) -> &'static str {
        self.help
    }

    fn key(&self, prefix: &Prefix, values: &[&str]) -> metrics::Key {
        debug_assert_eq!(values.len(), self.labels.len(), "{}", self.rest);
        let labels = self.labels.iter().zip(values);
        metrics::Key::from_parts(
            self.name(prefix),
            labels
                .map(|(name, value)| Label::new(*name, String::from(*value)))
                .collect::<Vec<_>>(),
        )
    }

    pub(crate) fn counter(&self, prefix: &Prefix, values: &[&str]) -> Counter {
        let key = self.key(prefix, values);
        metrics::with_recorder(|recorder| recorder.register_counter(&key, &METADATA))
    }

    pub(crate) fn gauge(&self, prefix: &Prefix, values: &[&str]) -> Gauge {
        let key = self.key(prefix, values);
        metrics::with_recorder(|recorder| recorder.register_gauge(&key, &METADATA))
    }

    pub(crate) fn histogram(&self, prefix: &Prefix, values: &[&str]) -> Histogram {
        let key = self.key(prefix, values);
        metrics::with_recorder(|recorder| recorder.register_histogram(&key, &METADATA))
    }
}

static METADATA: Metadata<'static> =
    Metadata::new("tower_overload", Level::INFO, Some(module_path!()));

/// Gives the installed recorder the help text of every metric.
pub fn describe(prefix: &Prefix) {
    for metric in METRICS {
        let name = KeyName::from(metric.name(prefix));
        let help = metric.help.into();
        metrics::with_recorder(|recorder| match metric.kind {
            Kind::Counter => recorder.describe_counter(name, None, help),
            Kind::Gauge => recorder.describe_gauge(name, None, help),
            Kind::Histogram => recorder.describe_histogram(name, None, help),
        });
    }
}

macro_rules! table {
    ($($(#[$doc:meta])* $id:ident = $rest:literal, $kind:ident, $labels:expr, $help:literal;)*) => {
        $(
            $(#[$doc])*
            #[doc = concat!("`…_", $rest, "`: ", $help)]
            pub const $id: Metric = Metric::new($rest, Kind::$kind, &$labels, $help);
        )*

        /// Every metric that the crate emits.
        pub const METRICS: &[Metric] = &[$($id),*];
    };
}

table! {
    MODEL_REJECTIONS = "frontend_model_rejection_total", Counter, ["model", "endpoint"],
        "Requests answered as overloaded, whatever status code is configured.";
    MODEL_UNAVAILABLE = "frontend_model_unavailable_total", Counter, ["model", "endpoint"],
        "Requests answered as unavailable: no path to a worker, or none that answered in time.";
    WORKER_DECODE_BLOCKS = "frontend_worker_active_decode_blocks", Gauge, ["worker_id", "dp_rank", "worker_type"],
        "KV blocks in use by decoding on a rank of a worker, as last reported; 0 once the worker is gone.";
    WORKER_PREFILL_TOKENS = "frontend_worker_active_prefill_tokens", Gauge, ["worker_id", "dp_rank", "worker_type"],
        "Prompt tokens waiting for or in prefill on a rank of a worker, as last reported; 0 once the worker is gone.";
    WORKER_MARKS = "frontend_worker_marks_total", Counter, ["model", "mark"],
        "Marks set on workers, by kind: busy, leased, unreachable, failing, draining.";
    EXCLUDED_WORKERS = "frontend_excluded_workers", Gauge, ["model", "mark"],
        "Workers behind a balancer that get no new request, by mark; one with two marks is in both.";
    VERDICTS = "frontend_verdicts_total", Counter, ["model", "verdict"],
        "Requests answered by the pool or the busy filter because no worker took them, by verdict.";
    DISCOVERY_ERRORS = "frontend_discovery_errors_total", Counter, ["model"],
        "Discovery streams that ended with an error; their members stay.";
    WORKER_SERVICE_ERRORS = "frontend_worker_service_errors_total", Counter, ["model"],
        "Workers taken out of a pool because their own service failed in `poll_ready`.";
    WORKER_KV_USED_BLOCKS = "frontend_worker_kv_used_blocks", Gauge, ["worker_id", "dp_rank", "worker_type"],
        "KV blocks in use on a rank of a worker by its own count, as last reported; 0 once the worker is gone.";
    LOAD_EVENTS = "frontend_load_events_total", Counter, [],
        "Load events that were taken into account.";
    LOAD_EVENTS_DROPPED = "frontend_load_events_dropped_total", Counter, ["reason"],
        "Load events that were dropped, by reason.";
    LOAD_SOURCES = "frontend_load_sources_connected", Gauge, [],
        "Sources of load events that are connected.";
    SCRAPES = "frontend_scrapes_total", Counter, ["outcome"],
        "Scrapes of workers' own metrics, by outcome; one that failed says nothing of the worker's load.";
    SCRAPE_VALUES_IGNORED = "frontend_scrape_values_ignored_total", Counter, [],
        "Lines and values of scraped metrics that could not be read or were not possible.";
    LOAD_MESSAGES_DROPPED = "frontend_load_messages_dropped_total", Counter, ["reason"],
        "Messages and events of a source that never came to be load events, by reason: slow_consumer, client_overrun, malformed, oversized, foreign, too_many_workers.";
    WORKERS_WITHOUT_SIGNAL = "frontend_workers_without_signal", Gauge, ["model", "threshold"],
        "Workers whose reports could never have reached a threshold that is set: nothing but zeros, or no known capacity.";
    WORKER_REJECTIONS = "rejection_request_total", Counter, [],
        "Requests refused by the engine admission.";
    WORKER_REJECTIONS_BY_REASON = "rejection_request_by_reason_total", Counter, ["reason"],
        "Requests refused by the engine admission, by reason.";
    ENGINE_REQUESTS = "engine_request", Gauge, [],
        "Requests in the engine.";
    QUEUED_REQUESTS = "request_queue", Gauge, [],
        "Requests waiting for a slot of the engine.";
    QUEUE_WAIT = "request_queue_wait_seconds", Histogram, [],
        "Seconds that a request spent in the queue, however that ended.";
}
