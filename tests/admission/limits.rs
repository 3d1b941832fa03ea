use crate::support::*;
use std::time::Duration;
use tower::Layer;
use tower_overload::admission::{EngineAdmissionLayer, MAX_LIMIT};

#[test]
fn after_a_lower_limit_nothing_is_granted_until_there_is_room_under_it() {
    let (mut worker, engine, handle) = worker(4, 4);
    let mut running: Vec<_> = (0..4).map(|n| send(&mut worker, n)).collect();
    let mut waiting: Vec<_> = (4..6).map(|n| send(&mut worker, n)).collect();
    handle.set_slots(1).unwrap();
    for left in [3, 2, 1] {
        drop(running.pop());
        assert_eq!(counts(&handle), (left, 2));
        assert!(waiting.iter().all(|call| !call.is_woken()));
    }
    drop(running);
    assert!(waiting[0].is_woken() && !waiting[1].is_woken());
    assert!(waiting[0].poll().is_pending());
    assert_eq!((engine.inside(), counts(&handle)), (1, (1, 1)));
}

#[test]
fn a_limit_raised_by_k_wakes_exactly_k() {
    let (mut worker, engine, handle) = worker(1, 8);
    let _running = send(&mut worker, 0);
    let mut waiting: Vec<_> = (1..8).map(|n| send(&mut worker, n)).collect();
    handle.set_slots(4).unwrap();
    let woken: Vec<_> = waiting.iter().map(|call| call.is_woken()).collect();
    assert_eq!(woken, [true, true, true, false, false, false, false]);
    for call in &mut waiting {
        assert!(call.poll().is_pending());
    }
    assert_eq!((engine.inside(), counts(&handle)), (4, (4, 4)));
}

#[test]
fn a_shorter_queue_sends_nobody_away_and_takes_nobody_in() {
    let (mut worker, _, handle) = worker(1, 4);
    let running = send(&mut worker, 0);
    let mut waiting: Vec<_> = (1..5).map(|n| send(&mut worker, n)).collect();
    handle.set_queue_limit(2).unwrap();
    drop(running);
    assert_eq!(counts(&handle), (1, 3));
    assert_refused(&mut call(&mut worker, 9));
    drop(waiting.pop());
    assert_refused(&mut call(&mut worker, 9));
    drop(waiting.pop());
    assert_eq!(counts(&handle), (1, 1));
    let _waits = send(&mut worker, 9);
    assert_refused(&mut call(&mut worker, 10));
}

#[test]
fn a_limit_that_cannot_be_is_refused_and_changes_nothing() {
    assert!(EngineAdmissionLayer::new(0, 4).is_err());
    assert!(EngineAdmissionLayer::new(1, MAX_LIMIT + 1).is_err());
    let layer = EngineAdmissionLayer::new(2, 3).unwrap();
    let handle = layer.handle().unwrap();
    let before = handle.snapshot();
    let refused = [
        handle.set_slots(0),
        handle.set_slots(MAX_LIMIT + 1),
        handle.set_queue_limit(usize::MAX),
        handle.set_first_token_limit(Some(0)),
        layer.with_first_token_limit(0).map(drop),
    ];
    let texts = refused.map(|result| result.unwrap_err().to_string());
    assert_eq!(
        texts[0],
        format!("slots must be from 1 to {MAX_LIMIT}, not 0")
    );
    assert_eq!(
        texts[4],
        format!("first-token limit must be from 1 to {MAX_LIMIT}, not 0")
    );
    assert_eq!(handle.snapshot(), before);
}

