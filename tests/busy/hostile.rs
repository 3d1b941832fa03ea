//! What hostile services, wakers, discoveries and clocks cannot do.

use crate::support::*;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use http::{Request, Response};
use http_body_util::Empty;
use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};
use tower::{Service, ServiceExt, buffer::Buffer, retry::Retry};
use tower_overload::{
    BoxError, UnavailableReason,
    busy::{BusyDiscover, BusySet, Mark, RetryRefused, Verdict, roster},
};

type Body = Empty<Bytes>;
const TOO_LONG: Got = Got::Unavailable(UnavailableReason::WaitedTooLong);

/// Readiness and outcome are set by the test.
#[derive(Clone, Default)]
struct Toy(Arc<ToyState>);
#[derive(Default)]
struct ToyState {
    unready: AtomicBool,
    unready_after_call: AtomicBool,
    waker: Mutex<Option<Waker>>,
    calls: AtomicUsize,
    fail_after: Mutex<Option<(Duration, io::ErrorKind)>>,
    hang: AtomicBool,
}
impl Toy {
    fn ready_now(&self) {
        self.0.unready.store(false, Ordering::SeqCst);
        if let Some(w) = self.0.waker.lock().unwrap().take() {
            w.wake()
        }
    }
    fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }
}
impl Service<Request<()>> for Toy {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.0.unready.load(Ordering::SeqCst) {
            *self.0.waker.lock().unwrap() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        if self.0.unready_after_call.load(Ordering::SeqCst) {
            self.0.unready.store(true, Ordering::SeqCst);
        }
        let fail = *self.0.fail_after.lock().unwrap();
        let hang = self.0.hang.load(Ordering::SeqCst);
        async move {
            if hang {
                std::future::pending::<()>().await
            }
            if let Some((after, kind)) = fail {
                sleep(after).await;
                return Err(io::Error::from(kind).into());
            }
            Ok(Response::new(Body::new()))
        }
        .boxed()
    }
}

// ---- a worker whose poll_ready yields (wakes itself) ------------------------
#[derive(Clone)]
struct Yielding {
    open: Arc<AtomicBool>,
    polls: Arc<AtomicUsize>,
}
impl Service<Request<()>> for Yielding {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        if self.open.load(Ordering::SeqCst) {
            return Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
    fn call(&mut self, _: Request<()>) -> Self::Future {
        async { Ok(Response::new(Body::new())) }.boxed()
    }
}

#[tokio::test]
async fn a_worker_that_yields_does_not_block_the_thread() {
    let (roster, changes) = roster();
    let mut stack = stock(changes, BusySet::new());
    let open = Arc::new(AtomicBool::new(false));
    let polls = Arc::new(AtomicUsize::new(0));
    roster.insert(
        "a",
        Yielding {
            open: open.clone(),
            polls: polls.clone(),
        },
    );
    tokio::spawn(async move {
        sleep(Duration::from_millis(20)).await;
        open.store(true, Ordering::SeqCst)
    });
    let start = std::time::Instant::now();
    let got = send(&mut stack).await;
    let took = start.elapsed();
    assert!(
        got == OK && took < Duration::from_secs(1),
        "{got:?} after {took:?}, {} polls",
        polls.load(Ordering::Relaxed)
    );
}

// ---- time-limited marks on an endpoint that its inner service keeps pending --
#[tokio::test(start_paused = true)]
async fn a_mark_of_a_connecting_worker_falls_by_time() {
    let (fleet, mut stack) = Fleet::new([Worker::connecting("a")]);
    assert!(
        timeout(Duration::from_millis(10), send(&mut stack))
            .await
            .is_err()
    );
    let mut mark = fleet.set.busy_mark("a");
    mark.set(Some(Instant::now() + Duration::from_secs(1)));
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    sleep(Duration::from_secs(60)).await;
    assert!(!fleet.set.marks(&"a").is_excluded(), "the mark is over");
    let start = Instant::now();
    let got = send(&mut stack).await;
    assert_eq!(
        (
            got,
            start.elapsed() >= Duration::from_secs(3),
            fleet.members.verdict()
        ),
        (TOO_LONG, true, Verdict::Wait),
        "it is connecting, and not busy for 59 s"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_of_a_reconnecting_worker_ends_by_time() {
    let (roster, changes) = roster();
    let mut stack = stock(changes, BusySet::new());
    let toy = Toy::default();
    toy.0.unready_after_call.store(true, Ordering::SeqCst);
    *toy.0.fail_after.lock().unwrap() =
        Some((Duration::from_millis(100), io::ErrorKind::ConnectionReset));
    roster.insert("a", toy.clone());
    let first = stack.ready().await.unwrap().call(Request::new(()));
    // Somebody asks while the request is on its way: the endpoint is pending.
    assert!(
        timeout(Duration::from_millis(1), stack.ready())
            .await
            .is_err()
    );
    assert!(first.await.is_err());
    sleep(Duration::from_secs(2)).await; // the cooldown of 1 s is over
    *toy.0.fail_after.lock().unwrap() = None;
    let t = toy.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(200)).await;
        t.ready_now()
    });
    assert_eq!(
        send(&mut stack).await,
        OK,
        "reconnected within 200 ms, cooldown long over"
    );
}

