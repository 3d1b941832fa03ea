//! Requests and responses of any type.

use futures::FutureExt;
use std::{
    convert::Infallible,
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::sleep;
use tower::{
    Service, ServiceExt,
    load::{CompleteOnResponse, TrackCompletion},
    retry::RetryLayer,
    service_fn,
    util::BoxCloneSyncService,
};
use tower_overload::{
    BoxError, BusySet, OverloadReason, ServiceOverloaded, Unavailable,
    busy::{Classify, ErrorsOnly, Fault, Refusal, RetryRefused, roster},
    pool::{
        WorkerPool, WorkerPoolBuilder,
        pick::{Affinity, LeastLoaded},
    },
};

type Client = BoxCloneSyncService<u32, String, BoxError>;

/// A worker whose answer is its name and the request.
fn worker(name: &'static str) -> Client {
    BoxCloneSyncService::new(service_fn(move |request: u32| async move {
        sleep(Duration::from_millis(5)).await;
        match request {
            0 => Err(ServiceOverloaded::new(OverloadReason::WorkerAtCapacity).into()),
            _ => Ok::<_, BoxError>(format!("{name}: {request}")),
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn a_plain_number_is_a_request_and_is_over_with_its_response() {
    let (roster, changes) = roster();
    let pool = WorkerPoolBuilder::new(BusySet::new())
        .policy(ErrorsOnly)
        .completion(CompleteOnResponse::default());
    let mut pool: WorkerPool<_, u32, _, _> = pool.build_any(changes);
    let error = pool.call(1).await.unwrap_err();
    assert!(Unavailable::find_in(&*error).is_some());

    roster.insert(7_u64, worker("a"));
    let call = pool.call(1);
    assert_eq!(pool.in_flight(), 1);
    let response = call.await.unwrap();
    assert_eq!((response.as_str(), pool.in_flight()), ("a: 1", 0));

    let error = pool.ready().await.unwrap().call(0).await.unwrap_err();
    let refused = ServiceOverloaded::find_in(&*error).unwrap();
    assert_eq!(refused.worker(), Some("7"));
    let error = pool.call(1).await.unwrap_err();
    let refused = ServiceOverloaded::find_in(&*error).unwrap();
    assert_eq!(refused.reason(), OverloadReason::AllWorkersBusy);
}

#[tokio::test(start_paused = true)]
async fn requests_of_any_type_are_sent_again() {
    let (roster, changes) = roster();
    let pool = WorkerPoolBuilder::new(BusySet::new())
        .policy(ErrorsOnly)
        .completion(CompleteOnResponse::default())
        .pick(LeastLoaded::of_all())
        .build_any(changes);
    let calls = Arc::new(Mutex::new(Vec::new()));
    for name in ["a", "b"] {
        let calls = calls.clone();
        roster.insert(
            name,
            service_fn(move |_: u32| {
                calls.lock().unwrap().push(name);
                let is_first = calls.lock().unwrap().len() == 1;
                async move {
                    match is_first {
                        true => Err(BoxError::from(std::io::Error::from(
                            std::io::ErrorKind::ConnectionRefused,
                        ))),
                        false => Ok(()),
                    }
                }
            }),
        );
    }
    let retry = RetryLayer::new(RetryRefused::new(1).any_request());
    let service = tower::ServiceBuilder::new().layer(retry).service(pool);
    service.oneshot(3).await.unwrap();
    let calls = calls.lock().unwrap();
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0], calls[1], "the first one is marked");
}

#[tokio::test(start_paused = true)]
async fn a_key_of_any_request_chooses_its_worker() {
    let (roster, changes) = roster();
    let mut pool = WorkerPoolBuilder::new(BusySet::new())
        .policy(ErrorsOnly)
        .completion(CompleteOnResponse::default())
        .pick(Affinity::by(|request: &u32| Some(u64::from(*request))))
        .build_any(changes);
    for name in ["a", "b", "c", "d"] {
        roster.insert(name, worker(name));
    }
    for request in 1..50 {
        let first = pool.call(request).await.unwrap();
        for _ in 0..3 {
            assert_eq!(pool.call(request).await.unwrap(), first);
        }
    }
}

/// A response that says how much room is left, and is over when it is used.
struct Room(u8);

#[derive(Clone, Copy)]
struct NoRoom;

impl Classify<Room> for NoRoom {
    fn response(&self, response: &Room) -> Option<Fault> {
        (response.0 == 0).then(|| Fault::Refused(Refusal::default()))
    }

    fn error(&self, _: &(dyn Error + 'static)) -> Fault {
        Fault::Other
    }
}

#[derive(Clone, Copy)]
struct UntilUsed;

impl<H> TrackCompletion<H, Room> for UntilUsed {
    type Output = (Room, H);

    fn track_completion(&self, handle: H, response: Room) -> (Room, H) {
        (response, handle)
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_and_a_completion_of_ones_own_see_any_response() {
    let (roster, changes) = roster();
    let mut pool = WorkerPoolBuilder::new(BusySet::new())
        .policy(NoRoom)
        .completion(UntilUsed)
        .build_any(changes);
    let worker = service_fn(|room: u8| async move { Ok::<_, Infallible>(Room(room)) });
    roster.insert("a", worker);
    let (room, handle) = pool.call(3).await.unwrap();
    assert_eq!((room.0, pool.in_flight()), (3, 1));
    assert!(pool.call(0).await.is_err());
    assert!(pool.call(1).await.is_err(), "it is leased");
    drop(handle);
    assert!(
        pool.call(1).now_or_never().unwrap().is_ok(),
        "and its lease has ended early"
    );
    assert_eq!(pool.in_flight(), 0);
}
