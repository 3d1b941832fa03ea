//! From the head to the end.

use crate::support::{Step::*, *};
use http::Response;
use http_body::Body;
use http_body_util::BodyExt;
use std::{error::Error, io, pin::Pin, time::Duration};
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{BoxError, ServiceExt};
use tower_overload::{
    Limit, LimitPassed, Unreachable,
    limits::{TimeLimitBody, TimeLimitLayer},
};

const JSON: &str = "application/json";

fn limits() -> TimeLimitLayer {
    TimeLimitLayer::new()
        .head(Some(secs(1)))
        .first_frame(Some(secs(2)))
        .frame(Some(secs(3)))
        .worker("w")
}

type Answer = Pin<Box<TimeLimitBody<ScriptBody>>>;

async fn respond(
    limits: TimeLimitLayer,
    script: Script,
) -> Result<Response<TimeLimitBody<ScriptBody>>, BoxError> {
    Worker::new(script).within(limits).oneshot(said(true)).await
}

async fn body(limits: TimeLimitLayer, script: Script) -> Answer {
    Box::pin(respond(limits, script).await.unwrap().into_body())
}

/// The next frame, and how long it took.
async fn next(body: &mut Answer) -> (Seen, Duration) {
    let since = Instant::now();
    let frame = body.frame().await;
    (Seen::of(frame), since.elapsed())
}

fn late(limit: Limit, after: Duration) -> Seen {
    Seen::Error(LimitPassed::new(limit, after).to_string())
}

