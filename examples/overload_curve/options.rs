//! What is measured.

use crate::{
    fleet::{Mode, Setting},
    sick::{Kind, Kinds, kinds},
    workload::{Traffic, Workload},
};
use clap::{Parser, ValueEnum};
use overload_examples::cli::{UsageError, positive, whole};
use std::{path::PathBuf, rc::Rc, time::Duration};

/// Goodput, time to first token and refusals from 0.2 to 10 times the capacity
/// of a fleet, with and without each layer.
#[derive(Clone, Debug, Parser)]
#[command(name = "overload_curve")]
pub struct Args {
    /// Which workloads [default: the one of --trace, or else all]
    #[arg(long, value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,

    /// Requests in the engine and waiting of each worker, as N,Q (repeatable)
    /// [default: 8,2 and 64,8 and 64,16]
    #[arg(long, value_name = "N,Q", value_parser = limits)]
    limits: Vec<(usize, usize)>,

    /// Which layers [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    layers: Vec<Mode>,

    /// Multiples of the capacity [default: 0.2,0.5,0.8,1,2,5,10, and
    /// 0.5,0.8,1.5,3,10 for traces]
    #[arg(long, value_name = "X", value_delimiter = ',', value_parser = positive)]
    loads: Vec<f64>,

    /// How long each point is measured
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    seconds: Option<f64>,

    /// The fleet's capacity in requests a second; its engines are made as fast
    /// as that takes [default: 100, and 160 with 64 slots or more]
    #[arg(long, value_name = "RATE", value_parser = positive)]
    capacity: Option<f64>,

    /// How often a point is measured at most while other processes use more
    /// than a tenth of the machine; the quietest one counts
    #[arg(long, default_value = "2", value_parser = whole(1..=100_usize))]
    attempts: usize,

    /// Of the random arrivals and lengths
    #[arg(long, default_value = "1", value_parser = whole(0..=u64::MAX))]
    seed: u64,

    /// Where the results go
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/overload_curve"))]
    out: PathBuf,

    /// Where the traces are
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data"))]
    data: PathBuf,

    /// A trace for the workload of this name, in the form in which it is
    /// published: Azure's, BurstGPT's, Mooncake's or Bailian's
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// What one sick worker of four costs, in place of the curves; the loads
    /// are multiples of what the other three can do [default: 0.5,1,2]. KIND
    /// is all, or some of hangs, heads, stalls, fails, refuses, dead, connects
    /// and flaps, separated by commas
    #[arg(long, value_name = "KIND", value_parser = kinds)]
    sick: Option<Kinds>,

    /// Only to see that it works, on a slow machine too: one workload, one slow
    /// fleet, two loads, half a second each; other options still count
    #[arg(long)]
    quick: bool,

    /// Measures nothing, and draws the plots of the table in this file
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// What the options come to.
#[derive(Debug)]
pub struct Plan {
    traffic: Vec<Rc<Traffic>>,
    limits: Vec<(usize, usize)>,
    layers: Vec<Mode>,
    loads: Option<Vec<f64>>,
    capacity: Option<f64>,
    pub window: Duration,
    pub seed: u64,
    pub out: PathBuf,
    pub attempts: usize,
    pub from: Option<PathBuf>,
    pub sick: Option<Vec<Kind>>,
    /// Only to see that it works.
    pub quick: bool,
}

fn limits(value: &str) -> Result<(usize, usize), String> {
    let expected = || "expected N,Q such as 8,2, where N is at least 1".to_owned();
    let (slots, queue) = value.split_once(',').ok_or_else(expected)?;
    let slots = whole(1..=100_000)(slots).map_err(|_| expected())?;
    let queue = whole(0..=100_000)(queue).map_err(|_| expected())?;
    Ok((slots, queue))
}

fn or<T: Clone>(given: Vec<T>, default: &[T]) -> Vec<T> {
    if given.is_empty() {
        default.to_vec()
    } else {
        given
    }
}

impl Args {
    /// Reads the traces.
    pub fn plan(self) -> Result<Plan, UsageError> {
        let quick = self.quick;
        let all = match self.trace {
            Some(_) => &[Workload::Trace][..],
            None => &[Workload::Poisson, Workload::Azure, Workload::Mooncake],
        };
        let workloads = or(self.workloads, if quick { &all[..1] } else { all });
        // A table has it all.
        let measured = workloads.into_iter().filter(|_| self.from.is_none());
        let traffic = measured
            .map(|workload| {
                let trace = self.trace.as_deref();
                Traffic::load(workload, &self.data, trace, self.seed).map(Rc::new)
            })
            .collect::<Result<_, _>>()?;
        let fleets = [(8, 2), (64, 8), (64, 16)];
        let loads = if self.loads.is_empty() && quick {
            vec![0.8, 5.0]
        } else {
            self.loads
        };
        let seconds = self.seconds.unwrap_or(match (quick, &self.sick) {
            (true, _) => 0.5,
            (false, Some(_)) => 6.0,
            (false, None) => 2.5,
        });
        let window = Duration::try_from_secs_f64(seconds)
            .map_err(|_| UsageError::new("--seconds", seconds, "expected a shorter time"))?;
        Ok(Plan {
            traffic,
            limits: or(self.limits, if quick { &fleets[..1] } else { &fleets }),
            layers: or(self.layers, Mode::value_variants()),
            loads: (!loads.is_empty()).then_some(loads),
            capacity: self.capacity.or(quick.then_some(40.0)),
            window,
            seed: self.seed,
            out: self.out,
            attempts: if quick { 1 } else { self.attempts },
            from: self.from,
            sick: self.sick.map(|kinds| kinds.0),
            quick,
        })
    }
}

impl Plan {
    /// All points, in the order in which they are measured.
    pub fn curves(&self) -> Vec<(Rc<Setting>, Mode, f64)> {
        let mut points = Vec::new();
        for traffic in &self.traffic {
            let mut without_cap = Vec::new();
            for &(slots, queue) in &self.limits {
                let capacity = if slots < 64 { 100.0 } else { 160.0 };
                let capacity = self.capacity.unwrap_or(capacity);
                let setting = Setting::new(traffic.clone(), slots, queue, capacity, self.seed);
                let setting = Rc::new(setting);
                // Without a cap there is no Q, so these curves are measured
                // once for each N.
                let again = without_cap.contains(&slots);
                without_cap.push(slots);
                for &mode in &self.layers {
                    if again && !mode.has_cap() {
                        continue;
                    }
                    for &load in self.loads(traffic.workload) {
                        points.push((setting.clone(), mode, load));
                    }
                }
            }
        }
        points
    }

    /// The fleet of which one falls sick: four workers of the first setting.
    pub fn sick_fleet(&self) -> Setting {
        let (slots, queue) = self.limits[0];
        let capacity = self.capacity.unwrap_or(100.0);
        Setting::new(self.traffic[0].clone(), slots, queue, capacity, self.seed)
    }

    /// Multiples of what the others of it can do.
    pub fn sick_loads(&self) -> &[f64] {
        self.loads.as_deref().unwrap_or(&[0.5, 1.0, 2.0])
    }

    fn loads(&self, workload: Workload) -> &[f64] {
        match &self.loads {
            Some(loads) => loads,
            None if workload == Workload::Poisson => &[0.2, 0.5, 0.8, 1.0, 2.0, 5.0, 10.0],
            None => &[0.5, 0.8, 1.5, 3.0, 10.0],
        }
    }
}
