//! The verdict over a stock balancer, and its discovery with marks.

mod discover;
mod endpoint;
mod future;
mod layer;
mod service;

pub use self::{
    discover::BusyDiscover, endpoint::Endpoint, future::ResponseFuture, layer::BusyFilterLayer,
    service::BusyFilter,
};
