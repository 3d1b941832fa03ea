//! Workers that are spoken to with HTTP/2, frame by frame.

use crate::support::{Connection, Stub, full, get, post, spawn_call, text};
use bytes::Bytes;
use h2::{Reason, server};
use http::{Request, Response};
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::{net::TcpStream, sync::mpsc, task::JoinHandle};
use tower_overload::{
    busy::{Classify, Fault as Verdict, RefusalPolicy},
    upstream::{Fault, FaultKind, HttpWorker, HttpWorkerBuilder, Protocol},
};

fn verdict(fault: &Fault) -> Verdict {
    Classify::<Response<()>>::error(&RefusalPolicy::new(), fault)
}

fn worker(stub: &Stub) -> HttpWorker {
    let builder = HttpWorkerBuilder::new().protocol(Protocol::Http2);
    builder.build(&stub.url()).unwrap()
}

type Call = (Request<h2::RecvStream>, server::SendResponse<Bytes>);

/// A connection that a task drives: its requests come one after another.
struct Peer {
    calls: mpsc::UnboundedReceiver<Call>,
    told: mpsc::UnboundedSender<()>,
    task: JoinHandle<()>,
}

impl Peer {
    async fn accept(stub: &Stub, max_streams: u32) -> Self {
        Self::on(stub.accept().await.into_stream(), max_streams).await
    }

    async fn on(stream: TcpStream, max_streams: u32) -> Self {
        let mut builder = server::Builder::new();
        builder.max_concurrent_streams(max_streams);
        let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
        let (call, calls) = mpsc::unbounded_channel();
        let (told, mut tell) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    accepted = connection.accept() => match accepted {
                        Some(Ok(accepted)) => drop(call.send(accepted)),
                        _ => return,
                    },
                    Some(()) = tell.recv() => connection.graceful_shutdown(),
                }
            }
        });
        Self { calls, told, task }
    }

    async fn call(&mut self) -> Call {
        self.calls.recv().await.expect("a request")
    }

    /// The connection goes without a word.
    async fn cut(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

fn ok() -> Response<()> {
    Response::new(())
}

fn answer(call: Call) {
    let (_, mut respond) = call;
    let mut body = respond.send_response(ok(), false).unwrap();
    body.send_data(Bytes::from_static(b"ok"), true).unwrap();
}

/// A worker with a connection that has served a request.
async fn used(max_streams: u32) -> (Stub, HttpWorker, Peer) {
    let stub = Stub::start().await;
    let worker = worker(&stub);
    let call = spawn_call(&worker, get("/first"));
    let mut peer = Peer::accept(&stub, max_streams).await;
    answer(peer.call().await);
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
    (stub, worker, peer)
}

#[tokio::test]
async fn many_requests_share_a_connection() {
    let stub = Stub::start().await;
    let worker = worker(&stub);
    let calls: Vec<_> = (0..20)
        .map(|_| spawn_call(&worker, post("/a", "x")))
        .collect();
    let mut peer = Peer::accept(&stub, 100).await;
    let mut accepted = Vec::new();
    for _ in 0..20 {
        accepted.push(peer.call().await);
    }
    assert_eq!(accepted[0].0.uri().path(), "/a");
    let authority = accepted[0].0.uri().authority().unwrap().to_string();
    assert_eq!(authority, stub.address.to_string());
    assert!(!accepted[0].0.headers().contains_key("host"));
    assert_eq!(accepted[0].0.headers()["content-length"], "1");
    accepted.into_iter().for_each(answer);
    for call in calls {
        assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
    }
    assert!(stub.is_quiet().await);
}

#[tokio::test]
async fn a_connection_that_is_full_is_joined_by_another() {
    let (stub, worker, mut first) = used(2).await;
    let calls: Vec<_> = (0..3).map(|_| spawn_call(&worker, get("/"))).collect();
    let mut second = Peer::accept(&stub, 2).await;
    for call in [first.call().await, first.call().await, second.call().await] {
        answer(call);
    }
    for call in calls {
        text(call.await.unwrap().unwrap()).await;
    }
}

#[tokio::test]
async fn what_the_worker_has_not_looked_at_is_sent_again() {
    // By its own word, so even on a connection that is new.
    let stub = Stub::start().await;
    let worker = worker(&stub);
    let call = spawn_call(&worker, post("/", "body"));
    let mut peer = Peer::accept(&stub, 100).await;
    let (_, mut respond) = peer.call().await;
    respond.send_reset(Reason::REFUSED_STREAM);
    let mut peer = Peer::accept(&stub, 100).await;
    let (mut request, respond) = peer.call().await;
    let body = request.body_mut().data().await.unwrap().unwrap();
    assert_eq!(body, "body");
    answer((request, respond));
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
}

#[tokio::test]
async fn a_connection_that_says_goodbye_takes_no_more() {
    let (stub, worker, peer) = used(100).await;
    peer.told.send(()).unwrap();
    peer.task.await.unwrap();
    let call = spawn_call(&worker, get("/"));
    let mut peer = Peer::accept(&stub, 100).await;
    answer(peer.call().await);
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
}

#[tokio::test]
async fn a_goodbye_lets_what_is_running_finish() {
    let (stub, worker, mut peer) = used(100).await;
    let running = spawn_call(&worker, get("/running"));
    let accepted = peer.call().await;
    peer.told.send(()).unwrap();
    answer(accepted);
    assert_eq!(text(running.await.unwrap().unwrap()).await, "ok");
    peer.task.await.unwrap();
    drop(stub);
}

#[tokio::test]
async fn a_connection_that_is_cut_is_lost() {
    // New: that says something about the worker.
    let stub = Stub::start().await;
    let worker = worker(&stub);
    let call = spawn_call(&worker, get("/"));
    let mut peer = Peer::accept(&stub, 100).await;
    let accepted = peer.call().await;
    peer.cut().await;
    drop(accepted);
    let fault = call.await.unwrap().unwrap_err();
    assert_eq!(fault.kind(), FaultKind::LostFresh);
    assert_eq!(verdict(&fault), Verdict::Lost);
}

#[tokio::test]
async fn what_met_the_end_of_an_idle_connection_is_sent_again() {
    let (stub, worker, peer) = used(100).await;
    peer.cut().await;
    let call = spawn_call(&worker, get("/"));
    let mut peer = Peer::accept(&stub, 100).await;
    answer(peer.call().await);
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
}

#[tokio::test]
async fn all_that_were_lost_together_share_the_next_connection() {
    let (stub, worker, mut peer) = used(100).await;
    let calls: Vec<_> = (0..30).map(|_| spawn_call(&worker, get("/"))).collect();
    let mut accepted = Vec::new();
    for _ in 0..30 {
        accepted.push(peer.call().await);
    }
    for (_, mut respond) in accepted {
        respond.send_reset(Reason::REFUSED_STREAM);
    }
    let mut next = Peer::accept(&stub, 100).await;
    for _ in 0..30 {
        answer(next.call().await);
    }
    for call in calls {
        assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
    }
    assert!(stub.is_quiet().await);
}

#[tokio::test]
async fn a_stream_that_is_reset_is_the_requests_alone() {
    let (_stub, worker, mut peer) = used(100).await;
    for reason in [
        Reason::INTERNAL_ERROR,
        Reason::CANCEL,
        Reason::ENHANCE_YOUR_CALM,
    ] {
        let call = spawn_call(&worker, get("/"));
        let (_request, mut respond) = peer.call().await;
        respond.send_reset(reason);
        let fault = call.await.unwrap().unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Reset, "{reason:?}");
        assert_eq!(verdict(&fault), Verdict::Failed);
    }
    // The connection is well.
    let call = spawn_call(&worker, get("/"));
    answer(peer.call().await);
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
}

