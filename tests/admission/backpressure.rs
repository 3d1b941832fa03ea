use crate::support::*;
use std::task::{Context, Poll};
use tokio_test::task::{self, Spawn};
use tower::{Layer, Service, load::Load};
use tower_overload::admission::{AdmissionHandle, EngineAdmissionLayer, EngineBackpressure};

type Worker = EngineBackpressure<Engine>;

fn worker(slots: usize, queue: usize) -> (Worker, Engine, AdmissionHandle) {
    let engine = Engine::default();
    let layer = EngineAdmissionLayer::new(slots, queue)
        .unwrap()
        .backpressure();
    (layer.layer(engine.clone()), engine, layer.handle().unwrap())
}

/// A caller with a service of its own, and a waker that counts.
fn caller(worker: &Worker) -> Spawn<Worker> {
    task::spawn(worker.clone())
}

fn poll_ready(caller: &mut Spawn<Worker>) -> bool {
    caller.enter(|cx, mut worker| Service::<u64>::poll_ready(&mut *worker, cx).is_ready())
}

#[test]
fn a_reservation_is_one_of_the_places_and_ends_with_the_drop() {
    let (worker, _, handle) = worker(1, 1);
    let (mut first, mut second, mut third) = (caller(&worker), caller(&worker), caller(&worker));
    assert!(poll_ready(&mut first) && poll_ready(&mut second));
    assert_eq!((counts(&handle), worker.load()), ((1, 1), 2));
    assert!(!poll_ready(&mut third), "all places are reserved");
    assert_eq!(counts(&handle), (1, 1), "waiting for one holds none");
    drop(first);
    // The slot goes to the one with the place, the place to the one without.
    assert!(third.is_woken());
    assert!(poll_ready(&mut third));
    assert_eq!(counts(&handle), (1, 1));
    drop((second, third));
    assert_eq!(counts(&handle), (0, 0));
}

#[test]
fn being_asked_again_changes_nothing_and_wakes_nobody() {
    let (worker, _, handle) = worker(1, 0);
    let mut ready = caller(&worker);
    assert!(poll_ready(&mut ready) && poll_ready(&mut ready));
    assert_eq!(counts(&handle), (1, 0));

    let mut parked = caller(&worker);
    assert!(!poll_ready(&mut parked) && !poll_ready(&mut parked));
    assert!(!parked.is_woken());
    drop(ready);
    assert!(parked.is_woken(), "once, on the release");
    assert!(poll_ready(&mut parked));
    assert!(!parked.is_woken());
}

#[test]
fn a_place_that_is_granted_and_dropped_uncalled_goes_to_the_next() {
    let (worker, _, handle) = worker(1, 0);
    let mut holder = caller(&worker);
    assert!(poll_ready(&mut holder));
    let (mut first, mut second) = (caller(&worker), caller(&worker));
    assert!(!poll_ready(&mut first) && !poll_ready(&mut second));
    drop(holder);
    assert!(first.is_woken() && !second.is_woken());
    drop(first);
    assert!(second.is_woken());
    assert!(poll_ready(&mut second));
    assert_eq!(counts(&handle), (1, 0));
}

#[test]
fn a_clone_has_no_reservation() {
    let (worker, _, handle) = worker(1, 0);
    let mut ready = caller(&worker);
    assert!(poll_ready(&mut ready));
    let mut clone = task::spawn(ready.clone());
    assert!(!poll_ready(&mut clone));
    assert_eq!(counts(&handle), (1, 0));
}

