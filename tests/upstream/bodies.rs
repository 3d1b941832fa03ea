//! Bodies and their frames, both ways.

use crate::support::{AnyBody, Connection, Gateway, Stub, full, header, post, spawn_call, text};
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Request};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tower_overload::upstream::HttpWorkerBuilder;

fn streamed(frames: Vec<Frame<Bytes>>) -> AnyBody {
    StreamBody::new(stream::iter(frames.into_iter().map(Ok))).boxed_unsync()
}

fn data(bytes: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(bytes.as_bytes()))
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// What a worker gets on the wire.
async fn sent(request: Request<AnyBody>) -> String {
    let stub = Stub::start().await;
    let call = spawn_call(&stub.worker(), request);
    let mut connection = stub.accept().await;
    let message = connection.read_message().await;
    connection.write(OK).await;
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
    message
}

#[tokio::test]
async fn how_a_request_is_framed_follows_from_its_body() {
    for method in ["GET", "DELETE", "OPTIONS", "POST", "PUT", "PATCH"] {
        let request = || Request::builder().method(method).uri("/");
        let lied = || {
            request()
                .header("content-length", "7")
                .header("transfer-encoding", "gzip")
        };
        let empty = sent(lied().body(full("")).unwrap()).await;
        let may_have_one = matches!(method, "POST" | "PUT" | "PATCH").then_some("0");
        assert_eq!(header(&empty, "content-length"), may_have_one, "{method}");
        assert_eq!(header(&empty, "transfer-encoding"), None);
        let known = sent(lied().body(full("abc")).unwrap()).await;
        assert_eq!(header(&known, "content-length"), Some("3"), "{method}");
        assert!(known.ends_with("\r\n\r\nabc"));
        let unknown = streamed(vec![data("ab"), data("c")]);
        let unknown = sent(lied().body(unknown).unwrap()).await;
        assert_eq!(
            header(&unknown, "transfer-encoding"),
            Some("chunked"),
            "{method}"
        );
        assert_eq!(header(&unknown, "content-length"), None);
        assert!(
            unknown.ends_with("\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
            "{unknown}"
        );
    }
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let stub = Stub::start().await;
    let worker = stub.worker();
    let trailers: HeaderMap = [("x-sum", "1"), ("content-length", "9")]
        .into_iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect();
    let body = streamed(vec![data("ab"), Frame::trailers(trailers)]);
    let request = Request::post("/")
        .header("trailer", "x-sum")
        .body(body)
        .unwrap();
    let call = spawn_call(&worker, request);
    let mut connection = stub.accept().await;
    let head = connection.read_head().await;
    assert_eq!(header(&head, "trailer"), Some("x-sum"));
    assert_eq!(
        connection.read_exact(22).await,
        "2\r\nab\r\n0\r\nx-sum: 1\r\n\r\n"
    );
    connection
        .write(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
             2\r\nok\r\n0\r\nx-sum: 2\r\ncontent-length: 7\r\n\r\n",
        )
        .await;
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.headers()["trailer"], "x-sum");
    let all = response.into_body().collect().await.unwrap();
    let trailers = all.trailers().unwrap();
    assert_eq!(
        (trailers.len(), &trailers["x-sum"]),
        (1, &"2".parse().unwrap())
    );
}

#[tokio::test]
async fn frames_pass_as_they_come() {
    let stub = Stub::start().await;
    let call = spawn_call(&stub.worker(), post("/", "x"));
    let mut connection = stub.accept().await;
    connection.read_message().await;
    connection
        .write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    let mut body = call.await.unwrap().unwrap().into_body();
    for token in ["a", "bc", "def"] {
        connection
            .write(format!("{:x}\r\n{token}\r\n", token.len()))
            .await;
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            token
        );
    }
    connection.write("0\r\n\r\n").await;
    assert!(body.frame().await.is_none());
}

