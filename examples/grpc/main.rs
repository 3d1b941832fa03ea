//! Speaks gRPC on both sides: a tonic client, a gateway, a tonic worker with one
//! slot.
//!
//! The same layers as for HTTP. A status layer answers a gRPC request with a
//! gRPC status, the pool takes RESOURCE_EXHAUSTED for a refusal, and `HttpWorker`
//! forwards over HTTP/2 with the trailers.
//!
//! ```console
//! $ cargo run --features upstream --example grpc
//! ```
//!
//! Messages are plain bytes here, in place of what is generated from a schema.

use bytes::{Buf, BufMut, Bytes};
use http::{Request, uri::PathAndQuery};
use std::{convert::Infallible, sync::Arc};
use tokio::{net::TcpListener, sync::Barrier};
use tonic::{
    Code, Response, Status,
    body::Body,
    client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server,
    transport::{Channel, Server, server::TcpIncoming},
};
use tower::{ServiceBuilder, service_fn};
use tower_overload::{
    BoxError, BusySet, EngineAdmissionLayer, OverloadStatusLayer, WorkerPool,
    busy::roster,
    upstream::{HttpWorkerBuilder, Protocol},
};

#[derive(Clone, Copy)]
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

/// Answers when it is told to, if the message is `hold`.
async fn generate(held: Arc<Barrier>, prompt: Bytes) -> Result<Response<Bytes>, Status> {
    if prompt == "hold" {
        held.wait().await;
        held.wait().await;
    }
    Ok(Response::new(Bytes::from("tokens")))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let held = Arc::new(Barrier::new(2));
    let engine = held.clone();
    let worker = ServiceBuilder::new()
        .layer(OverloadStatusLayer::new().infallible())
        .layer(EngineAdmissionLayer::new(1, 0)?)
        .service_fn(move |request: Request<Body>| {
            let held = engine.clone();
            let unary = service_fn(move |prompt: tonic::Request<Bytes>| {
                generate(held.clone(), prompt.into_inner())
            });
            async { Ok::<_, Infallible>(server::Grpc::new(Raw).unary(unary, request).await) }
        });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(Server::builder().serve_with_incoming(worker, TcpIncoming::from(listener)));

    let (workers, changes) = roster();
    let builder = HttpWorkerBuilder::new().protocol(Protocol::Http2);
    let id = "worker-0".to_owned();
    workers.insert(id.clone(), builder.build(&format!("http://{address}"))?);
    let status = OverloadStatusLayer::builder().default_retry_after_secs(1.5);
    let gateway = ServiceBuilder::new()
        .layer(status.build()?.infallible())
        .service(WorkerPool::<_, Request<Body>>::new(changes, BusySet::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(Server::builder().serve_with_incoming(gateway, TcpIncoming::from(listener)));

    let channel = Channel::from_shared(format!("http://{address}"))?
        .connect()
        .await?;
    let call = async |prompt: &'static str| {
        let mut client = client::Grpc::new(channel.clone());
        client
            .ready()
            .await
            .map_err(|error| Status::unknown(error.to_string()))?;
        let path = PathAndQuery::from_static("/example.Engine/Generate");
        let request = tonic::Request::new(Bytes::from(prompt));
        let response = client.unary(request, path, Raw).await?;
        Ok::<Bytes, Status>(response.into_inner())
    };

    let refused = async {
        held.wait().await;
        let refused = call("one more").await;
        held.wait().await;
        refused
    };
    let (first, refused) = tokio::join!(call("hold"), refused);
    assert_eq!(first?, "tokens");
    let refused = refused.err().ok_or("the slot was in use")?;
    println!("while the slot is in use: {refused}");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.metadata().contains_key("grpc-retry-pushback-ms"));

    // The end of the first call has ended the worker's lease.
    assert_eq!(call("again").await?, "tokens");

    workers.remove(&id);
    let nobody = call("nobody").await.err().ok_or("nobody is there")?;
    println!("without a worker: {nobody}");
    assert_eq!(nobody.code(), Code::Unavailable);
    Ok(())
}
