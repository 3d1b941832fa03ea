//! Errors on their way through the service, without a network.

use crate::support::*;
use bytes::Bytes;
use futures::{FutureExt, poll};
use http::{Request, Response};
use http_body_util::Full;
use std::{
    error::Error,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, buffer::Buffer};
use tower_overload::{
    Limit, LimitPassed, ServiceOverloaded, Unreachable,
    status::{
        Answer as Answered, AnswerAll, AnswerKind, OverloadStatus, OverloadStatusLayer,
        PassThrough, RequestInfo, ResponseFuture, StatusBody,
    },
};

fn request() -> Request<()> {
    Request::post("/v1/completions").body(()).unwrap()
}

fn assert_send_sync<T: Send + Sync>() {}

#[test]
fn everything_crosses_threads() {
    assert_send_sync::<OverloadStatusLayer>();
    assert_send_sync::<OverloadStatusLayer<AnswerAll>>();
    assert_send_sync::<OverloadStatus<(), PassThrough>>();
    assert_send_sync::<OverloadStatus<(), AnswerAll>>();
    assert_send_sync::<ResponseFuture<(), AnswerAll>>();
    assert_send_sync::<StatusBody<Full<Bytes>>>();
    assert_send_sync::<RequestInfo>();
    assert_send_sync::<tower_overload::status::Builder>();
    assert_send_sync::<tower_overload::status::KnownModels>();
    assert_send_sync::<tower_overload::status::Format>();
}

#[derive(Debug)]
struct Hop<E>(E);

impl<E> fmt::Display for Hop<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hop")
    }
}

impl<E: Error + 'static> Error for Hop<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test]
async fn an_overload_is_found_behind_hops_and_inside_boxes() {
    let erased: Arc<dyn Error + Send + Sync> = Arc::new(BUSY);
    let errors: Vec<BoxError> = vec![
        BUSY.into(),
        Hop(Hop(Hop(BUSY))).into(),
        Box::new(Box::new(BUSY)),
        Box::new(Arc::new(BUSY)),
        Box::new(erased.clone()),
        Hop(erased).into(),
    ];
    for error in errors {
        let debug = format!("{error:?}");
        let error = Mutex::new(Some(error));
        let mut service = layer().layer(tower::service_fn(move |_: Request<()>| {
            let error = error.lock().unwrap().take().expect("one call");
            std::future::ready(Err::<Response<Full<Bytes>>, _>(error))
        }));
        let response = service
            .ready()
            .await
            .unwrap()
            .call(request())
            .await
            .unwrap();
        assert_eq!(response.status(), 529, "{debug}");
    }
}