#[tokio::test]
async fn an_answer_that_is_reset_is_never_an_end() {
    let (_stub, worker, mut peer) = used(100).await;
    for reason in [Reason::INTERNAL_ERROR, Reason::CANCEL, Reason::NO_ERROR] {
        let call = spawn_call(&worker, get("/"));
        let (_request, mut respond) = peer.call().await;
        let mut send = respond.send_response(ok(), false).unwrap();
        send.send_data(Bytes::from_static(b"abc"), false).unwrap();
        let mut body = call.await.unwrap().unwrap().into_body();
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "abc"
        );
        send.send_reset(reason);
        let fault = body.frame().await.unwrap().unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Broken, "{reason:?}");
    }
}

#[tokio::test]
async fn a_whole_answer_before_the_end_of_the_request_is_whole() {
    let (_stub, worker, mut peer) = used(100).await;
    let call = spawn_call(&worker, post("/", vec![b'x'; 1024 * 1024]));
    let (request, mut respond) = peer.call().await;
    let mut send = respond.send_response(ok(), false).unwrap();
    send.send_data(Bytes::from_static(b"early"), true).unwrap();
    // It says so with a reset without an error, after the answer.
    drop((request, respond, send));
    assert_eq!(text(call.await.unwrap().unwrap()).await, "early");
}

