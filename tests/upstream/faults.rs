//! Each fault with its neighbours: what the worker does, and what is made of
//! it.

use crate::support::{AnyBody, Stub, full, get, header, post, spawn_call, text};
use bytes::Bytes;
use futures::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use std::{error::Error, time::Duration};
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_overload::{
    Unreachable,
    busy::{Classify, Fault as Verdict, RefusalPolicy},
    status::{Answer, AnswerKind},
    upstream::{Fault, FaultKind, HttpWorker, HttpWorkerBuilder, Limit, LimitPassed},
};

fn verdict(fault: &Fault) -> Verdict {
    Classify::<Response<()>>::error(&RefusalPolicy::new(), fault)
}

/// What the client is told if nobody else answers.
fn answer(fault: &Fault) -> (AnswerKind, &'static str) {
    let answer = Answer::of(fault).unwrap();
    (answer.kind(), answer.reason().unwrap())
}

const NONE_REACHABLE: (AnswerKind, &str) = (AnswerKind::Unavailable, "none_reachable");
const BAD_GATEWAY: (AnswerKind, &str) = (AnswerKind::BadGateway, "bad_gateway");

async fn fault(worker: &HttpWorker, request: Request<AnyBody>) -> Fault {
    worker.clone().oneshot(request).await.unwrap_err()
}

