//! What a sick worker costs: one of four falls sick, while half of what the
//! other three can do is offered, or all of it, or twice that.
//!
//! `kind.rs` says how it is sick, and `measure.rs` what is counted. The results
//! go to `sick.md`, those over time to `sick.csv` and `plots/sick.svg`.

mod chart;
mod kind;
mod measure;
mod table;
mod worker;

pub use kind::{Kind, Kinds, kinds};

use crate::{DISTURBED, cores, fleet::Setting, machine, options::Plan};
use measure::{Cost, Phases, Step};
use std::{fs, io, path::Path, time::Duration};

/// Measures every kind at every load, unless there is a file of steps already,
/// and draws them.
pub async fn run(kinds: &[Kind], plan: &Plan) -> io::Result<()> {
    let steps = match &plan.from {
        Some(file) => table::read(file).unwrap_or_else(|error| error.exit()),
        None => measure_all(kinds, plan).await?,
    };
    chart::draw(&steps, &plan.out.join("plots"))
        .map_err(|error| io::Error::other(error.to_string()))
}

async fn measure_all(kinds: &[Kind], plan: &Plan) -> io::Result<Vec<Step>> {
    let open_files = machine::raise_open_files();
    let setting = plan.sick_fleet();
    print!("{}", table::header());
    let (mut costs, mut steps) = (Vec::new(), Vec::new());
    for &kind in kinds {
        for &load in plan.sick_loads() {
            let (cost, mut over_time) = quietest(kind, &setting, load, plan, open_files).await?;
            print!("{}", table::row(&cost));
            costs.push(cost);
            steps.append(&mut over_time);
        }
    }
    write(&plan.out, &costs, &steps, plan)?;
    Ok(steps)
}

fn phases(plan: &Plan) -> Phases {
    let two_seconds = Duration::from_millis(if plan.quick { 500 } else { 2000 });
    Phases {
        before: two_seconds,
        grace: two_seconds,
        window: plan.window,
    }
}

async fn quietest(
    kind: Kind,
    setting: &Setting,
    load: f64,
    plan: &Plan,
    open_files: u64,
) -> io::Result<(Cost, Vec<Step>)> {
    let settings = (phases(plan), plan.seed, open_files);
    let mut best = measure::measure(kind, setting, load, settings).await?;
    for _ in 1..plan.attempts {
        if best.0.others.unwrap_or(0.0) < DISTURBED {
            break;
        }
        let again = measure::measure(kind, setting, load, settings).await?;
        if again.0.others < best.0.others {
            best = again;
        }
    }
    Ok(best)
}

fn write(out: &Path, costs: &[Cost], steps: &[Step], plan: &Plan) -> io::Result<()> {
    fs::create_dir_all(out)?;
    let results = format!(
        "Measured on {} cores, {} s a point after the first two seconds, with seed {}.\n\n{}",
        cores(),
        plan.window.as_secs_f64(),
        plan.seed,
        table::table(costs),
    );
    fs::write(out.join("sick.md"), results)?;
    fs::write(out.join("sick.csv"), table::csv(steps))
}
