//! The gateway, over real sockets and as a process.

mod admin;
mod cli;
mod failures;
mod load;
mod models;
#[path = "../support/process.rs"]
mod process;
mod public;
mod restart;
mod sdk;
#[path = "../support/serving.rs"]
mod serving;
mod support;
