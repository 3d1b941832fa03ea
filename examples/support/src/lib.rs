//! What the examples of `tower-overload` share: the command line, a mock engine
//! behind the real layers, and load generators.
//!
//! Everything here also runs inside a process, on a port of its own, so the
//! examples, the integration tests and the benchmarks use the same parts.
#![forbid(unsafe_code)]
#![deny(missing_docs, missing_debug_implementations)]

pub mod cli;
pub mod client;
pub mod engine;
pub mod openai;
pub mod replay;
mod report;
pub mod serve;
pub mod worker;
