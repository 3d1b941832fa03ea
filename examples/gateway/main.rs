//! A gateway that keeps requests away from busy workers, with two mock workers
//! in the process:
//!
//! ```text
//! cargo run --release --example gateway
//! ```
//!
//! What a request passes is composed in `examples/support/src/gateway/stack.rs`:
//!
//! ```text
//! OverloadStatusLayer → Retry → PreCheck → Buffer → BusyFilter → Balance → workers
//! ```
//!
//! SIGTERM or ctrl-c drains it; a second one ends it at once.

use overload_examples::{
    cli,
    gateway::{Gateway, GatewayArgs},
};
use std::{io, process::ExitCode};

#[tokio::main]
async fn main() -> io::Result<ExitCode> {
    let args: GatewayArgs = cli::parse();
    let config = args
        .config(&cli::environment)
        .unwrap_or_else(|error| error.exit());
    cli::init_logging();

    let mut shutdown = cli::Shutdown::install()?;
    let gateway = Gateway::start(config).await?;
    cli::announce("", gateway.address());
    cli::announce("admin ", gateway.admin_address());

    shutdown.requested().await;
    tracing::info!("draining");
    tokio::select! {
        () = gateway.drain() => Ok(ExitCode::SUCCESS),
        () = shutdown.requested() => Ok(ExitCode::FAILURE),
    }
}
