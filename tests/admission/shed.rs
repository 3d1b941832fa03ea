use crate::support::*;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Context, Waker},
    time::Duration,
};
use tower::{BoxError, Layer, Service, load::Load, service_fn};
use tower_overload::{
    OverloadReason,
    admission::{EngineAdmission, EngineAdmissionFuture, EngineAdmissionLayer, EngineBackpressure},
};

#[test]
fn an_idle_clone_that_was_ready_holds_no_slot() {
    let (mut worker, engine, handle) = worker(1, 0);
    let mut idle = worker.clone();
    let ready = Service::<u64>::poll_ready(&mut idle, &mut Context::from_waker(Waker::noop()));
    assert!(ready.is_ready());
    assert_eq!(counts(&handle), (0, 0));
    let _call = send(&mut worker, 1);
    assert_eq!(engine.inside(), 1);
}

#[test]
fn the_engine_is_ready_whenever_it_is_called() {
    let (mut worker, engine, _) = worker(9, 0);
    let _calls: Vec<_> = (0..3).map(|n| send(&mut worker, n)).collect();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Service::<u64>::poll_ready(&mut worker, &mut cx).is_ready());
    let _call = send(&mut worker.clone(), 3);
    assert_eq!(engine.inside(), 4);
}

#[test]
fn a_refusal_is_immediate_and_does_not_ask_a_stuck_engine() {
    let (mut worker, engine, _) = worker(1, 1);
    engine.set_stuck(true);
    let _readying = send(&mut worker, 1);
    let _queued = send(&mut worker, 2);
    let polls = engine.readiness_polls();
    assert_refused(&mut call(&mut worker, 3));
    assert_eq!(engine.readiness_polls(), polls);
}

#[test]
fn of_a_burst_exactly_n_run_and_q_wait() {
    for slots in 1..6 {
        for queue in 0..6 {
            let (mut worker, engine, handle) = worker(slots, queue);
            let mut calls: Vec<_> = (0..50).map(|n| call(&mut worker, n)).collect();
            assert_eq!(counts(&handle), (slots, queue), "taken in the call");
            let refused = calls.split_off(slots + queue);
            for mut call in refused {
                assert_refused(&mut call);
            }
            for call in &mut calls {
                assert!(call.poll().is_pending());
            }
            assert_eq!(engine.inside(), slots);

            // They come in one by one, in the order of the calls.
            for n in 0..slots + queue {
                let running = engine.next();
                assert_eq!(running.id, n as u64);
                running.end();
                drop(answer(&mut calls[n]));
                if let Some(next) = calls.get_mut(n + slots) {
                    assert!(next.is_woken());
                    assert!(next.poll().is_pending());
                }
            }
            assert_eq!((engine.most(), counts(&handle)), (slots, (0, 0)));
        }
    }
}

#[test]
fn without_a_queue_it_refuses_as_soon_as_the_slots_are_full() {
    let (mut worker, engine, _) = worker(2, 0);
    let (mut first, _second) = (send(&mut worker, 1), send(&mut worker, 2));
    assert_refused(&mut call(&mut worker, 3));
    engine.next().end();
    drop(answer(&mut first));
    let _fourth = send(&mut worker, 4);
    assert_refused(&mut call(&mut worker, 5));
}

#[test]
fn a_freed_slot_goes_to_the_waiting_request_and_not_to_a_new_one() {
    let (mut worker, engine, handle) = worker(1, 2);
    let running = send(&mut worker, 1);
    let mut waiting = send(&mut worker, 2);
    drop(running);
    let mut new = send(&mut worker, 3);
    assert_eq!(counts(&handle), (1, 1), "granted, though not noticed yet");
    assert!(waiting.is_woken());
    assert!(waiting.poll().is_pending());
    engine.next();
    assert_eq!(engine.next().id, 2);
    assert!(!new.is_woken());
    assert!(new.poll().is_pending());
}

#[test]
fn a_slot_granted_to_one_that_leaves_unpolled_goes_to_the_next() {
    let (mut worker, engine, handle) = worker(1, 2);
    let running = send(&mut worker, 1);
    let granted = send(&mut worker, 2);
    let mut next = send(&mut worker, 3);
    drop(running);
    assert!(granted.is_woken() && !next.is_woken());
    drop(granted);
    assert!(next.is_woken());
    assert!(next.poll().is_pending());
    assert_eq!((engine.inside(), counts(&handle)), (1, (1, 0)));
}

