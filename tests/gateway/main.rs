//! The gateway, over real sockets and as a process.

mod admin;
#[path = "../support/alloc.rs"]
mod alloc;
mod balance;
mod cli;
#[path = "../support/eventually.rs"]
mod eventually;
mod failures;
#[allow(dead_code, unused_imports)] // The example also runs it as a process.
#[path = "../../examples/gateway/main.rs"]
mod gateway;
mod limits;
mod load;
mod models;
#[path = "../support/process.rs"]
mod process;
mod public;
mod reading;
mod restart;
mod scrape;
mod sdk;
#[path = "../support/serving.rs"]
mod serving;
mod sick;
mod soak;
mod support;
mod tracking;
