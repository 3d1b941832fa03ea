//! Offers what one worker refused to another, within a budget.
//!
//! [`RetryRefused`] is a policy for tower's `RetryLayer` above the pool. A request
//! carries the names of the workers that it has been to, so each is asked once.
//! The [`RetryBudget`] keeps retries from becoming the load: here one for every
//! two requests that were answered, and none beside those.
//!
//! ```console
//! $ cargo run --example retry
//! ```
//!
//! The clock is paused: a budget is one of the last ten seconds, however long the
//! machine takes.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tower::{ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};
use tower_overload::{
    BoxError, BusySet, OverloadStatusLayer, WorkerPool,
    busy::{RetryBudget, RetryRefused, roster},
};

#[derive(Default)]
struct Worker {
    is_full: AtomicBool,
    asked: AtomicUsize,
}

impl Worker {
    fn answer(&self) -> Response<Full<Bytes>> {
        self.asked.fetch_add(1, Relaxed);
        let mut response = Response::new(Full::default());
        if self.is_full.load(Relaxed) {
            // What `OverloadStatusLayer` answers with at a worker.
            *response.status_mut() = StatusCode::from_u16(529).expect("it is a status");
        }
        response
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), BoxError> {
    let fleet: [Arc<Worker>; 3] = Default::default();
    let (workers, changes) = roster();
    for (n, worker) in fleet.iter().cloned().enumerate() {
        let client = service_fn(move |_: Request<()>| {
            let response = worker.answer();
            async { Ok::<_, Infallible>(response) }
        });
        workers.insert(format!("worker-{n}"), client);
    }
    // As a rule a refusal keeps requests away from its worker for a second. Here
    // it does not, so that the retries alone decide what is asked.
    let set = BusySet::<String>::builder().lease(Duration::ZERO).build()?;
    let budget = RetryBudget::with_rate(0, 0.5);
    let gateway = ServiceBuilder::new()
        .layer(OverloadStatusLayer::new().infallible())
        .layer(RetryLayer::new(RetryRefused::with_budget(2, budget)))
        .service(WorkerPool::new(changes, set));
    let send = async || {
        let asked = || -> usize {
            let workers = fleet.iter();
            workers.map(|worker| worker.asked.load(Relaxed)).sum()
        };
        let before = asked();
        let response = gateway.clone().oneshot(Request::new(())).await?;
        println!("{}, after {} asked", response.status(), asked() - before);
        Ok::<_, BoxError>((response.status().as_u16(), asked() - before))
    };

    for _ in 0..20 {
        assert_eq!(send().await?, (200, 1));
    }
    // Twenty answers are ten retries.
    for worker in &fleet[1..] {
        worker.is_full.store(true, Relaxed);
    }
    let (status, asked) = send().await?;
    assert_eq!(status, 200, "one is free, whoever was asked first");
    let mut left = 10 - (asked - 1);

    fleet[0].is_full.store(true, Relaxed);
    while left >= 2 {
        assert_eq!(send().await?, (529, 3), "each was asked once");
        left -= 2;
    }
    assert_eq!(send().await?, (529, 1 + left));
    // The budget is spent, and a refusal is an answer at once.
    assert_eq!(send().await?, (529, 1));
    Ok(())
}
