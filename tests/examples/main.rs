//! The examples, as people run them: over real sockets, and as processes; and
//! what they share.

mod batch;
mod command_line;
mod dashboard;
mod generation;
mod ledger;
mod load_generator;
mod mock_engine;
mod openai_request;
mod openai_response;
mod overload_curve;
#[path = "../support/process.rs"]
mod process;
mod processes;
mod replay;
#[path = "../../examples/replay/replayer.rs"]
mod replayer;
#[path = "../../examples/replay/report.rs"]
mod report;
#[cfg(all(feature = "api", feature = "upstream"))]
mod small;
#[path = "../support/serving.rs"]
mod support;
mod timing;
mod trace;
mod vllm;
mod worker;
mod worker_options;
