//! Who is there.

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
