use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use pin_project_lite::pin_project;
use std::{
    convert::Infallible,
    num::NonZeroU64,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tower::{Layer, Service, ServiceBuilder, retry::RetryLayer, util::BoxCloneSyncService};
use tower_overload::{
    BoxError,
    busy::{
        BusySet, Members, OnlyThisRequest, RetryBudget, RetryRefused, Roster, RosterChanges, roster,
    },
    limits::{self, TimeLimit, TimeLimitBody},
    pool::WorkerPoolBuilder,
    status::{AnswerAll, OverloadStatusLayer},
    upstream::{
        self, HttpWorker, HttpWorkerBuilder, InvalidSetting, WorkerBody, forward::Forwarding,
        sse::EventStreamLayer,
    },
};

use super::{
    balance::{Balance, Loads},
    limits::WorkerLimits,
    signs::SignsOfLife,
    tracking::WorkerService,
};

/// How a worker is called.
pub type Id = Arc<str>;

/// A request on its way to a worker: its body is in memory, so that it can be
/// sent again.
pub type Upstream = Request<Full<Bytes>>;

/// What stands behind one model, for the handler: it never fails, since the
/// status layer answers.
pub type Stack = BoxCloneSyncService<Upstream, Response<axum::body::Body>, Infallible>;

/// What the stacks of all models have in common.
#[derive(Clone, Debug)]
pub(super) struct StackOptions {
    pub(super) balance: Balance,
    pub(super) max_wait: Duration,
    pub(super) max_waiting: usize,
    pub(super) max_in_flight: Option<NonZeroU64>,
    pub(super) retry_refused: usize,
    pub(super) retry_budget_percent: u32,
    pub(super) retry_lost_percent: u64,
}

/// The stack of one model, the roster of the workers that serve it, and their
/// counts. It needs a runtime, where the pool's driver runs until the stack is
/// dropped.
///
/// ```text
/// status → event streams → retry → worker pool → time limits → HTTP workers
/// ```
pub(super) fn stack(
    set: BusySet<Id>,
    loads: &Loads,
    options: &StackOptions,
    status: &OverloadStatusLayer<AnswerAll>,
) -> (Stack, Roster<Id, WorkerService>, Members) {
    let (roster, changes): (_, RosterChanges<Id, WorkerService>) = roster();
    let mut pool = WorkerPoolBuilder::new(set)
        .max_wait(options.max_wait)
        .max_waiting(options.max_waiting);
    if let Some(limit) = options.max_in_flight {
        pool = pool.max_in_flight(limit);
    }
    let pool = loads.balance(options.balance, pool).build(changes);
    tokio::spawn(pool.driver());
    let members = pool.members();
    let in_flight = pool.clone();
    let budget = RetryBudget::with_rate(10, options.retry_budget_percent as f32 / 100.0)
        .in_flight(move || in_flight.in_flight())
        .lost_percent(options.retry_lost_percent);
    let stack = ServiceBuilder::new()
        .map_response(|response: Response<_>| response.map(axum::body::Body::new))
        .layer(status.clone())
        // Below, so that the gateway's own answers do not go through it.
        .layer(EventStreamLayer::new())
        .layer(RetryLayer::new(RetryRefused::with_budget(
            options.retry_refused,
            budget,
        )))
        .service(pool);
    (BoxCloneSyncService::new(stack), roster, members)
}

/// Sends requests to one worker, and does not wait for ever.
#[derive(Clone, Debug)]
pub(super) struct WorkerClient(TimeLimit<HttpWorker>);

/// The body of a worker's answer.
pub(super) type LimitedBody = TimeLimitBody<WorkerBody>;

impl WorkerClient {
    /// # Errors
    ///
    /// If the URL is not one of a worker.
    pub(super) fn new(
        id: &str,
        url: &Uri,
        forwarding: &Forwarding,
        limits: &WorkerLimits,
        signs: SignsOfLife,
    ) -> Result<Self, InvalidSetting> {
        let worker = HttpWorkerBuilder::new()
            .connect_limit(limits.connect)
            .on_connect(move || signs.reached())
            .forwarding(forwarding.clone())
            .build(&url.to_string())?;
        Ok(Self(limits.layer(id).layer(worker)))
    }
}

impl Service<Upstream> for WorkerClient {
    type Response = Response<LimitedBody>;
    type Error = BoxError;
    type Future = WorkerResponse;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Upstream) -> Self::Future {
        WorkerResponse {
            only_this_request: request.headers().contains_key("x-no-queue"),
            response: self.0.call(request),
        }
    }
}

pin_project! {
    /// A worker's response.
    #[derive(Debug)]
    pub(super) struct WorkerResponse {
        #[pin]
        response: limits::future::ResponseFuture<upstream::future::ResponseFuture, WorkerBody>,
        only_this_request: bool,
    }
}

impl Future for WorkerResponse {
    type Output = Result<Response<LimitedBody>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.response.poll(cx))?;
        // A request that will not wait finds no room where others do, so its
        // refusal is no reason to pass the worker over.
        if *this.only_this_request {
            response.extensions_mut().insert(OnlyThisRequest);
        }
        Poll::Ready(Ok(response))
    }
}
