//! Workers that come, go and report over NATS.

use super::{Fleet, Id, Origin, Registration, fleet::WeakFleet};
use crate::{
    busy::Observation,
    load::LoadEvent,
    nats::{self, FleetEvent, FleetSource},
};
use futures::{StreamExt, future::BoxFuture};
use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
};

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
    source: FleetSource<Id>,
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
                    observe(&fleet, &members, &mut loads);
                    if join(&fleet, &worker, &registration) {
                        members.insert(worker, registration);
                    } else {
                        members.remove(&worker);
                    }
                }
                FleetEvent::Left { worker, because } => {
                    observe(&fleet, &members, &mut loads);
                    members.remove(&worker);
                    if fleet.leave(&worker, &origin()) {
                        tracing::info!(worker = &*worker, ?because, "left the fleet");
                    }
                }
            }
        }
        observe(&fleet, &members, &mut loads);
    }
}

/// The workers that have joined, as they are now.
type Members = HashMap<Id, nats::Registration>;

fn origin() -> Origin {
    Origin::source("nats")
}

/// A worker that is still there and was removed by an operator is back with
/// its next load, as one is that registers itself.
fn observe<S: Clone, M>(fleet: &Fleet<S, M>, members: &Members, loads: &mut Vec<LoadEvent<Id>>) {
    if loads.is_empty() {
        return;
    }
    if fleet.observe(loads).dropped > 0 {
        for LoadEvent { worker, .. } in &*loads {
            let registration = members.get(worker).filter(|_| !fleet.knows(worker));
            if let Some(registration) = registration {
                join(fleet, worker, registration);
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
