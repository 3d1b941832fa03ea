//! What of a message goes on, on the wire.

use crate::support::{
    Connection, Gateway, Stub, full, get, header, post, sorted, spawn_call, text,
};
use http::{HeaderValue, Request, Version};
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_overload::upstream::{
    HttpWorker, HttpWorkerBuilder, Protocol,
    forward::{Client, Forwarding, XForwarded},
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn quiet() -> HttpWorkerBuilder {
    let rules = Forwarding::new()
        .without_via()
        .x_forwarded(XForwarded::Pass);
    HttpWorkerBuilder::new().forwarding(rules)
}

/// What the worker gets of what a client writes.
async fn through(builder: HttpWorkerBuilder, path: &str, request: &str) -> String {
    let stub = Stub::start().await;
    let url = format!("{}{path}", stub.url());
    let gateway = Gateway::before(builder.build(&url).unwrap()).await;
    let mut client = Connection::to(gateway.address).await;
    client.write(request).await;
    let mut worker = stub.accept().await;
    let message = worker.read_message().await;
    worker.write(OK).await;
    let answer = client.read_message().await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    message.replace(&stub.address.to_string(), "worker")
}

#[tokio::test]
async fn the_head_that_the_worker_gets_is_this_one() {
    let request = "POST /v1/x?y=z HTTP/1.1\r\nHost: public.example\r\nConnection: keep-alive, X-Hop\r\n\
                   X-Hop: 1\r\nX-End: 2\r\nX-End: 3\r\nKeep-Alive: timeout=5\r\nTE: trailers, deflate\r\n\
                   Upgrade: websocket\r\nProxy-Authorization: Basic x\r\n\
                   Authorization: Bearer key\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(
        sorted(&through(quiet(), "/tenant-a", request).await),
        "POST /tenant-a/v1/x?y=z HTTP/1.1\r\nauthorization: Bearer key\r\nconnection: te\r\n\
         content-length: 3\r\nhost: worker\r\nte: trailers\r\nx-end: 2\r\nx-end: 3\r\n\r\nabc"
    );
    let absolute = "GET http://other.example/v1/models HTTP/1.1\r\nHost: public.example\r\n\r\n";
    assert_eq!(
        through(quiet(), "", absolute).await,
        "GET /v1/models HTTP/1.1\r\nhost: worker\r\n\r\n"
    );
    let options = "OPTIONS * HTTP/1.1\r\nHost: public.example\r\n\r\n";
    let options = through(quiet(), "", options).await;
    assert!(options.starts_with("OPTIONS * HTTP/1.1\r\n"), "{options}");
}

#[tokio::test]
async fn the_worker_is_told_who_asks_and_through_whom() {
    let stub = Stub::start().await;
    let rules = Forwarding::new()
        .via("gate-1")
        .unwrap()
        .x_forwarded(XForwarded::Replace);
    let worker = HttpWorkerBuilder::new()
        .forwarding(rules)
        .build(&stub.url())
        .unwrap();
    let mut request = get("/");
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = "https://public.example/".parse().unwrap();
    let client = Client::new("203.0.113.7".parse().unwrap()).https(true);
    request.extensions_mut().insert(client);
    let call = spawn_call(&worker, request);
    let mut connection = stub.accept().await;
    let head = connection.read_head().await;
    connection.write(OK).await;
    call.await.unwrap().unwrap();
    for (name, value) in [
        ("via", "2.0 gate-1"),
        ("x-forwarded-for", "203.0.113.7"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "public.example"),
    ] {
        assert_eq!(header(&head, name), Some(value));
    }
}

#[tokio::test]
async fn the_head_that_the_client_gets_is_this_one() {
    let stub = Stub::start().await;
    let gateway = Gateway::before(stub.worker()).await;
    let mut client = Connection::to(gateway.address).await;
    client.write("GET / HTTP/1.1\r\nhost: g\r\n\r\n").await;
    let mut worker = stub.accept().await;
    worker.read_head().await;
    worker
        .write(
            "HTTP/1.1 218 This Is Fine\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n\
             Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\n\
             Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nDate: now\r\nServer: engine\r\n\
             Content-Length: 2, 2\r\n\r\nok",
        )
        .await;
    assert_eq!(
        sorted(&client.read_message().await),
        "HTTP/1.1 218 This Is Fine\r\ncontent-length: 2\r\ndate: now\r\nserver: engine\r\n\
         set-cookie: a=1\r\nset-cookie: b=2\r\nx-end: 2\r\n\r\nok"
    );
}

