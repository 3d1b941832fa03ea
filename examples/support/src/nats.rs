//! What a worker tells the gateways of a fleet over NATS, in the place of the
//! admin API of one of them.

use crate::{engine::Ledger, serve::told};
use std::sync::Arc;
use tokio::{sync::watch, time::sleep};
use tower_overload::{
    load::LoadEvent,
    nats::{MIN_REPORT_INTERVAL, Publisher},
};

/// Reports `ledger` until `leaving` becomes true, and then says goodbye.
pub async fn report(publisher: Publisher, ledger: Arc<Ledger>, mut leaving: watch::Receiver<bool>) {
    tokio::select! {
        () = told(&mut leaving) => {}
        () = report_changes(&publisher, &ledger) => {}
    }
    match publisher.leave().await {
        Ok(()) => tracing::info!("left the fleet"),
        Err(error) => tracing::warn!(%error, "cannot leave the fleet"),
    }
}

async fn report_changes(publisher: &Publisher, ledger: &Ledger) {
    loop {
        for (rank, load) in (0_u32..).zip(ledger.snapshot()) {
            let event = LoadEvent::new((), rank)
                .kv_used_blocks(load.kv_blocks)
                .active_prefill_tokens(load.prefill_tokens);
            // The worker declares all of its ranks.
            let _ = publisher.report(event);
        }
        ledger.changed().await;
        sleep(MIN_REPORT_INTERVAL).await;
    }
}
