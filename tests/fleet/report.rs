//! A worker that registers itself and reports, through the admin API.

use crate::support::*;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst},
    },
};
use tower::{Service, ServiceExt, util::BoxCloneSyncService};
use tower_overload::{
    BoxError,
    admin::{AdminBody, FleetApi, Reporter},
    busy::Mark,
    fleet::{Origin, Registration},
    load::{DropReason, LoadEvent},
};

type Client = BoxCloneSyncService<Request<AdminBody>, Response<AdminBody>, BoxError>;

const THERE: u8 = 0;
const AWAY: u8 = 1;
const HANGS: u8 = 2;

/// The admin API of the fleet, which may be away.
fn gateway(fleet: &TestFleet) -> (Client, Arc<AtomicU8>) {
    let state = Arc::new(AtomicU8::new(THERE));
    let (api, is) = (FleetApi::new(fleet.clone()), state.clone());
    let client = tower::service_fn(move |request: Request<AdminBody>| {
        let (mut api, is) = (api.clone(), is.load(SeqCst));
        async move {
            match is {
                AWAY => Err("connection refused".into()),
                HANGS => pending().await,
                _ => Ok::<_, BoxError>(api.call(request).await?),
            }
        }
    });
    (BoxCloneSyncService::new(client), state)
}

fn worker() -> Registration {
    Registration::at("http://worker:1")
        .kv_total_blocks(100)
        .dp_ranks([0, 1])
}

fn used(rank: u32, blocks: u64) -> LoadEvent<()> {
    LoadEvent::new((), rank).kv_used_blocks(blocks)
}

fn blocks(fleet: &TestFleet) -> Vec<Option<u64>> {
    let view = fleet.worker("a/b é").expect("it is registered");
    view.ranks.iter().map(|rank| rank.kv_used_blocks).collect()
}

async fn pass(ms: u64) {
    tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
    settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_registers_reports_each_change_and_leaves() {
    let fleet = fleet();
    tokio::spawn(fleet.expiry());
    let reporter = Reporter::start(gateway(&fleet).0, "a/b é", worker());
    settled().await;
    assert_eq!(blocks(&fleet), [None, None]);
    assert_eq!(reporter.report(used(2, 1)), Err(DropReason::UndeclaredRank));
    reporter.report(used(1, 5)).unwrap();
    pass(11).await;
    assert_eq!(blocks(&fleet), [None, Some(5)]);
    // It lives for as long as it has nothing new to say.
    pass(60_000).await;
    assert_eq!(blocks(&fleet), [None, Some(5)]);

    reporter.update(worker().draining(true));
    pass(11).await;
    assert!(fleet.worker("a/b é").unwrap().has(Mark::Draining));
    assert_eq!(blocks(&fleet), [None, Some(5)]);
    reporter.leave().await.unwrap();
    assert!(ids(&fleet).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_forgotten_registers_again_with_its_load() {
    let fleet = fleet();
    let reporter = Reporter::start(gateway(&fleet).0, "a/b é", worker());
    reporter.report(used(0, 7)).unwrap();
    pass(11).await;
    fleet.remove("a/b é");
    pass(1100).await;
    assert_eq!(blocks(&fleet), [Some(7), None]);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_away_or_hangs_is_found_again() {
    let fleet = fleet();
    tokio::spawn(fleet.expiry());
    let (client, state) = gateway(&fleet);
    state.store(AWAY, SeqCst);
    let reporter = Reporter::start(client, "a/b é", worker());
    pass(60_000).await;
    state.store(THERE, SeqCst);
    pass(1100).await;
    assert_eq!(blocks(&fleet), [None, None]);
    state.store(HANGS, SeqCst);
    reporter.report(used(0, 7)).unwrap();
    pass(60_000).await;
    assert!(ids(&fleet).is_empty(), "it was silent for too long");
    state.store(THERE, SeqCst);
    pass(3100).await;
    assert_eq!(blocks(&fleet), [Some(7), None]);
    state.store(HANGS, SeqCst);
    assert!(reporter.leave().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_takes_no_load_is_not_asked_without_a_pause() {
    let registered = Arc::new(AtomicUsize::new(0));
    let counter = registered.clone();
    let client = tower::service_fn(move |request: Request<AdminBody>| {
        let taken = match *request.method() {
            Method::PUT => {
                counter.fetch_add(1, SeqCst);
                "{}"
            }
            // As one does that has the id from another worker, with other ranks.
            _ => r#"{"accepted": 1, "dropped": 1}"#,
        };
        async move {
            pass(1).await;
            Ok::<_, BoxError>(Response::new(Full::<Bytes>::from(taken)))
        }
    });
    let _reporter = Reporter::start(client, "a", worker());
    pass(60_000).await;
    let registered = registered.load(SeqCst);
    assert!((55..=70).contains(&registered), "{registered} a minute");
}

#[tokio::test(start_paused = true)]
async fn a_worker_of_many_models_is_registered_and_reports() {
    let fleet = fleet();
    let models = (0..1000).map(|n| format!("{n:0>200}"));
    let worker = worker().models(models);
    let reporter = Reporter::start(gateway(&fleet).0, "a/b é", worker);
    reporter.report(used(0, 7)).unwrap();
    pass(100).await;
    assert_eq!(blocks(&fleet), [Some(7), None]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_of_the_configuration_stays_when_it_says_goodbye() {
    let fleet = fleet();
    fleet.register("a/b é", worker(), Origin::Static).unwrap();
    let reporter = Reporter::start(gateway(&fleet).0, "a/b é", worker());
    pass(11).await;
    reporter.leave().await.unwrap();
    assert_eq!(ids(&fleet), ["a/b é"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_dropped_is_silent_at_once() {
    let fleet = fleet();
    let reporter = Reporter::start(gateway(&fleet).0, "a/b é", worker());
    pass(11).await;
    reporter.report(used(0, 7)).unwrap();
    drop(reporter);
    pass(5000).await;
    assert_eq!(blocks(&fleet), [None, None]);
    let api = FleetApi::new(fleet.clone());
    let get = Request::get("/workers/a%2Fb%20%C3%A9").body(AdminBody::default());
    let answer = api.oneshot(get.unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
}
