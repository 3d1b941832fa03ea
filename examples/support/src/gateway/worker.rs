//! The client of one worker.

use super::{
    limits::WorkerLimits,
    stack::{Id, Upstream},
};
use axum::body::Body;
use futures::future::BoxFuture;
use http::Response;
use std::{
    num::NonZeroU64,
    task::{Context, Poll},
};
use tower::{Layer, Service};
use tower_overload::{
    BoxError,
    busy::OnlyThisRequest,
    fleet::Connect,
    limits::TimeLimit,
    load::{
        WorkerMonitor,
        tracker::{Cost, LoadTracker, TrackLoad},
    },
    upstream::{HttpWorker, HttpWorkerBuilder, InvalidSetting, forward::Forwarding},
};

/// How the gateway counts load by itself.
#[derive(Clone, Copy, Debug)]
pub struct RouterTracking {
    /// Tokens of a KV block of the workers.
    pub block_size: NonZeroU64,
    /// Whether the blocks of the output count, as it streams.
    pub output_blocks: bool,
}

type OfRequest = fn(&Upstream) -> Cost;

/// Counts the requests that were sent to each worker.
pub(super) type Tracker = LoadTracker<Id, OfRequest>;

impl RouterTracking {
    pub(super) fn tracker(self, monitor: &WorkerMonitor<Id>) -> Tracker {
        // Put there when the request was read; without a prompt there is none.
        let cost: OfRequest = |request| {
            let cost = request.extensions().get::<Cost>();
            cost.copied().unwrap_or_default()
        };
        let tracker = LoadTracker::new(monitor.clone(), cost);
        match self.output_blocks {
            true => tracker.track_output_blocks(self.block_size),
            false => tracker,
        }
    }
}

/// Does not wait for ever.
pub(super) type Client = TimeLimit<HttpWorker>;

/// Sends requests to one worker, and counts them if anything does.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    /// For what is no request of a client.
    pub(super) client: Client,
    tracked: Option<TrackLoad<Client, OfRequest>>,
}

impl Worker {
    pub(super) fn connect(
        worker: &Connect<'_>,
        forwarding: &Forwarding,
        limits: &WorkerLimits,
        tracker: Option<&Tracker>,
    ) -> Result<Self, InvalidSetting> {
        let signs = worker.signs.clone();
        let client = HttpWorkerBuilder::new()
            .connect_limit(limits.connect)
            .on_connect(move || signs.reached())
            .forwarding(forwarding.clone())
            .build(&worker.url.to_string())?;
        let client = limits.layer(worker.id).layer(client);
        let tracked = tracker.map(|it| it.layer(worker.id.clone()).layer(client.clone()));
        Ok(Self { client, tracked })
    }
}

impl Service<Upstream> for Worker {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Upstream) -> Self::Future {
        // A request that will not wait finds no room where others do, so its
        // refusal is no reason to pass the worker over.
        let only_this_request = request.headers().contains_key("x-no-queue");
        let answered = move |mut response: Response<Body>| {
            if only_this_request {
                response.extensions_mut().insert(OnlyThisRequest);
            }
            response
        };
        match &mut self.tracked {
            Some(tracked) => {
                let response = tracked.call(request);
                Box::pin(async move { Ok(answered(response.await?.map(Body::new))) })
            }
            None => {
                let response = self.client.call(request);
                Box::pin(async move { Ok(answered(response.await?.map(Body::new))) })
            }
        }
    }
}
