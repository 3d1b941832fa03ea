//! Overload control for LLM serving, as Tower layers.
#![forbid(unsafe_code)]
#![deny(missing_docs, missing_debug_implementations)]

#[cfg(feature = "admin")]
pub mod admin;
pub mod admission;
pub mod busy;
pub mod completion;
pub mod error;
pub mod load;
pub mod metrics;
pub mod status;

mod sync;

use std::{fmt, hash::Hash};

pub use admission::EngineAdmissionLayer;
pub use busy::{BusyDiscover, BusyFilterLayer, BusySet};
pub use error::{OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason, Unreachable};
pub use status::OverloadStatusLayer;

/// A boxed error, as Tower's middleware use it.
pub type BoxError = tower::BoxError;

/// What can be the id of a worker: a string, a number, an address.
///
/// Implemented for everything that fits. The text it displays as is the
/// worker's name in logs and metrics.
pub trait WorkerId: Clone + Eq + Hash + fmt::Display + Send + Sync + 'static {}

impl<T: Clone + Eq + Hash + fmt::Display + Send + Sync + 'static> WorkerId for T {}
