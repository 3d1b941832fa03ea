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

#[allow(dead_code, unused_imports)] // It is started, and ended.
#[path = "../gateway/main.rs"]
mod gateway;
mod options;
mod replayer;
mod report;

use gateway::{Gateway, GatewayConfig};
use options::ReplayArgs;
use overload_examples::{cli, engine::Timing, worker::WorkerConfig};
use std::io;
use tower_overload::admission::Limits;

#[tokio::main]
async fn main() -> io::Result<()> {
    let args: ReplayArgs = cli::parse();
    let trace = args.load().unwrap_or_else(|error| error.exit());
    if let Some(left_out) = &trace.left_out {
        eprintln!("{}: {left_out}", args.trace.display());
    }
    cli::init_logging();

    let mut shutdown = cli::Shutdown::install()?;
    let fleet = match embedded_fleet(&args) {
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

/// The fleet that `--embedded` asks for: the gateway's defaults, in the time of
/// the trace.
fn embedded_fleet(args: &ReplayArgs) -> Option<GatewayConfig> {
    let worker = WorkerConfig::default();
    let timing = Timing {
        prefill_tokens_per_second: worker.timing.prefill_tokens_per_second * args.speedup,
        decode_tokens_per_second: worker.timing.decode_tokens_per_second * args.speedup,
    };
    args.embedded.then(|| GatewayConfig {
        model: args.model.clone(),
        embedded_workers: Some(2),
        embedded: WorkerConfig {
            limits: Limits::new(4, 4).ok(),
            timing,
            ..worker
        },
        ..GatewayConfig::default()
    })
}
