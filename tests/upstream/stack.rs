//! Faults in the stack that the README shows: what is marked, and what is sent
//! again.

use crate::support::{AnyBody, Connection, Serving, Stub, text};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy, rt::TokioExecutor};
use std::{convert::Infallible, net::SocketAddr, time::Duration};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt, retry::RetryLayer, util::BoxCloneService};
use tower_overload::{
    BoxError, BusySet, OverloadStatusLayer,
    busy::{Mark, RetryRefused, roster},
    pool::WorkerPool,
    upstream::HttpWorkerBuilder,
};

type Sent = Request<Full<Bytes>>;

const LONG: Duration = Duration::from_secs(3600);

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn request(body: impl Into<Bytes>) -> Sent {
    Request::post("/v1/completions")
        .body(Full::new(body.into()))
        .unwrap()
}

/// Status, retry, balance: with the default policy, whatever the client is.
fn stack<S, B>(
    set: &BusySet<&'static str>,
    workers: Vec<(&'static str, S)>,
    retries: usize,
) -> BoxCloneService<Sent, Response<AnyBody>, Infallible>
where
    S: Service<Sent, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (roster, changes) = roster();
    for (id, worker) in workers {
        roster.insert(id, worker);
    }
    // As long as the stack is.
    Box::leak(Box::new(roster));
    let status = OverloadStatusLayer::builder().build().unwrap();
    ServiceBuilder::new()
        .boxed_clone()
        .map_response(|response: Response<_>| response.map(boxed))
        .layer(status.infallible())
        .layer(RetryLayer::new(RetryRefused::new(retries)))
        .service(WorkerPool::new(changes, set.clone()))
}

fn boxed<B>(body: B) -> AnyBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// A worker that reads each request and closes.
fn closing(stub: Stub) -> Serving {
    let address = stub.address;
    let task = tokio::spawn(async move {
        loop {
            let mut connection = stub.accept().await;
            tokio::spawn(async move { connection.try_read_message().await });
        }
    });
    Serving::of(address, task.abort_handle())
}

async fn nowhere() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

fn is_unreachable(set: &BusySet<&'static str>, id: &'static str) -> bool {
    set.marks(&id).has(Mark::Unreachable)
}

fn hyper_util_worker(
    address: SocketAddr,
) -> impl Service<Sent, Response = Response<hyper::body::Incoming>, Error = legacy::Error, Future: Send>
+ Clone
+ Send {
    let client = legacy::Client::builder(TokioExecutor::new()).build_http();
    ServiceBuilder::new()
        .map_request(move |mut request: Sent| {
            *request.uri_mut() = format!("http://{address}/").parse().unwrap();
            request
        })
        .service(client)
}

/// P9
#[tokio::test]
async fn a_failing_connection_of_hyper_utils_client_is_marked_and_passed_over() {
    let good = Stub::start().await.serve(|_| OK.into());
    for bad in [closing(Stub::start().await).keep(), nowhere().await] {
        let set = BusySet::<&str>::builder()
            .cooldown(LONG)
            .max_cooldown(LONG)
            .build()
            .unwrap();
        let workers = vec![
            ("bad", hyper_util_worker(bad)),
            ("good", hyper_util_worker(good.address)),
        ];
        let stack = stack(&set, workers, 1);
        for _ in 0..20 {
            let response = stack.clone().oneshot(request("x")).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
        }
        assert!(is_unreachable(&set, "bad"));
        assert!(!is_unreachable(&set, "good"));
    }
}

#[tokio::test]
async fn a_failing_connection_of_http_worker_is_marked_and_passed_over() {
    let good = Stub::start().await.serve(|_| OK.into());
    for bad in [closing(Stub::start().await).keep(), nowhere().await] {
        let set = BusySet::<&str>::builder()
            .cooldown(LONG)
            .max_cooldown(LONG)
            .build()
            .unwrap();
        let worker = |address| HttpWorkerBuilder::new().build(&format!("http://{address}"));
        let workers = vec![
            ("bad", worker(bad).unwrap()),
            ("good", worker(good.address).unwrap()),
        ];
        let stack = stack(&set, workers, 1);
        for _ in 0..20 {
            let response = stack.clone().oneshot(request("x")).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(text(response).await, "ok");
        }
        assert!(is_unreachable(&set, "bad"));
        assert!(!is_unreachable(&set, "good"));
    }
}

/// P8: the only worker has closed its idle connections, and the request is too
/// long for `HttpWorker` to send it again. No refusal may be retried, and this
/// is none.
#[tokio::test]
async fn what_met_the_end_of_an_idle_connection_costs_no_retry_and_no_mark() {
    let stub = Stub::start().await;
    let set = BusySet::new();
    let stack = stack(&set, vec![("a", stub.worker())], 0);
    let call = |body: &'static [u8]| tokio::spawn(stack.clone().oneshot(request(body)));
    let first = call(b"x");
    let mut old: Connection = stub.accept().await;
    old.read_message().await;
    old.write(OK).await;
    assert_eq!(text(first.await.unwrap().unwrap()).await, "ok");
    let second = call(&[b'x'; 100_000]);
    old.read_head().await;
    drop(old);
    let mut new = stub.accept().await;
    new.read_message().await;
    assert!(!is_unreachable(&set, "a"));
    new.write(OK).await;
    assert_eq!(text(second.await.unwrap().unwrap()).await, "ok");
}

/// What is no fault of the connection is answered, and marks nobody.
#[tokio::test]
async fn a_malformed_answer_is_a_502_and_no_mark() {
    let bad = Stub::start()
        .await
        .serve(|_| b"HTTP/1.1 nonsense\r\n\r\n".into());
    let set = BusySet::new();
    let worker = HttpWorkerBuilder::new()
        .build(&format!("http://{}", bad.address))
        .unwrap();
    let stack = stack(&set, vec![("bad", worker)], 1);
    for _ in 0..3 {
        let response = stack.clone().oneshot(request("x")).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
        assert!(!is_unreachable(&set, "bad"));
    }
}
