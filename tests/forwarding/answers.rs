//! What the client gets of what a worker answers.

use crate::{
    gateways::{Kind, OK, body, get, post, status},
    sockets::{Stub, full, header, http2, sorted, text},
};
use http::{Method, Request};
use http_body_util::BodyExt;

/// What a client gets of an answer.
async fn answered(kind: Kind, answer: &str) -> String {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let mut client = gateway.sent(get("/v1/x")).await;
    let mut worker = stub.accept().await;
    worker.read_head().await;
    worker.write(answer).await;
    client.read_message().await
}

pub async fn the_head_that_the_client_gets_is_this_one(kind: Kind) {
    let answer = "HTTP/1.1 218 This Is Fine\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n\
                  Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\n\
                  Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nDate: now\r\nServer: engine\r\n\
                  X-Overload-Reason: all_workers_busy\r\nContent-Length: 2, 2\r\n\r\nok";
    assert_eq!(
        sorted(&answered(kind, answer).await),
        "HTTP/1.1 218 This Is Fine\r\ncontent-length: 2\r\ndate: now\r\nserver: engine\r\n\
         set-cookie: a=1\r\nset-cookie: b=2\r\nx-end: 2\r\n\r\nok"
    );
}

/// F1
pub async fn a_length_beside_chunks_does_not_count(kind: Kind) {
    for lied in ["3", "30"] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {lied}\r\ntransfer-encoding: chunked\r\n\r\n\
             a\r\n0123456789\r\n0\r\n\r\n"
        );
        let stub = Stub::start().await;
        let gateway = kind.before(&stub).await;
        let _serving = stub.serve(move |_| answer.clone().into());
        let answer = gateway.sent(get("/v1/x")).await.read_message().await;
        assert_eq!(body(&answer), ("0123456789".to_owned(), true));
        let old = "GET /v1/x HTTP/1.0\r\nhost: g\r\n\r\n";
        let answer = gateway.sent(old).await.read_to_end().await;
        assert!(answer.ends_with("\r\n\r\n0123456789"), "{answer}");
        assert!(header(&answer, "content-length").is_none_or(|length| length == "10"));

        let request = Request::get("http://g/v1/x").body(full("")).unwrap();
        let response = http2(gateway.address).await.send_request(request);
        let response = response.await.unwrap();
        let length = response.headers().get("content-length").cloned();
        assert!(length.is_none_or(|length| length == "10"));
        assert_eq!(text(response).await, "0123456789");
    }
}

pub async fn trailers_reach_the_client(kind: Kind) {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
                          2\r\nok\r\n0\r\nx-sum: 2\r\ncontent-length: 7\r\n\r\n";
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let _serving = stub.serve(|_| ANSWER.into());
    let request = "GET /v1/x HTTP/1.1\r\nhost: g\r\nte: trailers\r\nconnection: te, close\r\n\r\n";
    let answer = gateway.sent(request).await.read_to_end().await;
    assert_eq!(header(&answer, "trailer"), Some("x-sum"));
    assert!(
        answer.ends_with("\r\n\r\n2\r\nok\r\n0\r\nx-sum: 2\r\n\r\n"),
        "{answer}"
    );

    let request = Request::get("http://g/v1/x").header("te", "trailers");
    let mut client = http2(gateway.address).await;
    let call = client.send_request(request.body(full("")).unwrap());
    let all = call.await.unwrap().into_body().collect().await.unwrap();
    let trailers = all.trailers().expect("trailers");
    assert_eq!(trailers.len(), 1);
    assert_eq!(trailers["x-sum"], "2");
    assert_eq!(all.to_bytes(), "ok");
}

