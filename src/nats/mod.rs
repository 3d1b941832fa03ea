//! Load events and registrations over [NATS](https://nats.io), for a fleet of
//! many gateways and many workers.
//!
//! A worker [publishes](Publisher) that it is there, what it is, and its load;
//! every gateway hears all of it. What a gateway hears drives its monitor, as
//! load over HTTP would, and a gateway that is new knows the fleet after one
//! message of each worker. Neither waits for the other or for the server: a
//! worker never blocks on it, and what a slow gateway cannot read is dropped,
//! the oldest first, and counted.
//!
//! ```no_run
//! use futures::StreamExt;
//! use std::sync::Arc;
//! use tower_overload::{
//!     busy::BusySet,
//!     load::WorkerMonitor,
//!     nats::{self, FleetEvent, FleetSource},
//! };
//!
//! # async fn example() -> Result<(), tower_overload::BoxError> {
//! let (monitor, _thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
//! let client = nats::connect(&"nats://10.0.0.1:4222,nats://10.0.0.2:4222".parse()?).await?;
//! let mut fleet = FleetSource::<Arc<str>>::subscribe(&client);
//! while let Some(event) = fleet.next().await {
//!     match event {
//!         FleetEvent::Joined { worker, registration } => {
//!             monitor.configure_for_all(worker, registration.config()?);
//!             // and give the balancer a client for `registration.url`
//!         }
//!         FleetEvent::Left { worker, .. } => {
//!             monitor.remove(&worker);
//!         }
//!         FleetEvent::Load(event) => {
//!             let _ = monitor.observe(event); // what is of no use is counted
//!         }
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Who knows its workers by other means needs only their load:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use tower_overload::{load::WorkerMonitor, nats::LoadSource};
//! # fn example(client: async_nats::Client, monitor: WorkerMonitor<Arc<str>>) {
//! tokio::spawn(monitor.drive(LoadSource::subscribe(&client)));
//! # }
//! ```
//!
//! # Subjects
//!
//! [`Subjects`] says what they are. A message counts as its subject's worker's
//! alone, whatever is in it, so the permissions of the NATS server decide who
//! can speak for whom: allow worker-7 to publish on
//! `tower_overload.v1.*.*.worker-7` and to subscribe to
//! `tower_overload.v1.announce`, and gateways the reverse. A worker with
//! several models says everything once for each.
//!
//! # Messages
//!
//! JSON, with the names of the gateway's HTTP API. Members that are not known
//! are refused, as are messages above 256 KiB; a fleet of another version has
//! another root.
//!
//! Load is one object, or an array of at most 1024 of them. An absent count
//! leaves the last one, and an absent `dp_rank` is 0; `worker` may be there
//! and has to be the subject's:
//!
//! ```json
//! [{"dp_rank": 0, "kv_used_blocks": 17, "active_prefill_tokens": 512},
//!  {"dp_rank": 1, "active_decode_blocks": 9}]
//! ```
//!
//! A registration is good for `ttl_ms`, from 100 to 3,600,000. Without
//! `dp_ranks` it is of rank 0, without `models` of the subject's model, without
//! `ttl_ms` good for 10 s:
//!
//! ```json
//! {"url": "http://10.0.0.1:8100", "dp_ranks": [0, 1], "kv_total_blocks": 4096,
//!  "max_num_batched_tokens": 8192, "draining": false, "models": ["tiny"], "ttl_ms": 10000}
//! ```
//!
//! A worker that leaves says, in the place of its registration:
//!
//! ```json
//! {"leaving": true}
//! ```
//!
//! # A Dynamo fleet
//!
//! [`SourceBuilder::dynamo`] reads the load events of a Dynamo 1.6 fleet as
//! they are: it needs no change of the workers.
//!
//! # Many gateways
//!
//! Gateways do not know of each other. They hear the same load events and
//! judge them by the same rule, so with the same thresholds they agree on which
//! workers are busy as soon as each has read the event. The rest is each
//! gateway's own: its thresholds, the leases of workers that refused *it*, the
//! workers that *it* cannot reach, and the drains that its operator asked for;
//! a worker that [drains](Registration::draining) drains for all.
//!
//! Between two reports of a worker each gateway may send it what it has room
//! for, and together they may send more. What protects the worker from their
//! sum is its own cap, an [`EngineAdmissionLayer`](crate::EngineAdmissionLayer):
//! the request too many is refused, and the gateway that sent it offers it to
//! another worker and leaves this one alone for the lease.
//!
//! # Without a connection
//!
//! The client connects again by itself, at random times so that a fleet does
//! not come all at once, and subscribes again. Until then marks fall when
//! their evidence is stale, and no worker is taken for gone: silence means
//! nothing then. The gauge `…_frontend_load_sources_connected`, the log, and
//! `is_connected` of a source tell of it. A name and a password, or a token, can
//! be in the URLs of the [`Servers`]. Pass a client made with options of your
//! own for certificates and other credentials; [`connect_options`] is a start.

mod connect;
pub mod dynamo;
mod inbox;
mod link;
mod message;
mod publisher;
mod registrations;
mod source;
mod subjects;
mod undecodable;

pub use connect::{InvalidServers, Servers, connect, connect_options};
pub use message::{InvalidRegistration, MAX_MESSAGE, MAX_MODELS, Registration};
pub use publisher::{MAX_REPORT_INTERVAL, MIN_REPORT_INTERVAL, NotTold, Publisher};
pub use source::{
    DEFAULT_CAPACITY, DEFAULT_MAX_WORKERS, FleetEvent, FleetSource, InvalidSource, Leaving,
    LoadSource, SourceBuilder,
};
pub use subjects::{DEFAULT_ROOT, InvalidName, MAX_NAME, Subjects};
pub use undecodable::{Defect, Undecodable};

/// What the fuzz target of the messages calls.
#[cfg(fuzzing)]
#[doc(hidden)]
pub use message::check_any;

/// The client that sources and publishers use.
pub use async_nats;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn assert_all<T: Send + Sync + Unpin + 'static>() {}

    #[test]
    fn everything_can_be_sent_and_shared() {
        assert_all::<LoadSource<Arc<str>>>();
        assert_all::<FleetSource<Arc<str>>>();
        assert_all::<FleetEvent<Arc<str>>>();
        assert_all::<SourceBuilder>();
        assert_all::<Publisher>();
        assert_all::<Servers>();
    }
}