#[tokio::test(start_paused = true)]
async fn the_head_of_an_event_stream_is_held_back_until_its_first_frame_is_there() {
    let steps = [(secs(2), Data("a")), (secs(0), Data("b")), (secs(0), End)];
    let since = Instant::now();
    let mut body = body(limits(), answer(EVENTS, &steps)).await;
    assert_eq!(since.elapsed(), secs(2));
    for seen in [Seen::data("a"), Seen::data("b"), Seen::End] {
        assert_eq!(next(&mut body).await, (seen, secs(0)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_frame_of_an_event_stream_that_does_not_come_is_an_error_of_the_response() {
    for steps in [
        &[(secs(0), Hang)][..],
        &[(secs(2) + ms(1), Data("a"))],
        &[(secs(2) + ms(1), End)],
    ] {
        let since = Instant::now();
        let worker = Worker::new(answer(EVENTS, steps));
        let mut call = task::spawn(worker.within(limits()).oneshot(said(true)));
        assert_pending!(call.poll());
        advance(secs(2) - ms(1)).await;
        assert_pending!(call.poll());
        advance(ms(1)).await;
        let passed = passed(&assert_ready_err!(call.poll()));
        let expected = LimitPassed::new(Limit::FirstFrame, secs(2));
        assert_eq!(passed, expected.with_worker("w"));
        assert_eq!(since.elapsed(), secs(2));
        assert_eq!(worker.alive(), 0, "the worker sees that nobody listens");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_frame_has_its_time_from_the_head_on() {
    let script = Script {
        head: secs(1),
        ..answer(EVENTS, &[(secs(2), Data("a"))])
    };
    let since = Instant::now();
    assert!(respond(limits(), script).await.is_ok());
    assert_eq!(since.elapsed(), secs(3), "both took all they may");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_before_its_first_frame_is_an_error_of_the_response() {
    let script = answer(EVENTS, &[(secs(1), Break)]);
    let error = error(respond(limits(), script).await);
    let lost = Unreachable::find_in(&*error).expect("it can be sent elsewhere");
    assert!(lost.may_have_been_sent());
    assert_eq!(lost.worker(), Some("w"));
    let io = lost.source().and_then(|it| it.downcast_ref::<io::Error>());
    let io = io.expect("the cause is in the chain");
    assert_eq!(io.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_that_is_empty_is_given_out_at_its_end() {
    let mut body = body(limits(), answer(EVENTS, &[(secs(1), End)])).await;
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    // And it is not asked again, which many a stream would not survive.
    assert_eq!(next(&mut body).await, (Seen::End, secs(0)));

    let known = Script {
        knows_end: true,
        ..answer(EVENTS, &[(secs(1), End)])
    };
    let since = Instant::now();
    assert!(respond(limits(), known).await.is_ok());
    assert_eq!(since.elapsed(), secs(0));
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_on_the_first_frame_no_head_is_held_back() {
    let since = Instant::now();
    let script = answer(EVENTS, &[(YEAR, Data("a"))]);
    let mut body = body(limits().first_frame(None), script).await;
    assert_eq!(since.elapsed(), secs(0));
    assert_eq!(next(&mut body).await, (Seen::data("a"), YEAR));
}

#[tokio::test(start_paused = true)]
async fn only_event_streams_that_succeed_are_held_back() {
    for (content_type, status, is_held) in [
        (EVENTS, 200, true),
        ("Text/Event-Stream; charset=utf-8", 201, true),
        (EVENTS, 204, false),
        (EVENTS, 404, false),
        (EVENTS, 503, false),
        (JSON, 200, false),
        ("text/event-streams", 200, false),
        ("application/grpc", 200, false),
    ] {
        let script = Script {
            status,
            ..answer(content_type, &[(secs(1), Data("a"))])
        };
        let since = Instant::now();
        assert!(respond(limits(), script).await.is_ok());
        let held = if is_held { secs(1) } else { secs(0) };
        assert_eq!(since.elapsed(), held, "{content_type} {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_any_other_answer_the_first_frame_is_a_matter_of_the_body() {
    let worker = Worker::new(answer(JSON, &[(secs(2) + ms(1), Data("a"))]));
    let response = worker.within(limits()).oneshot(said(true)).await.unwrap();
    let mut body = Box::pin(response.into_body());
    let passed = late(Limit::FirstFrame, secs(2));
    assert_eq!(next(&mut body).await, (passed, secs(2)));
    assert_eq!(worker.alive(), 0, "the worker sees that nobody listens");
    assert!(body.is_end_stream());
    assert_eq!(next(&mut body).await, (Seen::End, secs(0)));

    let mut in_time = self::body(limits(), answer(JSON, &[(secs(2), Data("a"))])).await;
    assert_eq!(next(&mut in_time).await, (Seen::data("a"), secs(2)));
}

#[tokio::test(start_paused = true)]
async fn each_frame_may_take_as_long_as_the_limit_after_the_one_before_it() {
    for content_type in [EVENTS, JSON] {
        let steps = [
            (secs(2), Data("a")),
            (secs(3), Data("b")),
            (secs(3), Data("c")),
            (secs(3) + ms(1), Data("d")),
        ];
        let mut body = body(limits(), answer(content_type, &steps)).await;
        let first = if content_type == EVENTS { 0 } else { 2 };
        assert_eq!(next(&mut body).await, (Seen::data("a"), secs(first)));
        assert_eq!(next(&mut body).await, (Seen::data("b"), secs(3)));
        assert_eq!(next(&mut body).await, (Seen::data("c"), secs(3)));
        let passed = late(Limit::Frame, secs(3));
        assert_eq!(next(&mut body).await, (passed, secs(3)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_body_names_the_limit_the_time_and_the_worker() {
    let steps = [(secs(0), Data("a")), (secs(0), Hang)];
    let mut body = body(limits(), answer(EVENTS, &steps)).await;
    next(&mut body).await;
    let error = body.frame().await.unwrap().unwrap_err();
    let expected = LimitPassed::new(Limit::Frame, secs(3)).with_worker("w");
    assert_eq!(passed(&error), expected);
}

#[tokio::test(start_paused = true)]
async fn the_end_and_the_trailers_have_to_come_in_time_as_well() {
    for last in [End, Trailers] {
        let steps = [(secs(0), Data("a")), (secs(3) + ms(1), last)];
        let mut body = body(limits(), answer(EVENTS, &steps)).await;
        next(&mut body).await;
        let passed = late(Limit::Frame, secs(3));
        assert_eq!(next(&mut body).await, (passed, secs(3)), "{last:?}");
    }
    let steps = [(secs(0), Data("a")), (secs(3), Trailers), (secs(3), End)];
    let mut body = body(limits(), answer(EVENTS, &steps)).await;
    next(&mut body).await;
    assert_eq!(next(&mut body).await, (Seen::Trailers, secs(3)));
    assert_eq!(next(&mut body).await, (Seen::End, secs(3)));
}

#[tokio::test(start_paused = true)]
async fn trailers_alone_are_a_frame() {
    let steps = [(secs(1), Trailers), (secs(0), End)];
    for content_type in [EVENTS, JSON] {
        let mut body = body(limits(), answer(content_type, &steps)).await;
        assert_eq!(next(&mut body).await.0, Seen::Trailers);
        assert_eq!(next(&mut body).await.0, Seen::End);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_has_its_worker_not_blamed() {
    let steps = [
        (secs(0), Data("a")),
        (secs(1), Data("b")),
        (secs(1), Data("c")),
        (secs(1), End),
    ];
    let mut body = body(limits(), answer(EVENTS, &steps)).await;
    for seen in [Seen::data("a"), Seen::data("b"), Seen::data("c"), Seen::End] {
        sleep(YEAR).await;
        assert_eq!(next(&mut body).await, (seen, secs(0)));
    }
}

#[tokio::test(start_paused = true)]
async fn between_two_frames_nothing_runs_until_the_next_one_is_asked_for() {
    let steps = [(secs(0), Data("a")), (secs(100), Data("b"))];
    let mut body = body(limits(), answer(EVENTS, &steps)).await;
    next(&mut body).await;
    sleep(secs(97)).await;
    assert_eq!(next(&mut body).await, (Seen::data("b"), secs(3)));
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_there_when_the_limit_has_passed_is_given_out() {
    let steps = [(secs(0), Data("a")), (secs(1), Data("b")), (secs(0), End)];
    let mut body = body(limits(), answer(EVENTS, &steps)).await;
    next(&mut body).await;
    {
        let mut frame = task::spawn(body.frame());
        assert_pending!(frame.poll());
    }
    // It was asked for, and then nobody looked.
    sleep(YEAR).await;
    assert_eq!(next(&mut body).await, (Seen::data("b"), secs(0)));
    assert_eq!(next(&mut body).await, (Seen::End, secs(0)));
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_there_when_the_limit_has_passed_is_given_out() {
    for script in [head_after(ms(500)), answer(EVENTS, &[(secs(1), Data("a"))])] {
        let worker = Worker::new(script);
        let mut call = task::spawn(worker.within(limits()).oneshot(said(true)));
        assert_pending!(call.poll());
        advance(YEAR).await;
        assert_ready_ok!(call.poll());
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_has_passed_lasts_no_longer_than_its_frame() {
    // The timer of a long first frame must not go on for the short ones, and
    // the other way round.
    for (first, then) in [(secs(2), secs(50)), (secs(50), secs(2))] {
        let limits = limits().first_frame(Some(first)).frame(Some(then));
        let steps = [
            (first, Data("a")),
            (then, Data("b")),
            (ms(1), Data("c")),
            (then, Data("d")),
            (then + ms(1), Data("e")),
        ];
        let mut body = body(limits, answer(JSON, &steps)).await;
        assert_eq!(next(&mut body).await, (Seen::data("a"), first));
        assert_eq!(next(&mut body).await, (Seen::data("b"), then));
        assert_eq!(next(&mut body).await, (Seen::data("c"), ms(1)));
        assert_eq!(next(&mut body).await, (Seen::data("d"), then));
        let passed = late(Limit::Frame, then);
        assert_eq!(next(&mut body).await, (passed, then));
    }
}

#[tokio::test(start_paused = true)]
async fn no_limit_and_one_beyond_the_clock_never_pass() {
    for limit in [None, Some(Duration::MAX)] {
        let limits = limits().first_frame(limit).frame(limit);
        for content_type in [EVENTS, JSON] {
            let steps = [(YEAR, Data("a")), (YEAR, Data("b")), (YEAR, End)];
            let mut body = body(limits.clone(), answer(content_type, &steps)).await;
            for seen in [Seen::data("a"), Seen::data("b"), Seen::End] {
                assert_eq!(next(&mut body).await.0, seen);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_passes_unless_the_frame_is_there_at_once() {
    let zero = || limits().first_frame(Some(ms(0))).frame(Some(ms(0)));
    let since = Instant::now();
    let steps = [(ms(0), Data("a")), (ms(0), Data("b")), (ms(1), End)];
    let mut body = body(zero(), answer(EVENTS, &steps)).await;
    assert_eq!(next(&mut body).await.0, Seen::data("a"));
    assert_eq!(next(&mut body).await.0, Seen::data("b"));
    assert_eq!(next(&mut body).await.0, late(Limit::Frame, ms(0)));
    let script = answer(EVENTS, &[(ms(1), Data("a"))]);
    let error = error(respond(zero(), script).await);
    assert_eq!(passed(&error).limit(), Limit::FirstFrame);
    assert_eq!(since.elapsed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn the_defaults_are_a_minute_for_the_first_frame_and_half_of_one_for_the_next() {
    let new = TimeLimitLayer::new;
    let first = answer(EVENTS, &[(secs(60) + ms(1), Data("a"))]);
    let first = passed(&error(respond(new(), first).await));
    assert_eq!(first, LimitPassed::new(Limit::FirstFrame, secs(60)));
    let steps = [(secs(60), Data("a")), (secs(30) + ms(1), Data("b"))];
    let mut body = body(new(), answer(EVENTS, &steps)).await;
    next(&mut body).await;
    let passed = late(Limit::Frame, secs(30));
    assert_eq!(next(&mut body).await, (passed, secs(30)));
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_is_dropped() {
    let hang = [(secs(0), Hang)];
    let worker = Worker::new(answer(EVENTS, &hang));
    let mut call = task::spawn(worker.within(limits()).oneshot(said(true)));
    assert_pending!(call.poll());
    assert_eq!(worker.alive(), 1, "it waits for the first frame");
    drop(call);
    assert_eq!(worker.alive(), 0);

    let worker = Worker::new(answer(JSON, &hang));
    let response = worker.within(limits()).oneshot(said(true)).await.unwrap();
    assert_eq!(worker.alive(), 1);
    drop(response);
    assert_eq!(worker.alive(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_held_frame_counts_in_the_length_and_against_the_end() {
    let known = Script {
        knows_end: true,
        ..answer(EVENTS, &[(secs(1), Data("abc")), (secs(0), End)])
    };
    let mut body = body(limits(), known).await;
    assert!(!body.is_end_stream(), "the frame is still to come");
    assert_eq!(body.size_hint().lower(), 3);
    assert_eq!(next(&mut body).await.0, Seen::data("abc"));
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().lower(), 0);
}
