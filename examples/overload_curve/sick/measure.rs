//! One sick worker of four at one load, beside the other three alone.

use super::{kind::Kind, worker::SickWorker};
use crate::{
    fleet::{Mode, Setting, WORKERS},
    gateway::{Gateway, GatewayConfig, WorkerLimits},
    machine::Machine,
    measure::{Ended, send_all},
    workload::service_time,
};
use overload_examples::replay::{Arrival, Outcome};
use std::{collections::BTreeMap, io, net::Ipv4Addr, time::Duration};
use tokio::time::{Instant, sleep_until};

/// The workers that stay well.
pub const WELL: usize = 3;
/// How long a measurement is.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    /// All are well.
    pub before: Duration,
    /// The gateway has that long to find out.
    pub grace: Duration,
    /// What is measured.
    pub window: Duration,
}

/// The limits on a head, and on each frame.
const LIMIT: Duration = Duration::from_millis(500);
/// From the last request until the client hangs up.
const PATIENCE: Duration = Duration::from_secs(4);
/// What the curves over time are made of.
const STEP: Duration = Duration::from_millis(500);

/// What a worker's sickness costs.
#[derive(Clone, Debug)]
pub struct Cost {
    pub kind: &'static str,
    /// Times the capacity of those that are well.
    pub load: f64,
    /// Requests a second.
    pub offered: f64,
    /// Good answers a second after the grace, of the three alone.
    pub alone: f64,
    /// The same of all four.
    pub good: f64,
    /// Its service time in percent of that of the three alone.
    pub of_alone: f64,
    /// Percent of the requests that failed before the grace was over.
    pub failed_before: f64,
    /// Percent of those after it.
    pub failed_after: f64,
    /// In milliseconds, until a first token or an end.
    pub longest_wait: f64,
    /// Of the three alone.
    pub longest_alone: f64,
    /// How often the sick worker was asked after the grace, a second.
    pub asked: Option<f64>,
    /// Percent of the machine that everything else used.
    pub others: Option<f64>,
}

/// What happened in one step of the time, in percent.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub kind: String,
    pub load: f64,
    /// Seconds from when the worker fell sick to the middle of the step.
    pub at: f64,
    /// Goodput, of the capacity of those that are well.
    pub alone: f64,
    pub good: f64,
    /// Requests that failed, of those that were offered.
    pub failed: f64,
}

/// Offers both fleets the same, at the same time.
pub async fn measure(
    kind: Kind,
    setting: &Setting,
    load: f64,
    (phases, seed, open_files): (Phases, u64, u64),
) -> io::Result<(Cost, Vec<Step>)> {
    let capacity = setting.capacity * WELL as f64 / WORKERS as f64;
    let Phases {
        before,
        grace,
        window,
    } = phases;
    let sent_for = before + grace + window;
    let arrivals = setting.arrivals(load * capacity, sent_for, seed);
    let (three, four) = (start(setting).await?, start(setting).await?);
    let begin = Instant::now();
    let onset = begin + before;
    let mut config = setting.worker(Mode::Both)?;
    config.listen = (Ipv4Addr::LOCALHOST, 0).into();
    config.id = Some("sick".into());
    config.register = Some(four.admin_url());
    let sick = SickWorker::start(kind, config, onset).await?;
    let (graced, over) = (onset + grace, begin + sent_for);
    let (three_url, four_url) = (three.url(), four.url());
    let times = (begin, over + PATIENCE);
    let send =
        |url, arrivals: Vec<Arrival>| send_all(setting, url, arrivals, times, open_files / 2);
    let watch = async {
        sleep_until(graced).await;
        let (then, asked) = (Machine::now(), sick.asked());
        sleep_until(over).await;
        let asked = sick.asked().zip(asked).map(|(now, then)| now - then);
        let usage = then.zip(Machine::now());
        (asked, usage.map(|(then, now)| now.since(then).1))
    };
    let ((alone, _), (ended, _), (asked, others)) = tokio::join!(
        send(&three_url, arrivals.clone()),
        send(&four_url, arrivals),
        watch
    );
    tell_failures(&ended, onset);

    let per_second = |count: usize| count as f64 / window.as_secs_f64();
    let (good_alone, time_alone) = good(setting, &alone, graced, over);
    let (good, time) = good(setting, &ended, graced, over);
    let cost = Cost {
        kind: kind.name(),
        load,
        offered: per_second(due(&ended, graced, over)),
        alone: per_second(good_alone),
        good: per_second(good),
        of_alone: 100.0 * time / time_alone,
        failed_before: failed(&ended, onset, graced),
        failed_after: failed(&ended, graced, over),
        longest_wait: longest_wait(&ended, onset),
        longest_alone: longest_wait(&alone, onset),
        asked: asked.map(|asked| per_second(asked as usize)),
        others,
    };
    Ok((
        cost,
        steps(setting, kind, load, (&alone, &ended), (begin, onset, over)),
    ))
}

