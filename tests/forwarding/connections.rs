//! Connections to workers: those that end, and those that lead nowhere.

use crate::{
    gateways::{Kind, OK, body, get, post, status},
    sockets::{Connection, Stub, header},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

/// F4: a gateway whose worker is, behind a plain relay, the gateway itself.
pub async fn a_loop_ends_at_the_first_turn(kind: Kind) {
    let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", relay.local_addr().unwrap());
    let gateway = kind.start(&[url], &[]).await;
    let turns = Arc::new(AtomicUsize::new(0));
    let (counter, address) = (turns.clone(), gateway.address);
    tokio::spawn(async move {
        loop {
            let (mut from, _) = relay.accept().await.unwrap();
            counter.fetch_add(1, Relaxed);
            tokio::spawn(async move {
                let mut to = TcpStream::connect(address).await.unwrap();
                copy_bidirectional(&mut from, &mut to).await
            });
        }
    });
    for (n, request) in [get("/v1/x"), post("/v1/x", "body")].iter().enumerate() {
        let answer = gateway.sent(request).await.read_message().await;
        assert_eq!(status(&answer), 508, "{answer}");
        assert!(turns.load(Relaxed) <= n + 1, "one turn each at most");
    }
}

/// A worker's connection that is idle after a request.
async fn idle(stub: &Stub, client: &mut Connection) -> Connection {
    client.write(get("/v1/first")).await;
    let mut worker = stub.accept().await;
    worker.read_head().await;
    worker.write(OK).await;
    client.read_message().await;
    worker
}

/// P8
pub async fn what_was_closed_while_it_was_idle_is_noticed(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let mut client = gateway.connect().await;
    for farewell in [
        "",
        "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n",
    ] {
        for request in [get("/v1/x"), post("/v1/x", "body")] {
            let mut old = idle(&stub, &mut client).await;
            old.write(farewell).await;
            old.close_writing();
            client.write(request).await;
            let mut new = stub.accept().await;
            new.read_message().await;
            let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
            new.write(answer).await;
            let answer = client.read_message().await;
            assert_eq!(status(&answer), 200, "{answer}");
            assert_eq!(old.read_to_end().await, "", "nothing was sent there");
        }
    }
}

/// P8: the request and the close have met, and no worker is marked for it.
pub async fn what_met_the_end_of_an_idle_connection_is_sent_again(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let mut client = gateway.connect().await;
    let mut old = idle(&stub, &mut client).await;
    for request in [get("/v1/x"), post("/v1/x", "body"), get("/v1/y")] {
        client.write(request).await;
        let first = old.read_message().await;
        drop(old);
        let mut new = stub.accept().await;
        assert_eq!(new.read_message().await, first);
        new.write(OK).await;
        let answer = client.read_message().await;
        assert_eq!(status(&answer), 200, "{answer}");
        assert_eq!(body(&answer), ("ok".to_owned(), true));
        old = new;
    }
}

/// P9: where nobody listens, and where each connection ends before the head.
pub async fn when_nobody_can_be_reached_it_is_a_503(kind: Kind) {
    let nowhere = "http://127.0.0.1:1".to_owned();
    let gateway = kind.start(&[nowhere], &[]).await;
    let answer = gateway.sent(get("/v1/x")).await.read_message().await;
    assert_eq!(status(&answer), 503, "{answer}");
    assert_eq!(header(&answer, "x-overload-reason"), Some("none_reachable"));

    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let mut client = gateway.sent(get("/v1/x")).await;
    let closing = async {
        loop {
            stub.accept().await.read_head().await;
        }
    };
    tokio::select! {
        answer = client.read_message() => assert_eq!(status(&answer), 503, "{answer}"),
        () = closing => {}
    }
}

/// P9: it is marked, so most of what comes goes to the other one.
pub async fn a_worker_that_answers_nothing_is_passed_over(kind: Kind) {
    let bad = Stub::start().await;
    let good = Stub::start().await.serve(|_| OK.into());
    let urls = [bad.url(), format!("http://{}", good.address)];
    let gateway = kind.start(&urls, &[]).await;
    tokio::spawn(async move {
        loop {
            bad.accept().await.read_head().await;
        }
    });
    let mut failed = 0;
    for _ in 0..20 {
        let answer = gateway.sent(get("/v1/x")).await.read_message().await;
        failed += usize::from(status(&answer) != 200);
    }
    assert!(failed < 5, "{failed} of 20");
}
