//! What passes a limit is sent elsewhere, or answered with what it is.

use crate::support::{Step::*, *};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use std::{convert::Infallible, time::Duration};
use tokio::time::sleep;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, retry::RetryLayer};
use tower_overload::{
    BoxError, BusySet, Limit, OverloadStatusLayer, WorkerPool,
    busy::{RetryRefused, RosterChanges, roster},
    limits::{TimeLimit, TimeLimitLayer},
    status::AnswerAll,
};

type Id = &'static str;

fn limits(id: Id) -> TimeLimitLayer {
    TimeLimitLayer::new()
        .worker(id)
        .head(Some(secs(1)))
        .first_frame(Some(secs(1)))
        .frame(Some(secs(1)))
}

/// Status, retry and pool, around workers with limits.
fn stack(
    changes: RosterChanges<Id, TimeLimit<Worker>>,
    times: usize,
) -> impl Service<
    Request<()>,
    Response = Response<impl Body<Data = Bytes, Error: Into<BoxError>> + Unpin>,
    Error = Infallible,
    Future: Send,
> + Send
+ 'static {
    let pool = WorkerPool::new(changes, BusySet::new());
    let status: OverloadStatusLayer<AnswerAll> = OverloadStatusLayer::builder()
        .overload_status(529)
        .build()
        .unwrap()
        .infallible();
    let retry = RetryLayer::new(RetryRefused::new(times));
    let service = ServiceBuilder::new().layer(retry).service(pool);
    let service = status.layer(service);
    service.map_response(|response| response.map(Box::pin))
}

fn good() -> Worker {
    let steps = [(ms(0), Data("good")), (ms(0), End)];
    Worker::new(answer(EVENTS, &steps))
}

fn hang_before_the_head() -> Script {
    head_after(Duration::MAX)
}

fn hang_after_the_head() -> Script {
    answer(EVENTS, &[(ms(0), Hang)])
}

fn reason<B>(response: &Response<B>) -> Option<&str> {
    let reason = response.headers().get("x-overload-reason")?;
    Some(reason.to_str().unwrap())
}

#[tokio::test(start_paused = true)]
async fn what_a_worker_that_hangs_was_sent_is_sent_to_another() {
    let breaks = answer(EVENTS, &[(ms(500), Break)]);
    for script in [hang_before_the_head(), hang_after_the_head(), breaks] {
        let (workers, changes) = roster();
        let service = stack(changes, 1);
        let hangs = Worker::new(script);
        workers.insert("hangs", hangs.within(limits("hangs")));
        let call = tokio::spawn(service.oneshot(said(true)));
        sleep(ms(100)).await;
        assert_eq!((hangs.calls(), hangs.alive()), (1, 1));
        let good = good();
        workers.insert("good", good.within(limits("good")));
        let Ok(response) = call.await.unwrap();
        assert_eq!(response.status(), 200);
        let Ok(body) = response
            .into_body()
            .collect()
            .await
            .map_err(Into::<BoxError>::into)
        else {
            panic!("it is whole")
        };
        assert_eq!(body.to_bytes(), "good");
        assert_eq!((hangs.calls(), good.calls()), (1, 1));
        assert_eq!(hangs.alive(), 0, "it sees that nobody listens");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_begun_is_not_sent_again() {
    let (workers, changes) = roster();
    let service = stack(changes, 9);
    let steps = [(ms(0), Data("a")), (ms(0), Hang)];
    let hangs = Worker::new(answer(EVENTS, &steps));
    workers.insert("hangs", hangs.within(limits("hangs")));
    let Ok(response) = service.oneshot(said(true)).await;
    let good = good();
    workers.insert("good", good.within(limits("good")));
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    assert_eq!(
        Seen::of(
            body.frame()
                .await
                .map(|frame| frame.map_err(Into::<BoxError>::into))
        ),
        Seen::data("a")
    );
    let frame = body.frame().await.expect("it does not just end");
    let error: BoxError = frame.map(drop).unwrap_err().into();
    let passed = passed(&error);
    assert_eq!(passed.limit(), Limit::Frame);
    assert_eq!(passed.worker(), Some("hangs"));
    assert_eq!((hangs.calls(), good.calls()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn when_all_hang_it_is_a_503_that_says_so() {
    for script in [hang_before_the_head(), hang_after_the_head()] {
        let (workers, changes) = roster();
        let service = stack(changes, 1);
        let both = ["a", "b"].map(|id| (id, Worker::new(script.clone())));
        for (id, worker) in &both {
            workers.insert(id, worker.within(limits(id)));
        }
        let Ok(response) = service.oneshot(said(true)).await;
        assert_eq!(response.status(), 503);
        assert_eq!(reason(&response), Some("worker_timeout"));
        assert!(both.iter().all(|(_, worker)| worker.calls() == 1));
        assert!(both.iter().all(|(_, worker)| worker.alive() == 0));
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_alone_is_a_503_that_says_so() {
    for times in [0, 1] {
        let (workers, changes) = roster();
        let service = stack(changes, times);
        let hangs = Worker::new(hang_before_the_head());
        workers.insert("hangs", hangs.within(limits("hangs")));
        let Ok(response) = service.oneshot(said(true)).await;
        assert_eq!(response.status(), 503);
        assert_eq!(reason(&response), Some("worker_timeout"));
    }
}

#[tokio::test(start_paused = true)]
async fn what_must_not_be_begun_twice_is_not_sent_again() {
    let (workers, changes) = roster();
    let pool = WorkerPool::new(changes, BusySet::new());
    let retry = RetryLayer::new(RetryRefused::new(9).resend_lost(false));
    let service = retry.layer(pool);
    let hangs = Worker::new(hang_before_the_head());
    let other = Worker::new(hang_before_the_head());
    workers.insert("hangs", hangs.within(limits("hangs")));
    workers.insert("other", other.within(limits("other")));
    let error = error(service.oneshot(said(true)).await);
    assert_eq!(passed(&error).limit(), Limit::Head);
    assert_eq!(hangs.calls() + other.calls(), 1);
}
