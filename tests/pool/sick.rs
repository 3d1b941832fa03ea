//! A sick worker among well ones under load: what it costs.

use crate::support::{Id, TestBody, ms, secs};
use http::{Request, Response};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn,
    util::BoxCloneSyncService,
};
use tower_overload::{
    BusySet, EngineAdmissionLayer,
    busy::{RetryRefused, roster},
    limits::{Streamed, TimeLimitLayer},
    pool::WorkerPoolBuilder,
};

type Client = BoxCloneSyncService<Request<()>, Response<TestBody>, BoxError>;

/// How long a request takes, of which each worker has so many at once, and so
/// many in its queue.
const TAKES: Duration = ms(200);
const SLOTS: usize = 10;

/// Requests a second of one well worker.
const CAPACITY: f64 = SLOTS as f64 / 0.2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sickness {
    /// It takes requests and says nothing.
    Hangs,
    /// It answers 500 at once.
    Fails,
    /// It has no room at once, and names a time.
    Refuses,
    /// It cannot be connected to.
    IsDown,
}

fn well() -> Client {
    let engine = service_fn(|_: Request<()>| async {
        sleep(TAKES).await;
        Ok::<_, BoxError>(Response::new(TestBody::default()))
    });
    let admission = EngineAdmissionLayer::new(SLOTS, SLOTS).unwrap();
    let worker = ServiceBuilder::new()
        .layer(limits())
        .layer(admission)
        .service(engine);
    boxed(worker)
}

fn sick(how: Sickness, calls: Arc<AtomicUsize>) -> Client {
    let worker = service_fn(move |_: Request<()>| {
        calls.fetch_add(1, SeqCst);
        async move {
            let status = match how {
                Sickness::Hangs => std::future::pending().await,
                Sickness::Fails => 500,
                Sickness::Refuses => 529,
                Sickness::IsDown => {
                    let refused = std::io::ErrorKind::ConnectionRefused;
                    return Err(BoxError::from(std::io::Error::from(refused)));
                }
            };
            let response = Response::builder().status(status);
            let response = response.header("retry-after", 7);
            Ok(response.body(TestBody::default()).unwrap())
        }
    });
    boxed(limits().layer(worker))
}

fn boxed<S, B>(worker: S) -> Client
where
    S: Service<Request<()>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    let worker = worker.map_response(|response: Response<B>| response.map(|_| TestBody::default()));
    BoxCloneSyncService::new(worker.map_err(Into::into))
}

fn limits() -> TimeLimitLayer {
    TimeLimitLayer::new().head(Some(ms(500)))
}

#[derive(Debug, Default)]
struct Seen {
    /// Served, by the second that they came in.
    served: BTreeMap<u64, u64>,
    failed: BTreeMap<u64, u64>,
    longest: Duration,
}

/// Offers so many requests a second for ten seconds.
async fn offer(workers: Vec<Client>, rate: f64, retries: usize) -> Seen {
    let (roster, changes) = roster::<Id, Client>();
    for (id, worker) in ["a", "b", "c", "d", "e", "f", "g", "h"]
        .into_iter()
        .zip(workers)
    {
        roster.insert(id, worker);
    }
    let pool = WorkerPoolBuilder::new(BusySet::new()).build(changes);
    let stack = RetryLayer::new(RetryRefused::new(retries)).layer(pool);
    let stack = BoxCloneSyncService::new(stack.map_response(|response| response.map(drop)));
    let seen = Arc::new(Mutex::new(Seen::default()));
    let start = Instant::now();
    let mut tasks = Vec::new();
    for n in 0..(rate * 10.0) as u32 {
        tokio::time::sleep_until(start + Duration::from_secs_f64(f64::from(n) / rate)).await;
        let (mut stack, seen) = (stack.clone(), seen.clone());
        tasks.push(tokio::spawn(async move {
            let mut request = Request::new(());
            request.extensions_mut().insert(Streamed(true));
            let came = Instant::now();
            let answer = match stack.ready().await {
                Ok(stack) => stack.call(request).await,
                Err(error) => Err(error),
            };
            let mut seen = seen.lock().unwrap();
            seen.longest = seen.longest.max(came.elapsed());
            let second = (came - start).as_secs();
            let count = match answer {
                Ok(response) if response.status().is_success() => &mut seen.served,
                _ => &mut seen.failed,
            };
            *count.entry(second).or_default() += 1;
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    drop(roster);
    Arc::try_unwrap(seen).unwrap().into_inner().unwrap()
}

fn sum(of: &BTreeMap<u64, u64>, seconds: std::ops::Range<u64>) -> f64 {
    seconds
        .map(|second| of.get(&second).copied().unwrap_or(0))
        .sum::<u64>() as f64
}

#[tokio::test(start_paused = true)]
async fn a_time_named_by_full_workers_costs_no_goodput() {
    for (takes_queue, rate) in [(1, 2.5), (1, 1.2)] {
        let workers = (0..4).map(|_| well()).collect();
        let seen = offer(workers, 4.0 * CAPACITY * rate, takes_queue).await;
        let goodput = sum(&seen.served, 1..9) / 8.0;
        assert!(goodput >= 0.95 * 4.0 * CAPACITY, "{rate}: {goodput}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sick_worker_of_four_costs_no_goodput_of_the_other_three() {
    use Sickness::{Fails, Hangs, IsDown, Refuses};
    for how in [Hangs, Fails, Refuses, IsDown] {
        for share in [0.5, 1.0, 2.0] {
            let rate = 3.0 * CAPACITY * share;
            let three = offer((0..3).map(|_| well()).collect(), rate, 1).await;
            let calls = Arc::new(AtomicUsize::new(0));
            let mut workers: Vec<_> = (0..3).map(|_| well()).collect();
            workers.push(sick(how, calls.clone()));
            let seen = offer(workers, rate, 1).await;
            let (goodput, of_three) = (sum(&seen.served, 2..10), sum(&three.served, 2..10));
            assert!(
                goodput >= 0.95 * of_three,
                "{how:?} at {share}: {goodput} of {of_three}"
            );
            // Two heads that do not come, and a wait.
            assert!(
                seen.longest <= secs(3),
                "{how:?} at {share}: {:?}",
                seen.longest
            );
            let failed = sum(&seen.failed, 0..2) - sum(&three.failed, 0..2);
            assert!(failed <= 0.25 * 2.0 * rate, "{how:?} at {share}: {failed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_at_once_gets_no_more_than_its_share() {
    for how in [Sickness::Fails, Sickness::Refuses] {
        for others in [1, 3, 7] {
            let calls = Arc::new(AtomicUsize::new(0));
            let mut workers: Vec<_> = (0..others).map(|_| well()).collect();
            workers.push(sick(how, calls.clone()));
            let rate = 0.5 * CAPACITY * others as f64;
            offer(workers, rate, 0).await;
            let share = 10.0 * rate / (others as f64 + 1.0);
            let got = calls.load(SeqCst) as f64;
            assert!(got <= share, "{how:?} beside {others}: {got} of {share}");
        }
    }
}
