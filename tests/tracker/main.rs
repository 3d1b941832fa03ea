//! The load of workers by the requests that are sent to them.

mod counts;
mod fresh;
mod handles;
#[path = "../support/metrics.rs"]
mod metrics;
mod model;
mod support;
