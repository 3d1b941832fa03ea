//! F10: streams whose worker dies.

use crate::support::{Connection, Gateway, Stub, header};

/// What a client of `path` gets when a worker sends `parts` and dies.
async fn stream(path: &str, head: &str, parts: &[&str]) -> String {
    let stub = Stub::start().await;
    let gateway = Gateway::before(stub.worker()).await;
    let mut client = Connection::to(gateway.address).await;
    let request = format!("POST {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n");
    client.write(request).await;
    let mut worker = stub.accept().await;
    worker.read_head().await;
    worker
        .write(format!(
            "HTTP/1.1 200 OK\r\n{head}\r\ntransfer-encoding: chunked\r\n\r\n"
        ))
        .await;
    for part in parts {
        worker
            .write(format!("{:x}\r\n{part}\r\n", part.len()))
            .await;
    }
    let head = client.read_head().await;
    assert_eq!(header(&head, "transfer-encoding"), Some("chunked"));
    drop(worker);
    client.read_to_end().await
}

/// The bytes of a chunked body, and whether it has its end.
fn dechunked(body: &str) -> (String, bool) {
    let (mut rest, mut all) = (body, String::new());
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return (all, after == "\r\n");
        }
        all += &after[..length];
        rest = &after[length + 2..];
    }
    (all, false)
}

const EVENTS: &str = "content-type: text/event-stream; charset=utf-8";

#[tokio::test]
async fn a_stream_ends_with_an_error_event_of_its_api() {
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
    for (path, end) in [
        ("/v1/chat/completions", &openai),
        ("/v1/completions", &openai),
        ("/v1/responses", &responses),
        ("/v1/messages", &anthropic),
    ] {
        let parts = [
            "data: {\"n\":1}\n\n",
            "data: {\"n\":2}\n\ndata: {\"n\"",
            ":",
        ];
        let body = stream(path, EVENTS, &parts).await;
        let (text, ended) = dechunked(&body);
        assert_eq!(
            text,
            format!("data: {{\"n\":1}}\n\ndata: {{\"n\":2}}\n\n{end}"),
            "{path}"
        );
        assert!(ended, "{path}");
    }
}

#[tokio::test]
async fn a_stream_that_was_over_just_ends() {
    let parts = ["data: {}\n\n", "data: [DONE]\n\n"];
    let (text, ended) = dechunked(&stream("/v1/completions", EVENTS, &parts).await);
    assert_eq!((&*text, ended), ("data: {}\n\ndata: [DONE]\n\n", true));
}

#[tokio::test]
async fn anything_else_is_cut() {
    for (path, head) in [
        ("/v1/chat/completions", "content-type: application/json"),
        ("/v1/chat/completions", "x: y"),
        ("/v1/audio/speech", EVENTS),
        (
            "/v1/chat/completions",
            "content-type: text/event-stream\r\ncontent-encoding: gzip",
        ),
    ] {
        let (text, ended) = dechunked(&stream(path, head, &["data: {}\n\n"]).await);
        assert_eq!((&*text, ended), ("data: {}\n\n", false), "{path} {head}");
    }
}

#[tokio::test]
async fn the_worker_sees_that_the_client_has_gone() {
    let stub = Stub::start().await;
    let gateway = Gateway::before(stub.worker()).await;
    let mut client = Connection::to(gateway.address).await;
    client
        .write("POST /v1/completions HTTP/1.1\r\nhost: g\r\n\r\n")
        .await;
    let mut worker = stub.accept().await;
    worker.read_head().await;
    worker
        .write(format!(
            "HTTP/1.1 200 OK\r\n{EVENTS}\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: {{}}\n\r\n"
        ))
        .await;
    client.read_head().await;
    drop(client);
    assert_eq!(worker.read_to_end().await, "");
}