/// F2
#[tokio::test]
async fn cookies_of_http2_are_joined() {
    let stub = Stub::start().await;
    let gateway = Gateway::before(stub.worker()).await;
    let request = Request::get("http://g/")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(full(""))
        .unwrap();
    let mut client = crate::support::http2(gateway.address).await;
    let call = tokio::spawn(client.send_request(request));
    let mut worker = stub.accept().await;
    let head = worker.read_head().await;
    worker.write(OK).await;
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
    assert_eq!(header(&head, "cookie"), Some("a=1; b=2"));
    assert_eq!(head.matches("cookie").count(), 1);
}

/// F3
#[tokio::test]
async fn paths_do_not_lead_out_of_the_base() {
    let stub = Stub::start().await;
    let worker = quiet().build(&format!("{}/tenant-a", stub.url())).unwrap();
    let gateway = Gateway::before(worker).await;
    for path in [
        "/v1/../../x",
        "/v1/%2e%2e/x",
        "/v1/..%2fx",
        "/v1/%2E%2e%5cx",
        "/..",
        "*",
    ] {
        let mut client = Connection::to(gateway.address).await;
        client
            .write(format!("OPTIONS {path} HTTP/1.1\r\nhost: g\r\n\r\n"))
            .await;
        let answer = client.read_message().await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{path}: {answer}");
    }
    assert!(stub.is_quiet().await);
}

/// F4: a gateway whose worker is the gateway itself.
#[tokio::test]
async fn a_loop_ends_at_the_first_turn() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let worker = HttpWorkerBuilder::new().build(&url).unwrap();
    let gateway = Gateway::on(listener, worker);
    let mut client = Connection::to(gateway.address).await;
    client
        .write("GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n")
        .await;
    let answer = client.read_message().await;
    assert!(answer.starts_with("HTTP/1.1 508 "), "{answer}");
    assert_eq!(gateway.connections(), 2, "the client's, and the one turn");
}