/// What is next on the connection is the next answer.
pub async fn answers_without_a_body_have_none_and_keep_the_connection(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let _serving = stub.serve(|request| {
        let head = match request.split(' ').collect::<Vec<_>>()[..2] {
            ["HEAD", _] => "200 OK\r\ncontent-length: 9",
            [_, "/v1/204"] => "204 No Content\r\ncontent-length: 0",
            [_, "/v1/304"] => "304 Not Modified\r\netag: \"a\"\r\ncontent-length: 9",
            _ => return OK.into(),
        };
        format!("HTTP/1.1 {head}\r\n\r\n").into()
    });
    let mut client = gateway.connect().await;
    let mut two = http2(gateway.address).await;
    // hyper's server leaves the length out of a 304, as it may.
    for (method, path, code, length) in [
        ("HEAD", "/v1/x", 200, Some("9")),
        ("GET", "/v1/204", 204, None),
        ("GET", "/v1/304", 304, None),
    ] {
        let request = get(path).replace("GET", method);
        client.write(request + &get("/v1/next")).await;
        let head = client.read_head().await;
        assert_eq!(status(&head), code, "{head}");
        assert_eq!(header(&head, "content-length"), length, "{head}");
        assert_eq!(header(&head, "transfer-encoding"), None, "{head}");
        let next = client.read_message().await;
        assert!(next.starts_with("HTTP/1.1 200 OK\r\n"), "{next}");
        assert_eq!(body(&next), ("ok".to_owned(), true));

        let method: Method = method.parse().unwrap();
        let request = Request::builder().method(method);
        let request = request.uri(format!("http://g{path}")).body(full(""));
        let answer = two.send_request(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), code, "{path}");
        assert_eq!(text(answer).await, "", "{path}");
    }
}

pub async fn a_body_that_breaks_off_is_cut(kind: Kind) {
    for framing in ["content-length: 10", "transfer-encoding: chunked"] {
        let stub = Stub::start().await;
        let gateway = kind.before(&stub).await;
        let begin = async || {
            let mut worker = stub.accept().await;
            worker.read_head().await;
            let answer = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n3\r\nabc\r\n");
            worker.write(answer).await;
            worker
        };
        let mut client = gateway.sent(get("/v1/x")).await;
        let worker = begin().await;
        client.read_head().await;
        client.read_exact(8).await;
        drop(worker);
        assert_eq!(client.read_to_end().await, "", "no last chunk");

        let request = Request::get("http://g/v1/x").body(full("")).unwrap();
        let call = tokio::spawn(http2(gateway.address).await.send_request(request));
        let worker = begin().await;
        let mut answer = call.await.unwrap().unwrap().into_body();
        assert!(answer.frame().await.unwrap().is_ok());
        drop(worker);
        assert!(answer.frame().await.unwrap().is_err(), "{framing}");
    }
}

/// F8: no worker can switch protocols.
pub async fn a_switch_of_protocols_is_a_bad_gateway(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let request =
        "GET /v1/x HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let mut client = gateway.sent(request).await;
    let mut worker = stub.accept().await;
    let head = worker.read_head().await;
    assert_eq!(header(&head, "upgrade"), None);
    worker
        .write(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        )
        .await;
    let answer = client.read_message().await;
    assert_eq!(status(&answer), 502, "{answer}");
    assert_eq!(worker.read_to_end().await, "", "it is closed");
}

/// F8
pub async fn endless_informational_responses_are_a_bad_gateway(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let mut client = gateway.sent(get("/v1/x")).await;
    let mut worker = stub.accept().await;
    worker.read_head().await;
    let hostile = tokio::spawn(async move {
        // Until nobody listens any more.
        let again = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
        while worker.write_or_end(again).await {}
    });
    let answer = client.read_message().await;
    assert_eq!(status(&answer), 502, "{answer}");
    hostile.await.unwrap();
}

pub async fn a_few_informational_responses_are_passed_over(kind: Kind) {
    let few = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n\
               HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
    let answer = format!("{few}{}", String::from_utf8_lossy(OK));
    let answer = answered(kind, &answer).await;
    assert_eq!(status(&answer), 200);
    assert_eq!(body(&answer), ("ok".to_owned(), true));
}

/// F8: an answer to a request of which the worker has read the beginning.
pub async fn an_early_answer_reaches_the_client(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let mut client = gateway.connect().await;
    let client = tokio::spawn(async move {
        // By far more than the worker reads of it.
        client.write(post("/v1/x", &"x".repeat(9 << 20))).await;
        let head = client.read_head().await;
        head + &client.read_exact(4).await
    });
    let mut worker = stub.accept().await;
    worker.read_head().await;
    worker.read_exact(4).await;
    worker
        .write("HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 4\r\n\r\nlong")
        .await;
    drop(worker);
    let answer = client.await.unwrap();
    assert_eq!(status(&answer), 413, "{answer}");
    assert!(answer.ends_with("\r\n\r\nlong"), "{answer}");
}