/// F1: what frames an answer twice is framed by the chunks, to every client.
#[tokio::test]
async fn a_length_beside_chunks_does_not_count() {
    for lied in ["3", "30"] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {lied}\r\ntransfer-encoding: chunked\r\n\r\n\
             a\r\n0123456789\r\n0\r\n\r\n"
        );
        let serving = Stub::start().await.serve(move |_| answer.clone().into());
        let url = format!("http://{}", serving.address);
        let gateway = Gateway::before(HttpWorkerBuilder::new().build(&url).unwrap()).await;
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            let mut client = Connection::to(gateway.address).await;
            client
                .write(format!(
                    "GET / {version}\r\nhost: g\r\nconnection: close\r\n\r\n"
                ))
                .await;
            let answer = client.read_to_end().await;
            assert!(answer.contains("0123456789"), "{answer}");
            assert_eq!(header(&answer, "content-length"), None);
        }
        let response = crate::support::http2(gateway.address)
            .await
            .send_request(Request::get("http://g/").body(full("")).unwrap())
            .await
            .unwrap();
        let length = response.headers().get("content-length").cloned();
        assert_eq!(text(response).await, "0123456789", "{length:?}");
        assert!(length.is_none_or(|length| length == "10"));
    }
}

/// F8: the answer to a request of which half was read reaches the client.
#[tokio::test]
async fn an_early_answer_reaches_the_client() {
    let stub = Stub::start().await;
    let gateway = Gateway::before(stub.worker()).await;
    let mut client = Connection::to(gateway.address).await;
    client
        .write("POST / HTTP/1.1\r\nhost: g\r\ncontent-length: 100\r\n\r\nhalf")
        .await;
    let mut worker = stub.accept().await;
    worker.read_head().await;
    worker.read_exact(4).await;
    worker
        .write("HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 4\r\n\r\nlong")
        .await;
    drop(worker);
    let head = client.read_head().await;
    assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
    assert_eq!(client.read_exact(4).await, "long");
}

/// A body that breaks off is cut for the client too.
#[tokio::test]
async fn what_broke_off_is_cut_for_the_client() {
    for framing in ["content-length: 10", "transfer-encoding: chunked"] {
        let stub = Stub::start().await;
        let gateway = Gateway::before(stub.worker()).await;
        let mut client = Connection::to(gateway.address).await;
        client.write("GET / HTTP/1.1\r\nhost: g\r\n\r\n").await;
        let mut worker = stub.accept().await;
        worker.read_head().await;
        worker
            .write(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n3\r\nabc\r\n"))
            .await;
        client.read_head().await;
        client.read_exact(8).await;
        drop(worker);
        assert_eq!(client.read_to_end().await, "", "no last chunk");
    }
}

/// A worker that is slow with its head is slow, and no more: each byte of a
/// head a turn of the runtime.
#[tokio::test]
async fn a_head_may_come_byte_by_byte() {
    let stub = Stub::start().await;
    let call = spawn_call(&stub.worker(), post("/", "x"));
    let mut connection = stub.accept().await;
    connection.read_message().await;
    for byte in OK {
        connection.write([*byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
}

/// A worker whose answer has no end fills buffers, and no memory: it waits for
/// the client.
#[tokio::test]
async fn an_endless_answer_waits_for_the_client() {
    const MOST: usize = 64 * 1024 * 1024;
    let stub = Stub::start().await;
    let call = spawn_call(&stub.worker(), post("/", "x"));
    let mut connection = stub.accept().await;
    connection.read_message().await;
    connection.write("HTTP/1.1 200 OK\r\n\r\n").await;
    let response = call.await.unwrap().unwrap();
    let mut written = 0;
    let chunk = "x".repeat(64 * 1024);
    // As long as it is taken without a pause.
    let pause = std::time::Duration::from_millis(200);
    while tokio::time::timeout(pause, connection.write_or_end(&chunk)).await == Ok(true) {
        written += chunk.len();
        assert!(written < MOST, "nobody reads it, and it is taken");
    }
    drop(response);
    connection.read_to_end().await;
}
