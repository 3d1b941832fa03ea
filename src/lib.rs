//! Overload control for LLM serving, as Tower layers.
#![forbid(unsafe_code)]
#![deny(missing_docs, missing_debug_implementations)]

pub mod admission;
pub mod completion;
pub mod error;
pub mod metrics;
pub mod status;

mod sync;

pub use error::{OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason, Unreachable};
pub use status::OverloadStatusLayer;

/// A boxed error, as Tower's middleware use it.
pub type BoxError = tower::BoxError;
