//! From when to when a request counts, and what is reported of it.

use crate::{
    metrics::recorded,
    support::{OfRequest, SIXTEEN, WORKER, client, known, monitor, rank_of, send, tracker},
};
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use std::{
    convert::Infallible,
    future::Ready,
    panic::{AssertUnwindSafe, catch_unwind},
};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_overload::{
    busy::{BusySet, Mark},
    load::{
        LoadEvent, ThresholdUpdate, WorkerConfig, WorkerMonitor,
        tracker::{Cost, KeepFresh, LoadTracker, TrackLoad, TrackLoadLayer, Tracked},
    },
};

const COST: Cost = Cost::of_prompt(100, SIXTEEN);

#[tokio::test]
async fn the_prompt_is_in_prefill_until_the_first_frame_and_has_its_blocks_until_the_end() {
    let monitor = monitor([0]);
    let (mut client, served) = client(&tracker(&monitor).layer(WORKER));
    let _ = client.ready().await.unwrap();
    assert_eq!(known(&monitor, 0), (0, 0), "to be ready is no request");
    let response = send(&mut client, COST);
    assert_eq!(known(&monitor, 0), (100, 7), "before it is polled");
    let mut worker = served.recv().unwrap();
    worker.head(200);
    let mut body = response.await.unwrap().into_body();
    assert_eq!(known(&monitor, 0), (100, 7), "the head is no token");
    worker.data();
    assert_eq!(known(&monitor, 0), (100, 7), "nor is what nobody has read");
    body.frame().await.unwrap().unwrap();
    assert_eq!(known(&monitor, 0), (0, 7));
    for _ in 0..40 {
        worker.data();
        body.frame().await.unwrap().unwrap();
    }
    assert_eq!(known(&monitor, 0), (0, 7), "the output is not tracked");
    worker.end();
    assert!(body.frame().await.is_none());
    assert_eq!(known(&monitor, 0), (0, 0));
    drop(body);
    assert_eq!(known(&monitor, 0), (0, 0));
}

#[tokio::test]
async fn whatever_ends_a_request_takes_off_what_it_has_added_and_once() {
    let monitor = monitor([0]);
    let (mut client, served) = client(&tracker(&monitor).layer(WORKER));
    let other = send(&mut client, Cost::new(5, 1));
    let only_the_other = || assert_eq!(known(&monitor, 0), (5, 1));
    let both = || assert_eq!(known(&monitor, 0), (105, 8));
    let _other_worker = served.recv().unwrap();

    let response = send(&mut client, COST);
    both();
    drop(response);
    only_the_other();
    drop(served.recv().unwrap());

    let response = send(&mut client, COST);
    served.recv().unwrap().fail();
    both();
    response.await.unwrap_err();
    only_the_other();

    for status in [400, 404, 429, 500, 503, 529] {
        let response = send(&mut client, COST);
        let mut worker = served.recv().unwrap();
        both();
        worker.head(status);
        let response = response.await.unwrap();
        assert_eq!(response.status(), status);
        only_the_other();
        worker.data();
        worker.end();
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "token", "it is passed on as it is");
        only_the_other();
    }

    let answered = |client: &mut _| {
        let response = send(client, COST);
        let mut worker = served.recv().unwrap();
        worker.head(200);
        let response = response.now_or_never().unwrap().unwrap();
        (worker, response.into_body())
    };
    // Its body is dropped: unread, and in the middle.
    let (_worker, body) = answered(&mut client);
    both();
    drop(body);
    only_the_other();
    let (worker, mut body) = answered(&mut client);
    worker.data();
    body.frame().await.unwrap().unwrap();
    assert_eq!(known(&monitor, 0), (5, 8));
    drop(body);
    only_the_other();
    // It fails, before the first frame and after it.
    for frames in 0..2 {
        let (worker, mut body) = answered(&mut client);
        for _ in 0..frames {
            worker.data();
            body.frame().await.unwrap().unwrap();
        }
        worker.frame(Err("broken".into()));
        body.frame().await.unwrap().unwrap_err();
        only_the_other();
    }
    // It ends without a frame, and with trailers only.
    let (mut worker, mut body) = answered(&mut client);
    worker.end();
    assert!(body.frame().await.is_none());
    only_the_other();
    let (mut worker, mut body) = answered(&mut client);
    worker.frame(Ok(Frame::trailers(HeaderMap::new())));
    worker.end();
    body.frame().await.unwrap().unwrap();
    assert_eq!(known(&monitor, 0).0, 5);
    assert!(body.frame().await.is_none());
    only_the_other();

    drop(other);
    assert_eq!(known(&monitor, 0), (0, 0));
}