#[test]
fn a_request_needs_room_under_the_first_token_limit_too() {
    let layer = EngineAdmissionLayer::new(3, 2)
        .unwrap()
        .with_first_token_limit(1)
        .unwrap();
    let (engine, handle) = (Engine::default(), layer.handle().unwrap());
    let mut worker = layer.layer(engine.clone());
    let mut first = send(&mut worker, 1);
    let mut second = send(&mut worker, 2);
    let _third = send(&mut worker, 3);
    assert_eq!(
        counts(&handle),
        (1, 2),
        "two slots are free, but not for prefill"
    );
    assert_refused(&mut call(&mut worker, 4));

    let mut running = engine.next();
    running.head();
    let mut body = body(&mut first);
    assert_eq!(
        handle.snapshot().awaiting_first_token,
        1,
        "a head is no token"
    );
    running.token("a");
    assert_eq!(next_frame(&mut body), Some(Ok("a".into())));
    assert!(second.is_woken());
    assert!(second.poll().is_pending());
    assert_eq!(counts(&handle), (2, 1));
    running.token("b");
    next_frame(&mut body);
    assert_eq!(counts(&handle), (2, 1), "only the first one counts");
    drop(second);
    assert_eq!(
        counts(&handle),
        (2, 0),
        "one that ends without a token makes room"
    );
}

#[test]
fn the_first_token_is_what_the_predicate_says() {
    let layer = EngineAdmissionLayer::new(2, 1)
        .unwrap()
        .with_first_token_limit(1)
        .unwrap()
        .first_token_when(|frame: &http_body::Frame<bytes::Bytes>| {
            frame
                .data_ref()
                .is_some_and(|data| data.starts_with(b"token"))
        });
    let (engine, handle) = (Engine::default(), layer.handle().unwrap());
    let mut worker = layer.layer(engine.clone());
    let mut first = send(&mut worker, 1);
    let mut running = engine.next();
    running.token(": a comment");
    let mut body = body(&mut first);
    next_frame(&mut body);
    assert_eq!(handle.snapshot().awaiting_first_token, 1);
    running.token("token");
    next_frame(&mut body);
    assert_eq!(handle.snapshot().awaiting_first_token, 0);
}

#[test]
fn lifting_the_first_token_limit_lets_in_whom_it_held_up() {
    let layer = EngineAdmissionLayer::new(3, 3)
        .unwrap()
        .with_first_token_limit(1)
        .unwrap();
    let handle = layer.handle().unwrap();
    let mut worker = layer.layer(Engine::default());
    let calls: Vec<_> = (0..4).map(|n| send(&mut worker, n)).collect();
    assert_eq!(counts(&handle), (1, 3));
    handle.set_first_token_limit(None).unwrap();
    assert_eq!(counts(&handle), (3, 1));
    handle.set_first_token_limit(Some(1)).unwrap();
    drop(calls);
    let now = handle.snapshot();
    assert_eq!(
        (now.in_engine, now.queued, now.awaiting_first_token),
        (0, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_limited_under_the_first_token_limit_as_well() {
    let layer = EngineAdmissionLayer::new(2, 1)
        .unwrap()
        .with_first_token_limit(1)
        .unwrap()
        .with_max_queue_wait(Duration::from_secs(1));
    let mut worker = layer.layer(Engine::default());
    let _running = send(&mut worker, 1);
    let mut waiting = send(&mut worker, 2);
    tokio::time::advance(Duration::from_secs(1)).await;
    overload(&mut waiting);
}

#[test]
fn a_comment_or_a_role_is_no_first_token() {
    let layer = EngineAdmissionLayer::new(3, 2)
        .unwrap()
        .with_first_token_limit(1)
        .unwrap();
    let (engine, handle) = (Engine::default(), layer.handle().unwrap());
    let mut worker = layer.layer(engine.clone());
    let mut first = send(&mut worker, 1);
    let _second = send(&mut worker, 2);
    let mut running = engine.next();
    running.head();
    let mut body = body(&mut first);
    for no_token in [
        ": ping\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r",
    ] {
        assert_eq!(counts(&handle), (1, 1), "before {no_token:?}");
        running.token(no_token);
        next_frame(&mut body);
    }
    assert_eq!(counts(&handle), (2, 0), "its event has ended");
}
