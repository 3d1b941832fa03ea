//! Workers behind a name, which is resolved again and again.

use super::{Fleet, Registration, fleet::WeakFleet};
use futures::future::BoxFuture;
use std::{
    collections::BTreeSet,
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Keeps the workers behind a name registered; made by [`Fleet::resolve`].
#[must_use = "futures do nothing unless polled"]
pub struct Resolving(BoxFuture<'static, ()>);

impl<S, M> Fleet<S, M>
where
    S: Clone + Send + 'static,
    M: Send + Sync + 'static,
{
    /// Registers one worker for each address that `resolve` finds, such as the
    /// pods of a headless service, and removes those that it finds no more. It
    /// is called over and over; with `tokio::net::lookup_host`, it asks the
    /// system. Spawn the future.
    ///
    /// A worker is called `{name}/{address}`, and is what `worker` makes of
    /// its address. A resolution that fails, finds nothing or takes longer than
    /// the interval says nothing of the workers: those that were known stay,
    /// since the one that says who is there may be the one that is away.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tower_overload::fleet::{Fleet, Registration};
    ///
    /// # fn example<S: Clone + Send + 'static, M: Send + Sync + 'static>(fleet: &Fleet<S, M>) {
    /// tokio::spawn(fleet.resolve(
    ///     "vllm",
    ///     Duration::from_secs(5),
    ///     || tokio::net::lookup_host("vllm.default.svc:8000"),
    ///     |address| Registration::at(format!("http://{address}")),
    /// ));
    /// # }
    /// ```
    ///
    /// Completes when the fleet is gone. When it is dropped, the workers stay.
    ///
    /// # Panics
    ///
    /// If `every` is 0, or when it is polled outside of a tokio runtime that
    /// has its timer enabled.
    pub fn resolve<F, R, A>(
        &self,
        name: &str,
        every: Duration,
        resolve: F,
        worker: impl Fn(SocketAddr) -> Registration + Send + 'static,
    ) -> Resolving
    where
        F: FnMut() -> R + Send + 'static,
        R: Future<Output = io::Result<A>> + Send + 'static,
        A: IntoIterator<Item = SocketAddr> + 'static,
    {
        assert!(!every.is_zero(), "the interval of resolutions is 0");
        let follow = follow(self.downgrade(), name.into(), every, resolve, worker);
        Resolving(Box::pin(follow))
    }
}

async fn follow<S: Clone, M, F, R, A>(
    fleet: WeakFleet<S, M>,
    name: Arc<str>,
    every: Duration,
    mut resolve: F,
    worker: impl Fn(SocketAddr) -> Registration,
) where
    F: FnMut() -> R,
    R: Future<Output = io::Result<A>>,
    A: IntoIterator<Item = SocketAddr>,
{
    let mut rounds = interval(every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let found = match timeout(every, resolve()).await {
            Ok(found) => found,
            Err(elapsed) => Err(elapsed.into()),
        };
        let Some(fleet) = fleet.upgrade() else {
            return;
        };
        let found: BTreeSet<_> = match found {
            Ok(found) => found.into_iter().take(MAX_ADDRESSES).collect(),
            Err(error) => {
                tracing::warn!(%name, %error, "cannot be resolved: its workers stay");
                continue;
            }
        };
        if found.is_empty() {
            tracing::warn!(%name, "has no address: its workers stay");
            continue;
        }
        let workers = found.into_iter();
        let workers = workers.map(|address| (format!("{name}/{address}"), worker(address)));
        for (worker, refused) in fleet.sync(&name, workers) {
            tracing::warn!(worker = &*worker, %refused, "cannot be registered");
        }
    }
}

/// More addresses of one name are not workers.
const MAX_ADDRESSES: usize = 4096;

impl Future for Resolving {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Resolving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolving").finish_non_exhaustive()
    }
}
