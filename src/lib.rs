//! Overload control for LLM serving, as Tower layers.
#![forbid(unsafe_code)]
#![deny(missing_docs, missing_debug_implementations)]

#[cfg(feature = "admin")]
pub mod admin;
pub mod busy;
pub mod completion;
pub mod error;
pub mod load;
pub mod metrics;

mod sync;

pub use error::{OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason, Unreachable};

/// A boxed error, as Tower's middleware use it.
pub type BoxError = tower::BoxError;
