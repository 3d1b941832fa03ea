//! What the layers buy: goodput, time to first token and refusals as the
//! offered load goes from a fifth of what a fleet can serve to ten times that,
//! with and without each layer.
//!
//! ```text
//! cargo run --release --example overload_curve
//! ```
//!
//! A gateway and two workers run in this process, and an open-loop client sends
//! them streaming requests over real HTTP. `workload.rs` says what is sent,
//! `fleet.rs` what the four curves are, and `measure.rs` what is counted. The
//! results go to `results.md` and `plots/` beside this file.
//!
//! With `--sick KIND` it measures what one sick worker of four costs instead;
//! see `sick/`.

mod chart;
mod fleet;
#[allow(dead_code, unused_imports)] // It is started here, and not as a process.
#[path = "../gateway/main.rs"]
mod gateway;
mod machine;
mod measure;
mod options;
mod panel;
mod point;
mod sick;
mod workload;

use machine::Machine;
use options::{Args, Plan};
use overload_examples::cli;
use point::Point;
use std::{fs, io, time::Instant};

/// More of the machine than this in use by others disturbs a measurement.
const DISTURBED: f64 = 10.0;

#[tokio::main]
async fn main() -> io::Result<()> {
    let args: Args = cli::parse();
    // The gateway has much to say of sick workers.
    if std::env::var_os("RUST_LOG").is_some() {
        cli::init_logging();
    }
    let plan = args.plan().unwrap_or_else(|error| error.exit());
    if let Some(kinds) = &plan.sick {
        return sick::run(kinds, &plan).await;
    }
    let points = match &plan.from {
        Some(file) => point::read(file).unwrap_or_else(|error| error.exit()),
        None => measure_all(&plan).await?,
    };
    let summary = point::summary(&points);
    println!("\n{summary}");
    fs::create_dir_all(&plan.out)?;
    if plan.from.is_none() {
        let results = format!(
            "Measured on {} cores, {} s a point, with seed {}.\n\n{}\n{summary}",
            cores(),
            plan.window.as_secs_f64(),
            plan.seed,
            point::table(&points),
        );
        fs::write(plan.out.join("results.md"), results)?;
    }
    chart::draw(&points, &plan.out.join("plots")).map_err(io::Error::other)?;
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

async fn measure_all(plan: &Plan) -> io::Result<Vec<Point>> {
    let start = Instant::now();
    let open_files = machine::raise_open_files();
    let curves = plan.curves();
    eprintln!(
        "{} points, about {:.0} minutes",
        curves.len(),
        curves
            .iter()
            .map(|(setting, _, _)| setting.duration(plan.window).as_secs_f64() + 0.1)
            .sum::<f64>()
            / 60.0,
    );
    print!("{}", point::header());
    let mut points = Vec::new();
    for (setting, mode, load) in curves {
        let mut best: Option<Point> = None;
        for _ in 0..plan.attempts {
            let point = measure::measure(&setting, mode, load, plan, open_files).await?;
            let quiet = point.others.unwrap_or(0.0) < DISTURBED;
            let quieter = best.as_ref().is_none_or(|best| point.others < best.others);
            if quieter {
                best = Some(point);
            }
            if quiet {
                break;
            }
        }
        if let Some(point) = best {
            print!("{}", point.row());
            points.push(point);
        }
    }
    eprintln!(
        "took {:.1} minutes on {} cores{}",
        start.elapsed().as_secs_f64() / 60.0,
        cores(),
        if Machine::now().is_none() {
            "; no figures of the CPU here"
        } else {
            ""
        },
    );
    Ok(points)
}
