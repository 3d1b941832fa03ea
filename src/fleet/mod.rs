//! Who is there: the workers of a gateway, the models that they serve, and all
//! that has to change when one of them comes, changes or goes.
//!
//! A gateway keeps the load of its workers in a
//! [`WorkerMonitor`](crate::load::WorkerMonitor), their marks in a
//! [`BusySet`](crate::busy::BusySet) for each model, their clients in a
//! [`WorkerPool`](crate::pool::WorkerPool) for each model, and perhaps what it
//! has sent them in a [`LoadTracker`](crate::load::tracker::LoadTracker). A
//! [`Fleet`] changes them together and in the right order: a worker that leaves
//! is chosen no more before its load is forgotten, one that drains or is busy is
//! marked before it can be chosen, and one at another URL has none of the marks
//! and counts of the one before.
//!
//! # From nothing to a running fleet
//!
//! Two functions say what is the application's own: how a worker is connected
//! to, and what stands in front of the workers of a model. The rest is a call
//! each. With the features `api`, `admin` and `upstream`, and axum as the server:
//!
//! ```no_run
//! # #[cfg(all(feature = "api", feature = "admin", feature = "upstream"))]
//! # async fn gateway() -> Result<(), tower_overload::BoxError> {
//! use axum::Router;
//! use std::time::Duration;
//! use tower::{ServiceBuilder, retry::RetryLayer, util::BoxCloneSyncService};
//! use tower_overload::{
//!     OverloadStatusLayer, WorkerPool,
//!     admin::FleetApi,
//!     busy::RetryRefused,
//!     fleet::{Compose, Connect, FleetBuilder, Origin, Registration},
//!     front::Front,
//!     upstream::{HttpWorker, HttpWorkerBuilder},
//! };
//!
//! // 1. A worker is an HTTP client, whose connections are signs of life.
//! let connect = |worker: &Connect<'_>| {
//!     let signs = worker.signs.clone();
//!     let client = HttpWorkerBuilder::new().on_connect(move || signs.reached());
//!     Ok(client.build(&worker.url.to_string())?)
//! };
//!
//! // 2. A model is a pool of its workers; a refused request goes to another
//! //    one once, and what nobody takes is answered with 529 or 503.
//! let status = OverloadStatusLayer::new().infallible();
//! let known_models = status.models().clone();
//! let compose = move |model: Compose<'_, HttpWorker>| {
//!     let pool = WorkerPool::new(model.changes, model.set);
//!     tokio::spawn(pool.driver());
//!     let members = pool.members();
//!     let stack = ServiceBuilder::new()
//!         .layer(status.clone())
//!         .layer(RetryLayer::new(RetryRefused::new(1)))
//!         .service(pool);
//!     Ok((BoxCloneSyncService::new(stack), members))
//! };
//!
//! // 3. The fleet, and who says which workers there are.
//! let fleet = FleetBuilder::new()
//!     .default_model("llama-3-8b")
//!     .known_models(known_models)
//!     .build(connect, compose)?;
//! let worker = Registration::at("http://10.0.0.1:8000").kv_total_blocks(4096);
//! fleet.register("worker-0", worker, Origin::Static)?;
//! tokio::spawn(fleet.expiry()); // of those that register themselves
//! tokio::spawn(fleet.resolve(
//!     "vllm",
//!     Duration::from_secs(5),
//!     || tokio::net::lookup_host("vllm.default.svc:8000"),
//!     |address| Registration::at(format!("http://{address}")),
//! ));
//!
//! // 4. Clients come to the front, operators and workers to the admin API.
//! let admin = Router::new().fallback_service(FleetApi::new(fleet.clone()));
//! let public = Router::new().fallback_service(Front::new(fleet));
//! let admin_listener = tokio::net::TcpListener::bind("10.0.0.9:9000").await?;
//! let listener = tokio::net::TcpListener::bind("0.0.0.0:8000").await?;
//! tokio::try_join!(
//!     axum::serve(listener, public),
//!     axum::serve(admin_listener, admin),
//! )?;
//! # Ok(())
//! # }
//! ```
//!
//! Its workers report no load yet: have them run a
//! [`Reporter`](crate::admin::Reporter), spawn [`Fleet::scrape`], or give the
//! builder a [tracker](FleetBuilder::tracker). Then set a threshold (`POST
//! /busy_threshold`), and a worker over it gets no new request from its next
//! load event on. The example `axum_gateway` is this as a program, `gateway` the
//! same with every option, and `own_discovery`, `own_pick` and `time_limits`
//! change one piece each.
//!
//! # Sources
//!
//! | workers come from | by | and go when |
//! |---|---|---|
//! | the configuration | [`Fleet::register`] with [`Origin::Static`] | an operator removes them |
//! | themselves, over HTTP | [`FleetApi`](crate::admin::FleetApi), told by a [`Reporter`](crate::admin::Reporter) | they say so, or are silent for their time to live ([`Fleet::expiry`]) |
//! | themselves, over NATS, to many gateways | [`Fleet::follow`] | they say so, or are silent for their time to live, which the source counts |
//! | a name in DNS | [`Fleet::resolve`] | the name does not have the address any more; one that has none takes nobody away |
//! | a discovery of the application's own | [`Fleet::sync`], or [`Fleet::register`] and [`Fleet::leave`] with [`Origin::Source`] | it says so |
//!
//! Their load comes with [`Fleet::observe`], which the HTTP and NATS sources
//! call, from their own metrics ([`Fleet::scrape`]), or from what was sent to
//! them ([`FleetBuilder::tracker`]). [`Fleet::health_checks`] finds out that one
//! is back before a request does.
//!
//! # Who may do what
//!
//! Several sources may name the same worker. The last one keeps it, except that
//! one of the configuration stays that:
//!
//! | | changes it | takes it away |
//! |---|---|---|
//! | the worker itself | yes | unless it is of the configuration, or a discovery named it last |
//! | a discovery | yes | only while it is the last to have named it |
//! | silence | | only while it is the last to have named itself |
//! | an operator | yes | yes; and one of the configuration is then [brought back](Removed::ForGood) by an operator alone |
//!
//! An operator's drain and the worker's own are apart: either is enough, and
//! neither ends the other.
//!
//! # Models
//!
//! A model is composed when the first worker serves it and is known from then
//! on, so that a client is answered 503 and not 404 while nobody serves it.
//! [`ServedModel`] has what was made for it. A LoRA adapter is a model of its
//! own for clients, with the thresholds of the model that it adapts. There are
//! [at most 1,024](FleetBuilder::max_models): a new one takes the place of one
//! that nobody serves.
//!
//! # Cost
//!
//! A request takes one short lock of the table of models. What changes one
//! worker takes a lock of all workers twice, and costs what the monitor, the
//! sets and the pools of its models cost; nothing foreign (connecting,
//! composing, recorders, wakers) runs under a lock but the `Clone` of a client.

mod builder;
mod dns;
mod expiry;
#[allow(clippy::module_inception)]
mod fleet;
mod health;
mod model;
#[cfg(feature = "nats")]
mod nats;
mod refused;
mod registration;
#[cfg(feature = "scrape")]
mod scrape;
mod signs;
mod track;
mod view;
mod worker;

pub use builder::{Compose, Connect, FleetBuilder};
pub use dns::Resolving;
pub use expiry::Expiry;
pub use fleet::{Fleet, Removed};
pub use health::HealthChecks;
pub use model::ServedModel;
#[cfg(feature = "nats")]
pub use nats::Following;
pub use refused::{Refused, RefusedKind};
pub use registration::{MAX_MODELS, MAX_NAME, MAX_URL, Origin, Registration, WorkerUpdate};
#[cfg(feature = "scrape")]
pub use scrape::Scraping;
pub use signs::SignsOfLife;
pub use view::{ModelMarks, WorkerView};

use std::sync::Arc;

/// What a worker is called.
pub type Id = Arc<str>;
