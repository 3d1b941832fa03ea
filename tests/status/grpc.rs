//! A tonic client against a tonic server.

use crate::support::{self, *};
use bytes::{Buf, BufMut, Bytes};
use http::{Request, Version, uri::PathAndQuery};
use http_body::Body as _;
use std::{convert::Infallible, error::Error, net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tonic::{
    Code, Status,
    body::Body,
    client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server,
    transport::{Channel, Server, server::TcpIncoming},
};
use tower::{BoxError, Layer, ServiceBuilder, service_fn};
use tower_overload::{Limit, LimitPassed, OverloadStatusLayer, ServiceOverloaded, Unreachable};

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

/// Serves an echo that fails with `error` beneath the layer if there is one.
async fn serve_echo<E>(layer: OverloadStatusLayer, error: Option<E>) -> SocketAddr
where
    E: Into<BoxError> + Clone + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let echo = service_fn(|request: Request<Body>| async {
        let echo = service_fn(|request: tonic::Request<Bytes>| async {
            Ok::<_, Status>(tonic::Response::new(request.into_inner()))
        });
        Ok::<_, Infallible>(server::Grpc::new(Raw).unary(echo, request).await)
    });
    let service = ServiceBuilder::new()
        .filter(move |request| match error.clone() {
            Some(error) => Err(error.into()),
            None => Ok::<Request<Body>, BoxError>(request),
        })
        .service(echo);
    let server = Server::builder().layer(layer);
    tokio::spawn(server.serve_with_incoming(service, TcpIncoming::from(listener)));
    address
}

async fn connect(address: SocketAddr) -> client::Grpc<Channel> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let mut client = client::Grpc::new(channel.connect().await.unwrap());
    client.ready().await.unwrap();
    client
}

const ECHO: &str = "/test.Echo/Echo";

async fn call(address: SocketAddr) -> Result<Bytes, Status> {
    let request = tonic::Request::new(Bytes::from_static(b"hello"));
    let path = PathAndQuery::from_static(ECHO);
    let response = connect(address).await.unary(request, path, Raw).await?;
    Ok(response.into_inner())
}

async fn refusal(
    layer: OverloadStatusLayer,
    error: impl Into<BoxError> + Clone + Send + 'static,
) -> Status {
    call(serve_echo(layer, Some(error)).await)
        .await
        .unwrap_err()
}

fn metadata<'a>(status: &'a Status, name: &str) -> Option<&'a str> {
    status
        .metadata()
        .get(name)
        .map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_call_that_is_not_refused_succeeds() {
    let address = serve_echo(layer(), None::<ServiceOverloaded>).await;
    assert_eq!(call(address).await.unwrap(), "hello");
}

#[tokio::test]
async fn an_overload_is_resource_exhausted() {
    let status = refusal(layer(), BUSY).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "Service temporarily overloaded");
    assert_eq!(
        metadata(&status, "x-overload-reason"),
        Some("all_workers_busy")
    );
    assert_eq!(metadata(&status, "grpc-retry-pushback-ms"), None);
}

#[tokio::test]
async fn no_worker_is_unavailable() {
    let status = refusal(layer(), NO_WORKERS).await;
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "Service temporarily unavailable");
}

#[tokio::test]
async fn a_worker_that_does_not_answer_is_unavailable() {
    let passed = LimitPassed::new(Limit::Head, Duration::from_secs(60));
    let errors: [(BoxError, _); 2] = [
        (Unreachable::new("refused").into(), "none_reachable"),
        (passed.into(), "worker_timeout"),
    ];
    for (error, reason) in errors {
        let status = refusal(layer(), Arc::<dyn Error + Send + Sync>::from(error)).await;
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), "Service temporarily unavailable");
        assert_eq!(metadata(&status, "x-overload-reason"), Some(reason));
    }
}

#[tokio::test]
async fn the_delay_is_a_pushback_in_milliseconds() {
    let layer = builder().default_retry_after_secs(1.5).build().unwrap();
    let status = refusal(layer.clone(), BUSY).await;
    assert_eq!(metadata(&status, "grpc-retry-pushback-ms"), Some("1500"));
    assert_eq!(metadata(&status, "retry-after"), None);

    let known = BUSY.with_retry_after(Some(Duration::MAX));
    let status = refusal(layer, known).await;
    assert_eq!(
        metadata(&status, "grpc-retry-pushback-ms"),
        Some("2147483647")
    );
}

#[tokio::test]
async fn codes_are_configurable_and_any_message_survives() {
    let message = "100 % busy\r\nbitte später — 請稍候 \u{0}";
    let layer = builder()
        .grpc_codes(14, 4)
        .overloaded_message(message)
        .build()
        .unwrap();
    let status = refusal(layer.clone(), BUSY).await;
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), message);
    let status = refusal(layer, NO_WORKERS).await;
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_streaming_call_is_refused_before_its_first_message() {
    let address = serve_echo(layer(), Some(BUSY)).await;
    let request = tonic::Request::new(futures::stream::iter([Bytes::from_static(b"a")]));
    let path = PathAndQuery::from_static(ECHO);
    let refused = connect(address).await.streaming(request, path, Raw).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn the_answer_is_trailers_only_in_the_content_type_of_the_request() {
    let address = serve(layer().infallible().layer(failing(BUSY))).await;
    let request = Request::post(format!("http://{address}{ECHO}"))
        .header("content-type", "application/grpc+proto")
        .body("\0\0\0\0\0".into())
        .unwrap();
    let response = support::client(Version::HTTP_2)
        .request(request)
        .await
        .unwrap();
    assert!(response.body().is_end_stream(), "the head ends the stream");
    let answer = Answer::of(response).await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (200, ""));
    assert_eq!(
        answer.header("content-type"),
        Some("application/grpc+proto")
    );
    assert_eq!(answer.header("grpc-status"), Some("8"));
}
