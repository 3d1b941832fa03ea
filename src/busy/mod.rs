//! The marks by which routing and monitoring share what they know of a worker.

mod set;

pub use set::{BusyMark, BusySet};
