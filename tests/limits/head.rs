//! From the request to the head.

use crate::support::*;
use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request, Response};
use http_body_util::Full;
use std::{task::Poll, time::Duration};
use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{BoxError, Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_overload::{
    Limit, LimitPassed,
    limits::{Streamed, TimeLimitLayer},
};

#[tokio::test(start_paused = true)]
async fn a_head_may_take_as_long_as_the_limit_and_no_longer() {
    for limit in [ms(1), ms(20), secs(60)] {
        let limits = || TimeLimitLayer::new().head(Some(limit));
        let in_time = Worker::new(head_after(limit)).within(limits());
        assert!(in_time.oneshot(said(true)).await.is_ok(), "{limit:?}");

        let since = Instant::now();
        let late = Worker::new(head_after(limit + ms(1))).within(limits());
        let error = error(late.oneshot(said(true)).await);
        assert_eq!(passed(&error), LimitPassed::new(Limit::Head, limit));
        assert_eq!(since.elapsed(), limit);

        let hangs = Worker::new(head_after(Duration::MAX)).within(limits());
        let mut call = task::spawn(hangs.oneshot(said(true)));
        assert_pending!(call.poll());
        advance(limit - ms(1)).await;
        assert_pending!(call.poll());
        advance(ms(1)).await;
        assert!(call.is_woken());
        assert_ready_err!(call.poll());
    }
}

/// Which limit an answer to the request has, of two that differ.
async fn limit_of<P>(layer: TimeLimitLayer<P>, request: Request<()>) -> Duration
where
    P: tower_overload::limits::IsStreamed<Request<()>> + Clone,
{
    let layer = layer.head(Some(secs(1))).whole_head(Some(secs(2)));
    let hangs = layer.layer(Worker::new(head_after(Duration::MAX)));
    let passed = passed(&error(hangs.oneshot(request).await));
    assert_eq!(passed.limit(), Limit::Head);
    passed.after()
}

#[tokio::test(start_paused = true)]
async fn streamed_and_whole_answers_have_limits_of_their_own() {
    let new = TimeLimitLayer::new;
    assert_eq!(limit_of(new(), said(true)).await, secs(1));
    assert_eq!(limit_of(new(), said(false)).await, secs(2));

    let with = |name, value| Request::builder().header(name, value).body(()).unwrap();
    let events = || with("accept", "text/event-stream");
    assert_eq!(limit_of(new(), events()).await, secs(1));
    let grpc = with("content-type", "application/grpc+proto");
    assert_eq!(limit_of(new(), grpc).await, secs(1));
    assert_eq!(limit_of(new(), with("accept", "*/*")).await, secs(2));
    assert_eq!(limit_of(new(), request()).await, secs(2));

    // What is said beats what is written.
    let mut whole = events();
    whole.extensions_mut().insert(Streamed(false));
    assert_eq!(limit_of(new(), whole).await, secs(2));

    let by_path = || new().streamed_when(|request: &Request<()>| request.uri().path() == "/stream");
    let to = |path| Request::get(path).body(()).unwrap();
    assert_eq!(limit_of(by_path(), to("/stream")).await, secs(1));
    assert_eq!(limit_of(by_path(), to("/whole")).await, secs(2));
    assert_eq!(limit_of(by_path(), said(true)).await, secs(2));
}

#[tokio::test(start_paused = true)]
async fn the_defaults_are_a_minute_for_streams_and_any_time_for_whole_answers() {
    for layer in [TimeLimitLayer::new(), TimeLimitLayer::default()] {
        let since = Instant::now();
        let hangs = Worker::new(head_after(Duration::MAX)).within(layer.clone());
        let error = error(hangs.oneshot(said(true)).await);
        assert_eq!(passed(&error).after(), secs(60));
        assert_eq!(since.elapsed(), secs(60));
        let slow = Worker::new(head_after(YEAR)).within(layer);
        assert!(slow.oneshot(request()).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn no_limit_and_one_beyond_the_clock_never_pass() {
    for limit in [None, Some(Duration::MAX)] {
        let limits = TimeLimitLayer::new().head(limit).whole_head(limit);
        for streamed in [true, false] {
            let slow = Worker::new(head_after(YEAR)).within(limits.clone());
            assert!(slow.oneshot(said(streamed)).await.is_ok());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_passes_unless_the_answer_is_there_at_once() {
    let zero = || TimeLimitLayer::new().head(Some(Duration::ZERO));
    let since = Instant::now();
    let at_once = Worker::new(head_after(Duration::ZERO)).within(zero());
    assert!(at_once.oneshot(said(true)).await.is_ok());
    let late = Worker::new(head_after(ms(1))).within(zero());
    let error = error(late.oneshot(said(true)).await);
    assert_eq!(passed(&error).after(), Duration::ZERO);
    assert_eq!(since.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_error_names_the_limit_the_time_and_the_worker() {
    let limits = TimeLimitLayer::new()
        .head(Some(ms(1500)))
        .worker("worker-0");
    let hangs = Worker::new(head_after(Duration::MAX));
    let passed = passed(&error(hangs.within(limits).oneshot(said(true)).await));
    assert_eq!(passed.limit(), Limit::Head);
    assert_eq!(passed.after(), ms(1500));
    assert_eq!(passed.worker(), Some("worker-0"));
    assert_eq!(
        passed.to_string(),
        "the limit to the head of an answer was 1.5s"
    );

    let nameless = hangs.within(TimeLimitLayer::new().head(Some(ms(1))));
    let nameless = self::passed(&error(nameless.oneshot(said(true)).await));
    assert_eq!(nameless.worker(), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_is_dropped() {
    let worker = Worker::new(head_after(Duration::MAX));
    let mut service = worker.within(TimeLimitLayer::new());
    let call = service.ready().await.unwrap().call(said(true));
    assert_eq!(worker.alive(), 1);
    drop(call);
    assert_eq!(worker.alive(), 0);

    let mut call = task::spawn(service.call(said(true)));
    assert_pending!(call.poll());
    advance(secs(60)).await;
    assert_ready_err!(call.poll());
    assert_eq!(worker.alive(), 0, "although its future is still there");
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_worker_are_passed_on_as_they_are() {
    let failing = service_fn(|_: Request<()>| async {
        Err::<Response<Full<Bytes>>, BoxError>("broken".into())
    });
    let failing = TimeLimitLayer::new().layer(failing);
    let error = error(failing.oneshot(said(true)).await);
    assert_eq!(error.to_string(), "broken");
    assert!(LimitPassed::find_in(&*error).is_none());
}

#[tokio::test(start_paused = true)]
async fn it_is_ready_when_its_worker_is_and_being_ready_has_no_limit() {
    type Mock = tower_test::mock::Mock<Request<()>, Response<Full<Bytes>>>;
    let (mock, mut handle): (Mock, _) = tower_test::mock::pair();
    let limits = TimeLimitLayer::new().head(Some(ms(1)));
    let mut service = tower_test::mock::Spawn::new(limits.layer(mock));
    handle.allow(0);
    assert_pending!(service.poll_ready());
    advance(YEAR).await;
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());
    handle.send_error("gone for good");
    let error = loop {
        // The mock tells its error when it is asked for more than it allows.
        match service.poll_ready() {
            Poll::Ready(Err(error)) => break error,
            _ => drop(service.call(request())),
        }
    };
    assert_eq!(error.to_string(), "gone for good");
}

#[tokio::test(start_paused = true)]
async fn a_clone_has_to_become_ready_by_itself() {
    let worker = Worker::new(head_after(Duration::ZERO));
    let one_place = ConcurrencyLimit::new(worker, 1);
    let mut first = TimeLimitLayer::new().layer(one_place);
    assert!(first.ready().await.is_ok());
    let mut second = first.clone();
    assert!(second.ready().now_or_never().is_none());
    assert!(first.call(said(true)).await.is_ok());
    assert!(second.ready().now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_head_of_an_answer_to_head_is_not_held_back() {
    let worker = Worker::new(answer(EVENTS, &[(ms(0), Step::Hang)]));
    let mut head = said(true);
    *head.method_mut() = Method::HEAD;
    let since = Instant::now();
    let service = worker.within(TimeLimitLayer::new());
    assert!(service.oneshot(head).await.is_ok());
    assert_eq!(since.elapsed(), Duration::ZERO);
}
