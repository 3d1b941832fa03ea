//! Workers whose load is read from their metrics.

use crate::support::*;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use std::future::ready;
use tower::{service_fn, util::BoxCloneSyncService};
use tower_overload::{
    BoxError,
    fleet::{Compose, Connect, Fleet, FleetBuilder, Origin, Registration},
    load::LoadEvent,
    pool::WorkerPool,
};

type Engine = BoxCloneSyncService<Request<Empty<Bytes>>, Response<Full<Bytes>>, BoxError>;

/// A fleet of engines that have 50 blocks of 100 in use.
fn engines() -> Fleet<Engine, ()> {
    let connect = |_: &Connect<'_>| {
        let engine = service_fn(|_| {
            let text = "sglang:token_usage 0.5\nsglang:num_pages 100\n";
            ready(Ok::<_, BoxError>(Response::new(Full::from(text))))
        });
        Ok(BoxCloneSyncService::new(engine))
    };
    let compose = |model: Compose<'_, Engine>| {
        let pool = WorkerPool::<_, Request<Empty<Bytes>>>::new(model.changes, model.set);
        Ok(((), pool.members()))
    };
    let builder = FleetBuilder::new().default_model("tiny");
    builder.build(connect, compose).unwrap()
}

#[tokio::test(start_paused = true)]
async fn metrics_say_the_load_until_the_worker_does_so_itself() {
    let fleet = engines();
    tokio::spawn(fleet.scrape(secs(1), Engine::clone));
    let worker = Registration::at("http://worker:1");
    let heard = Origin::Reported(secs(10));
    fleet.register("a", worker, heard).unwrap();
    let used_when = async |event: LoadEvent<_>| {
        for _ in 0..3 {
            fleet.observe(std::slice::from_ref(&event));
            tokio::time::sleep(secs(1)).await;
            settled().await;
        }
        fleet.worker("a").unwrap().ranks[0].kv_used_blocks
    };
    let says_nothing = LoadEvent::new("a".into(), 0);
    assert_eq!(used_when(says_nothing.clone()).await, Some(50));
    assert_eq!(used_when(says_nothing.kv_used_blocks(7)).await, Some(7));
}
