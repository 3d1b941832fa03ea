//! Tests a stack of one's own under tokio's paused clock.
//!
//! Every time in the crate is tokio's: leases, limits, waits, probes. With
//! `start_paused` the clock stands still while anything can run, and jumps to the
//! next timer when nothing can. So a test of minutes takes no time, and may ask
//! for an exact one.
//!
//! ```console
//! $ cargo test --example paused_clock
//! $ cargo run --example paused_clock
//! ```

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use std::{
    convert::Infallible,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceBuilder, service_fn};
use tower_overload::{
    BusySet, EngineAdmissionLayer, OverloadStatusLayer, WorkerPool, busy::roster,
};

type Answer = Response<Full<Bytes>>;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The status, the reason if it is none of the engine's, and when it came.
async fn outcome<B>(
    response: impl Future<Output = Result<Response<B>, Infallible>>,
    since: Instant,
) -> (u16, Option<String>, Duration) {
    let Ok(response) = response.await;
    let reason = response.headers().get("x-overload-reason");
    let reason = reason.map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned());
    (response.status().as_u16(), reason, since.elapsed())
}

/// One slot, one place, five seconds in it at most, and an engine that takes a
/// minute.
async fn a_worker_refuses_at_once_or_after_five_seconds() {
    let engine = |_: Request<()>| async {
        sleep(secs(60)).await;
        Ok::<_, Infallible>(Answer::default())
    };
    let admission = EngineAdmissionLayer::new(1, 1).expect("it is a limit");
    let mut worker = ServiceBuilder::new()
        .layer(OverloadStatusLayer::new().infallible())
        .layer(admission.with_max_queue_wait(secs(5)))
        .service_fn(engine);

    let start = Instant::now();
    let mut call = || outcome(worker.call(Request::new(())), start);
    let (served, waited, refused) = tokio::join!(call(), call(), call());
    let because = |reason: &str| Some(reason.to_owned());
    assert_eq!(served, (200, None, secs(60)));
    assert_eq!(waited, (529, because("waited_too_long"), secs(5)));
    assert_eq!(refused, (529, because("worker_at_capacity"), secs(0)));
}

/// A refusal leases its worker for a second, in which it is not asked.
async fn a_gateway_asks_a_worker_again_after_a_second() {
    let is_full = Arc::new(AtomicBool::new(true));
    let full = is_full.clone();
    let worker = service_fn(move |_: Request<()>| {
        let mut answer = Answer::default();
        if full.load(Relaxed) {
            *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        async { Ok::<_, Infallible>(answer) }
    });
    let (workers, changes) = roster();
    workers.insert("worker-0", worker);
    let mut gateway = ServiceBuilder::new()
        .layer(OverloadStatusLayer::new().infallible())
        .service(WorkerPool::new(changes, BusySet::new()));
    let mut send = async || {
        let Ok(response) = gateway.call(Request::new(())).await;
        response.status().as_u16()
    };

    assert_eq!(send().await, 529, "it says that it is full");
    is_full.store(false, Relaxed);
    sleep(Duration::from_millis(999)).await;
    assert_eq!(send().await, 529, "it is not asked yet");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(send().await, 200);
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let start = Instant::now();
    a_worker_refuses_at_once_or_after_five_seconds().await;
    a_gateway_asks_a_worker_again_after_a_second().await;
    println!("{:?} have passed", start.elapsed());
}

#[cfg(test)]
mod tests {
    #[tokio::test(start_paused = true)]
    async fn a_worker_refuses_at_once_or_after_five_seconds() {
        super::a_worker_refuses_at_once_or_after_five_seconds().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_asks_a_worker_again_after_a_second() {
        super::a_gateway_asks_a_worker_again_after_a_second().await;
    }
}
