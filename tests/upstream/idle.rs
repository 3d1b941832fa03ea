//! Connections that nobody uses: kept, noticed when they are gone, closed.

use crate::proxies::{Programs, Proxy};
use crate::support::{Connection, Serving, Stub, get, post, spawn_call, text};
use futures::stream;
use http::{Method, Request};
use http_body_util::{BodyExt, StreamBody};
use std::time::Duration;
use tower_overload::upstream::{HttpWorker, HttpWorkerBuilder};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Sends a request on a connection that the worker has, answers it, and reads
/// the answer.
async fn exchange(worker: &HttpWorker, connection: &mut Connection, answer: &[u8]) {
    let call = spawn_call(worker, get("/"));
    connection.read_head().await;
    connection.write(answer).await;
    call.await
        .unwrap()
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap();
}

async fn first(stub: &Stub, worker: &HttpWorker, answer: &[u8]) -> Connection {
    let call = spawn_call(worker, get("/"));
    let mut connection = stub.accept().await;
    connection.read_head().await;
    connection.write(answer).await;
    call.await
        .unwrap()
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap();
    connection
}

#[tokio::test]
async fn a_connection_is_used_again_after_each_kind_of_end() {
    let stub = Stub::start().await;
    let worker = stub.worker();
    let mut connection = first(&stub, &worker, OK).await;
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-a: b\r\n\r\n",
    ] {
        exchange(&worker, &mut connection, answer.as_bytes()).await;
    }
    let head = Request::builder()
        .method(Method::HEAD)
        .uri("/")
        .body(crate::support::full(""));
    let call = spawn_call(&worker, head.unwrap());
    connection.read_head().await;
    connection
        .write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
        .await;
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.headers()["content-length"], "9");
    drop(response);
    exchange(&worker, &mut connection, OK).await;
    assert!(stub.is_quiet().await);
}

#[tokio::test]
async fn a_connection_that_has_more_to_say_is_not_used_again() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nkeep-alive: timeout=1\r\n\r\nok",
        // One answer too many, as an attacker would have it.
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
    ] {
        let stub = Stub::start().await;
        let worker = stub.worker();
        let mut old = first(&stub, &worker, answer.as_bytes()).await;
        first(&stub, &worker, OK).await;
        assert_eq!(old.read_to_end().await, "", "{answer}");
    }
}

#[tokio::test]
async fn what_was_closed_while_it_was_idle_is_noticed() {
    for farewell in [
        "",
        "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n",
    ] {
        let stub = Stub::start().await;
        let worker = stub.worker();
        let mut old = first(&stub, &worker, OK).await;
        // The runtime has had no occasion to tell the connection's task.
        old.write(farewell).await;
        old.close_writing();
        let call = spawn_call(&worker, get("/"));
        let mut new = stub.accept().await;
        new.read_head().await;
        new.write(OK).await;
        assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
        assert_eq!(old.read_to_end().await, "", "nothing was sent there");
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_time() {
    let stub = Stub::start().await;
    let builder = HttpWorkerBuilder::new().idle_limit(Duration::from_millis(10));
    let worker = builder.build(&stub.url()).unwrap();
    let mut connection = first(&stub, &worker, OK).await;
    assert_eq!(connection.read_to_end().await, "");
    // And so it is when the worker is gone.
    let worker = stub.worker();
    let mut connection = first(&stub, &worker, OK).await;
    drop(worker);
    assert_eq!(connection.read_to_end().await, "");
}

#[tokio::test]
async fn no_more_connections_are_kept_than_may_be() {
    for max_idle in [0, 1, 2] {
        let stub = Stub::start().await;
        let worker = HttpWorkerBuilder::new()
            .max_idle(max_idle)
            .build(&stub.url())
            .unwrap();
        let mut connections = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let call = spawn_call(&worker, get("/"));
            let mut connection = stub.accept().await;
            connection.read_head().await;
            connection.write(OK).await;
            connections.push(connection);
            answers.push(call.await.unwrap().unwrap());
        }
        for answer in answers {
            text(answer).await;
        }
        // The oldest go first.
        let kept = connections.split_off(3 - max_idle);
        for mut connection in connections {
            assert_eq!(connection.read_to_end().await, "");
        }
        for mut connection in kept.into_iter().rev() {
            let call = spawn_call(&worker, get("/"));
            connection.read_head().await;
            connection
                .write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                .await;
            assert_eq!(text(call.await.unwrap().unwrap()).await, "");
        }
    }
}

#[tokio::test]
async fn what_is_dropped_before_its_end_closes_its_connection() {
    let stub = Stub::start().await;
    let worker = stub.worker();
    let call = spawn_call(&worker, get("/"));
    let mut connection = stub.accept().await;
    connection.read_head().await;
    call.abort();
    assert_eq!(connection.read_to_end().await, "", "before the head");

    let call = spawn_call(&worker, get("/"));
    let mut connection = stub.accept().await;
    connection.read_head().await;
    connection
        .write("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc")
        .await;
    let mut body = call.await.unwrap().unwrap().into_body();
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_data().unwrap(),
        "abc"
    );
    drop(body);
    assert_eq!(
        connection.read_to_end().await,
        "",
        "in the middle of the body"
    );

    // And so does what was answered before all of it was sent.
    let endless = StreamBody::new(stream::pending()).boxed_unsync();
    let call = spawn_call(&worker, Request::post("/").body(endless).unwrap());
    let mut connection = stub.accept().await;
    connection.read_head().await;
    connection.write(OK).await;
    assert_eq!(text(call.await.unwrap().unwrap()).await, "ok");
    assert_eq!(connection.read_to_end().await, "", "the request has no end");
}

