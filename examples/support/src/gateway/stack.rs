//! What a request passes once its model is known.

use super::{
    balance::{Balance, Loads},
    worker::Worker,
};
use axum::body::Body;
use http::{Request, Response};
use std::{convert::Infallible, num::NonZeroU64, time::Duration};
use tower::{ServiceBuilder, retry::RetryLayer, util::BoxCloneSyncService};
use tower_overload::{
    busy::{Members, RetryBudget, RetryRefused},
    fleet::Compose,
    front::WholeBody,
    pool::WorkerPoolBuilder,
    status::{AnswerAll, OverloadStatusLayer},
    upstream::sse::EventStreamLayer,
};

pub use tower_overload::fleet::Id;

/// A request on its way to a worker: its body is in memory, so that it can be
/// sent again.
pub type Upstream = Request<WholeBody>;

/// What stands behind one model, for the handler: it never fails, since the
/// status layer answers.
pub type Stack = BoxCloneSyncService<Upstream, Response<Body>, Infallible>;

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

/// The stack of one model, and how many workers it has. It needs a runtime,
/// where the pool's driver runs until the stack is dropped.
///
/// ```text
/// status → event streams → retry → worker pool → time limits → HTTP workers
/// ```
pub(super) fn stack(
    model: Compose<'_, Worker>,
    loads: &Loads,
    options: &StackOptions,
    status: &OverloadStatusLayer<AnswerAll>,
) -> (Stack, Members) {
    let mut pool = WorkerPoolBuilder::new(model.set)
        .max_wait(options.max_wait)
        .max_waiting(options.max_waiting);
    if let Some(limit) = options.max_in_flight {
        pool = pool.max_in_flight(limit);
    }
    let pool = loads.balance(options.balance, pool).build(model.changes);
    tokio::spawn(pool.driver());
    let members = pool.members();
    let in_flight = pool.clone();
    let budget = RetryBudget::with_rate(10, options.retry_budget_percent as f32 / 100.0)
        .in_flight(move || in_flight.in_flight())
        .lost_percent(options.retry_lost_percent);
    let stack = ServiceBuilder::new()
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(status.clone())
        // Below, so that the gateway's own answers do not go through it.
        .layer(EventStreamLayer::new())
        .layer(RetryLayer::new(RetryRefused::with_budget(
            options.retry_refused,
            budget,
        )))
        .service(pool);
    (BoxCloneSyncService::new(stack), members)
}
