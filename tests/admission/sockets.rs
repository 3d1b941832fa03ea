//! Clients that disconnect, over real sockets.

use crate::support::*;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use std::{convert::Infallible, net::SocketAddr};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceExt, service_fn};
use tower_overload::{
    ServiceOverloaded,
    admission::{AdmissionHandle, EngineAdmissionLayer},
};

#[derive(Clone, Copy, Debug)]
enum Protocol {
    Http1,
    Http2,
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// A worker on a port of its own. Its refusals are answered with 529.
async fn serve(slots: usize, queue: usize) -> (SocketAddr, Engine, AdmissionHandle) {
    let engine = Engine::default();
    let layer = EngineAdmissionLayer::new(slots, queue).unwrap();
    let worker = layer.layer(engine.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let worker = worker.clone();
        async move {
            match worker.oneshot(request).await {
                Ok(response) => {
                    Ok(response.map(|body| body.map_err(std::io::Error::other).boxed_unsync()))
                }
                Err(error) => {
                    assert!(ServiceOverloaded::find_in(&*error).is_some());
                    let body = Full::<Bytes>::default().map_err(|never| match never {});
                    let mut response = Response::new(body.boxed_unsync());
                    *response.status_mut() = StatusCode::from_u16(529).unwrap();
                    Ok::<_, Infallible>(response)
                }
            }
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                // An error says that the client has gone, which is the point.
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (address, engine, layer.handle().unwrap())
}

/// One request on a connection of its own; aborting it disconnects.
struct Client(
    tokio::task::JoinSet<()>,
    tokio::sync::mpsc::UnboundedReceiver<Event>,
);

#[derive(Debug, PartialEq)]
enum Event {
    Head(StatusCode),
    Frame(Bytes),
    End,
}

impl Client {
    async fn send(address: SocketAddr, protocol: Protocol, id: u64) -> Self {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (events, received) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        let request = Request::get(format!("http://worker/{id}"))
            .header("host", "worker")
            .body(Empty::<Bytes>::new())
            .unwrap();
        match protocol {
            Protocol::Http1 => {
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(stream).await.unwrap();
                tasks.spawn(async move { drop(connection.await) });
                tasks.spawn(async move { read(sender.send_request(request).await, events).await });
            }
            Protocol::Http2 => {
                let executor = TokioExecutor::new();
                let (mut sender, connection) =
                    hyper::client::conn::http2::handshake(executor, stream)
                        .await
                        .unwrap();
                tasks.spawn(async move { drop(connection.await) });
                tasks.spawn(async move { read(sender.send_request(request).await, events).await });
            }
        }
        Self(tasks, received)
    }

    async fn event(&mut self) -> Event {
        self.1.recv().await.expect("the server answers")
    }

    async fn disconnect(mut self) {
        self.0.shutdown().await;
    }
}

async fn read(
    response: hyper::Result<Response<Incoming>>,
    events: tokio::sync::mpsc::UnboundedSender<Event>,
) {
    let Ok(response) = response else { return };
    let _ = events.send(Event::Head(response.status()));
    let mut body = response.into_body();
    while let Some(Ok(frame)) = body.frame().await {
        // HTTP/2 may end a body with a frame that is empty.
        match frame.into_data() {
            Ok(data) if !data.is_empty() => drop(events.send(Event::Frame(data))),
            _ => {}
        }
    }
    let _ = events.send(Event::End);
    // Keeps the connection until it is told to disconnect.
    std::future::pending::<()>().await;
}

/// Waits until the server has noticed.
async fn until(what: impl Fn() -> bool) {
    let noticed = async {
        while !what() {
            tokio::task::yield_now().await;
        }
    };
    let limit = std::time::Duration::from_secs(60);
    tokio::time::timeout(limit, noticed)
        .await
        .expect("the server never notices");
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_makes_room_in_it() {
    for protocol in PROTOCOLS {
        let (address, engine, handle) = serve(1, 1).await;
        let _running = Client::send(address, protocol, 1).await;
        until(|| counts(&handle) == (1, 0)).await;
        let queued = Client::send(address, protocol, 2).await;
        until(|| counts(&handle) == (1, 1)).await;
        let mut refused = Client::send(address, protocol, 3).await;
        assert_eq!(
            refused.event().await,
            Event::Head(StatusCode::from_u16(529).unwrap())
        );
        queued.disconnect().await;
        until(|| counts(&handle) == (1, 0)).await;
        let _queued = Client::send(address, protocol, 4).await;
        until(|| counts(&handle) == (1, 1)).await;
        assert_eq!(engine.most(), 1);
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_head_frees_the_slot_for_the_next() {
    for protocol in PROTOCOLS {
        let (address, engine, handle) = serve(1, 1).await;
        let running = Client::send(address, protocol, 1).await;
        until(|| counts(&handle) == (1, 0)).await;
        let mut next = Client::send(address, protocol, 2).await;
        until(|| counts(&handle) == (1, 1)).await;
        running.disconnect().await;
        until(|| counts(&handle) == (1, 0)).await;
        until(|| engine.inside() == 1).await;
        assert!(engine.next().is_cancelled());
        let mut second = engine.next();
        assert_eq!(second.id, 2);
        second.token("token");
        assert_eq!(next.event().await, Event::Head(StatusCode::OK));
        assert_eq!(next.event().await, Event::Frame("token".into()));
        assert_eq!(engine.most(), 1);
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_the_body_frees_the_slot() {
    for protocol in PROTOCOLS {
        let (address, engine, handle) = serve(1, 1).await;
        let mut reading = Client::send(address, protocol, 1).await;
        until(|| engine.inside() == 1).await;
        let mut running = engine.next();
        running.token("token");
        assert_eq!(reading.event().await, Event::Head(StatusCode::OK));
        assert_eq!(reading.event().await, Event::Frame("token".into()));
        assert_eq!(counts(&handle), (1, 0));
        reading.disconnect().await;
        until(|| counts(&handle) == (0, 0)).await;
        assert!(running.is_cancelled());
    }
}

#[tokio::test]
async fn after_the_last_byte_the_slot_is_free_and_a_disconnect_changes_nothing() {
    for protocol in PROTOCOLS {
        let (address, engine, handle) = serve(1, 1).await;
        let mut reading = Client::send(address, protocol, 1).await;
        until(|| engine.inside() == 1).await;
        let mut running = engine.next();
        running.token("token");
        running.end();
        assert_eq!(reading.event().await, Event::Head(StatusCode::OK));
        assert_eq!(reading.event().await, Event::Frame("token".into()));
        assert_eq!(reading.event().await, Event::End);
        until(|| counts(&handle) == (0, 0)).await;
        let _next = Client::send(address, protocol, 2).await;
        until(|| counts(&handle) == (1, 0)).await;
        reading.disconnect().await;
        let _waiting = Client::send(address, protocol, 3).await;
        until(|| counts(&handle) == (1, 1)).await;
    }
}
