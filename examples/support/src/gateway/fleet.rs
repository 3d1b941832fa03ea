//! Workers that come, go and report over NATS, in the place of the admin API.

use super::{
    registry::{Kept, Registration, Registry},
    stack::Id,
};
use futures::StreamExt;
use std::sync::Arc;
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
    while let Some(batch) = batches.next().await {
        for event in batch {
            match event {
                FleetEvent::Load(event) => loads.push(event),
                // In order: a load before it is of the worker as it was.
                FleetEvent::Joined {
                    worker,
                    registration,
                } => {
                    observe(&registry, &mut loads);
                    join(&registry, &worker, registration);
                }
                FleetEvent::Left { worker, because } => {
                    observe(&registry, &mut loads);
                    if registry.leave_fleet(&worker) {
                        tracing::info!(worker = &*worker, ?because, "left the fleet");
                    }
                }
                _ => {}
            }
        }
        observe(&registry, &mut loads);
    }
}

fn observe(registry: &Registry, loads: &mut Vec<LoadEvent<Id>>) {
    if !loads.is_empty() {
        registry.load(loads);
        loads.clear();
    }
}

fn join(registry: &Registry, worker: &Id, registration: nats::Registration) {
    let url = registration.url.clone();
    match registry.register(worker, registration.into(), Kept::UntilItLeaves) {
        Ok(_) => tracing::info!(worker = &**worker, url, "joined the fleet"),
        Err(refused) => tracing::warn!(worker = &**worker, %refused, "cannot join the fleet"),
    }
}

impl From<nats::Registration> for Registration {
    fn from(registration: nats::Registration) -> Self {
        Self {
            url: registration.url,
            dp_ranks: Some(registration.dp_ranks),
            kv_total_blocks: registration.kv_total_blocks,
            max_num_batched_tokens: registration.max_num_batched_tokens,
            draining: registration.draining,
            models: Some(registration.models),
        }
    }
}