#[test]
fn places_that_waiters_have_left_are_free_again() {
    let (mut worker, _, handle) = worker(1, 3);
    let _running = send(&mut worker, 0);
    for _ in 0..3 {
        let waiting: Vec<_> = (0..3).map(|n| send(&mut worker, n)).collect();
        assert_eq!(counts(&handle), (1, 3));
        assert_refused(&mut call(&mut worker, 9));
        drop(waiting);
        assert_eq!(counts(&handle), (1, 0));
    }
}

#[test]
fn an_error_of_the_engine_comes_through_and_frees_the_slot() {
    let (mut worker, engine, handle) = worker(1, 0);
    engine.set_broken(true);
    let mut failed = call(&mut worker, 1);
    let error = answer(&mut failed).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "the engine is broken");
    assert_eq!(counts(&handle), (0, 0), "before the future is dropped");

    let layer = EngineAdmissionLayer::new(1, 0).unwrap().until_response();
    let mut failing = layer.layer(service_fn(async |_: u64| Err::<(), BoxError>("no".into())));
    let mut failed = call(&mut failing, 1);
    assert_eq!(answer(&mut failed).unwrap_err().to_string(), "no");
    assert_eq!(counts(&layer.handle().unwrap()), (0, 0));
}

#[test]
fn a_panic_of_the_engine_frees_the_slot_once() {
    #[derive(Clone)]
    struct Panics {
        ready: bool,
        call: bool,
    }

    impl Service<u64> for Panics {
        type Response = ();
        type Error = BoxError;
        type Future =
            std::future::PollFn<fn(&mut Context<'_>) -> std::task::Poll<Result<(), BoxError>>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
            assert!(!self.ready, "in poll_ready");
            Ok(()).into()
        }

        fn call(&mut self, _: u64) -> Self::Future {
            assert!(!self.call, "in call");
            std::future::poll_fn(|_| panic!("in the future"))
        }
    }

    let layer = EngineAdmissionLayer::new(1, 1).unwrap().until_response();
    let handle = layer.handle().unwrap();
    for (ready, in_call) in [(true, false), (false, true), (false, false)] {
        let mut worker = layer.layer(Panics {
            ready,
            call: in_call,
        });
        let mut panics = call(&mut worker, 1);
        let waiting = call(&mut worker, 2);
        let result = catch_unwind(AssertUnwindSafe(move || {
            let _ = panics.poll();
        }));
        assert!(result.is_err());
        assert_eq!(counts(&handle), (1, 0), "the next one has it");
        drop(waiting);
        assert_eq!(counts(&handle), (0, 0));
    }
}

#[test]
fn all_services_of_one_layer_share_its_gate() {
    let layer = EngineAdmissionLayer::new(1, 0).unwrap();
    let engine = Engine::default();
    let mut one = layer.layer(engine.clone());
    let mut other = layer
        .clone()
        .with_max_queue_wait(Duration::from_secs(1))
        .layer(engine.clone());
    let held = send(&mut one, 1);
    assert_refused(&mut call(&mut other, 2));
    assert_refused(&mut call(&mut one.clone(), 3));
    drop(held);
    let _held = send(&mut other, 4);
    assert_refused(&mut call(&mut one, 5));
}

