//! One point of a curve.

use crate::{
    fleet::{Mode, Setting, WORKERS},
    gateway::Observer,
    machine::{FILES_PER_REQUEST, Machine},
    options::Plan,
    point::Point,
    workload::service_time,
};
use http::Uri;
use overload_examples::replay::{Arrival, Outcome, Pace, Requests, open_loop};
use std::{
    collections::BTreeMap,
    future::pending,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};

/// Files that are not connections of requests.
const OTHER_FILES: u64 = 128;

/// How a request ended, and when.
#[derive(Debug)]
pub struct Ended {
    pub arrival: Arrival,
    pub due: Instant,
    pub at: Instant,
    /// `None` if it was not sent, since the client had no connection left.
    pub outcome: Option<Outcome>,
}

impl Ended {
    /// Whether it met both objectives.
    pub fn is_good(&self, setting: &Setting) -> bool {
        match &self.outcome {
            Some(Outcome::Succeeded(pace)) => is_good(setting, &self.arrival, pace),
            _ => false,
        }
    }
}

/// Sends the requests of a setting to the gateway at `url`, each when it is due
/// from `start` on, and hangs up `until` then. Tells how they ended, and how
/// often the client panicked.
pub async fn send_all(
    setting: &Setting,
    url: &Uri,
    arrivals: Vec<Arrival>,
    (start, until): (Instant, Instant),
    open_files: u64,
) -> (Vec<Ended>, u64) {
    let longest = setting.traffic.requests().iter();
    let longest = longest.map(|request| request.prompt_tokens).max();
    let requests = Arc::new(Requests::new(url, "tiny", longest));
    let connections = open_files.saturating_sub(OTHER_FILES) / FILES_PER_REQUEST;
    let connections = Arc::new(Semaphore::new(connections.max(1) as usize));
    let mut ended: Vec<Ended> = Vec::with_capacity(arrivals.len());
    let mut panicked = 0;
    open_loop(
        arrivals
            .into_iter()
            .map(|arrival| (start + arrival.at, arrival)),
        |due, arrival| {
            let requests = Arc::clone(&requests);
            let connection = Arc::clone(&connections).try_acquire_owned();
            async move {
                let outcome = match connection {
                    Ok(_connection) => Some(requests.send_until(arrival, due, until).await),
                    Err(_) => None,
                };
                let at = Instant::now();
                Ended {
                    arrival,
                    due,
                    at,
                    outcome,
                }
            }
        },
        |end| match end {
            Ok(end) => ended.push(end),
            Err(_) => panicked += 1,
        },
        pending(),
    )
    .await;
    (ended, panicked)
}

/// Refusals as the gateway sees them: how long each took, and whether the
/// verdict at the end was its own.
#[derive(Debug, Default)]
struct Refusals {
    counting: AtomicBool,
    times: Mutex<Vec<(Duration, bool)>>,
}