#[tokio::test]
async fn a_body_that_is_empty_from_the_start_ends_the_request_with_the_head() {
    let monitor = monitor([0]);
    let worker = service_fn(|_: Request<Cost>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let response = tracker(&monitor).layer(WORKER).layer(worker);
    let response = response.oneshot(Request::new(COST)).await.unwrap();
    assert_eq!(known(&monitor, 0), (0, 0));
    drop(response);
}

#[test]
fn a_panic_of_the_client_or_of_the_cost_function_leaves_nothing() {
    let monitor = monitor([0]);
    fn panics(request: Request<Cost>) -> Ready<Result<Response<Full<Bytes>>, BoxError>> {
        panic!("{request:?}")
    }
    let client = service_fn(panics);
    let mut client = tracker(&monitor).layer(WORKER).layer(client);
    let call = AssertUnwindSafe(|| drop(client.call(Request::new(COST))));
    assert!(catch_unwind(call).is_err());
    assert_eq!(known(&monitor, 0), (0, 0));
    assert_eq!(
        rank_of(&monitor, 0).active_prefill_tokens,
        Some(0),
        "it was counted and taken off"
    );

    let cost: OfRequest = |_| panic!("no idea");
    let tracker = LoadTracker::new(monitor.clone(), cost);
    let worker = service_fn(|_: Request<Cost>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let mut client = tracker.layer("other").layer(worker);
    let call = AssertUnwindSafe(|| drop(client.call(Request::new(COST))));
    assert!(catch_unwind(call).is_err());
    assert_eq!(known(&monitor, 0), (0, 0));
}

#[tokio::test]
async fn the_output_takes_a_block_when_the_last_one_is_full() {
    let monitor = monitor([0]);
    let tracker = tracker(&monitor).track_output_blocks(SIXTEEN);
    let (mut client, served) = client(&tracker.layer(WORKER));
    let response = send(&mut client, Cost::of_prompt(14, SIXTEEN));
    let mut worker = served.recv().unwrap();
    worker.head(200);
    let mut body = response.await.unwrap().into_body();
    for tokens in 15..100_u64 {
        worker.data();
        body.frame().await.unwrap().unwrap();
        assert_eq!(known(&monitor, 0), (0, tokens.div_ceil(16)));
    }
    worker.frame(Ok(Frame::trailers(HeaderMap::new())));
    body.frame().await.unwrap().unwrap();
    assert_eq!(known(&monitor, 0), (0, 7), "trailers are no token");
    drop(body);
    assert_eq!(known(&monitor, 0), (0, 0));
}

#[tokio::test]
async fn the_application_says_how_many_tokens_a_frame_has() {
    let monitor = monitor([0]);
    // Each response has a state of its own: the second frame is as two.
    let mut frames = 0;
    let tokens = move |_: &Frame<Bytes>| {
        frames += 16;
        frames
    };
    let tracker = tracker(&monitor)
        .track_output_blocks(SIXTEEN)
        .output_tokens(tokens);
    let (mut client, served) = client(&tracker.layer(WORKER));
    for _ in 0..2 {
        let response = send(&mut client, Cost::of_prompt(16, SIXTEEN));
        let mut worker = served.recv().unwrap();
        worker.head(200);
        let mut body = response.await.unwrap().into_body();
        for blocks in [2, 4, 7] {
            worker.data();
            body.frame().await.unwrap().unwrap();
            assert_eq!(known(&monitor, 0), (0, blocks));
        }
    }
}

#[test]
fn only_what_changes_a_count_is_reported() {
    recorded(|scrape| {
        let monitor = monitor([0]);
        let tracker = tracker(&monitor).track_output_blocks(SIXTEEN);
        let (mut client, served) = client(&tracker.layer(WORKER));
        let reports = || scrape.value("load_events_total", &[]).unwrap_or(0.0);
        let response = send(&mut client, Cost::of_prompt(16, SIXTEEN));
        assert_eq!(reports(), 1.0);
        let mut worker = served.recv().unwrap();
        worker.head(200);
        let mut body = response.now_or_never().unwrap().unwrap().into_body();
        let mut frame = || {
            worker.data();
            body.frame().now_or_never().unwrap().unwrap().unwrap();
        };
        frame();
        assert_eq!(reports(), 2.0, "the end of prefill and a block are one");
        (0..15).for_each(|_| frame());
        assert_eq!(reports(), 2.0, "the block is full now");
        frame();
        assert_eq!(reports(), 3.0);
        drop(body);
        assert_eq!(reports(), 4.0);
        drop(send(&mut client, Cost::default()));
        assert_eq!(reports(), 4.0, "it costs nothing");
    });
}

#[tokio::test]
async fn the_largest_costs_are_reported_as_the_largest_number_and_taken_off_again() {
    let monitor = monitor([0]);
    let (mut client, _served) = client(&tracker(&monitor).layer(WORKER));
    let huge = [(); 3].map(|()| send(&mut client, Cost::new(u64::MAX, u64::MAX)));
    let small = send(&mut client, COST);
    assert_eq!(known(&monitor, 0), (u64::MAX, u64::MAX));
    drop(huge);
    assert_eq!(known(&monitor, 0), (100, 7));
    drop(small);
    assert_eq!(known(&monitor, 0), (0, 0));
}

#[tokio::test]
async fn the_mark_is_there_before_the_worker_sees_the_request() {
    let set = BusySet::new();
    let (monitor, thresholds) = WorkerMonitor::for_model("tiny", set.clone());
    let update = ThresholdUpdate::new().active_decode_blocks(0.5);
    thresholds.update(update).unwrap();
    let config = WorkerConfig::new([0]).unwrap().kv_total_blocks(10);
    monitor.configure_for_all(WORKER, config);
    let is_busy = {
        let set = set.clone();
        move || set.marks(&WORKER).has(Mark::Busy)
    };
    let seen = is_busy.clone();
    let worker = service_fn(move |_: Request<Cost>| {
        let body = Full::new(Bytes::from(seen().to_string()));
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    let mut client = tracker(&monitor).layer(WORKER).layer(worker);
    for (blocks, expected) in [(5, "false"), (6, "true")] {
        let response = client.call(Request::new(Cost::new(0, blocks)));
        let body = response.await.unwrap().into_body().collect();
        assert_eq!(body.await.unwrap().to_bytes(), expected);
        assert!(!is_busy());
    }
}

#[tokio::test]
async fn what_the_worker_says_of_its_own_blocks_is_not_touched() {
    let monitor = monitor([0]);
    let (mut client, _served) = client(&tracker(&monitor).layer(WORKER));
    let used = LoadEvent::new(WORKER, 0).kv_used_blocks(42);
    monitor.observe(used).unwrap();
    let request = send(&mut client, COST);
    assert_eq!(rank_of(&monitor, 0).kv_used_blocks, Some(42));
    drop(request);
    assert_eq!(rank_of(&monitor, 0).kv_used_blocks, Some(42));
    // Of the same counts the last writer wins.
    let _request = send(&mut client, COST);
    let theirs = LoadEvent::new(WORKER, 0).active_decode_blocks(1);
    monitor.observe(theirs).unwrap();
    assert_eq!(known(&monitor, 0), (100, 1));
    let _request = send(&mut client, COST);
    assert_eq!(known(&monitor, 0), (200, 14));
}

#[tokio::test]
async fn a_worker_that_comes_back_has_its_running_requests_with_the_next_report() {
    let monitor = monitor([0]);
    let tracker = tracker(&monitor);
    let (mut client, _served) = client(&tracker.layer(WORKER));
    let first = send(&mut client, COST);
    assert!(monitor.remove(&WORKER));
    let second = send(&mut client, COST);
    let config = WorkerConfig::new([0]).unwrap();
    monitor.configure_for_all(WORKER, config.clone());
    assert_eq!(known(&monitor, 0), (0, 0));
    tracker.report(&WORKER);
    assert_eq!(known(&monitor, 0), (200, 14), "at once if it is asked for");

    assert!(monitor.remove(&WORKER));
    monitor.configure_for_all(WORKER, config);
    drop(first);
    assert_eq!(known(&monitor, 0), (100, 7));
    drop(second);
    assert_eq!(known(&monitor, 0), (0, 0));
    tracker.report(&"nobody");
}

#[tokio::test]
async fn another_worker_of_the_same_id_begins_with_nothing() {
    let monitor = monitor([0]);
    let tracker = tracker(&monitor);
    let (mut before, served) = client(&tracker.layer(WORKER));
    let first = send(&mut before, COST);
    served.recv().unwrap().head(200);
    let mut body = first.await.unwrap().into_body();
    let second = send(&mut before, COST);
    assert_eq!(known(&monitor, 0), (200, 14));

    tracker.hand_over(&WORKER);
    assert_eq!(known(&monitor, 0), (0, 0), "reported at once");
    let (mut after, _served) = client(&tracker.layer(WORKER));
    let third = send(&mut after, Cost::new(5, 1));
    tracker.report(&WORKER);
    assert_eq!(known(&monitor, 0), (5, 1));
    drop(second);
    assert!(body.frame().await.is_none());
    assert_eq!(known(&monitor, 0), (5, 1));
    drop(third);
    assert_eq!(known(&monitor, 0), (0, 0));
    tracker.hand_over(&"nobody");
}

#[tokio::test]
async fn a_request_is_counted_on_its_rank_or_on_the_least_loaded_of_the_declared() {
    let monitor = monitor([0, 1, 4]);
    let tracker = tracker(&monitor);
    let (mut one, _one) = client(&tracker.layer(WORKER));
    // All services of a worker count together, and see its ranks.
    let (mut two, _two) = client(&tracker.layer(WORKER).ranks([1, 4]));
    let first = send(&mut one, Cost::new(10, 2));
    assert_eq!(known(&monitor, 1), (10, 2));
    let second = send(&mut two, Cost::new(20, 1));
    assert_eq!(known(&monitor, 4), (20, 1));
    let third = send(&mut one, Cost::new(1, 2));
    assert_eq!(known(&monitor, 4), (21, 3));
    let named = send(&mut two, Cost::new(7, 7).on_rank(0));
    assert_eq!(known(&monitor, 0), (7, 7));
    let undeclared = send(&mut two, Cost::new(7, 7).on_rank(9));
    drop((first, second, third, named, undeclared));
    for rank in [0, 1, 4] {
        assert_eq!(known(&monitor, rank), (0, 0));
    }
}

#[test]
fn all_of_it_goes_from_thread_to_thread() {
    fn send_sync<T: Send + Sync>() {}
    send_sync::<LoadTracker<String, OfRequest>>();
    send_sync::<TrackLoadLayer<OfRequest>>();
    send_sync::<TrackLoad<(), OfRequest>>();
    send_sync::<KeepFresh<String>>();
    send_sync::<Tracked>();
    send_sync::<Cost>();
}

/// Reads a stream that comes in these frames; what is known after each.
async fn streamed(output: bool, frames: &[&'static str]) -> Vec<(u64, u64)> {
    let monitor = monitor([0]);
    let mut tracker = tracker(&monitor);
    if output {
        tracker = tracker.track_output_blocks(SIXTEEN);
    }
    let (mut client, served) = client(&tracker.layer(WORKER));
    let response = send(&mut client, Cost::of_prompt(16, SIXTEEN));
    let mut worker = served.recv().unwrap();
    worker.head(200);
    let mut body = response.await.unwrap().into_body();
    let mut all = Vec::new();
    for frame in frames {
        worker.frame(Ok(Frame::data(Bytes::from_static(frame.as_bytes()))));
        body.frame().await.unwrap().unwrap();
        all.push(known(&monitor, 0));
    }
    drop(body);
    assert_eq!(known(&monitor, 0), (0, 0));
    all
}

#[tokio::test]
async fn a_ping_or_a_role_does_not_end_the_prefill() {
    let frames = [
        ": ping\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n",
        "\n",
        ": ping\n\n",
    ];
    let prefill = |output: u64| {
        let (before, after) = ((16, 1), (0, 1 + output));
        [before, before, before, before, after, after]
    };
    assert_eq!(streamed(false, &frames).await, prefill(0));
    assert_eq!(streamed(true, &frames).await, prefill(1));
}

#[tokio::test]
async fn events_of_several_tokens_count_what_they_say() {
    // 20 tokens in each of five events, of which the second is cut.
    let event = "data: {\"choices\":[{\"text\":\"twenty tokens are in this text, as its usage says, \
                 and that is 80 bytes\"}]}\n\n";
    let (one, two) = event.split_at(event.len() - 1);
    let three = [event; 3].concat().leak();
    let usage =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":161}}\n\n";
    let frames = [event, one, two, three, usage, "data: [DONE]\n\n"];
    let tokens = [17_u64, 17, 34, 85, 161, 161];
    let blocks = tokens.map(|tokens| (0, 1 + tokens.div_ceil(16)));
    assert_eq!(streamed(true, &frames).await, blocks);
}