// ---- a wait that nobody waited ----------------------------------------------
#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_is_not_held_against_the_next_request() {
    let (fleet, stack) = Fleet::new([Worker::connecting("a")]);
    let mut stack = buffered(stack);
    assert!(
        timeout(Duration::from_millis(10), send(&mut stack))
            .await
            .is_err()
    );
    sleep(Duration::from_secs(4)).await;
    let a = fleet.worker("a").clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(100)).await;
        a.connect()
    });
    assert_eq!(
        send(&mut stack).await,
        OK,
        "would have been ready after 100 ms"
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_vain_for_one_worker_is_not_held_against_another() {
    let (mut fleet, mut stack) = Fleet::new([Worker::connecting("a")]);
    assert_eq!(send(&mut stack).await, TOO_LONG);
    fleet.remove("a");
    let b = Worker::connecting("b");
    fleet.add(b.clone());
    tokio::spawn(async move {
        sleep(Duration::from_millis(100)).await;
        b.connect()
    });
    assert_eq!(
        send(&mut stack).await,
        OK,
        "b is new, and ready after 100 ms"
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_from_before_the_worker_was_ready_does_not_count() {
    // a request waits and gives up; the worker gets ready and, much later, unready again.
    let (roster, changes) = roster();
    let mut stack = stock(changes, BusySet::new());
    let toy = Toy::default();
    toy.0.unready.store(true, Ordering::SeqCst);
    roster.insert("a", toy.clone());
    assert!(
        timeout(Duration::from_millis(10), stack.ready())
            .await
            .is_err()
    );
    toy.ready_now();
    sleep(Duration::from_millis(4000)).await;
    toy.0.unready.store(true, Ordering::SeqCst); // reconnects for 100 ms
    let t = toy.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(100)).await;
        t.ready_now()
    });
    assert_eq!(send(&mut stack).await, OK);
}

// ---- leases -------------------------------------------------------------------
#[tokio::test(start_paused = true)]
async fn our_own_lease_after_a_named_one_ends_early() {
    let set = BusySet::new();
    set.refused(&"a", Some(Duration::from_millis(100)));
    sleep(Duration::from_millis(50)).await;
    set.refused(&"a", None); // our 1 s
    sleep(Duration::from_millis(500)).await; // the worker's own word is over for 450 ms
    set.completed(&"a");
    assert!(!set.marks(&"a").has(Mark::Leased));
}

#[test]
fn a_longest_lease_below_the_first_is_refused() {
    let set = BusySet::<u32>::builder()
        .lease(Duration::from_secs(10))
        .max_lease(Duration::from_secs(1))
        .build::<u32>();
    assert!(
        set.is_err(),
        "documented: an error is 'a longest one below the first'"
    );
}

