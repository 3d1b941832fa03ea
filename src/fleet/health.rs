//! Workers are asked whether they are there, beside the requests that they get.

use super::{Fleet, SignsOfLife, fleet::WeakFleet};
use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture, stream};
use http::{Request, Response, uri::PathAndQuery};
use http_body::Body;
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tower_service::Service;

/// As many workers are asked at once.
const AT_ONCE: usize = 64;

/// Asks the workers of a fleet whether they are there; made by
/// [`Fleet::health_checks`].
#[must_use = "futures do nothing unless polled"]
pub struct HealthChecks(BoxFuture<'static, ()>);

impl<S, M> Fleet<S, M>
where
    S: Clone + Send + 'static,
    M: Send + Sync + 'static,
{
    /// Asks every worker for `path`, over and over, by means of the client that
    /// `client` takes from its service. An answer with a status of success
    /// within the interval is a [sign of life](SignsOfLife), and anything else
    /// says nothing: a request finds out. Spawn it.
    ///
    /// Completes when the fleet is gone. Dropping it cuts what is asked.
    ///
    /// # Panics
    ///
    /// If `every` is 0, or when it is polled outside of a tokio runtime that
    /// has its timer enabled.
    pub fn health_checks<C, F, B, RB>(
        &self,
        path: PathAndQuery,
        every: Duration,
        client: F,
    ) -> HealthChecks
    where
        F: Fn(&S) -> C + Send + Sync + 'static,
        C: Service<Request<B>, Response = Response<RB>> + Send + 'static,
        C::Future: Send,
        C::Error: Send,
        B: Default + Send + 'static,
        RB: Body<Data = Bytes> + Send + 'static,
        RB::Error: Send,
    {
        assert!(!every.is_zero(), "the interval of health checks is 0");
        HealthChecks(Box::pin(ask(self.downgrade(), path, every, client)))
    }
}

async fn ask<S, M, C, F, B, RB>(
    fleet: WeakFleet<S, M>,
    path: PathAndQuery,
    every: Duration,
    client: F,
) where
    S: Clone,
    F: Fn(&S) -> C,
    C: Service<Request<B>, Response = Response<RB>>,
    B: Default,
    RB: Body<Data = Bytes>,
{
    let mut rounds = interval(every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let Some(workers) = fleet.upgrade().map(|fleet| fleet.clients()) else {
            return;
        };
        let clients: Vec<(SignsOfLife, C)> = workers
            .into_iter()
            .map(|(service, signs)| (signs, client(&service)))
            .collect();
        let asked = stream::iter(clients).map(|(signs, client)| {
            let is_well = is_well(client, path.clone());
            async move {
                if timeout(every, is_well).await == Ok(true) {
                    signs.reached();
                    signs.alive();
                }
            }
        });
        asked.buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

async fn is_well<C, B, RB>(mut client: C, path: PathAndQuery) -> bool
where
    C: Service<Request<B>, Response = Response<RB>>,
    B: Default,
    RB: Body<Data = Bytes>,
{
    if poll_fn(|cx| client.poll_ready(cx)).await.is_err() {
        return false;
    }
    let mut request = Request::new(B::default());
    *request.uri_mut() = path.into();
    let Ok(response) = client.call(request).await else {
        return false;
    };
    let is_success = response.status().is_success();
    // To its end, so that the connection is of use again.
    let mut body = pin!(response.into_body());
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        if frame.is_err() {
            return false;
        }
    }
    is_success
}

impl Future for HealthChecks {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for HealthChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthChecks").finish_non_exhaustive()
    }
}