async fn start(setting: &Setting) -> io::Result<Gateway> {
    Gateway::start(GatewayConfig {
        limits: WorkerLimits {
            head: Some(LIMIT),
            first_frame: Some(LIMIT),
            frame: Some(LIMIT),
            ..WorkerLimits::default()
        },
        ..setting.config(Mode::Both, WELL)?
    })
    .await
}

fn steps(
    setting: &Setting,
    kind: Kind,
    load: f64,
    (alone, ended): (&[Ended], &[Ended]),
    (begin, onset, over): (Instant, Instant, Instant),
) -> Vec<Step> {
    let slots_time = STEP.as_secs_f64() * (WELL * setting.slots) as f64;
    let of_capacity = |ended, from| 100.0 * good(setting, ended, from, from + STEP).1 / slots_time;
    // The first one is warming up.
    let mut from = begin + STEP;
    let mut steps = Vec::new();
    while from + STEP <= over {
        let middle = (from + STEP / 2 - begin).as_secs_f64();
        steps.push(Step {
            kind: kind.name().into(),
            load,
            at: middle - (onset - begin).as_secs_f64(),
            alone: of_capacity(alone, from),
            good: of_capacity(ended, from),
            failed: failed(ended, from, from + STEP),
        });
        from += STEP;
    }
    steps
}

/// The good answers whose end was then, and their service time in seconds.
fn good(setting: &Setting, ended: &[Ended], from: Instant, to: Instant) -> (usize, f64) {
    let good = ended
        .iter()
        .filter(|ended| from <= ended.at && ended.at < to && ended.is_good(setting));
    let times = good.map(|ended| service_time(&setting.timing, &ended.arrival).as_secs_f64());
    times.fold((0, 0.0), |(count, sum), time| (count + 1, sum + time))
}

fn due(ended: &[Ended], from: Instant, to: Instant) -> usize {
    let due = ended.iter().map(|ended| ended.due);
    due.filter(|due| from <= *due && *due < to).count()
}

/// The requests that failed then, in percent of those that were due.
fn failed(ended: &[Ended], from: Instant, to: Instant) -> f64 {
    let failed = ended
        .iter()
        .filter(|ended| from <= ended.at && ended.at < to && has_failed(ended));
    100.0 * failed.count() as f64 / due(ended, from, to).max(1) as f64
}

fn has_failed(ended: &Ended) -> bool {
    !matches!(
        ended.outcome,
        Some(Outcome::Succeeded(_) | Outcome::Refused)
    )
}

/// Of the requests that ended after the onset.
fn longest_wait(ended: &[Ended], onset: Instant) -> f64 {
    let waits = ended
        .iter()
        .filter(|ended| ended.at >= onset)
        .map(|ended| match &ended.outcome {
            Some(Outcome::Succeeded(pace)) => pace.first_token,
            _ => ended.at - ended.due,
        });
    waits.max().unwrap_or_default().as_secs_f64() * 1000.0
}

/// How requests failed, and when.
fn tell_failures(ended: &[Ended], onset: Instant) {
    let mut failures: BTreeMap<String, (u64, Instant, Instant)> = BTreeMap::new();
    for ended in ended.iter().filter(|ended| has_failed(ended)) {
        let how = match &ended.outcome {
            Some(Outcome::Failed(how)) => how.clone(),
            Some(_) => "the client gave up".into(),
            None => "not sent".into(),
        };
        let (count, first, last) = failures.entry(how).or_insert((0, ended.at, ended.at));
        *count += 1;
        (*first, *last) = ((*first).min(ended.at), (*last).max(ended.at));
    }
    let since = |at: Instant| match at.checked_duration_since(onset) {
        Some(after) => after.as_secs_f64(),
        None => -(onset - at).as_secs_f64(),
    };
    for (how, (count, first, last)) in failures {
        let (first, last) = (since(first), since(last));
        eprintln!("  failed: {count} × {how}, {first:.1} to {last:.1} s after the onset");
    }
}
