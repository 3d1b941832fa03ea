//! What the worker gets of what a client sends.

use crate::{
    gateways::{Gateway, Kind, OK, body, get, post, status},
    sockets::{Stub, full, header, http2, sorted, text},
};
use http::Request;
use std::time::Duration;

/// What the worker gets of a request that reaches it.
async fn received(stub: &Stub, gateway: &Gateway, request: &str) -> String {
    let mut client = gateway.sent(request).await;
    let mut worker = stub.accept().await;
    let message = worker.read_message().await;
    let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    worker.write(answer).await;
    let answer = client.read_message().await;
    assert_eq!(status(&answer), 200, "{answer}");
    message
}

/// A message without what each gateway says of the client and of itself.
fn without_origin(message: &str) -> String {
    let (head, body) = message.split_once("\r\n\r\n").unwrap();
    let lines = head.split("\r\n");
    let lines = lines.filter(|line| !line.starts_with("via:") && !line.starts_with("x-forwarded-"));
    format!("{}\r\n\r\n{body}", lines.collect::<Vec<_>>().join("\r\n"))
}

pub async fn the_head_that_the_worker_gets_is_this_one(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.below(&stub, "/tenant-a").await;
    let request = "POST /v1/x?y=z HTTP/1.1\r\nHost: public.example\r\nConnection: keep-alive, X-Hop\r\n\
                   X-Hop: 1\r\nX-End: 2\r\nX-End: 3\r\nKeep-Alive: timeout=5\r\nTE: trailers, deflate\r\n\
                   Upgrade: websocket\r\nProxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\n\
                   Authorization: Bearer key\r\nContent-Type: application/octet-stream\r\n\
                   Content-Length: 3\r\n\r\nabc";
    let message = received(&stub, &gateway, request).await;
    let message = message.replace(&stub.address.to_string(), "worker");
    assert_eq!(
        sorted(&without_origin(&message)),
        "POST /tenant-a/v1/x?y=z HTTP/1.1\r\nauthorization: Bearer key\r\nconnection: te\r\n\
         content-length: 3\r\ncontent-type: application/octet-stream\r\nhost: worker\r\n\
         te: trailers\r\nx-end: 2\r\nx-end: 3\r\n\r\nabc"
    );
    let absolute = "GET http://other.example/v1/x HTTP/1.1\r\nHost: public.example\r\n\r\n";
    let message = received(&stub, &gateway, absolute).await;
    let message = message.replace(&stub.address.to_string(), "worker");
    assert_eq!(
        without_origin(&message),
        "GET /tenant-a/v1/x HTTP/1.1\r\nhost: worker\r\n\r\n"
    );
}

pub async fn the_method_the_path_and_the_query_arrive_as_they_were(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.below(&stub, "/base/").await;
    for (method, path) in [
        ("GET", "/v1/files/a%2Fb?limit=3&x=%20"),
        ("DELETE", "/v1/x"),
        ("POST", "/v1/embeddings?"),
        ("OPTIONS", "/v1/x//y/"),
        ("PURGE", "/v1/%C3%A9;a=b?../.."),
    ] {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: g\r\n\r\n");
        let message = received(&stub, &gateway, &request).await;
        let expected = format!("{method} /base{path} HTTP/1.1\r\n");
        assert!(message.starts_with(&expected), "{path}: {message}");
    }
}

pub async fn the_worker_is_told_through_whom(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let request = "GET /v1/x HTTP/1.1\r\nhost: g\r\nvia: 1.0 before\r\n\r\n";
    let message = received(&stub, &gateway, request).await;
    let all: Vec<_> = message
        .lines()
        .filter_map(|line| line.strip_prefix("via: "))
        .collect();
    let all = all.join(", ");
    let name = all.strip_prefix("1.0 before, 1.1 ").expect(&all);
    assert!(!name.is_empty() && !name.contains([' ', ',']), "{name}");

    let request = Request::get("http://g/v1/x").body(full("")).unwrap();
    let call = tokio::spawn(http2(gateway.address).await.send_request(request));
    let mut worker = stub.accept().await;
    let head = worker.read_head().await;
    worker.write(OK).await;
    call.await.unwrap().unwrap();
    assert_eq!(header(&head, "via"), Some(&*format!("2.0 {name}")));
}

/// Each has a rule of its own: one stands behind another proxy, one is at the
/// edge, and one does not say who the client is.
pub async fn the_worker_is_told_who_asks(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let request = "GET /v1/x HTTP/1.1\r\nhost: public.example\r\nx-forwarded-for: 203.0.113.9\r\n\
                   x-forwarded-proto: https\r\nforwarded: for=203.0.113.9\r\n\r\n";
    let head = received(&stub, &gateway, request).await;
    let names = [
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "forwarded",
    ];
    let told = names.map(|name| header(&head, name));
    let (client, claimed) = (Some("203.0.113.9"), Some("for=203.0.113.9"));
    let host = Some("public.example");
    let expected = match kind {
        Kind::Example => [client, Some("https"), None, claimed],
        Kind::Proxy => [Some("127.0.0.1"), Some("http"), host, None],
        Kind::Readme => [client, Some("https"), host, claimed],
    };
    assert_eq!(told, expected);
}

/// F2
pub async fn cookies_of_http2_are_joined(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let request = Request::get("http://g/v1/x")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(full(""))
        .unwrap();
    let call = tokio::spawn(http2(gateway.address).await.send_request(request));
    let mut worker = stub.accept().await;
    let head = worker.read_head().await;
    worker.write(OK).await;
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
    assert_eq!(header(&head, "cookie"), Some("a=1; b=2"));
    assert_eq!(head.matches("cookie").count(), 1);
}

