//! The promises of [`tower_overload::fleet`].

mod dns;
mod life;
mod model;
mod models;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "admin")]
mod report;
#[cfg(feature = "scrape")]
mod scrape;
mod support;
mod threads;