// ---- two balancers, one set -----------------------------------------------------
#[tokio::test(start_paused = true)]
async fn with_two_balancers_a_replaced_endpoint_gets_nothing_more() {
    let set = BusySet::new();
    let (ra, ca) = roster();
    let (rb, cb) = roster();
    let mut a = stock(ca, set.clone());
    let mut b = stock(cb, set.clone());
    let (old, new, other) = (Toy::default(), Toy::default(), Toy::default());
    new.0.unready.store(true, Ordering::SeqCst);
    ra.insert("w", old.clone());
    rb.insert("w", other.clone());
    assert_eq!((send(&mut a).await, send(&mut b).await), (OK, OK));
    ra.insert("w", new.clone());
    let n = new.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(100)).await;
        n.ready_now()
    });
    assert_eq!(send(&mut a).await, OK);
    assert_eq!(
        (old.calls(), new.calls()),
        (1, 1),
        "the replaced one got nothing more; alive {}",
        a.members().alive()
    );
}

#[tokio::test(start_paused = true)]
async fn with_two_balancers_a_suspect_gets_one_request_at_a_time() {
    let set = BusySet::new();
    let (ra, ca) = roster();
    let (rb, cb) = roster();
    let mut a = stock(ca, set.clone());
    let mut b = stock(cb, set.clone());
    let w = Toy::default();
    *w.0.fail_after.lock().unwrap() = Some((Duration::ZERO, io::ErrorKind::ConnectionReset));
    ra.insert("w", w.clone());
    rb.insert("w", w.clone());
    b.ready().await.unwrap();
    assert_eq!(send(&mut a).await, Got::Unreachable);
    sleep(Duration::from_secs(2)).await;
    w.0.hang.store(true, Ordering::SeqCst);
    a.ready().await.unwrap();
    b.ready().await.unwrap();
    let before = w.calls();
    let mut first = a.call(Request::new(()));
    let mut second = b.call(Request::new(()));
    assert!((&mut first).now_or_never().is_none());
    let _ = (&mut second).now_or_never();
    assert_eq!(w.calls() - before, 1, "one at a time until one is answered");
}

#[tokio::test(start_paused = true)]
async fn an_old_probe_given_up_does_not_end_the_newer_one() {
    let (roster, changes) = roster();
    let mut stack = stock(changes, BusySet::new());
    let w = Toy::default();
    *w.0.fail_after.lock().unwrap() = Some((Duration::ZERO, io::ErrorKind::ConnectionReset));
    roster.insert("w", w.clone());
    assert_eq!(send(&mut stack).await, Got::Unreachable);
    sleep(Duration::from_millis(1100)).await;
    w.0.hang.store(true, Ordering::SeqCst);
    let first = stack.ready().await.unwrap().call(Request::new(()));
    sleep(Duration::from_millis(1100)).await;
    let second = stack.ready().await.unwrap().call(Request::new(()));
    drop(first);
    let third = timeout(Duration::from_millis(500), stack.ready()).await;
    assert!(
        third.is_err(),
        "the second probe is on its way for 0 ms of its 1000"
    );
    drop(second);
}

// ---- retry ------------------------------------------------------------------------
#[tokio::test(start_paused = true)]
async fn a_request_that_a_worker_may_work_on_is_sent_again_once_at_most() {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof};
    for (kind, resend_lost, expected) in [
        (TimedOut, true, 1),
        (UnexpectedEof, true, 2),
        (ConnectionReset, true, 2),
        (BrokenPipe, true, 2),
        (ConnectionReset, false, 1),
    ] {
        let (roster, changes) = roster();
        let stack = stock(changes, BusySet::new());
        let workers: Vec<Toy> = (0..5).map(|_| Toy::default()).collect();
        for (i, w) in workers.iter().enumerate() {
            *w.0.fail_after.lock().unwrap() = Some((Duration::from_secs(20), kind));
            roster.insert(i, w.clone());
        }
        let policy = RetryRefused::new(1).resend_lost(resend_lost);
        let mut stack = Retry::new(policy, Buffer::new(stack, 8));
        let _ = stack.ready().await.unwrap().call(Request::new(())).await;
        let calls: usize = workers.iter().map(Toy::calls).sum();
        assert_eq!(calls, expected, "{kind:?}");
    }
}

// ---- re-entrancy -------------------------------------------------------------------
fn finishes(name: &str, run: impl FnOnce() + Send + 'static) {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        run();
        let _ = tx.send(());
    });
    rx.recv_timeout(Duration::from_secs(5))
        .unwrap_or_else(|_| panic!("{name}: deadlock"));
}

