//! The load of workers by the requests that are sent to them.

mod counts;
mod fresh;
#[path = "../support/metrics.rs"]
mod metrics;
mod model;
mod support;
