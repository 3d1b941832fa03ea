//! Load of stock engines, read from their metrics.
#![cfg(feature = "scrape")]

mod engines;
mod hostile;
#[path = "../support/metrics.rs"]
mod metrics;
mod poller;
mod support;