#[test]
fn places_are_given_in_the_order_of_the_callers() {
    let (worker, engine, handle) = worker(1, 1);
    let mut callers: Vec<_> = (0..5).map(|_| caller(&worker)).collect();
    let ready: Vec<_> = callers.iter_mut().map(poll_ready).collect();
    assert_eq!(ready, [true, true, false, false, false]);
    let mut calls: Vec<_> = (0..2u64)
        .map(|n| task::spawn(callers[n as usize].call(n)))
        .collect();
    for call in &mut calls {
        assert!(call.poll().is_pending());
    }
    for n in 2..5 {
        engine.next().end();
        drop(answer(&mut calls[n - 2]));
        assert!(calls[n - 1].is_woken() && calls[n - 1].poll().is_pending());
        let woken: Vec<_> = callers.iter().map(Spawn::is_woken).collect();
        assert!(
            (0..5).all(|other| woken[other] == (other == n)),
            "{woken:?}"
        );
        assert!(poll_ready(&mut callers[n]));
        let mut call = task::spawn(callers[n].call(n as u64));
        assert!(call.poll().is_pending());
        calls.push(call);
        assert_eq!((engine.inside(), counts(&handle)), (1, (1, 1)));
    }
}

#[test]
fn a_caller_that_leaves_while_it_waits_is_not_counted_on() {
    let (worker, _, handle) = worker(1, 0);
    let mut holder = caller(&worker);
    assert!(poll_ready(&mut holder));
    let (mut gone, mut stays) = (caller(&worker), caller(&worker));
    assert!(!poll_ready(&mut gone) && !poll_ready(&mut stays));
    drop(gone);
    drop(holder);
    assert!(poll_ready(&mut stays));
    assert_eq!(counts(&handle), (1, 0));
}

#[test]
fn raised_limits_let_exactly_as_many_callers_in() {
    let (worker, _, handle) = worker(1, 0);
    let mut callers: Vec<_> = (0..8).map(|_| caller(&worker)).collect();
    callers.iter_mut().for_each(|caller| {
        poll_ready(caller);
    });
    handle.set_slots(3).unwrap();
    handle.set_queue_limit(2).unwrap();
    let woken: Vec<_> = callers.iter().map(Spawn::is_woken).collect();
    assert_eq!(woken, [false, true, true, true, true, false, false, false]);
    assert_eq!(counts(&handle), (3, 2));
}

#[test]
fn a_closed_gate_is_told_by_the_call_and_not_by_readiness() {
    let (worker, _, handle) = worker(1, 0);
    let mut holder = caller(&worker);
    assert!(poll_ready(&mut holder));
    let mut parked = caller(&worker);
    assert!(!poll_ready(&mut parked));
    handle.close();
    assert!(parked.is_woken());
    assert!(poll_ready(&mut parked));
    assert_unavailable(&mut task::spawn(parked.call(1)));
    let mut late = caller(&worker);
    assert!(poll_ready(&mut late));
    assert_unavailable(&mut task::spawn(late.call(2)));
    assert!(
        task::spawn(holder.call(3)).poll().is_pending(),
        "it has its slot"
    );
}

#[test]
fn a_request_that_must_not_queue_does_not_use_a_reserved_place_in_the_queue() {
    let layer = EngineAdmissionLayer::new(1, 1)
        .unwrap()
        .no_queue_when(|id: &u64| *id >= 100);
    let layer = layer.backpressure();
    let (mut first, mut second) = (
        layer.layer(Engine::default()),
        layer.layer(Engine::default()),
    );
    let mut running = call(&mut first, 100);
    assert!(running.poll().is_pending());
    assert_refused(&mut call(&mut second, 101));
    assert_eq!(counts(&layer.handle().unwrap()), (1, 0));
    assert!(call(&mut second, 1).poll().is_pending());
}

#[test]
fn a_call_without_readiness_takes_a_place_or_is_refused() {
    let (mut worker, engine, _) = worker(1, 0);
    let mut running = task::spawn(worker.call(1));
    assert!(running.poll().is_pending());
    assert_refused(&mut task::spawn(worker.call(2)));
    assert_eq!(engine.inside(), 1);
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert_eq!(
        Service::<u64>::poll_ready(&mut worker, &mut cx).map(|ready| ready.is_ok()),
        Poll::Pending
    );
}
