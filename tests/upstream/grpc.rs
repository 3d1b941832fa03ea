//! gRPC: a tonic client, a gateway, a tonic worker.

use crate::support::{Gateway, Stub};
use bytes::{Buf, BufMut, Bytes};
use futures::{Stream, StreamExt, channel::mpsc};
use http::{Request, uri::PathAndQuery};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use std::{convert::Infallible, net::SocketAddr, pin::Pin};
use tokio::{net::TcpListener, task::AbortHandle};
use tonic::{
    Code, Response, Status, Streaming,
    body::Body,
    client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::MetadataValue,
    server,
    transport::Channel,
};
use tower::service_fn;
use tower_overload::upstream::{HttpWorkerBuilder, Protocol};

/// Messages that are just bytes, so that no schema is needed.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// Sends back what comes, as it comes. `fail` ends the call, before any message
/// or after one; the metadata `x-asked` is sent back as well.
async fn echo(request: tonic::Request<Streaming<Bytes>>) -> Result<Response<Messages>, Status> {
    let asked = request.metadata().get("x-asked").cloned();
    let mut messages = request.into_inner();
    let first = messages.message().await?;
    if first.as_deref() == Some(b"fail") {
        return Err(Status::not_found("no such thing"));
    }
    let rest = messages.map(|message| match message {
        Ok(message) if message == "fail" => Err(Status::data_loss("in the middle")),
        other => other,
    });
    let first = futures::stream::iter(first.map(Ok));
    let mut response = Response::new(Box::pin(first.chain(rest)) as Messages);
    if let Some(asked) = asked {
        response.metadata_mut().insert("x-answered", asked);
    }
    Ok(response)
}

/// A worker, and a gateway in front of it.
struct System {
    gateway: Gateway,
    worker: AbortHandle,
}

impl System {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = gateway(listener.local_addr().unwrap()).await;
        let worker = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let service = service_fn(|request: Request<hyper::body::Incoming>| async {
                    let request = request.map(Body::new);
                    let mut grpc = server::Grpc::new(Raw);
                    Ok::<_, Infallible>(grpc.streaming(service_fn(echo), request).await)
                });
                connections.spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    let service = TowerToHyperService::new(service);
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self {
            gateway,
            worker: worker.abort_handle(),
        }
    }

    async fn client(&self) -> client::Grpc<Channel> {
        connect(self.gateway.address).await
    }
}

impl Drop for System {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

async fn gateway(worker: SocketAddr) -> Gateway {
    let builder = HttpWorkerBuilder::new().protocol(Protocol::Http2);
    Gateway::before(builder.build(&format!("http://{worker}")).unwrap()).await
}

async fn connect(address: SocketAddr) -> client::Grpc<Channel> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let mut client = client::Grpc::new(channel.connect().await.unwrap());
    client.ready().await.unwrap();
    client
}

fn path() -> PathAndQuery {
    PathAndQuery::from_static("/test.Echo/Echo")
}

fn message(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

async fn unary(system: &System, text: &'static str) -> Result<Response<Bytes>, Status> {
    let mut request = tonic::Request::new(message(text));
    request
        .metadata_mut()
        .insert("x-asked", MetadataValue::from_static("yes"));
    system.client().await.unary(request, path(), Raw).await
}

#[tokio::test]
async fn a_call_has_its_answer_its_metadata_and_its_trailers() {
    let system = System::start().await;
    for _ in 0..3 {
        let response = unary(&system, "hello").await.unwrap();
        assert_eq!(response.metadata().get("x-answered").unwrap(), "yes");
        assert_eq!(response.metadata().get("grpc-status").unwrap(), "0");
        assert_eq!(response.into_inner(), "hello");
    }
}

#[tokio::test]
async fn a_refusal_that_is_trailers_only_passes() {
    let system = System::start().await;
    let status = unary(&system, "fail").await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::NotFound, "no such thing")
    );
}

#[tokio::test]
async fn both_directions_stream_at_once() {
    let system = System::start().await;
    let (send, messages) = mpsc::unbounded();
    send.unbounded_send(message("0")).unwrap();
    let mut client = system.client().await;
    let call = client.streaming(tonic::Request::new(messages), path(), Raw);
    let mut answers = call.await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap(), "0");
    for text in ["1", "2", "3"] {
        // Each waits for the answer to the one before.
        send.unbounded_send(message(text)).unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap(), text);
    }
    drop(send);
    assert!(answers.message().await.unwrap().is_none());
    assert!(answers.trailers().await.unwrap().is_some());
}

#[tokio::test]
async fn a_stream_that_fails_says_how_in_its_trailers() {
    let system = System::start().await;
    let messages = futures::stream::iter([message("a"), message("fail")]);
    let mut client = system.client().await;
    let call = client.streaming(tonic::Request::new(messages), path(), Raw);
    let mut answers = call.await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap(), "a");
    let status = answers.message().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::DataLoss, "in the middle")
    );
}

#[tokio::test]
async fn a_worker_that_dies_in_the_middle_is_no_end() {
    let system = System::start().await;
    let (send, messages) = mpsc::unbounded();
    send.unbounded_send(message("0")).unwrap();
    let mut client = system.client().await;
    let call = client.streaming(tonic::Request::new(messages), path(), Raw);
    let mut answers = call.await.unwrap().into_inner();
    answers.message().await.unwrap();
    system.worker.abort();
    let status = answers.message().await.unwrap_err();
    assert_ne!(status.code(), Code::Ok);
}

#[tokio::test]
async fn a_worker_that_cannot_be_reached_or_resets_is_unavailable() {
    let stub = Stub::start().await;
    let gateway = gateway(stub.address).await;
    let call = |mut client: client::Grpc<Channel>| {
        tokio::spawn(async move {
            let request = tonic::Request::new(message("hello"));
            client.unary::<_, Bytes, _>(request, path(), Raw).await
        })
    };
    let reset = call(connect(gateway.address).await);
    let stream = stub.accept().await.into_stream();
    let mut worker = h2::server::handshake(stream).await.unwrap();
    let (_request, mut respond) = worker.accept().await.unwrap().unwrap();
    respond.send_reset(h2::Reason::INTERNAL_ERROR);
    let driver = tokio::spawn(async move { while worker.accept().await.is_some() {} });
    let status = reset.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    drop(stub);
    driver.abort();
    let _ = driver.await;
    let status = call(connect(gateway.address).await)
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test]
async fn the_worker_sees_that_a_call_was_given_up() {
    let stub = Stub::start().await;
    let gateway = gateway(stub.address).await;
    let mut client = connect(gateway.address).await;
    let (_send, messages) = mpsc::unbounded::<Bytes>();
    let call = tokio::spawn(async move {
        let request = tonic::Request::new(messages);
        client
            .streaming::<_, _, Bytes, _>(request, path(), Raw)
            .await
            .map(drop)
    });
    let stream = stub.accept().await.into_stream();
    let mut worker = h2::server::handshake(stream).await.unwrap();
    let (_request, mut respond): (_, h2::server::SendResponse<Bytes>) =
        worker.accept().await.unwrap().unwrap();
    let driver = tokio::spawn(async move { while worker.accept().await.is_some() {} });
    call.abort();
    let reason = std::future::poll_fn(|cx| respond.poll_reset(cx))
        .await
        .unwrap();
    assert_eq!(reason, h2::Reason::CANCEL);
    driver.abort();
}