impl Refusals {
    fn observer(self: &Arc<Self>) -> Observer {
        let refusals = Arc::clone(self);
        Observer::new(move |response, took| {
            if response.status() == 529 && refusals.counting.load(Ordering::Relaxed) {
                let reason = response.headers().get("x-overload-reason");
                let own = reason.is_some_and(|reason| reason == "all_workers_busy");
                refusals.all().push((took, own));
            }
        })
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<(Duration, bool)>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a fleet, offers it `load` times its capacity, and counts what happens
/// between the end of the warm-up and that of the arrivals.
///
/// - *goodput*: the answers that were complete in that time and met both
///   objectives. As a share of the capacity each counts with its service time,
///   so that a few long answers more or less do not look like a difference;
/// - *time to first token*: of the requests that were due in that time and not
///   refused, from when they were due. Of one that has none when the client
///   gives up, the time until then is taken: it would have taken longer;
/// - *refused*: of the requests that were due in that time.
pub async fn measure(
    setting: &Setting,
    mode: Mode,
    load: f64,
    plan: &Plan,
    open_files: u64,
) -> io::Result<Point> {
    let refusals = Arc::new(Refusals::default());
    let gateway = setting.start(mode, refusals.observer()).await?;
    let sent_for = setting.warm_up() + plan.window;
    let rate = load * setting.capacity;
    let arrivals = setting.arrivals(rate, sent_for, plan.seed);
    let start = Instant::now();
    let (from, to) = (start + setting.warm_up(), start + sent_for);
    let until = to + setting.patience();

    let url = gateway.url();
    let sending = send_all(setting, &url, arrivals, (start, until), open_files);
    let watching = async {
        sleep_until(from).await;
        refusals.counting.store(true, Ordering::Relaxed);
        let before = Machine::now();
        sleep_until(to).await;
        refusals.counting.store(false, Ordering::Relaxed);
        before
            .zip(Machine::now())
            .map(|(before, after)| after.since(before))
    };
    let ((ended, panicked), usage) = tokio::join!(sending, watching);
    drop(gateway);

    let within = |at: Instant| from <= at && at < to;
    let due: Vec<&Ended> = ended.iter().filter(|ended| within(ended.due)).collect();
    let count = |is: &dyn Fn(&Option<Outcome>) -> bool| {
        due.iter().filter(|ended| is(&ended.outcome)).count() as u64
    };
    let mut first_tokens: Vec<Duration> = due
        .iter()
        .filter_map(|ended| match &ended.outcome {
            Some(Outcome::Succeeded(pace)) => Some(pace.first_token),
            Some(Outcome::GaveUp(Some(first_token))) => Some(*first_token),
            Some(Outcome::GaveUp(None)) => Some(until - ended.due),
            _ => None,
        })
        .collect();
    first_tokens.sort_unstable();
    let good: Vec<Duration> = ended
        .iter()
        .filter(|ended| within(ended.at))
        .filter(|ended| ended.is_good(setting))
        .map(|ended| service_time(&setting.timing, &ended.arrival))
        .collect();
    let slots_time = plan.window.as_secs_f64() * (WORKERS * setting.slots) as f64;
    let good_time: Duration = good.iter().sum();

    let refusals = std::mem::take(&mut *refusals.all());
    let times = |own_only: bool| {
        let mut times: Vec<Duration> = refusals
            .iter()
            .filter(|(_, own)| *own || !own_only)
            .map(|(took, _)| *took)
            .collect();
        times.sort_unstable();
        times
    };
    let (all, own) = (times(false), times(true));
    let offered = due.len() as f64;
    let mut failures: BTreeMap<&str, u64> = BTreeMap::new();
    for ended in &ended {
        if let Some(Outcome::Failed(how)) = &ended.outcome {
            *failures.entry(how).or_default() += 1;
        }
    }
    if panicked > 0 {
        failures.insert("the client panicked", panicked);
    }
    for (how, count) in &failures {
        eprintln!("failed: {count} × {how}");
    }
    Ok(Point {
        workload: setting.traffic.workload.name().into(),
        slots: setting.slots,
        queue: mode.has_cap().then_some(setting.queue),
        layers: mode.name().into(),
        load,
        offered: offered / plan.window.as_secs_f64(),
        good: good.len() as f64 / plan.window.as_secs_f64(),
        of_capacity: 100.0 * good_time.as_secs_f64() / slots_time,
        first_token_p50: percentile(&first_tokens, 50),
        first_token_p99: percentile(&first_tokens, 99),
        refused: 100.0 * count(&|outcome| *outcome == Some(Outcome::Refused)) as f64
            / offered.max(1.0),
        refusal_p50: percentile(&all, 50),
        refusal_p99: percentile(&all, 99),
        own_refusal_p99: percentile(&own, 99),
        unanswered: count(&|outcome| matches!(outcome, None | Some(Outcome::GaveUp(None)))),
        failed: failures.values().sum(),
        cpu: usage.map(|(own, _)| own),
        others: usage.map(|(_, others)| others),
    })
}

fn is_good(setting: &Setting, request: &Arrival, pace: &Pace) -> bool {
    pace.first_token <= setting.first_token_within(request)
        && pace.per_token <= setting.per_token_within()
}

/// In milliseconds: the time that `percent` of the sorted `times` do not
/// exceed.
fn percentile(times: &[Duration], percent: usize) -> Option<f64> {
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).map(|time| time.as_secs_f64() * 1000.0)
}