/// A worker outlives the runtime that it was first used in.
#[test]
fn a_worker_is_used_in_one_runtime_after_another() {
    let server = tokio::runtime::Runtime::new().unwrap();
    let stub = server.block_on(Stub::start());
    let builder = HttpWorkerBuilder::new().idle_limit(Duration::from_millis(10));
    let worker = builder.build(&stub.url()).unwrap();
    for closes in [false, true] {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(async {
            let mut connection = first(&stub, &worker, OK).await;
            // The first one ends before it could close what is idle.
            if closes {
                assert_eq!(connection.read_to_end().await, "");
            }
        });
    }
}

/// A server that closes idle connections does so at the moment when 60 clients
/// come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_clients_of_a_server_that_closes_idle_connections_never_fail() {
    const CLIENTS: usize = 60;
    const ROUNDS: usize = 40;
    let server = Closing::start().await;
    let url = format!("http://{}", server.serving.address);
    // Longer than the server's, so that it is always the server that closes.
    let builder = HttpWorkerBuilder::new().idle_limit(Duration::from_secs(3600));
    let worker = builder.build(&url).unwrap();
    for round in 0..ROUNDS {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| match n % 2 {
                0 => spawn_call(&worker, get("/")),
                _ => spawn_call(&worker, post("/", format!("{n}"))),
            })
            .collect();
        server.close_idle();
        for client in clients {
            let answer = client.await.unwrap();
            let answer = answer.unwrap_or_else(|fault| panic!("round {round}: {fault:?}"));
            assert_eq!(answer.status(), 200);
            assert_eq!(text(answer).await, "ok");
        }
    }
    assert!(
        server.connections() > CLIENTS,
        "it has closed some: {}",
        server.connections()
    );
}

/// The same with nginx, which does so by its own clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_clients_of_nginx_come_back_when_it_closes_and_never_fail() {
    let Some(programs) = Programs::find() else {
        return;
    };
    let nginx = Proxy::nginx_that_closes(&programs).await;
    let builder = HttpWorkerBuilder::new().idle_limit(Duration::from_secs(3600));
    let worker = builder.build(&format!("http://{}", nginx.address)).unwrap();
    let clients: Vec<_> = (0..60_u64)
        .map(|n| {
            let worker = worker.clone();
            tokio::spawn(async move {
                for round in 0..4 {
                    let answer = spawn_call(&worker, post("/", format!("{n}")))
                        .await
                        .unwrap();
                    let answer = answer.unwrap_or_else(|fault| panic!("{n} {round}: {fault:?}"));
                    assert_eq!(text(answer).await, "ok");
                    // Around the moment, each at one of its own.
                    tokio::time::sleep(Duration::from_millis(970 + n)).await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

/// A real server, which can be told that all idle connections have been so
/// for too long.
struct Closing {
    serving: Serving,
    close: tokio::sync::watch::Sender<u32>,
    connections: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl Closing {
    async fn start() -> Self {
        use hyper_util::rt::TokioIo;
        use std::sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (close, closed) = tokio::sync::watch::channel(0);
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = connections.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Relaxed);
                let mut closed = closed.clone();
                closed.mark_unchanged();
                tokio::spawn(async move {
                    // No server closes a connection that has yet to be used.
                    let is_used = AtomicBool::new(false);
                    let service = hyper::service::service_fn(
                        |request: Request<hyper::body::Incoming>| async {
                            is_used.store(true, Relaxed);
                            request.into_body().collect().await?;
                            Ok::<_, hyper::Error>(http::Response::new("ok".to_owned()))
                        },
                    );
                    let connection = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    let mut connection = std::pin::pin!(connection);
                    loop {
                        tokio::select! {
                            _ = connection.as_mut() => return,
                            _ = closed.changed() => {
                                if is_used.load(Relaxed) {
                                    connection.as_mut().graceful_shutdown();
                                    break;
                                }
                            }
                        }
                    }
                    let _ = connection.await;
                });
            }
        });
        Self {
            serving: Serving::of(address, task.abort_handle()),
            close,
            connections,
        }
    }

    fn close_idle(&self) {
        self.close.send_modify(|round| *round += 1);
    }

    fn connections(&self) -> usize {
        self.connections.load(std::sync::atomic::Ordering::Relaxed)
    }
}