#[tokio::test]
async fn what_is_dropped_before_its_end_is_reset_and_the_others_go_on() {
    let (_stub, worker, mut peer) = used(100).await;
    let other = spawn_call(&worker, get("/other"));
    let kept = peer.call().await;
    let call = spawn_call(&worker, get("/"));
    let (_request, mut respond) = peer.call().await;
    call.abort();
    let reason = std::future::poll_fn(|cx| respond.poll_reset(cx))
        .await
        .unwrap();
    assert_eq!(reason, Reason::CANCEL);

    let call = spawn_call(&worker, get("/"));
    let (_request, mut respond) = peer.call().await;
    let mut send = respond.send_response(ok(), false).unwrap();
    drop(call.await.unwrap().unwrap());
    let reason = std::future::poll_fn(|cx| send.poll_reset(cx))
        .await
        .unwrap();
    assert_eq!(reason, Reason::CANCEL);

    answer(kept);
    assert_eq!(text(other.await.unwrap().unwrap()).await, "ok");
}

/// Clients that do not read hold up nobody else.
#[tokio::test]
async fn a_client_that_does_not_read_holds_up_nobody() {
    let (_stub, worker, mut peer) = used(100).await;
    let mut unread = Vec::new();
    for _ in 0..40 {
        let call = spawn_call(&worker, get("/"));
        let (_request, mut respond) = peer.call().await;
        let mut send = respond.send_response(ok(), false).unwrap();
        send.send_data(Bytes::from(vec![b'x'; 1024 * 1024]), false)
            .unwrap();
        unread.push((call.await.unwrap().unwrap(), send));
    }
    let call = spawn_call(&worker, get("/"));
    answer(peer.call().await);
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_time() {
    let stub = Stub::start().await;
    let builder = HttpWorkerBuilder::new().protocol(Protocol::Http2);
    let builder = builder.idle_limit(Duration::from_millis(10));
    let worker = builder.build(&stub.url()).unwrap();
    let call = spawn_call(&worker, get("/"));
    let mut peer = Peer::accept(&stub, 100).await;
    let accepted = peer.call().await;
    // Longer than the limit: it is not idle.
    tokio::time::sleep(Duration::from_millis(50)).await;
    answer(accepted);
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
    peer.task.await.unwrap();
}

#[tokio::test]
async fn informational_responses_have_an_end() {
    let (_stub, worker, mut peer) = used(100).await;
    // Some are well, over and over.
    for _ in 0..3 {
        let call = spawn_call(&worker, get("/"));
        let (_request, mut respond) = peer.call().await;
        for _ in 0..50 {
            let early = Response::builder().status(103).body(()).unwrap();
            respond.send_informational(early).unwrap();
        }
        respond.send_response(ok(), true).unwrap();
        assert_eq!(text(call.await.unwrap().unwrap()).await, "");
    }
    let mut call = spawn_call(&worker, get("/"));
    let (_request, mut respond) = peer.call().await;
    let fault = loop {
        for _ in 0..100 {
            let early = Response::builder().status(103).body(()).unwrap();
            // It fails when the connection is gone.
            drop(respond.send_informational(early));
        }
        tokio::select! {
            biased;
            answered = &mut call => break answered.unwrap().unwrap_err(),
            () = tokio::task::yield_now() => {}
        }
    };
    assert_eq!(fault.kind(), FaultKind::Malformed);
}

#[tokio::test]
async fn whoever_speaks_no_http2_is_a_fault_and_no_hang() {
    let stub = Stub::start().await;
    let call = spawn_call(&worker(&stub), get("/"));
    let mut connection: Connection = stub.accept().await;
    connection
        .write("HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
        .await;
    let fault = call.await.unwrap().unwrap_err();
    assert!(
        matches!(fault.kind(), FaultKind::Malformed | FaultKind::LostFresh),
        "{fault:?}"
    );
}

#[tokio::test]
async fn all_that_come_at_once_wait_for_one_connection_and_share_its_fault() {
    let stub = Stub::start().await;
    let worker = worker(&stub);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let builder = HttpWorkerBuilder::new().protocol(Protocol::Http2);
    let nowhere = builder.build(&url).unwrap();
    let calls: Vec<_> = (0..10).map(|_| spawn_call(&nowhere, get("/"))).collect();
    for call in calls {
        let fault = call.await.unwrap().unwrap_err();
        assert_eq!(fault.kind(), FaultKind::NotConnected);
    }
    // Whoever began to connect may leave the others to it.
    let first = spawn_call(&worker, get("/"));
    let second = spawn_call(&worker, Request::get("/").body(full("")).unwrap());
    tokio::task::yield_now().await;
    first.abort();
    let mut peer = Peer::accept(&stub, 100).await;
    answer(peer.call().await);
    assert_eq!(text(second.await.unwrap().unwrap()).await, "ok");
}