struct Looks(BusySet<&'static str>);
impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Looks {
    fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let _ = self.0.snapshot();
    }
}

#[test]
fn a_log_subscriber_may_look_at_the_set() {
    use tracing_subscriber::layer::SubscriberExt;
    finishes("drain", || {
        let set = BusySet::new();
        let subscriber = tracing_subscriber::registry().with(Looks(set.clone()));
        tracing::subscriber::with_default(subscriber, || drop(set.drain("a")));
    });
}

#[derive(Clone)]
struct Reenters {
    roster: tower_overload::busy::Roster<&'static str, Reenters>,
    set: BusySet<&'static str>,
    on: bool,
}
impl Drop for Reenters {
    fn drop(&mut self) {
        if self.on {
            let _ = self.set.snapshot();
            self.set.forget(&"a");
            drop(self.set.drain("a"));
            self.roster.remove(&"zzz");
            self.roster.insert(
                "x",
                Reenters {
                    roster: self.roster.clone(),
                    set: self.set.clone(),
                    on: false,
                },
            );
        }
    }
}
impl Service<Request<()>> for Reenters {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, _: Request<()>) -> Self::Future {
        async { Ok(Response::new(Body::new())) }.boxed()
    }
}

#[test]
fn a_worker_service_may_call_back_in_its_drop() {
    finishes("drop", || {
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        rt.block_on(async {
            let (roster, changes) = roster();
            let set = BusySet::new();
            let mut stack = stock(changes, set.clone());
            let new = || Reenters {
                roster: roster.clone(),
                set: set.clone(),
                on: true,
            };
            roster.insert("a", new());
            roster.insert("a", new());
            roster.remove(&"a");
            roster.insert("a", new());
            assert_eq!(send(&mut stack).await, OK);
            roster.insert("a", new());
            assert_eq!(send(&mut stack).await, OK);
            roster.remove(&"a");
            send(&mut stack).await;
            drop(stack);
        });
    });
}

// ---- real threads -------------------------------------------------------------------
#[test]
fn counts_and_gauges_are_exact_after_a_storm() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let set: BusySet<u32> = ::metrics::with_local_recorder(&recorder, || {
        BusySet::<u32>::builder()
            .lease(Duration::from_micros(50))
            .cooldown(Duration::from_micros(50))
            .build()
            .unwrap()
    });
    let stop = Arc::new(AtomicBool::new(false));
    let mut members = Vec::new();
    let mut threads = Vec::new();
    for t in 0..2u32 {
        let (roster, changes) = roster::<u32, Toy>();
        let mut discover = BusyDiscover::new(changes, set.clone());
        members.push(discover.members());
        let set = set.clone();
        threads.push(std::thread::spawn(move || {
            let mut live = std::collections::HashMap::new();
            let mut seed = t + 1;
            let mut rng = move || {
                seed ^= seed << 13;
                seed ^= seed >> 17;
                seed ^= seed << 5;
                seed
            };
            for _ in 0..60_000 {
                let k = rng() % 4;
                match rng() % 6 {
                    0 => roster.remove(&k),
                    1 => roster.insert(k, Toy::default()),
                    2 => {
                        live.remove(&k);
                    }
                    3 => set.forget(&k),
                    _ => {}
                }
                while let Some(Some(Ok(change))) = discover.next().now_or_never() {
                    match change {
                        tower::discover::Change::Insert(k, e) => {
                            live.insert(k, e);
                        }
                        tower::discover::Change::Remove(k) => {
                            live.remove(&k);
                        }
                    }
                }
                for e in live.values_mut() {
                    if rng() % 3 == 0 {
                        let _ = e.inner();
                    }
                }
            }
            drop(live);
            drop(discover);
        }));
    }
    for t in 0..2u32 {
        let (set, stop) = (set.clone(), stop.clone());
        threads.push(std::thread::spawn(move || {
            let mut seed = t + 77;
            let mut rng = move || {
                seed ^= seed << 13;
                seed ^= seed >> 17;
                seed ^= seed << 5;
                seed
            };
            let mut marks: Vec<_> = (0..4).map(|_| None).collect();
            let mut drains: Vec<_> = (0..4).map(|_| None).collect();
            while !stop.load(Ordering::Relaxed) {
                let k = rng() % 4;
                match rng() % 8 {
                    0 if t == 0 => marks[k as usize]
                        .get_or_insert_with(|| set.busy_mark(k))
                        .set(None),
                    1 if t == 0 => {
                        if let Some(m) = &mut marks[k as usize] {
                            tower_overload::busy::BusyMark::clear(m)
                        }
                    }
                    2 if t == 0 => marks[k as usize] = None,
                    3 => drains[k as usize] = Some(set.drain(k)),
                    4 => drains[k as usize] = None,
                    5 => set.refused(&k, None),
                    6 => set.completed(&k),
                    _ => set.sweep(),
                }
            }
        }));
    }
    let movers: Vec<_> = threads.drain(..2).collect();
    for m in movers {
        m.join().unwrap()
    }
    stop.store(true, Ordering::Relaxed);
    for m in threads {
        m.join().unwrap()
    }
    std::thread::sleep(Duration::from_millis(5));
    set.sweep();
    for m in members {
        assert_eq!((m.alive(), m.usable(), m.eligible()), (0, 0, 0));
    }
    assert_eq!(set.snapshot(), []);
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        if let DebugValue::Gauge(g) = value {
            assert_eq!(g.0, 0.0, "{key:?}");
        }
    }
}