pub async fn requests_over_http2_are_the_same(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let one = received(&stub, &gateway, &post("/v1/x?y", "body")).await;
    let request = Request::post("http://g/v1/x?y")
        .header("content-type", "application/octet-stream")
        .header("content-length", "4")
        .body(full("body"))
        .unwrap();
    let call = tokio::spawn(http2(gateway.address).await.send_request(request));
    let mut worker = stub.accept().await;
    let two = worker.read_message().await;
    worker.write(OK).await;
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.version(), http::Version::HTTP_2);
    assert_eq!(text(answer).await, "ok");
    let plain = |message| sorted(&without_origin(message));
    assert_eq!(plain(&two), plain(&one));
}

/// F3: nothing reaches the worker but the last one, which is good.
pub async fn paths_do_not_lead_out_of_the_base(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.below(&stub, "/tenant-a").await;
    for path in [
        "/v1/../../x",
        "/v1/..",
        "/v1/%2e%2e/x",
        "/v1/.%2E/x",
        "/v1/..%2fx",
        "/v1/%2E%2e%5cx",
        "/v1/x/..;a=b/y",
    ] {
        for method in ["GET", "POST", "OPTIONS"] {
            let request = format!("{method} {path} HTTP/1.1\r\nhost: g\r\n\r\n");
            let answer = gateway.sent(request).await.read_message().await;
            assert_eq!(status(&answer), 400, "{method} {path}: {answer}");
        }
        let request = Request::get(format!("http://g{path}")).body(full(""));
        let call = http2(gateway.address).await.send_request(request.unwrap());
        assert_eq!(call.await.unwrap().status(), 400, "{path}");
    }
    for path in ["/../v1/x", "*"] {
        let request = format!("OPTIONS {path} HTTP/1.1\r\nhost: g\r\n\r\n");
        let answer = gateway.sent(request).await.read_message().await;
        assert!([400, 404].contains(&status(&answer)), "{path}: {answer}");
    }
    let message = received(&stub, &gateway, &get("/v1/a..b/...")).await;
    assert!(message.starts_with("GET /tenant-a/v1/a..b/... HTTP/1.1\r\n"));
}

pub async fn tunnels_and_echoes_are_not_allowed(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    for request in [
        "CONNECT other.example:443 HTTP/1.1\r\nhost: other.example\r\n\r\n",
        "CONNECT /v1/x HTTP/1.1\r\nhost: g\r\n\r\n",
        "TRACE /v1/x HTTP/1.1\r\nhost: g\r\n\r\n",
        "GET /v1/x HTTP/1.1\r\nhost: g\r\nhost: h\r\n\r\n",
    ] {
        let answer = gateway.sent(request).await.read_head().await;
        assert!((400..500).contains(&status(&answer)), "{request}: {answer}");
    }
    received(&stub, &gateway, &get("/v1/good")).await;
}

pub async fn a_client_that_expects_a_go_ahead_gets_it(kind: Kind) {
    let stub = Stub::start().await;
    let gateway = kind.before(&stub).await;
    let head = post("/v1/x", "body").replace("host:", "expect: 100-continue\r\nhost:");
    let mut client = gateway.sent(head.strip_suffix("body").unwrap()).await;
    assert_eq!(client.read_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.write("body").await;
    let mut worker = stub.accept().await;
    let message = worker.read_message().await;
    assert_eq!(header(&message, "expect"), None);
    assert_eq!(body(&message), ("body".to_owned(), true));
    worker.write(OK).await;
    assert!(client.read_message().await.ends_with("ok"));
}

pub async fn a_request_that_is_framed_twice_is_framed_by_its_chunks(kind: Kind) {
    for lied in ["content-length: 3\r\n", "content-length: 30\r\n", ""] {
        let stub = Stub::start().await;
        let gateway = kind.before(&stub).await;
        let request = format!(
            "POST /v1/x HTTP/1.1\r\nhost: g\r\ncontent-type: application/octet-stream\r\n{lied}\
             transfer-encoding: chunked\r\n\r\n3\r\n012\r\n7\r\n3456789\r\n0\r\n\r\n"
        );
        let message = received(&stub, &gateway, &request).await;
        assert_eq!(body(&message), ("0123456789".to_owned(), true));
        let framed = ["content-length", "transfer-encoding"];
        let framed = framed.map(|name| header(&message, name).is_some());
        assert_ne!(framed[0], framed[1], "{message}");
    }
}

/// F7: all of it takes longer than the limit, which is on silence.
pub async fn a_slow_but_steady_upload_is_served(kind: Kind) {
    const PIECES: usize = 50;
    let stub = Stub::start().await;
    let limit = ["--body-silence-ms", "2000"];
    let gateway = kind.start(&[stub.url()], &limit).await;
    let piece = "x".repeat(1000);
    let whole = piece.repeat(PIECES);
    let head = post("/v1/x", &whole);
    let mut client = gateway.sent(head.strip_suffix(&whole).unwrap()).await;
    let upload = async {
        for _ in 0..PIECES {
            tokio::time::sleep(Duration::from_millis(50)).await;
            client.write(&piece).await;
        }
        client.read_message().await
    };
    let work = async {
        let mut worker = stub.accept().await;
        let message = worker.read_message().await;
        worker.write(OK).await;
        message
    };
    let (answer, message) = tokio::join!(upload, work);
    assert_eq!(status(&answer), 200, "{answer}");
    assert_eq!(body(&message), (whole, true));
}
