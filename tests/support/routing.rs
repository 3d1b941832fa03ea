//! A fleet of simulated workers behind the real pool, on a paused clock: how
//! soon requests of a recorded trace get their first token under a choice.

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use std::{
    collections::VecDeque,
    convert::Infallible,
    fs,
    future::{Ready, ready},
    path::Path,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tower::{Service, ServiceExt, layer::Layer};
use tower_overload::{
    BusySet,
    busy::roster,
    load::{
        LoadEvent, WorkerConfig, WorkerCounts, WorkerMonitor,
        tracker::{Cost, LoadTracker},
    },
    pool::{
        WorkerPoolBuilder,
        pick::{Affinity, Candidate, LeastLoaded, OpenWorkers, Pick, hash_key},
    },
};

const WORKERS: usize = 8;
/// Prompt tokens that a worker prefills in a second.
const PREFILL: f64 = 8_000.0;
const DECODE: Duration = Duration::from_millis(20);
/// Sessions whose prefix a worker has cached.
const CACHED_SESSIONS: usize = 64;
/// The part of a prompt that is left to prefill after a hit.
const UNCACHED: f64 = 0.3;
const SESSIONS: f64 = 1_000.0;
/// The share of the requests that belong to the hot session.
const HOT: f64 = 0.3;
/// The extra wait that still counts as soon.
const SOON: Duration = Duration::from_secs(1);

/// A request of a trace.
#[derive(Clone, Copy)]
pub struct Job {
    /// Seconds after the first one of the trace.
    at: f64,
    prompt: u32,
    answer: u32,
    session: u64,
}

impl Job {
    /// How long an idle worker without a cache prefills it.
    fn alone(&self) -> Duration {
        Duration::from_secs_f64(f64::from(self.prompt) / PREFILL)
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Trace {
    AzureCode,
    Mooncake,
}

impl Trace {
    /// Its first `most` requests, in order.
    pub fn read(self, most: usize) -> Vec<Job> {
        let name = match self {
            Self::AzureCode => "azure_code_2023.csv",
            Self::Mooncake => "mooncake_conversation_timing.csv",
        };
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data")).join(name);
        let text = fs::read_to_string(&path).expect("the trace is in the repository");
        let mut jobs: Vec<_> = text
            .lines()
            .skip(1)
            .filter(|line| !line.trim().is_empty())
            .take(most)
            .map(|line| self.job(line).expect("a row of the trace"))
            .collect();
        let first = jobs.first().map_or(0.0, |job| job.at);
        jobs.iter_mut().for_each(|job| job.at -= first);
        jobs
    }

    fn job(self, line: &str) -> Option<Job> {
        let mut fields = line.trim().split(',');
        let at = fields.next()?;
        let at = match self {
            // All of it is of one day.
            Self::AzureCode => at
                .split_once(' ')?
                .1
                .split(':')
                .try_fold(0.0, |sum, part| {
                    Some(sum * 60.0 + part.parse::<f64>().ok()?)
                })?,
            Self::Mooncake => at.parse::<f64>().ok()? / 1e3,
        };
        Some(Job {
            at,
            prompt: fields.next()?.parse().ok()?,
            answer: fields.next()?.parse().ok()?,
            session: 0,
        })
    }
}

/// Whose prompts have a prefix in common.
#[derive(Clone, Copy, Debug)]
pub enum Sessions {
    /// Nobody's, and nothing is cached.
    None,
    /// A thousand sessions, the first ones somewhat more often.
    Many,
    /// The same, and three of ten requests are of one of them.
    OneHot,
}

/// SplitMix64, so that every run has the same sessions.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Sessions {
    fn assign(self, jobs: &mut [Job]) {
        let mut random = Random(12);
        for job in jobs {
            let is_hot = random.unit() < HOT;
            // The square is Zipf's law with an exponent of one half.
            let session = (SESSIONS * random.unit().powi(2)) as u64;
            job.session = match self {
                Self::OneHot if is_hot => 0,
                _ => session,
            };
        }
    }
}

/// What is simulated.
pub struct Scenario {
    jobs: Vec<Job>,
    has_cache: bool,
}

impl Scenario {
    /// The first `most` requests of a trace, at a pace at which their prompts
    /// take the share `load` of what the workers prefill without a cache.
    pub fn new(trace: Trace, most: usize, load: f64, sessions: Sessions) -> Self {
        let mut jobs = trace.read(most);
        let span = jobs.last().map_or(0.0, |job| job.at);
        let tokens: f64 = jobs.iter().map(|job| f64::from(job.prompt)).sum();
        let stretch = tokens / (load * WORKERS as f64 * PREFILL) / span;
        jobs.iter_mut().for_each(|job| job.at *= stretch);
        sessions.assign(&mut jobs);
        Self {
            jobs,
            has_cache: !matches!(sessions, Sessions::None),
        }
    }
}

/// How a worker is chosen.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    Random,
    /// The default: of two, by requests in flight.
    Two,
    LeastOfAll,
    TwoByTokens,
    LeastOfAllByTokens,
    /// By tokens in prefill that the workers say once a second.
    LeastOfAllByReports,
    LeastOfAllByReportsAndSent,
    Affinity,
    AffinityByTokens,
}

struct AtRandom;

impl<Req> Pick<Req> for AtRandom {
    fn pick(&self, _: &Req, workers: &OpenWorkers<'_, Req>) -> Option<Candidate<Req>> {
        workers.get(workers.random())
    }
}

fn tokens(request: &Request<Job>) -> u64 {
    request.body().prompt.into()
}

fn session(request: &Request<Job>) -> Option<u64> {
    Some(hash_key(&request.body().session.to_le_bytes()))
}

impl Choice {
    fn configure<C>(
        self,
        pool: WorkerPoolBuilder<usize, Request<Job>>,
        tracker: LoadTracker<usize, C>,
        reports: WorkerMonitor<usize>,
    ) -> WorkerPoolBuilder<usize, Request<Job>>
    where
        C: Clone + Send + Sync + 'static,
    {
        let tracked = move |id: &usize| tracker.counts(*id).by(WorkerCounts::prefill_tokens);
        let reported = move |id: &usize| reports.counts(*id).by(WorkerCounts::prefill_tokens);
        let least = LeastLoaded::of_all();
        match self {
            Self::Random => pool.pick(AtRandom),
            Self::Two => pool,
            Self::LeastOfAll => pool.pick(least),
            Self::TwoByTokens => pool.pick(LeastLoaded::of(2).by_load()).load(tracked),
            Self::LeastOfAllByTokens => pool.pick(least.by_load()).load(tracked),
            Self::LeastOfAllByReports => pool.pick(least.by_load()).load(reported),
            Self::LeastOfAllByReportsAndSent => pool
                .pick(least.by_load())
                .load(move |id| reported(id).and_sent(tokens)),
            Self::Affinity => pool.pick(Affinity::by(session)),
            Self::AffinityByTokens => pool
                .pick(Affinity::by(session).by_load().floor(8_000))
                .load(tracked),
        }
    }
}

/// An engine: prompts are prefilled one after the other, answers are decoded
/// beside each other.
#[derive(Clone)]
struct Worker {
    engine: Arc<Mutex<Engine>>,
    has_cache: bool,
}

struct Engine {
    free_at: Instant,
    /// The sessions that were here last, the latest in front.
    cached: VecDeque<u64>,
    hits: usize,
}

impl Engine {
    fn is_hit(&mut self, session: u64) -> bool {
        let place = self.cached.iter().position(|cached| *cached == session);
        if let Some(place) = place {
            self.cached.remove(place);
        }
        self.cached.push_front(session);
        self.cached.truncate(CACHED_SESSIONS);
        place.is_some()
    }

    fn tokens_in_prefill(&self) -> u64 {
        let left = self.free_at.duration_since(Instant::now());
        (left.as_secs_f64() * PREFILL) as u64
    }
}

impl Worker {
    fn new(has_cache: bool) -> Self {
        let engine = Engine {
            free_at: Instant::now(),
            cached: VecDeque::new(),
            hits: 0,
        };
        Self {
            engine: Arc::new(Mutex::new(engine)),
            has_cache,
        }
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

impl Service<Request<Job>> for Worker {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Job>) -> Self::Future {
        let job = request.body();
        let first = {
            let mut engine = self.engine.lock().expect("no engine panics");
            let is_hit = self.has_cache && engine.is_hit(job.session);
            engine.hits += usize::from(is_hit);
            let part = if is_hit { UNCACHED } else { 1.0 };
            engine.free_at = engine.free_at.max(Instant::now()) + job.alone().mul_f64(part);
            engine.free_at
        };
        let last = first + DECODE * job.answer;
        let frames = stream::iter([first, last]).then(|at| async move {
            sleep_until(at).await;
            Ok(Frame::data(Bytes::from_static(b"token")))
        });
        let body = StreamBody::new(frames).boxed_unsync();
        ready(Ok(Response::new(body)))
    }
}

/// What requests got, as means over the runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// The share of requests whose first token came within a second of an idle
    /// worker's.
    pub soon: f64,
    /// The 99th percentile of the wait beyond an idle worker's, in seconds.
    pub p99: f64,
    /// The share of requests that found their session cached.
    pub hits: f64,
}

impl Outcome {
    fn of(mut extra: Vec<Duration>, hits: usize) -> Self {
        extra.sort_unstable();
        let share = |n: usize| n as f64 / extra.len() as f64;
        Self {
            soon: share(extra.partition_point(|extra| *extra <= SOON)),
            p99: extra[extra.len() * 99 / 100].as_secs_f64(),
            hits: share(hits),
        }
    }
}

/// Runs the scenario as often as that: the choices draw at random.
pub fn simulate(scenario: &Scenario, choice: Choice, runs: u32) -> Outcome {
    let mut mean = Outcome::default();
    for _ in 0..runs {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O");
        let outcome = runtime.block_on(run(scenario, choice));
        mean.soon += outcome.soon / f64::from(runs);
        mean.p99 += outcome.p99 / f64::from(runs);
        mean.hits += outcome.hits / f64::from(runs);
    }
    mean
}

async fn run(scenario: &Scenario, choice: Choice) -> Outcome {
    // Apart from the one of the reports: its counts are the tracker's.
    let tracked = WorkerMonitor::builder().stale_after(None).build();
    let tracker = LoadTracker::new(tracked.clone(), |request: &Request<Job>| {
        Cost::new(tokens(request), 0)
    });
    let reports = WorkerMonitor::new();
    let (roster, changes) = roster();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| Worker::new(scenario.has_cache))
        .collect();
    for (id, worker) in workers.iter().enumerate() {
        let config = WorkerConfig::new([0]).expect("it has a rank");
        tracked.configure_for_all(id, config.clone());
        reports.configure_for_all(id, config);
        roster.insert(id, tracker.layer(id).layer(worker.clone()));
    }
    let pool = WorkerPoolBuilder::new(BusySet::new()).max_wait(Duration::from_secs(3_600));
    let pool = choice
        .configure(pool, tracker, reports.clone())
        .build(changes);
    let mut background = JoinSet::new();
    background.spawn(pool.driver());
    background.spawn(report(workers.clone(), reports));

    let start = Instant::now();
    let mut requests = JoinSet::new();
    for job in scenario.jobs.iter().copied() {
        let pool = pool.clone();
        requests.spawn(async move {
            let arrival = start + Duration::from_secs_f64(job.at);
            sleep_until(arrival).await;
            let response = pool.oneshot(Request::new(job)).await;
            let mut body = response.expect("no worker refuses").into_body();
            body.frame().await.expect("a first token").expect("a frame");
            let extra = arrival.elapsed().saturating_sub(job.alone());
            while body.frame().await.is_some() {}
            extra
        });
    }
    let extra = requests.join_all().await;
    let hits = |worker: &Worker| worker.engine.lock().expect("no engine panics").hits;
    Outcome::of(extra, workers.iter().map(hits).sum())
}

/// What the workers could do without a cache if all of them took requests from
/// one queue, in order: then nobody waits while a worker idles.
pub fn one_queue(scenario: &Scenario) -> Outcome {
    let mut free_at = [Duration::ZERO; WORKERS];
    let extra = scenario.jobs.iter().map(|job| {
        let arrival = Duration::from_secs_f64(job.at);
        let next = free_at.iter_mut().min().expect("there are workers");
        let start = arrival.max(*next);
        *next = start + job.alone();
        start - arrival
    });
    Outcome::of(extra.collect(), 0)
}

/// Each worker says once a second how much it has to prefill.
async fn report(workers: Vec<Worker>, monitor: WorkerMonitor<usize>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for (id, worker) in workers.iter().enumerate() {
            let tokens = worker
                .engine
                .lock()
                .expect("no engine panics")
                .tokens_in_prefill();
            let event = LoadEvent::new(id, 0).active_prefill_tokens(tokens);
            monitor.observe(event).expect("the worker is registered");
        }
    }
}
