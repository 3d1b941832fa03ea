use bytes::Bytes;
use http::{
    Request, Response, Uri,
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use std::{
    convert::Infallible,
    error::Error,
    fmt,
    num::NonZeroU64,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tower::{Service, ServiceBuilder, retry::RetryLayer, util::BoxCloneSyncService};
use tower_overload::{
    BoxError, Unreachable,
    busy::{
        BusySet, Members, OnlyThisRequest, RefusalPolicy, RetryBudget, RetryRefused, Roster,
        RosterChanges, roster,
    },
    error::find,
    pool::WorkerPoolBuilder,
    status::{AnswerAll, OverloadStatusLayer},
};

use super::{
    balance::{Balance, Loads},
    tracking::WorkerService,
};
use crate::client::HttpClient;

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
/// status → retry → worker pool → worker clients
/// ```
pub(super) fn stack(
    set: BusySet<Id>,
    loads: &Loads,
    options: &StackOptions,
    status: &OverloadStatusLayer<AnswerAll>,
) -> (Stack, Roster<Id, WorkerService>, Members) {
    let (roster, changes): (_, RosterChanges<Id, WorkerService>) = roster();
    let mut pool = WorkerPoolBuilder::new(set)
        // The client of the workers says what a failure means.
        .policy(RefusalPolicy::new().connection_faults(|_| None))
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
        .map_err(|error: BoxError| match find::<Unread>(&*error) {
            Some(_) => Unreachable::lost(error).into(),
            None => error,
        })
        .layer(RetryLayer::new(RetryRefused::with_budget(
            options.retry_refused,
            budget,
        )))
        .service(pool);
    (BoxCloneSyncService::new(stack), roster, members)
}

/// Sends requests to one worker.
#[derive(Clone, Debug)]
pub(super) struct WorkerClient {
    client: HttpClient<Full<Bytes>>,
    scheme: Scheme,
    authority: Authority,
    base_path: String,
}

impl WorkerClient {
    /// `None` if the URL has no host.
    pub(super) fn new(client: HttpClient<Full<Bytes>>, url: &Uri) -> Option<Self> {
        Some(Self {
            client,
            scheme: url.scheme()?.clone(),
            authority: url.authority()?.clone(),
            base_path: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// The request's path and query below the worker's URL.
    fn target(&self, uri: &Uri) -> Option<Uri> {
        let path = uri.path_and_query()?;
        let path = if self.base_path.is_empty() {
            path.clone()
        } else {
            PathAndQuery::try_from(format!("{}{path}", self.base_path)).ok()?
        };
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path);
        Uri::from_parts(parts).ok()
    }
}

impl Service<Upstream> for WorkerClient {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = WorkerResponse;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Upstream) -> Self::Future {
        if let Some(target) = self.target(request.uri()) {
            *request.uri_mut() = target;
        }
        let length = request.body().size_hint().lower();
        WorkerResponse {
            only_this_request: request.headers().contains_key("x-no-queue"),
            long_body: length > TAKEN_UNREAD,
            response: self.client.request(request),
        }
    }
}

/// What a connection takes in although nobody reads it: buffers of the kernel.
const TAKEN_UNREAD: u64 = 64 * 1024;

/// A worker's response, or what its absence says about the worker.
#[derive(Debug)]
pub(super) struct WorkerResponse {
    response: legacy::ResponseFuture,
    only_this_request: bool,
    long_body: bool,
}

impl Future for WorkerResponse {
    type Output = Result<Response<Incoming>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.response).poll(cx)) {
            Ok(mut response) => {
                // A request that will not wait finds no room where others
                // do, so its refusal is no reason to pass the worker over.
                if self.only_this_request {
                    response.extensions_mut().insert(OnlyThisRequest);
                }
                Ok(response)
            }
            Err(error) if error.is_connect() => Err(Unreachable::new(error).into()),
            // A worker may answer and close before it has read a long
            // body, and the answer is lost: any client can bring that
            // about, so it must not count against the worker.
            Err(error) if self.long_body => Err(Unread(error).into()),
            Err(error) => Err(Unreachable::lost(error).into()),
        })
    }
}

/// The connection was lost while a long body was sent.
#[derive(Debug)]
struct Unread(legacy::Error);

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the worker did not read the request")
    }
}

impl Error for Unread {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}
