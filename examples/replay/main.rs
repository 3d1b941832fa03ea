//! Replays a trace of real requests against a gateway, or a worker:
//!
//! ```text
//! cargo run --release --example replay -- \
//!     --trace examples/data/azure_code_2023.csv --url http://127.0.0.1:8000 --speedup 60
//! ```
//!
//! With `--embedded` in place of `--url` it starts a gateway and two workers
//! itself.
//!
//! Ctrl-c ends it early; the table is then about the requests that had ended.

use overload_examples::{cli, gateway::Gateway, replay::ReplayArgs};
use std::io;

#[tokio::main]
async fn main() -> io::Result<()> {
    let args: ReplayArgs = cli::parse();
    let trace = args.load().unwrap_or_else(|error| error.exit());
    if let Some(left_out) = &trace.left_out {
        eprintln!("{}: {left_out}", args.trace.display());
    }
    cli::init_logging();

    let mut shutdown = cli::Shutdown::install()?;
    let fleet = match args.embedded_fleet() {
        Some(config) => Some(Gateway::start(config).await?),
        None => None,
    };
    let url = match (&fleet, &args.url) {
        (Some(gateway), _) => gateway.url(),
        (None, Some(url)) => url.clone(),
        (None, None) => unreachable!("the options require one of the two"),
    };
    let report = args.replay(trace, url).run(shutdown.requested()).await;
    println!("{report}");
    if let Some(gateway) = fleet {
        gateway.drain().await;
    }
    Ok(())
}