#[tokio::test]
async fn an_error_that_only_says_overloaded_passes_through_as_it_is() {
    let text = "Server overloaded: worker at capacity";
    let error = layer()
        .layer(failing(text))
        .oneshot(request())
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn a_concrete_error_passes_through_and_can_be_had_back() {
    let service = tower::service_fn(|_: Request<()>| {
        std::future::ready(Err::<Response<Full<Bytes>>, _>(fmt::Error))
    });
    let error = layer().layer(service).oneshot(request()).await.unwrap_err();
    error.downcast::<fmt::Error>().expect("the same error");

    let overloaded = tower::service_fn(|_: Request<()>| {
        std::future::ready(Err::<Response<Full<Bytes>>, _>(BUSY))
    });
    let response = layer().layer(overloaded).oneshot(request()).await.unwrap();
    assert_eq!(response.status(), 529);
}

#[tokio::test]
async fn an_unreachable_worker_is_answered_and_does_not_pass_through() {
    let unreachable = failing(Unreachable::new("connection refused"));
    let response = layer().layer(unreachable).oneshot(request()).await.unwrap();
    assert_eq!(response.status(), 503);
}

/// Its readiness fails with `E`, and it may not be used afterwards.
struct Dying<E> {
    error: Option<E>,
    polls: Arc<AtomicUsize>,
}

impl<E> Dying<E> {
    fn of(error: E) -> (Self, Arc<AtomicUsize>) {
        let polls = Arc::default();
        let dying = Self {
            error: Some(error),
            polls: Arc::clone(&polls),
        };
        (dying, polls)
    }
}

impl<E: Into<BoxError>> Service<Request<()>> for Dying<E> {
    type Response = Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = std::future::Ready<Outcome>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let error = self.error.take().expect("a dead service is polled again");
        Poll::Ready(Err(error.into()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        panic!("a service that is not ready is called")
    }
}

#[tokio::test]
async fn a_readiness_error_is_answered_at_every_call_and_the_dead_service_left_alone() {
    let (dying, polls) = Dying::of(NO_WORKERS);
    let mut service = layer().layer(dying);
    for _ in 0..3 {
        let ready = service.ready().await.expect("readiness does not fail");
        let answer = Answer::of(ready.call(request()).await.unwrap()).await;
        answer.assert_json(503, REFERENCE_503);
    }
    assert_eq!(polls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn in_infallible_mode_any_readiness_error_is_answered() {
    let (dying, polls) = Dying::of("the disk is gone");
    let mut service = layer().infallible().layer(dying);
    for _ in 0..3 {
        let Ok(ready) = service.ready().await;
        let Ok(response) = ready.call(request()).await;
        assert_eq!(response.status(), 500);
    }
    assert_eq!(polls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn in_pass_through_mode_a_foreign_readiness_error_is_returned() {
    let (dying, _) = Dying::of("the disk is gone");
    let mut service = layer().layer(dying);
    let error = service.ready().await.map(drop).unwrap_err();
    assert_eq!(error.to_string(), "the disk is gone");
}

#[tokio::test]
async fn pending_readiness_stays_pending() {
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<Full<Bytes>>>();
    handle.allow(0);
    let mut service = layer().layer(inner);
    let mut ready = Box::pin(service.ready());
    assert!(poll!(&mut ready).is_pending());
    handle.allow(1);
    assert!(ready.now_or_never().is_some(), "woken and ready");
}

#[tokio::test]
async fn a_clone_brings_no_readiness_and_no_death_with_it() {
    struct Fresh {
        ready: bool,
        dead: bool,
    }
    impl Clone for Fresh {
        fn clone(&self) -> Self {
            Self {
                ready: false,
                dead: false,
            }
        }
    }
    impl Service<Request<()>> for Fresh {
        type Response = Response<Full<Bytes>>;
        type Error = BoxError;
        type Future = std::future::Ready<Outcome>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            if self.dead {
                return Poll::Ready(Err(NO_WORKERS.into()));
            }
            self.ready = true;
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            assert!(std::mem::take(&mut self.ready), "called unready");
            std::future::ready(Ok(Response::new("fine".into())))
        }
    }

    let mut dead = layer().infallible().layer(Fresh {
        ready: false,
        dead: true,
    });
    let Ok(ready) = dead.ready().await;
    let Ok(response) = ready.call(request()).await;
    assert_eq!(response.status(), 503);
    for _ in 0..3 {
        let mut clone = dead.clone();
        let Ok(ready) = clone.ready().await;
        let Ok(response) = ready.call(request()).await;
        assert_eq!(
            response.status(),
            200,
            "the clone asks its own inner service"
        );
    }
}

#[tokio::test]
async fn a_buffer_whose_worker_is_gone_is_unavailable() {
    let (buffer, worker) = Buffer::pair(succeeding(), 1);
    drop(worker);
    let mut service = layer().layer(buffer);
    for _ in 0..2 {
        let ready = service.ready().await.expect("readiness does not fail");
        let answer = Answer::of(ready.call(request()).await.unwrap()).await;
        answer.assert_json(503, REFERENCE_503);
        assert_eq!(answer.header("x-overload-reason"), Some("service_closed"));
    }
}

#[tokio::test]
async fn a_buffer_whose_service_has_failed_is_unavailable() {
    let (dying, _) = Dying::of("the disk is gone");
    let mut service = layer().layer(Buffer::new(dying, 1));
    for _ in 0..3 {
        let ready = service.ready().await.expect("readiness does not fail");
        let response = ready.call(request()).await.unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["x-overload-reason"], "service_closed");
    }
}

#[tokio::test]
async fn a_shed_of_towers_own_is_an_overload() {
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<Full<Bytes>>>();
    handle.allow(0);
    let service = ServiceBuilder::new()
        .layer(layer())
        .load_shed()
        .service(inner);
    let answer = Answer::of(service.oneshot(request()).await.unwrap()).await;
    answer.assert_json(529, REFERENCE_529);
    assert_eq!(answer.header("x-overload-reason"), Some("load_shed"));
}

#[tokio::test]
async fn behind_a_buffer_the_next_request_succeeds_after_a_refusal() {
    let refusals = Arc::new(AtomicUsize::new(1));
    let service = tower::service_fn(move |_: Request<()>| {
        let refuse = refusals.swap(0, Ordering::Relaxed) > 0;
        std::future::ready(if refuse {
            Err(BoxError::from(BUSY))
        } else {
            Ok(Response::new(Full::<Bytes>::from("fine")))
        })
    });
    let mut service = ServiceBuilder::new()
        .layer(layer().infallible())
        .buffer(4)
        .service(service);
    for status in [529, 200] {
        let Ok(ready) = service.ready().await;
        let Ok(response) = ready.call(request()).await;
        assert_eq!(response.status(), status);
    }
}

#[tokio::test]
async fn what_stands_outside_sees_the_status_that_the_client_sees() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let trace = {
        let seen = seen.clone();
        move |response: Response<_>| {
            seen.lock().unwrap().push(response.status().as_u16());
            response
        }
    };
    let service = ServiceBuilder::new()
        .map_response(trace)
        .layer(layer().infallible())
        .buffer(4)
        .service(failing(BUSY));
    let Ok(_) = service.oneshot(request()).await;
    assert_eq!(*seen.lock().unwrap(), [529]);
}

#[test]
fn a_handler_can_answer_an_error_without_a_service() {
    let layer = layer();
    let info = RequestInfo::of(&request());
    let response = layer.answer(&Hop(BUSY), &info).expect("it is an overload");
    assert_eq!(response.status(), 529);
    assert_eq!(response.body(), REFERENCE_529);
    assert!(layer.answer(&fmt::Error, &info).is_none());

    let response = layer.respond(NO_WORKERS, &info);
    assert_eq!(response.body(), REFERENCE_503);
}

#[test]
fn an_answer_says_what_an_error_comes_to() {
    let answer = Answered::of(&BUSY).unwrap();
    assert_eq!(answer.kind(), AnswerKind::Overloaded);
    assert_eq!(answer.reason(), Some("all_workers_busy"));
    let unreachable = Answered::of(&Hop(Unreachable::new("refused"))).unwrap();
    assert_eq!(unreachable.kind(), AnswerKind::Unavailable);
    assert_eq!(unreachable.reason(), Some("none_reachable"));
    let second = std::time::Duration::from_secs(1);
    for (limit, reason) in [
        (Limit::Connect, "none_reachable"),
        (Limit::Head, "worker_timeout"),
        (Limit::FirstFrame, "worker_timeout"),
        (Limit::Frame, "worker_timeout"),
    ] {
        let passed = Answered::of(&Hop(LimitPassed::new(limit, second))).unwrap();
        assert_eq!(passed.kind(), AnswerKind::Unavailable);
        assert_eq!(passed.reason(), Some(reason), "{limit:?}");
    }
    assert_eq!(Answered::of(&fmt::Error), None);
    let late = ServiceOverloaded::new(BUSY.reason())
        .with_retry_after(Some(std::time::Duration::from_secs(3)));
    assert_eq!(
        Answered::of(&late).unwrap().retry_after(),
        late.retry_after()
    );
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What is logged while `work` runs.
fn logged(work: impl Future) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || block_on(work));
    let text = log.0.lock().unwrap().clone();
    String::from_utf8(text).unwrap()
}

#[test]
fn what_a_500_does_not_tell_the_client_is_logged_and_a_refusal_is_not() {
    let log = logged(async {
        let service = layer().infallible().layer(failing("the disk is gone"));
        let Ok(_) = service.oneshot(request()).await;
    });
    assert_eq!(log.matches("the disk is gone").count(), 1, "{log}");

    let log = logged(async {
        let service = layer().infallible().layer(failing(BUSY));
        let Ok(_) = service.oneshot(request()).await;
    });
    assert_eq!(log, "");
}

#[test]
fn a_service_that_has_failed_for_good_is_logged_once_for_all_its_clones() {
    let log = logged(async {
        let (dying, _) = Dying::of("the disk is gone");
        let service = layer().layer(Buffer::new(dying, 1));
        for _ in 0..3 {
            // The first one finds the buffer alive, and is failed by it.
            let response = service.clone().oneshot(request()).await.unwrap();
            assert_eq!(response.status(), 503);
        }
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(
        log.contains("WARN") && log.contains("the disk is gone"),
        "{log}"
    );
}