// ---- far times -----------------------------------------------------------------------
#[tokio::test]
async fn the_last_instant_there_is_ends_a_mark_without_a_panic() {
    let mut last = Instant::now();
    let mut step = Duration::from_secs(1 << 62);
    while !step.is_zero() {
        while let Some(next) = last.checked_add(step) {
            last = next
        }
        step /= 2;
    }
    let (fleet, mut stack) = Fleet::of(&["a"]);
    let mut mark = fleet.set.busy_mark("a");
    mark.set(Some(last));
    assert_eq!(send(&mut stack).await, ALL_BUSY);
}

// ---- hostile headers --------------------------------------------------------------------
#[tokio::test(start_paused = true)]
async fn a_hostile_retry_after_is_bounded_for_the_client_too() {
    let (fleet, mut stack) = Fleet::of(&["a"]);
    fleet
        .worker("a")
        .script(Script::Status(529, Some(u64::MAX)));
    let error = stack
        .ready()
        .await
        .unwrap()
        .call(Request::new(()))
        .await
        .map(drop)
        .unwrap_err();
    let after = tower_overload::ServiceOverloaded::find_in(&*error)
        .unwrap()
        .retry_after()
        .unwrap();
    assert!(
        after <= Duration::from_secs(24 * 3600),
        "{after:?} goes to the client"
    );
}

#[tokio::test(start_paused = true)]
async fn control_without_a_precheck_the_buffer_keeps_no_places() {
    let (fleet, stack) = Fleet::of(&["a"]);
    let mut stack = Buffer::new(stack, 2);
    let mut mark = fleet.set.busy_mark("a");
    mark.set(None);
    let mut clients: Vec<_> = (0..2).map(|_| stack.clone()).collect();
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    for client in &mut clients {
        assert_eq!(send(client).await, ALL_BUSY);
    }
    mark.clear();
    let got = timeout(Duration::from_secs(60), send(&mut stack.clone())).await;
    assert_eq!(got.ok(), Some(OK));
}

async fn two_balancers(second: bool) -> (usize, usize, u64) {
    let set = BusySet::new();
    let (ra, ca) = roster();
    let (rb, cb) = roster();
    let mut a = stock(ca, set.clone());
    let mut b = stock(cb, set.clone());
    let (old, new, other) = (Toy::default(), Toy::default(), Toy::default());
    new.0.unready.store(true, Ordering::SeqCst);
    ra.insert("w", old.clone());
    if second {
        rb.insert("w", other.clone());
    }
    let _ = b.ready().await.unwrap();
    assert_eq!(send(&mut a).await, OK);
    let _ = a.ready().await.unwrap(); // the old one is in the balancer's ready set
    ra.insert("w", new.clone());
    let n = new.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(100)).await;
        n.ready_now()
    });
    assert_eq!(send(&mut a).await, OK);
    (old.calls(), new.calls(), a.members().alive())
}

