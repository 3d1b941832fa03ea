//! Workers that come, go and report over NATS.

use super::{Fleet, Id, Origin, Registration, fleet::WeakFleet};
use crate::{
    busy::Observation,
    load::LoadEvent,
    nats::{self, FleetEvent, FleetSource},
};
use futures::{Stream, StreamExt, future::BoxFuture};
use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Instant;

/// Does what a NATS fleet says; made by [`Fleet::follow`].
#[must_use = "futures do nothing unless polled"]
pub struct Following(BoxFuture<'static, ()>);

impl<S, M> Fleet<S, M>
where
    S: Clone + Send + 'static,
    M: Send + Sync + 'static,
{
    /// Registers and removes workers, and takes their load, as they say over
    /// NATS. Spawn it.
    ///
    /// A worker that an operator has removed is back with its next load, unless
    /// it is one of [`Origin::Static`].
    ///
    /// Completes when the fleet or the NATS client is gone. When it is dropped,
    /// the workers stay.
    pub fn follow(&self, source: FleetSource<Id>) -> Following {
        let changes = self.changed().observe();
        Following(Box::pin(follow(self.downgrade(), changes, source)))
    }
}

/// Events that are taken at once when there are several.
const BATCH: usize = 256;

async fn follow<S: Clone, M>(
    fleet: WeakFleet<S, M>,
    changes: Observation,
    source: impl Stream<Item = FleetEvent<Id>> + Unpin,
) {
    let mut batches = source.ready_chunks(BATCH);
    let mut loads = Vec::new();
    let mut members = Members::new();
    loop {
        let next = poll_fn(|cx| {
            // Its end wakes this: nobody may ever say anything more.
            changes.register(cx.waker());
            match fleet.is_gone() {
                true => Poll::Ready(None),
                false => batches.poll_next_unpin(cx),
            }
        });
        let Some(batch) = next.await else {
            return;
        };
        let Some(fleet) = fleet.upgrade() else {
            return;
        };
        for event in batch {
            match event {
                FleetEvent::Load(event) => loads.push(event),
                // In order: a load before it is of the worker as it was.
                FleetEvent::Joined {
                    worker,
                    registration,
                } => {
                    observe(&fleet, &mut members, &mut loads);
                    let member = Member::join(&fleet, &worker, registration);
                    members.insert(worker, member);
                }
                FleetEvent::Left { worker, because } => {
                    observe(&fleet, &mut members, &mut loads);
                    members.remove(&worker);
                    if fleet.leave(&worker, &origin()) {
                        tracing::info!(worker = &*worker, ?because, "left the fleet");
                    }
                }
            }
        }
        observe(&fleet, &mut members, &mut loads);
    }
}

/// The workers that are there, as they are now.
type Members = HashMap<Id, Member>;

struct Member {
    registration: nats::Registration,
    /// When the fleet last refused it, if it did.
    refused: Option<Instant>,
}

/// A worker that was refused is taken up with its next load after so long: it
/// does not say again what it has said, and there may be room by then.
const TRY_AGAIN: Duration = Duration::from_secs(10);

impl Member {
    fn join<S: Clone, M>(
        fleet: &Fleet<S, M>,
        worker: &Id,
        registration: nats::Registration,
    ) -> Self {
        let has_joined = join(fleet, worker, &registration);
        Self {
            registration,
            refused: (!has_joined).then(Instant::now),
        }
    }
}

fn origin() -> Origin {
    Origin::source("nats")
}

/// A worker that is still there and was removed by an operator is back with
/// its next load, as one is that registers itself.
fn observe<S: Clone, M>(
    fleet: &Fleet<S, M>,
    members: &mut Members,
    loads: &mut Vec<LoadEvent<Id>>,
) {
    if loads.is_empty() {
        return;
    }
    if fleet.observe(loads).dropped > 0 {
        for LoadEvent { worker, .. } in &*loads {
            let Some(member) = members.get_mut(worker) else {
                continue;
            };
            let is_to_wait = |at: Instant| at.elapsed() < TRY_AGAIN;
            if !member.refused.is_some_and(is_to_wait) && !fleet.knows(worker) {
                *member = Member::join(fleet, worker, member.registration.clone());
            }
        }
    }
    loads.clear();
}

/// Whether it could.
fn join<S: Clone, M>(fleet: &Fleet<S, M>, worker: &Id, registration: &nats::Registration) -> bool {
    let url = &registration.url;
    let joined = fleet.register(worker, registration.into(), origin());
    match &joined {
        Ok(_) => tracing::info!(worker = &**worker, url, "joined the fleet"),
        Err(refused) => tracing::warn!(worker = &**worker, %refused, "cannot join the fleet"),
    }
    joined.is_ok()
}

impl From<&nats::Registration> for Registration {
    fn from(registration: &nats::Registration) -> Self {
        Self::at(&*registration.url)
            .dp_ranks(registration.dp_ranks.iter().copied())
            .kv_total_blocks(registration.kv_total_blocks)
            .max_num_batched_tokens(registration.max_num_batched_tokens)
            .draining(registration.draining)
            .models(registration.models.iter().cloned())
    }
}

impl Future for Following {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BoxError,
        fleet::{Compose, Connect, FleetBuilder},
        pool::WorkerPool,
    };
    use futures::channel::mpsc;
    use http::{Request, Response};
    use http_body_util::Empty;
    use std::future::pending;
    use tower::{service_fn, util::BoxCloneSyncService};

    type Client = BoxCloneSyncService<Request<()>, Response<Empty<bytes::Bytes>>, BoxError>;

    fn fleet(builder: FleetBuilder) -> Fleet<Client, ()> {
        let connect = |_: &Connect<'_>| {
            let client = service_fn(|_| pending::<Result<_, BoxError>>());
            Ok(BoxCloneSyncService::new(client))
        };
        let compose = |model: Compose<'_, Client>| {
            let pool = WorkerPool::<_, Request<()>>::new(model.changes, model.set);
            Ok(((), pool.members()))
        };
        builder.build(connect, compose).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_found_no_room_comes_when_there_is_some() {
        let fleet = fleet(FleetBuilder::new().max_workers(1));
        let (said, source) = mpsc::unbounded();
        tokio::spawn(follow(fleet.downgrade(), fleet.changed().observe(), source));
        let say = async |event| {
            said.unbounded_send(event).unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let joins = |worker: &str| FleetEvent::Joined {
            worker: worker.into(),
            registration: nats::Registration::new("http://worker:1", ["tiny"]),
        };
        let load = |worker: &str| FleetEvent::Load(LoadEvent::new(worker.into(), 0));
        say(joins("first")).await;
        say(joins("late")).await;
        assert!(fleet.knows("first") && !fleet.knows("late"));
        fleet.remove("first");
        say(load("late")).await;
        assert!(!fleet.knows("late"), "not with each load");
        tokio::time::sleep(TRY_AGAIN).await;
        say(load("late")).await;
        assert!(fleet.knows("late"));
    }
}
