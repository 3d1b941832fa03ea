//! The examples, as people run them: over real sockets, and as processes.

mod dashboard;
mod overload_curve;
#[path = "../support/process.rs"]
mod process;
mod processes;
mod replay;
#[cfg(all(feature = "api", feature = "upstream"))]
mod small;
#[path = "../support/serving.rs"]
mod support;
mod worker;
