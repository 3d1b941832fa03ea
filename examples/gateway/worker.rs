//! The client of one worker.

use super::Upstream;
use axum::body::Body;
use futures::future::BoxFuture;
use http::Response;
use std::task::{Context, Poll};
use tower::{
    Layer, Service,
    util::{BoxCloneSyncService, MapResponseLayer},
};
use tower_overload::{
    BoxError,
    busy::OnlyThisRequest,
    fleet::Id,
    limits::TimeLimit,
    load::{
        WorkerMonitor,
        tracker::{Cost, LoadTracker},
    },
    upstream::HttpWorker,
};

type OfRequest = fn(&Upstream) -> Cost;

/// Counts the requests that were sent to each worker.
pub type Tracker = LoadTracker<Id, OfRequest>;

/// A tracker that tells `monitor`.
pub fn tracker(monitor: &WorkerMonitor<Id>) -> Tracker {
    // Put there when the request was read; without a prompt there is none.
    let cost: OfRequest = |request| {
        let cost = request.extensions().get::<Cost>();
        cost.copied().unwrap_or_default()
    };
    LoadTracker::new(monitor.clone(), cost)
}

/// Does not wait for ever.
pub type Client = TimeLimit<HttpWorker>;

/// Sends requests to one worker.
#[derive(Clone, Debug)]
pub struct Worker {
    client: Client,
    service: BoxCloneSyncService<Upstream, Response<Body>, BoxError>,
}

impl Worker {
    /// A worker behind `client`, whose requests `tracker` counts if there is
    /// one.
    pub fn new(client: Client, tracker: Option<&Tracker>, id: &Id) -> Self {
        let service = match tracker {
            None => {
                let body = MapResponseLayer::new(|it: Response<_>| it.map(Body::new));
                BoxCloneSyncService::new(body.layer(client.clone()))
            }
            Some(tracker) => {
                let body = MapResponseLayer::new(|it: Response<_>| it.map(Body::new));
                let tracked = tracker.layer(id.clone()).layer(client.clone());
                BoxCloneSyncService::new(body.layer(tracked))
            }
        };
        Self { client, service }
    }

    /// For what is no request of a client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }
}

impl Service<Upstream> for Worker {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Upstream) -> Self::Future {
        // A request that will not wait finds no room where others do, so its
        // refusal is no reason to pass the worker over.
        let only_this_request = request.headers().contains_key("x-no-queue");
        let response = self.service.call(request);
        Box::pin(async move {
            let mut response = response.await?;
            if only_this_request {
                response.extensions_mut().insert(OnlyThisRequest);
            }
            Ok(response)
        })
    }
}
