//! Chooses workers by prompt tokens: the fullest one whose batch still takes the
//! prompt, so that a long prompt finds room elsewhere.
//!
//! A [`LoadTracker`] around each client counts the prompt tokens that the worker
//! has in prefill. The pool keeps that count beside the worker as its load, where
//! a [`Pick`] sees it: `LeastLoaded::of_all().by_load()`, which comes with the
//! crate, or one of the application's own as here. Without room anywhere the
//! choice is left to the former.
//!
//! ```console
//! $ cargo run --example own_pick
//! ```

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use std::{convert::Infallible, num::NonZeroU64};
use tower::{ServiceBuilder, ServiceExt};
use tower_overload::{
    BoxError, BusySet,
    busy::roster,
    load::{
        WorkerCounts, WorkerMonitor,
        tracker::{Cost, LoadTracker},
    },
    pool::{
        WorkerPool, WorkerPoolBuilder,
        pick::{Candidate, LeastLoaded, OpenWorkers, Pick},
    },
};

/// What a request costs, which whoever has read it puts into it: a front does,
/// see `FrontBuilder::costs`.
fn cost<B>(request: &Request<B>) -> Cost {
    let cost = request.extensions().get::<Cost>();
    cost.copied().unwrap_or_default()
}

/// The fullest worker whose batch of so many tokens takes the prompt.
struct BestFit(u64);

impl<B> Pick<Request<B>> for BestFit {
    fn pick(
        &self,
        request: &Request<B>,
        workers: &OpenWorkers<'_, Request<B>>,
    ) -> Option<Candidate<Request<B>>> {
        let tokens = cost(request).prefill_tokens();
        (0..workers.len())
            .filter_map(|at| workers.get(at))
            .filter(|worker| worker.load() + tokens <= self.0)
            .max_by_key(Candidate::load)
            .or_else(|| LeastLoaded::of_all().by_load().pick(request, workers))
    }
}

/// The worker that answered.
#[derive(Clone)]
struct By(&'static str);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let block_size = NonZeroU64::new(16).ok_or("it is not 0")?;
    let tracker = LoadTracker::new(WorkerMonitor::new(), cost::<()>);
    let (workers, changes) = roster();
    for id in ["a", "b"] {
        let client = ServiceBuilder::new().layer(tracker.layer(id)).service_fn(
            move |_: Request<()>| async move {
                let mut response = Response::new(Full::<Bytes>::from("tokens"));
                response.extensions_mut().insert(By(id));
                Ok::<_, Infallible>(response)
            },
        );
        workers.insert(id, client);
    }
    let pool: WorkerPool<_, Request<()>> = WorkerPoolBuilder::new(BusySet::new())
        .pick(BestFit(1000))
        .load(move |id| tracker.counts(*id).by(WorkerCounts::prefill_tokens))
        .build(changes);

    // A prompt is in prefill until the first frame of its answer, so as long as
    // the response is kept and not read.
    let send = async |prompt| {
        let mut request = Request::new(());
        request
            .extensions_mut()
            .insert(Cost::of_prompt(prompt, block_size));
        let response = pool.clone().oneshot(request).await?;
        let By(worker) = *response.extensions().get().ok_or("it says who it is")?;
        println!("{prompt} tokens went to {worker}");
        Ok::<_, BoxError>((worker, response))
    };
    let (one, _first) = send(400).await?;
    let (same, _second) = send(500).await?;
    assert_eq!(same, one, "900 of 1000: the other one is kept free");
    let (other, _third) = send(800).await?;
    assert_ne!(other, one, "it would have had to wait behind the first two");
    let (last, _fourth) = send(100).await?;
    assert_eq!(last, one, "1000 of 1000");
    let (least, fifth) = send(600).await?;
    assert_eq!(
        least, other,
        "no batch takes it: the least loaded worker does"
    );

    drop(fifth);
    assert_eq!(send(200).await?.0, other, "what has ended is no load");
    Ok(())
}
