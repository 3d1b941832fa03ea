//! Load events and registrations over a real NATS server, which each test
//! starts for itself.

mod demanding;
#[path = "../support/dynamo.rs"]
mod dynamo;
#[path = "../support/eventually.rs"]
mod eventually;
mod foreign;
#[allow(dead_code, unused_imports)] // Only what a fleet needs is used here.
#[path = "../../examples/gateway/main.rs"]
mod gateway;
mod gateways;
#[path = "../support/metrics.rs"]
mod metrics;
mod outage;
#[path = "../support/process.rs"]
mod process;
mod processes;
#[path = "../support/serving.rs"]
mod serving;
mod slow;
mod support;
mod workers;
