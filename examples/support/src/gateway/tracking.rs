//! What the gateway counts by itself: the load of each worker by the requests
//! that it has sent there.

use super::stack::{Id, LimitedBody, Upstream, WorkerClient, WorkerResponse};
use futures::future::Either;
use http::Response;
use http_body_util::Either as EitherBody;
use pin_project_lite::pin_project;
use std::{
    num::NonZeroU64,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::{Layer, Service};
use tower_overload::{
    BoxError,
    completion::TrackedBody,
    load::{
        LoadEvent, WorkerCounts, WorkerMonitor,
        tracker::{Cost, Frames, KeepFresh, LoadTracker, ResponseFuture, TrackLoad, Tracked},
    },
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

/// The tracker of all workers. Its counts replace those of the same name that
/// workers report.
#[derive(Clone, Debug)]
pub(super) struct Tracking {
    tracker: LoadTracker<Id, OfRequest>,
}

impl Tracking {
    pub(super) fn new(monitor: &WorkerMonitor<Id>, options: RouterTracking) -> Self {
        // Put there when the request was read; without a prompt there is none.
        let cost: OfRequest = |request| {
            request
                .extensions()
                .get::<Cost>()
                .copied()
                .unwrap_or_default()
        };
        let mut tracker = LoadTracker::new(monitor.clone(), cost);
        if options.output_blocks {
            tracker = tracker.track_output_blocks(options.block_size);
        }
        Self { tracker }
    }

    /// The client of a worker, whose requests are counted.
    pub(super) fn client(&self, worker: Id, client: WorkerClient) -> WorkerService {
        WorkerService::Tracked(self.tracker.layer(worker).layer(client))
    }

    /// The worker was configured with these ranks, perhaps after it was away.
    pub(super) fn configured(&self, worker: &Id, ranks: &[u32]) {
        drop(
            self.tracker
                .layer(worker.clone())
                .ranks(ranks.iter().copied()),
        );
        self.tracker.report(worker);
    }

    /// The id is another worker's from now on.
    pub(super) fn hand_over(&self, worker: &Id) {
        self.tracker.hand_over(worker);
    }

    /// What the worker has by the gateway's own count.
    pub(super) fn counts(&self, worker: &Id) -> WorkerCounts {
        self.tracker.counts(worker.clone())
    }

    pub(super) fn keep_fresh(&self) -> KeepFresh<Id> {
        self.tracker.keep_fresh()
    }

    /// What the gateway does not know better than the worker.
    pub(super) fn rest_of(event: &LoadEvent<Id>) -> LoadEvent<Id> {
        LoadEvent::new(event.worker.clone(), event.dp_rank).kv_used_blocks(event.kv_used_blocks)
    }
}

/// The client of one worker, whether or not its requests are counted.
#[derive(Clone, Debug)]
pub(super) enum WorkerService {
    Plain(WorkerClient),
    Tracked(TrackLoad<WorkerClient, OfRequest>),
}

type Answered = EitherBody<LimitedBody, TrackedBody<LimitedBody, Tracked, Frames>>;

impl Service<Upstream> for WorkerService {
    type Response = Response<Answered>;
    type Error = BoxError;
    type Future = WorkerFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Plain(client) => client.poll_ready(cx),
            Self::Tracked(client) => client.poll_ready(cx),
        }
    }

    fn call(&mut self, request: Upstream) -> WorkerFuture {
        WorkerFuture {
            response: match self {
                Self::Plain(client) => Either::Left(client.call(request)),
                Self::Tracked(client) => Either::Right(client.call(request)),
            },
        }
    }
}

pin_project! {
    /// The response of a [`WorkerService`].
    #[derive(Debug)]
    pub(super) struct WorkerFuture {
        #[pin]
        response: Either<WorkerResponse, ResponseFuture<WorkerResponse>>,
    }
}

impl Future for WorkerFuture {
    type Output = Result<Response<Answered>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match self.project().response.as_pin_mut() {
            Either::Left(plain) => {
                ready!(plain.poll(cx)).map(|response| response.map(EitherBody::Left))
            }
            Either::Right(tracked) => {
                ready!(tracked.poll(cx)).map(|response| response.map(EitherBody::Right))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_workers_own_blocks_are_left_of_its_report() {
        let event = LoadEvent::new(Id::from("a"), 3)
            .active_decode_blocks(1)
            .active_prefill_tokens(2)
            .kv_used_blocks(3);
        let rest = LoadEvent::new(Id::from("a"), 3).kv_used_blocks(3);
        assert_eq!(Tracking::rest_of(&event), rest);
    }
}
