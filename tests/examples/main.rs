//! The examples, as people run them: over real sockets, and as processes.

mod overload_curve;
#[path = "../support/process.rs"]
mod process;
mod processes;
mod replay;
#[path = "../support/serving.rs"]
mod support;
mod worker;