/// What becomes of a request whose answer begins with `bytes` and goes no
/// further.
async fn fault_after(bytes: &[u8]) -> Fault {
    let stub = Stub::start().await;
    let call = spawn_call(&stub.worker(), get("/"));
    let mut connection = stub.accept().await;
    connection.read_head().await;
    connection.write(bytes).await;
    drop(connection);
    call.await.unwrap().unwrap_err()
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A worker with one connection that is idle, and this end of it.
async fn used() -> (Stub, HttpWorker, crate::support::Connection) {
    let stub = Stub::start().await;
    let worker = stub.worker();
    let call = spawn_call(&worker, get("/first"));
    let mut connection = stub.accept().await;
    connection.read_head().await;
    connection.write(OK).await;
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
    (stub, worker, connection)
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_not_connected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let worker = HttpWorkerBuilder::new().build(&url).unwrap();
    let fault = fault(&worker, get("/")).await;
    assert_eq!(fault.kind(), FaultKind::NotConnected);
    assert_eq!(fault.worker(), url);
    assert_eq!(verdict(&fault), Verdict::Unreachable);
    assert!(!Unreachable::find_in(&fault).unwrap().may_have_been_sent());
    assert_eq!(answer(&fault), NONE_REACHABLE);
    assert!(fault.to_string().contains(&url), "{fault}");
}

#[tokio::test]
async fn a_name_that_is_none_is_not_connected() {
    let worker = HttpWorkerBuilder::new()
        .build("http://worker.invalid")
        .unwrap();
    let fault = fault(&worker, get("/")).await;
    assert_eq!(fault.kind(), FaultKind::NotConnected);
    assert_eq!(verdict(&fault), Verdict::Unreachable);
}

#[tokio::test]
async fn a_connection_that_is_not_made_in_time_passes_the_limit() {
    let stub = Stub::start().await;
    let limit = Duration::from_millis(20);
    let url = stub.url().replace("http", "https");
    let worker = HttpWorkerBuilder::new()
        .connect_limit(Some(limit))
        .build(&url)
        .unwrap();
    // It accepts, and says nothing of TLS.
    let fault = fault(&worker, get("/")).await;
    assert_eq!(fault.kind(), FaultKind::Limit(Limit::Connect));
    assert_eq!(verdict(&fault), Verdict::Unreachable);
    let passed = tower_overload::error::find::<LimitPassed>(&fault).unwrap();
    assert_eq!((passed.limit(), passed.after()), (Limit::Connect, limit));
    assert_eq!(answer(&fault), NONE_REACHABLE);
}

#[tokio::test]
async fn a_new_connection_that_is_closed_before_the_head_is_lost_fresh() {
    for begun in ["", "H", "HTTP/1.1 200 OK\r\ncontent-le"] {
        let fault = fault_after(begun.as_bytes()).await;
        assert_eq!(fault.kind(), FaultKind::LostFresh, "{begun}");
        assert_eq!(verdict(&fault), Verdict::Lost);
        assert!(Unreachable::find_in(&fault).unwrap().may_have_been_sent());
        assert_eq!(answer(&fault), NONE_REACHABLE);
    }
    let stub = Stub::start().await;
    let call = spawn_call(&stub.worker(), get("/"));
    let mut connection = stub.accept().await;
    connection.read_head().await;
    connection.reset();
    let fault = call.await.unwrap().unwrap_err();
    assert_eq!(fault.kind(), FaultKind::LostFresh);
    assert_eq!(verdict(&fault), Verdict::Lost);
}

#[tokio::test]
async fn what_met_the_end_of_an_idle_connection_is_sent_again() {
    for reset in [false, true] {
        let (stub, worker, mut old) = used().await;
        let call = spawn_call(&worker, post("/second", "body"));
        // It is on the old connection, and the worker has done with that.
        let first = old.read_message().await;
        if reset {
            old.reset()
        } else {
            drop(old)
        }
        let mut new = stub.accept().await;
        assert_eq!(new.read_message().await, first);
        assert!(first.ends_with("body"));
        new.write(OK).await;
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
        assert!(stub.is_quiet().await);
    }
}

#[tokio::test]
async fn a_stream_of_which_little_was_sent_is_sent_again_from_its_start() {
    let (stub, worker, mut old) = used().await;
    let (send, frames) = futures::channel::mpsc::unbounded();
    let body = StreamBody::new(frames).boxed_unsync();
    send.unbounded_send(Ok(Frame::data(Bytes::from_static(b"one"))))
        .unwrap();
    let call = spawn_call(&worker, Request::post("/second").body(body).unwrap());
    let head = old.read_head().await;
    assert_eq!(header(&head, "transfer-encoding"), Some("chunked"));
    assert_eq!(old.read_exact(8).await, "3\r\none\r\n");
    drop(old);
    let mut new = stub.accept().await;
    assert_eq!(new.read_head().await, head);
    assert_eq!(new.read_exact(8).await, "3\r\none\r\n");
    send.unbounded_send(Ok(Frame::data(Bytes::from_static(b"two"))))
        .unwrap();
    drop(send);
    assert_eq!(new.read_exact(13).await, "3\r\ntwo\r\n0\r\n\r\n");
    new.write(OK).await;
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
}

#[tokio::test]
async fn what_cannot_be_sent_again_is_lost_reused_and_marks_nobody() {
    let (_stub, worker, mut old) = used().await;
    let frames = [vec![b'x'; 40_000], vec![b'y'; 40_000]];
    let frames = frames.map(|frame| Ok(Frame::data(Bytes::from(frame))));
    let open = stream::iter(frames).chain_pending();
    let body = StreamBody::new(open).boxed_unsync();
    let call = spawn_call(&worker, Request::post("/second").body(body).unwrap());
    old.read_head().await;
    old.read_exact(80_000).await;
    drop(old);
    let fault = call.await.unwrap().unwrap_err();
    assert_eq!(fault.kind(), FaultKind::LostReused);
    assert_eq!(verdict(&fault), Verdict::Other);
    assert_eq!(answer(&fault), NONE_REACHABLE);
}

trait ChainPending: futures::Stream + Sized {
    fn chain_pending(self) -> futures::stream::Chain<Self, stream::Pending<Self::Item>> {
        futures::StreamExt::chain(self, stream::pending())
    }
}

impl<S: futures::Stream> ChainPending for S {}

#[tokio::test]
async fn a_reused_connection_that_ends_in_the_middle_of_a_head_is_not_sent_again() {
    let (stub, worker, mut old) = used().await;
    let call = spawn_call(&worker, get("/second"));
    old.read_head().await;
    old.write("HTTP/1.1 200").await;
    drop(old);
    let fault = call.await.unwrap().unwrap_err();
    assert_eq!(fault.kind(), FaultKind::LostFresh);
    assert_eq!(verdict(&fault), Verdict::Lost);
    assert!(stub.is_quiet().await);
}

/// What servers say that close an idle connection, when it meets a request.
#[tokio::test]
async fn a_farewell_is_no_answer() {
    const FAREWELL: &str =
        "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbye";
    let (stub, worker, mut old) = used().await;
    let call = spawn_call(&worker, post("/second", "body"));
    old.read_message().await;
    old.write(FAREWELL).await;
    let mut new = stub.accept().await;
    assert!(new.read_message().await.ends_with("body"));
    // On a connection that is new it is one.
    new.write(FAREWELL).await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.status(), 408);
    assert_eq!(text(answer).await, "bye");
}

#[tokio::test]
async fn it_is_sent_again_once_only() {
    let (stub, worker, mut old) = used().await;
    let call = spawn_call(&worker, get("/second"));
    old.read_head().await;
    drop(old);
    let mut new = stub.accept().await;
    new.read_head().await;
    drop(new);
    let fault = call.await.unwrap().unwrap_err();
    assert_eq!(fault.kind(), FaultKind::LostFresh, "the second one was new");
    assert!(stub.is_quiet().await);
}

