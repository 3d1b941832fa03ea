//! What is left when nothing holds a worker any more.

use super::*;
use crate::{
    busy::BusySet,
    load::{ThresholdUpdate, WorkerConfig},
};
use http::{Request, Response};
use http_body_util::Full;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Barrier,
    thread,
};
use tower::{Layer, Service, service_fn, util::ServiceFn};

type OfRequest = fn(&Request<Cost>) -> Cost;

fn tracker() -> (WorkerMonitor<u32>, LoadTracker<u32, OfRequest>) {
    let (monitor, thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
    let update = ThresholdUpdate::new().active_prefill_tokens(0);
    thresholds.update(update).unwrap();
    let tracker = LoadTracker::new(monitor.clone(), (|request| *request.body()) as OfRequest);
    (monitor, tracker)
}

type Answer = Result<Response<Full<bytes::Bytes>>, Infallible>;
type Client = ServiceFn<fn(Request<Cost>) -> Ready<Answer>>;

fn service(layer: &TrackLoadLayer<OfRequest>) -> TrackLoad<Client, OfRequest> {
    let token = |_| {
        ready(Ok(Response::new(Full::new(bytes::Bytes::from_static(
            b"token",
        )))))
    };
    layer.layer(service_fn(token))
}

fn workers<K>(fleet: &Fleet<K>) -> usize {
    fleet.all().len()
}

#[tokio::test]
async fn a_worker_is_forgotten_with_its_last_layer_service_or_request() {
    let (_monitor, tracker) = tracker();
    let layer = tracker.layer(1);
    let _other = tracker.layer(2);
    let mut of_layer = service(&layer);
    let mut again = service(&tracker.layer(1));
    assert_eq!(workers(&tracker.fleet), 2, "one worker however often asked");
    drop(layer);
    let request = of_layer.call(Request::new(Cost::new(1, 1)));
    drop(of_layer);
    drop(again.call(Request::new(Cost::new(1, 1))));
    drop(again);
    assert_eq!(workers(&tracker.fleet), 2, "a request is on its way");
    let body = request.await.unwrap().into_body();
    assert_eq!(workers(&tracker.fleet), 2, "its body is not read yet");
    drop(body);
    assert_eq!(workers(&tracker.fleet), 1);
    tracker.report(&1);
    assert_eq!(workers(&tracker.fleet), 1, "to ask for it makes none");
}

#[test]
fn threads_that_come_and_go_leave_no_load_and_no_worker() {
    let (monitor, tracker) = tracker();
    for id in 0..2 {
        monitor.configure_for_all(id, WorkerConfig::new([0, 1]).unwrap());
    }
    const THREADS: u32 = 4;
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let (tracker, start) = (&tracker, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..500 {
                    let id = (n + round) % 2;
                    // Every time, so that workers come and go as well.
                    let mut service = service(&tracker.layer(id).ranks([0, 1]));
                    let cost = Cost::new(u64::from(round) + 1, u64::MAX);
                    let request = service.call(Request::new(cost));
                    tracker.report(&id);
                    drop(request);
                }
            });
        }
    });
    for worker in monitor.snapshot() {
        assert!(!worker.is_busy(), "{worker:?}");
        for rank in worker.ranks {
            assert_eq!(rank.active_prefill_tokens.unwrap_or(0), 0, "{rank:?}");
            assert_eq!(rank.active_decode_blocks.unwrap_or(0), 0, "{rank:?}");
        }
    }
    assert_eq!(workers(&tracker.fleet), 0);
}
