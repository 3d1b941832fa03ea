//! A mock inference worker behind the real admission, over HTTP:
//!
//! ```text
//! cargo run --release --example worker -- --engine-request-limit 2 --request-queue-limit 2
//! ```
//!
//! What a request passes is composed in `examples/support/src/worker/stack.rs`:
//!
//! ```text
//! OverloadStatusLayer → EngineAdmissionLayer(N, Q) → engine
//! ```
//!
//! SIGTERM or ctrl-c drains it: it leaves its gateway, takes no new request
//! and finishes those that it has. A second one ends it at once.

use overload_examples::{
    cli::{self, UsageError},
    worker::{Worker, WorkerConfig},
};
use std::{io, process::ExitCode};

#[tokio::main]
async fn main() -> io::Result<ExitCode> {
    let config: WorkerConfig = cli::parse();
    let config = config
        .with_environment(&cli::environment)
        .unwrap_or_else(|error| error.exit());
    cli::init_logging();

    let mut shutdown = cli::Shutdown::install()?;
    let listen = config.listen;
    let worker = Worker::start(config)
        .await
        .unwrap_or_else(|error| UsageError::new("--listen", listen, error).exit());
    cli::announce("", worker.address());

    shutdown.requested().await;
    tracing::info!("draining");
    tokio::select! {
        () = worker.drain() => Ok(ExitCode::SUCCESS),
        () = shutdown.requested() => Ok(ExitCode::FAILURE),
    }
}