#[tokio::test]
async fn when_there_is_no_new_connection_that_is_the_fault() {
    let (stub, worker, mut old) = used().await;
    let call = spawn_call(&worker, get("/second"));
    old.read_head().await;
    drop(stub);
    drop(old);
    let fault = call.await.unwrap().unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotConnected);
}

#[tokio::test]
async fn what_is_no_http_is_malformed_and_a_failure_of_the_worker() {
    for answer in [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 2OO OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nxx",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ] {
        let fault = fault_after(answer.as_bytes()).await;
        assert_eq!(fault.kind(), FaultKind::Malformed, "{answer}");
        assert_eq!(verdict(&fault), Verdict::Failed);
        assert_eq!(self::answer(&fault), BAD_GATEWAY);
    }
}

#[tokio::test]
async fn heads_and_informational_responses_have_an_end() {
    let line = format!("x-{}: {}\r\n", "a".repeat(20), "b".repeat(100));
    for (start, again) in [
        ("HTTP/1.1 200 OK\r\nx: ", "endless"),
        ("HTTP/1.1 200 OK\r\n", &*line),
        ("", "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
        ("", "HTTP/1.1 100 Continue\r\n\r\n"),
    ] {
        let (start, again) = (start.to_owned(), again.to_owned());
        let stub = Stub::start().await;
        let call = spawn_call(&stub.worker(), get("/"));
        let mut connection = stub.accept().await;
        connection.read_head().await;
        let hostile = tokio::spawn(async move {
            connection.write(start).await;
            // Until nobody listens any more.
            while connection.write_or_end(&again).await {}
        });
        let fault = call.await.unwrap().unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Malformed);
        hostile.await.unwrap();
    }
}

#[tokio::test]
async fn a_few_informational_responses_are_passed_over() {
    let stub = Stub::start().await;
    let worker = stub.worker();
    let mut connection = None;
    // The count begins anew with each answer.
    for _ in 0..3 {
        let call = spawn_call(&worker, get("/"));
        let connection = match &mut connection {
            Some(connection) => connection,
            none => none.insert(stub.accept().await),
        };
        connection.read_head().await;
        for _ in 0..60 {
            connection.write("HTTP/1.1 102 Processing\r\n\r\n").await;
        }
        connection.write(OK).await;
        assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error_and_never_an_end() {
    for answer in [
        "content-length: 5\r\n\r\nabc",
        "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "transfer-encoding: chunked\r\n\r\n5\r\nabc",
        "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
        "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
    ] {
        let stub = Stub::start().await;
        let call = spawn_call(&stub.worker(), get("/"));
        let mut connection = stub.accept().await;
        connection.read_head().await;
        connection
            .write(format!("HTTP/1.1 200 OK\r\n{answer}"))
            .await;
        drop(connection);
        let body = call.await.unwrap().unwrap().into_body();
        let fault = body.collect().await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Broken, "{answer}");
        assert_eq!(verdict(&fault), Verdict::Failed);
    }
}

#[tokio::test]
async fn a_request_whose_own_body_fails_is_nobodys_fault() {
    let stub = Stub::start().await;
    let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let frames = [Ok(Frame::data(Bytes::from_static(b"x"))), Err(gone.into())];
    let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
    let call = spawn_call(&stub.worker(), Request::post("/").body(body).unwrap());
    let mut connection = stub.accept().await;
    let fault = call.await.unwrap().unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Request);
    assert_eq!(
        verdict(&fault),
        Verdict::Other,
        "an io::Error is in its chain"
    );
    assert!(fault.source().is_some());
    assert!(!connection.read_to_end().await.ends_with("0\r\n\r\n"));
}

#[tokio::test]
async fn an_answer_to_a_request_that_was_half_read_is_an_answer() {
    for close in [false, true] {
        let stub = Stub::start().await;
        let body = vec![b'x'; 32 * 1024 * 1024];
        let call = spawn_call(&stub.worker(), Request::post("/").body(full(body)).unwrap());
        let mut connection = stub.accept().await;
        connection.read_head().await;
        let close_header = if close { "connection: close\r\n" } else { "" };
        let answer =
            format!("HTTP/1.1 413 Too Large\r\n{close_header}content-length: 4\r\n\r\nlong");
        connection.write(answer).await;
        drop(connection);
        let response = call.await.unwrap().unwrap();
        assert_eq!(response.status(), 413);
        assert_eq!(text(response).await, "long");
    }
}
