//! Replays a trace of real requests against a gateway, or a worker:
//!
//! ```text
//! cargo run --release --example replay -- \
//!     --trace examples/data/azure_code_2023.csv --url http://127.0.0.1:8000 --speedup 60
//! ```
//!
//! Ctrl-c ends it early; the table is then about the requests that had ended.

use overload_examples::{cli, replay::ReplayArgs};
use std::io;

#[tokio::main]
async fn main() -> io::Result<()> {
    let args: ReplayArgs = cli::parse();
    let replay = args.load().unwrap_or_else(|error| error.exit());
    cli::init_logging();

    let mut shutdown = cli::Shutdown::install()?;
    let report = replay.run(shutdown.requested()).await;
    println!("{report}");
    Ok(())
}