#[test]
fn a_request_that_must_not_queue_takes_a_free_slot_or_nothing() {
    let layer = EngineAdmissionLayer::new(1, 4)
        .unwrap()
        .no_queue_when(|id: &u64| *id >= 100);
    let mut worker = layer.layer(Engine::default());
    let _running = send(&mut worker, 100);
    assert_refused(&mut call(&mut worker, 101));
    let _waiting = send(&mut worker, 1);
    assert_refused(&mut call(&mut worker, 102));
    assert_eq!(counts(&layer.handle().unwrap()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_as_long_as_it_may_and_no_longer() {
    let layer = EngineAdmissionLayer::new(1, 2)
        .unwrap()
        .with_max_queue_wait(Duration::from_secs(5));
    let engine = Engine::default();
    let mut worker = layer.layer(engine.clone());
    let _running = send(&mut worker, 1);
    let mut first = send(&mut worker, 2);
    tokio::time::advance(Duration::from_secs(2)).await;
    let mut second = send(&mut worker, 3);
    tokio::time::advance(Duration::from_millis(2_999)).await;
    assert!(first.poll().is_pending());
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(first.is_woken());
    let overload = overload(&mut first);
    assert_eq!(overload.reason(), OverloadReason::WaitedTooLong);
    assert_eq!(
        counts(&layer.handle().unwrap()),
        (1, 1),
        "its place is free"
    );
    assert!(second.poll().is_pending());
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_granted_in_time_is_used_however_late_that_is_noticed() {
    let layer = EngineAdmissionLayer::new(1, 1)
        .unwrap()
        .with_max_queue_wait(Duration::from_secs(5));
    let engine = Engine::default();
    let mut worker = layer.layer(engine.clone());
    let running = send(&mut worker, 1);
    let mut waiting = send(&mut worker, 2);
    drop(running);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(waiting.poll().is_pending());
    assert_eq!(engine.inside(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_longest_wait_there_is_does_not_overflow() {
    let layer = EngineAdmissionLayer::new(1, 1)
        .unwrap()
        .with_max_queue_wait(Duration::MAX);
    let mut worker = layer.layer(Engine::default());
    let _running = send(&mut worker, 1);
    let _waiting = send(&mut worker, 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_when_to_retry_once_that_is_known() {
    let layer = EngineAdmissionLayer::new(2, 2)
        .unwrap()
        .with_max_retry_after(Duration::from_secs(20));
    let handle = layer.handle().unwrap();
    let engine = Engine::default();
    let mut worker = layer.layer(engine.clone());
    let fill = |worker: &mut EngineAdmission<Engine>| -> Vec<Call> {
        (0..4).map(|n| send(worker, n)).collect()
    };

    let calls = fill(&mut worker);
    assert_eq!(
        overload(&mut call(&mut worker, 9)).retry_after(),
        None,
        "nothing is known"
    );
    tokio::time::advance(Duration::from_millis(2_500)).await;
    drop(calls);

    // 2.5 s a slot, two of them, two waiting and this one: 3.75 s.
    let calls = fill(&mut worker);
    let refused = overload(&mut call(&mut worker, 9));
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(4)));
    handle.set_slots(1).unwrap();
    assert_eq!(
        overload(&mut call(&mut worker, 9)).retry_after(),
        Some(Duration::from_secs(8))
    );
    handle.set_slots(2).unwrap();

    // Two that have waited, and so are measured, take an hour.
    let mut calls = calls;
    for mut call in calls.split_off(2) {
        drop(calls.remove(0));
        assert!(call.poll().is_pending());
        calls.push(call);
    }
    tokio::time::advance(Duration::from_secs(3_600)).await;
    drop(calls);
    let _calls = fill(&mut worker);
    assert_eq!(
        overload(&mut call(&mut worker, 9)).retry_after(),
        Some(Duration::from_secs(20)),
        "at most what the application allows"
    );
}

#[test]
fn a_closed_gate_sends_away_who_waits_and_who_comes_and_lets_the_rest_go_on() {
    let (mut worker, engine, handle) = worker(1, 2);
    let mut running = send(&mut worker, 1);
    let mut waiting = send(&mut worker, 2);
    let mut unpolled = call(&mut worker, 3);
    handle.close();
    assert!(waiting.is_woken());
    assert_unavailable(&mut waiting);
    assert_unavailable(&mut unpolled);
    assert_unavailable(&mut call(&mut worker, 4));
    assert_eq!(counts(&handle), (1, 0));
    assert!(handle.snapshot().closed);

    engine.next().end();
    drop(answer(&mut running));
    assert_eq!(counts(&handle), (0, 0));
    assert_unavailable(&mut call(&mut worker, 5));
}

#[test]
fn a_slot_granted_before_the_close_is_used() {
    let (mut worker, engine, handle) = worker(1, 1);
    let running = send(&mut worker, 1);
    let mut granted = send(&mut worker, 2);
    drop(running);
    handle.close();
    assert!(granted.poll().is_pending());
    assert_eq!(engine.inside(), 1);
}

#[test]
fn the_load_is_what_runs_and_what_waits() {
    let (mut worker, _, _) = worker(2, 4);
    assert_eq!(worker.load(), 0);
    let calls: Vec<_> = (0..5).map(|n| call(&mut worker, n)).collect();
    assert_eq!(worker.load(), 5);
    drop(calls);
    assert_eq!(worker.load(), 0);
}

#[test]
fn what_it_is_made_of_can_be_sent_between_threads() {
    fn sent<T: Send + Sync>() {}
    fn sent_only<T: Send>() {}
    sent::<EngineAdmissionLayer>();
    sent::<EngineAdmission<u64>>();
    sent::<EngineBackpressure<u64>>();
    sent::<tower_overload::admission::AdmissionHandle>();
    sent::<tower_overload::admission::Permit>();
    sent::<tower_overload::admission::SlotHold>();
    sent_only::<EngineAdmissionFuture<Engine, u64, ()>>();
}
