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
//! OverloadStatusLayer → EventStreamLayer → Retry → WorkerPool → HttpWorker
//! ```
//!
//! SIGTERM or ctrl-c drains it; a second one ends it at once.

use overload_examples::{
    cli::{self, UsageError},
    gateway::{Gateway, GatewayArgs},
    serve::listen,
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
    let (address, admin_address) = (config.listen, config.admin_listen);
    let public = listen(address)
        .await
        .unwrap_or_else(|error| UsageError::new("--listen", address, error).exit());
    let admin = listen(admin_address)
        .await
        .unwrap_or_else(|error| UsageError::new("--admin-listen", admin_address, error).exit());
    let gateway = Gateway::on(public, admin, config).await?;
    cli::announce("", gateway.address());
    cli::announce("admin ", gateway.admin_address());

    shutdown.requested().await;
    tracing::info!("draining");
    tokio::select! {
        () = gateway.drain() => Ok(ExitCode::SUCCESS),
        () = shutdown.requested() => Ok(ExitCode::FAILURE),
    }
}