/// F8: no worker can switch protocols.
#[tokio::test]
async fn a_switch_of_protocols_is_a_bad_gateway() {
    let stub = Stub::start().await;
    let gateway = Gateway::before(stub.worker()).await;
    let mut client = Connection::to(gateway.address).await;
    client
        .write("GET / HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await;
    let mut worker = stub.accept().await;
    let head = worker.read_head().await;
    assert_eq!(header(&head, "upgrade"), None);
    worker
        .write(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        )
        .await;
    let answer = client.read_message().await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(worker.read_to_end().await, "", "it is closed");
}

#[tokio::test]
async fn a_client_that_expects_a_go_ahead_gets_it() {
    let stub = Stub::start().await;
    let gateway = Gateway::before(stub.worker()).await;
    let mut client = Connection::to(gateway.address).await;
    client
        .write("POST / HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n")
        .await;
    assert_eq!(client.read_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.write("body").await;
    let mut worker = stub.accept().await;
    let message = worker.read_message().await;
    assert_eq!(header(&message, "expect"), None);
    assert!(message.ends_with("\r\n\r\nbody"));
    worker.write(OK).await;
    assert!(client.read_message().await.ends_with("ok"));
}

#[tokio::test]
async fn a_worker_has_headers_of_its_own() {
    let builder = quiet()
        .header("authorization", HeaderValue::from_static("Bearer worker"))
        .header("x-tenant", HeaderValue::from_static("a"));
    let request = "GET / HTTP/1.1\r\nhost: g\r\nauthorization: Bearer client\r\n\r\n";
    let head = through(builder, "", request).await;
    assert_eq!(header(&head, "authorization"), Some("Bearer worker"));
    assert_eq!(header(&head, "x-tenant"), Some("a"));
    assert!(!head.contains("client"));
    for name in [
        "host",
        "Connection",
        "content-length",
        "te",
        "not a name",
        "",
    ] {
        let builder = quiet().header(name, HeaderValue::from_static("x"));
        let error = builder.build("http://w").unwrap_err().to_string();
        assert!(error.contains("header of a worker"), "{error}");
    }
}

fn aliased(stub: &Stub, limit: usize) -> HttpWorker {
    let builder = quiet()
        .alias("public", "own/name")
        .alias("other", "another");
    builder.alias_limit(limit).build(&stub.url()).unwrap()
}

#[tokio::test]
async fn a_model_has_another_name_at_the_worker() {
    let stub = Stub::start().await;
    let worker = aliased(&stub, 1024);
    let mut connection = None;
    for (content_type, encoding, body, sent) in [
        (
            "application/json",
            None,
            r#"{"model": "public"}"#,
            r#"{"model": "own/name"}"#,
        ),
        (
            "application/json",
            None,
            r#"{"model":"other"}"#,
            r#"{"model":"another"}"#,
        ),
        (
            "application/json",
            None,
            r#"{"model":"third"}"#,
            r#"{"model":"third"}"#,
        ),
        ("text/plain", None, "public", "public"),
        ("application/json", None, "", ""),
        (
            "multipart/form-data; boundary=x",
            None,
            r#"{"model":"public"}"#,
            r#"{"model":"public"}"#,
        ),
        (
            "application/json",
            Some("gzip"),
            r#"{"model":"public"}"#,
            r#"{"model":"public"}"#,
        ),
    ] {
        let mut request = post("/v1/completions", body);
        let headers = request.headers_mut();
        headers.insert("content-type", HeaderValue::from_static(content_type));
        headers.insert("content-length", HeaderValue::from(body.len()));
        if let Some(encoding) = encoding {
            headers.insert("content-encoding", HeaderValue::from_static(encoding));
        }
        let call = spawn_call(&worker, request);
        let connection = match &mut connection {
            Some(connection) => connection,
            none => none.insert(stub.accept().await),
        };
        let message = connection.read_message().await;
        connection.write(OK).await;
        text(call.await.unwrap().unwrap()).await;
        let length = sent.len().to_string();
        assert_eq!(header(&message, "content-length"), Some(&*length), "{body}");
        assert!(message.ends_with(&format!("\r\n\r\n{sent}")), "{message}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_for_an_alias_is_refused() {
    let stub = Stub::start().await;
    let worker = aliased(&stub, 20);
    let response = worker.oneshot(post("/", vec![b' '; 21])).await.unwrap();
    assert_eq!(response.status(), 413);
    assert!(stub.is_quiet().await);
}

/// Each version to each version: the same request arrives.
#[tokio::test]
async fn versions_do_not_show() {
    let app = axum::Router::new().fallback(|request: axum::extract::Request| async move {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1024).await.unwrap();
        let host = parts.uri.authority().map(ToString::to_string);
        let host = host.or_else(|| Some(parts.headers.get("host")?.to_str().ok()?.into()));
        let mut headers = parts.headers;
        headers.remove("host");
        let body = String::from_utf8_lossy(&body).into_owned();
        format!("{} {} {headers:?} {body}", host.unwrap(), parts.uri.path())
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut seen = Vec::new();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let worker = quiet()
            .protocol(protocol)
            .build(&format!("http://{address}/base"))
            .unwrap();
        let gateway = Gateway::before(worker).await;
        for path in ["/a", "/b/"] {
            let request = Request::post(format!("http://g{path}")).header("x-a", "b");
            let mut client = crate::support::http2(gateway.address).await;
            let call = client.send_request(request.body(full("body")).unwrap());
            let two = text(call.await.unwrap()).await;
            let mut client = Connection::to(gateway.address).await;
            client
                .write(format!(
                    "POST {path} HTTP/1.1\r\nhost: g\r\nx-a: b\r\ncontent-length: 4\r\n\r\nbody"
                ))
                .await;
            let one = client.read_message().await;
            assert!(one.ends_with(&two), "{one} {two}");
            assert!(two.contains(&format!("{address} /base{path} ")), "{two}");
            seen.push(two);
        }
    }
    assert_eq!(seen[..2], seen[2..]);
}
