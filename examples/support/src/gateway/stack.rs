use bytes::Bytes;
use http::{
    Request, Response, Uri,
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use std::{
    convert::Infallible,
    error::Error,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower::{Service, ServiceBuilder, retry::RetryLayer, util::BoxCloneSyncService};
use tower_overload::{
    busy::{
        BusyBalance, BusySet, PreCheckLayer, RefusalPolicy, RetryRefused, Roster, RosterChanges,
        roster,
    },
    error::find,
    status::{AnswerAll, OverloadStatusLayer},
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
    pub(super) max_wait: Duration,
    pub(super) retry_refused: usize,
}

/// Requests that may wait for the balancer, of each model.
const BUFFER: usize = 1024;

/// The stack of one model, and the roster of the workers that serve it.
///
/// ```text
/// status → retry → pre-check → Buffer → busy filter → Balance → endpoints
/// ```
///
/// `Buffer` makes the balancer cloneable; what is above it is cloned for each
/// request, and so can keep one to send it again.
pub(super) fn stack(
    set: BusySet<Id>,
    model: &str,
    options: &StackOptions,
    status: &OverloadStatusLayer<AnswerAll>,
) -> (Stack, Roster<Id, WorkerClient>) {
    let (roster, changes): (_, RosterChanges<Id, WorkerClient>) = roster();
    let workers = BusyBalance::new(set)
        .policy(RefusalPolicy::new().unreachable_when(connection_failed))
        .max_wait(options.max_wait)
        .build(changes);
    let stack = ServiceBuilder::new()
        .map_response(|response: Response<_>| response.map(axum::body::Body::new))
        .layer(status.clone())
        .layer(RetryLayer::new(RetryRefused::new(options.retry_refused)))
        .layer(PreCheckLayer::new(workers.members().clone()).model(model))
        .buffer(BUFFER)
        .service(workers);
    (BoxCloneSyncService::new(stack), roster)
}

/// Request bodies are in memory, so whatever the client fails with before a
/// response comes is the fault of its connection.
fn connection_failed(error: &(dyn Error + 'static)) -> bool {
    find::<legacy::Error>(error).is_some()
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
    type Error = legacy::Error;
    type Future = legacy::ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Upstream) -> Self::Future {
        if let Some(target) = self.target(request.uri()) {
            *request.uri_mut() = target;
        }
        self.client.request(request)
    }
}
