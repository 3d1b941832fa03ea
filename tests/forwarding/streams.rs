//! Streams, and what becomes of them when their worker dies or their client
//! leaves.

use crate::{
    gateways::{Gateway, Kind, dechunked},
    sockets::{Connection, Stub, full, header, http2, text},
};
use http::Request;

const EVENTS: &str = "content-type: text/event-stream; charset=utf-8";

/// The connection of a worker that is asked, and begins to answer.
async fn begun(stub: &Stub, head: &str, parts: &[&str]) -> Connection {
    let mut worker = stub.accept().await;
    worker.read_head().await;
    let head = format!("HTTP/1.1 200 OK\r\n{head}\r\ntransfer-encoding: chunked\r\n\r\n");
    worker.write(head).await;
    for part in parts {
        let chunk = format!("{:x}\r\n{part}\r\n", part.len());
        worker.write(chunk).await;
    }
    worker
}

async fn asked(gateway: &Gateway, path: &str) -> Connection {
    let request = format!("POST {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n");
    gateway.sent(request).await
}

/// What a client of `path` gets when a worker sends `parts` and dies, and
/// whether it is a whole answer.
async fn broken(kind: Kind, path: &str, head: &str, parts: &[&str]) -> (String, bool) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let mut client = asked(&gateway, path).await;
    let worker = begun(&stub, head, parts).await;
    let head = client.read_head().await;
    assert_eq!(header(&head, "transfer-encoding"), Some("chunked"));
    drop(worker);
    dechunked(&client.read_to_end().await)
}

/// F10
pub async fn a_stream_that_breaks_off_ends_with_an_error_event_of_its_api(kind: Kind) {
    let message = "The answer broke off: its worker failed";
    let openai = format!(
        "data: {{\"error\":{{\"message\":\"{message}\",\"type\":\"server_error\",\"param\":null,\
         \"code\":\"worker_failed\"}}}}\n\ndata: [DONE]\n\n"
    );
    let responses = format!(
        "event: error\ndata: {{\"type\":\"error\",\"code\":\"worker_failed\",\
         \"message\":\"{message}\",\"param\":null,\"sequence_number\":2}}\n\n"
    );
    let anthropic = format!(
        "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"api_error\",\
         \"message\":\"{message}\"}}}}\n\n"
    );
    let parts = [
        "data: {\"n\":1}\n\n",
        "data: {\"n\":2}\n\ndata: {\"n\"",
        ":",
    ];
    for (path, end) in [
        ("/v1/chat/completions", &openai),
        ("/v1/completions", &openai),
        ("/v1/responses", &responses),
        ("/v1/messages", &anthropic),
    ] {
        let whole = format!("data: {{\"n\":1}}\n\ndata: {{\"n\":2}}\n\n{end}");
        let answer = broken(kind, path, EVENTS, &parts).await;
        assert_eq!(answer, (whole.clone(), true), "{path}");

        let stub = Stub::start().await;
        let gateway = kind.before(&stub).await;
        let request = Request::post(format!("http://g{path}")).body(full(""));
        let mut client = http2(gateway.address).await;
        let call = tokio::spawn(client.send_request(request.unwrap()));
        let worker = begun(&stub, EVENTS, &parts).await;
        let answer = call.await.unwrap().unwrap();
        drop(worker);
        assert_eq!(text(answer).await, whole, "{path} over HTTP/2");
    }
}

pub async fn a_stream_that_was_over_just_ends(kind: Kind) {
    let parts = ["data: {}\n\n", "data: [DONE]\n\n"];
    let answer = broken(kind, "/v1/completions", EVENTS, &parts).await;
    assert_eq!(answer, (parts.concat(), true));
}

/// F10: nobody takes it for whole.
pub async fn anything_else_is_cut(kind: Kind) {
    for (path, head) in [
        ("/v1/chat/completions", "content-type: application/json"),
        ("/v1/chat/completions", "x: y"),
        ("/v1/audio/speech", EVENTS),
        (
            "/v1/chat/completions",
            "content-type: text/event-stream\r\ncontent-encoding: gzip",
        ),
    ] {
        let answer = broken(kind, path, head, &["data: {}\n\n"]).await;
        assert_eq!(answer, ("data: {}\n\n".into(), false), "{path} {head}");
    }
}

/// But for its head, which comes with the first event where that has a limit:
/// until then the request can be sent elsewhere.
pub async fn a_stream_is_not_held_up(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let mut client = asked(&gateway, "/v1/chat/completions").await;
    let mut worker = begun(&stub, EVENTS, &[]).await;
    if kind == Kind::Readme {
        client.read_head().await;
    }
    for n in 0..3 {
        let chunk = format!("9\r\ndata: {n}\n\n\r\n");
        worker.write(&chunk).await;
        if n == 0 && kind != Kind::Readme {
            client.read_head().await;
        }
        assert_eq!(client.read_exact(chunk.len()).await, chunk);
    }
    worker.write("0\r\n\r\n").await;
    assert_eq!(client.read_to_end().await, "0\r\n\r\n");
}

pub async fn the_worker_sees_that_the_client_has_gone(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    // Before the head, and in the middle of a stream.
    let client = asked(&gateway, "/v1/completions").await;
    let mut worker = stub.accept().await;
    worker.read_head().await;
    drop(client);
    assert_eq!(worker.read_to_end().await, "");

    let mut client = asked(&gateway, "/v1/completions").await;
    let mut worker = begun(&stub, EVENTS, &["data: {}\n\n"]).await;
    client.read_head().await;
    drop(client);
    assert_eq!(worker.read_to_end().await, "");
}
