//! Workers that come, go and report over NATS, in the place of the admin API.

use super::{
    registry::{Kept, Registration, Registry},
    stack::Id,
};
use futures::StreamExt;
use std::{collections::HashMap, sync::Arc};
use tower_overload::{
    load::LoadEvent,
    nats::{self, FleetEvent, FleetSource},
};

/// Events that are taken at once when there are several.
const BATCH: usize = 256;

/// Does what the fleet says, for as long as the client lives.
pub(super) async fn follow(registry: Arc<Registry>, fleet: FleetSource<Id>) {
    let mut batches = fleet.ready_chunks(BATCH);
    let mut loads = Vec::new();
    let mut members = Members::new();
    while let Some(batch) = batches.next().await {
        for event in batch {
            match event {
                FleetEvent::Load(event) => loads.push(event),
                // In order: a load before it is of the worker as it was.
                FleetEvent::Joined {
                    worker,
                    registration,
                } => {
                    observe(&registry, &members, &mut loads);
                    if join(&registry, &worker, &registration) {
                        members.insert(worker, registration);
                    } else {
                        members.remove(&worker);
                    }
                }
                FleetEvent::Left { worker, because } => {
                    observe(&registry, &members, &mut loads);
                    members.remove(&worker);
                    if registry.leave_fleet(&worker) {
                        tracing::info!(worker = &*worker, ?because, "left the fleet");
                    }
                }
                _ => {}
            }
        }
        observe(&registry, &members, &mut loads);
    }
}

/// The workers that have joined, as they are now.
type Members = HashMap<Id, nats::Registration>;

/// A worker that is still there and was removed by an operator is back with
/// its next load, as one is that registers over HTTP.
fn observe(registry: &Registry, members: &Members, loads: &mut Vec<LoadEvent<Id>>) {
    if loads.is_empty() {
        return;
    }
    if registry.load(loads).dropped > 0 {
        for LoadEvent { worker, .. } in &*loads {
            let registration = members.get(worker).filter(|_| !registry.knows(worker));
            if let Some(registration) = registration {
                join(registry, worker, registration);
            }
        }
    }
    loads.clear();
}

/// Whether it could.
fn join(registry: &Registry, worker: &Id, registration: &nats::Registration) -> bool {
    let url = &registration.url;
    let joined = registry.register(worker, registration.into(), Kept::UntilItLeaves);
    match &joined {
        Ok(_) => tracing::info!(worker = &**worker, url, "joined the fleet"),
        Err(refused) => tracing::warn!(worker = &**worker, %refused, "cannot join the fleet"),
    }
    joined.is_ok()
}

impl From<&nats::Registration> for Registration {
    fn from(registration: &nats::Registration) -> Self {
        Self {
            url: registration.url.clone(),
            dp_ranks: Some(registration.dp_ranks.clone()),
            kv_total_blocks: registration.kv_total_blocks,
            max_num_batched_tokens: registration.max_num_batched_tokens,
            draining: registration.draining,
            models: Some(registration.models.clone()),
        }
    }
}