#[tokio::test(start_paused = true)]
async fn control_with_one_balancer_a_ready_replaced_endpoint_gets_nothing_more() {
    assert_eq!(two_balancers(false).await, (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn with_two_balancers_a_ready_replaced_endpoint_gets_nothing_more() {
    assert_eq!(two_balancers(true).await, (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn with_two_balancers_a_restarted_worker_starts_without_its_failures() {
    let set = BusySet::<&str>::builder()
        .cooldown(Duration::from_secs(600))
        .max_cooldown(Duration::from_secs(600))
        .build()
        .unwrap();
    let (ra, ca) = roster();
    let (rb, cb) = roster();
    let mut a = stock(ca, set.clone());
    let mut b = stock(cb, set.clone());
    let dead = Toy::default();
    *dead.0.fail_after.lock().unwrap() = Some((Duration::ZERO, io::ErrorKind::ConnectionRefused));
    ra.insert("w", dead.clone());
    rb.insert("w", dead.clone());
    b.ready().await.unwrap();
    assert_eq!(send(&mut a).await, Got::Unreachable);
    // It restarts; both registries say so.
    for r in [&ra, &rb] {
        r.remove(&"w");
        r.insert("w", Toy::default());
    }
    let got = (send(&mut a).await, send(&mut b).await);
    let again = (send(&mut a).await, send(&mut b).await);
    assert_eq!((got, again), ((OK, OK), (OK, OK)), "{:?}", set.snapshot());
}

/// A panic in a worker's `call` while it is the probe: others of the same worker wait for nothing.
#[tokio::test(start_paused = true)]
async fn a_probe_whose_call_panics_is_given_up() {
    #[derive(Clone)]
    struct Bad(Arc<AtomicUsize>);
    impl Service<Request<()>> for Bad {
        type Response = Response<Body>;
        type Error = BoxError;
        type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: Request<()>) -> Self::Future {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    async { Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()) }.boxed()
                }
                1 => panic!("call"),
                _ => async { Ok(Response::new(Body::new())) }.boxed(),
            }
        }
    }
    let set = BusySet::<&str>::builder()
        .cooldown(Duration::from_secs(20))
        .build()
        .unwrap();
    let (ra, ca) = roster();
    let mut discover = BusyDiscover::new(ca, set.clone());
    ra.insert("w", Bad(Arc::default()));
    let Some(Some(Ok(tower::discover::Change::Insert(_, mut endpoint)))) =
        discover.next().now_or_never()
    else {
        panic!()
    };
    assert!(
        endpoint
            .ready()
            .await
            .unwrap()
            .call(Request::new(()))
            .await
            .is_err()
    );
    sleep(Duration::from_secs(21)).await;
    futures::future::poll_fn(|cx| endpoint.poll_ready(cx))
        .await
        .unwrap();
    assert!(
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(
            || endpoint.call(Request::new(()))
        ))
        .is_err()
    );
    let ready = timeout(
        Duration::from_secs(1),
        futures::future::poll_fn(|cx| endpoint.poll_ready(cx)),
    )
    .await;
    assert!(ready.is_ok(), "no probe is on its way");
}

/// What the filter says must not depend on whether its own wait is polled by a yielding discovery.
#[tokio::test]
async fn a_discovery_that_yields_does_not_block_the_thread() {
    let open = Arc::new(AtomicBool::new(false));
    let o = open.clone();
    let changes = futures::stream::poll_fn(move |cx| {
        if o.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        cx.waker().wake_by_ref();
        Poll::<Option<Result<tower::discover::Change<&str, Toy>, io::Error>>>::Pending
    });
    let mut stack = stock_with(changes, BusySet::new(), |layer| {
        layer.startup_grace(Duration::from_secs(2))
    });
    tokio::spawn(async move {
        sleep(Duration::from_millis(20)).await;
        open.store(true, Ordering::SeqCst)
    });
    let start = std::time::Instant::now();
    let other = tokio::spawn(async move {
        sleep(Duration::from_millis(30)).await;
        start.elapsed()
    });
    let _ = timeout(Duration::from_millis(100), send(&mut stack)).await;
    let took = other.await.unwrap();
    assert!(
        took < Duration::from_secs(1),
        "another task of the thread got no turn for {took:?}"
    );
}
