//! Workers over HTTP.

mod alias;
mod base;
mod body;
mod builder;
mod classify;
mod connect;
mod fault;
pub mod forward;
mod frames;
pub mod future;
mod io;
mod pool;
mod setting;
pub mod sse;
mod tls;
mod upload;
mod worker;

pub use self::{
    body::WorkerBody,
    builder::{HttpWorkerBuilder, Protocol},
    fault::{Fault, FaultKind, Limit, LimitPassed, MalformedAnswer},
    setting::InvalidSetting,
    worker::HttpWorker,
};
pub(crate) use classify::{is_bad_gateway, is_lost_reused, of_fault, of_hyper};

use crate::BoxError;
