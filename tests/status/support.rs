//! Services that fail on purpose, servers on loopback sockets, and a client.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use std::{
    future::{Future, Ready, ready},
    net::SocketAddr,
};
use tokio::net::TcpListener;
use tower::{BoxError, Service, util::ServiceFn};
use tower_overload::{
    OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason,
    status::{Builder, OverloadStatusLayer},
};

pub const BUSY: ServiceOverloaded = ServiceOverloaded::new(OverloadReason::AllWorkersBusy);
pub const NO_WORKERS: Unavailable = Unavailable::new(UnavailableReason::NoWorkers);

pub const REFERENCE_529: &str =
    r#"{"message":"Service temporarily overloaded","type":"Overloaded","code":529}"#;
pub const REFERENCE_503: &str =
    r#"{"message":"Service temporarily unavailable","type":"Service Unavailable","code":503}"#;
pub const ANTHROPIC_529: &str = r#"{"type":"error","error":{"type":"overloaded_error","message":"Service temporarily overloaded"}}"#;

/// A builder that does not look at the environment.
pub fn builder() -> Builder {
    OverloadStatusLayer::builder().overload_status(529)
}

pub fn layer() -> OverloadStatusLayer {
    builder().build().unwrap()
}

pub type Outcome = Result<Response<Full<Bytes>>, BoxError>;

/// A service that does the same with every request.
pub fn always<B>(
    outcome: impl Fn() -> Outcome + Clone,
) -> ServiceFn<impl Fn(Request<B>) -> Ready<Outcome> + Clone> {
    tower::service_fn(move |_| ready(outcome()))
}

pub fn failing<B>(
    error: impl Into<BoxError> + Clone,
) -> ServiceFn<impl Fn(Request<B>) -> Ready<Outcome> + Clone> {
    always(move || Err(error.clone().into()))
}

pub fn succeeding<B>() -> ServiceFn<impl Fn(Request<B>) -> Ready<Outcome> + Clone> {
    always(|| Ok(Response::new("fine".into())))
}

/// An inner layer that refuses everything with `error`.
pub fn refuse<S, E>(error: E) -> impl tower::Layer<S, Service = Refusing<E>> + Clone
where
    E: Clone,
{
    tower::layer::layer_fn(move |_: S| Refusing(error.clone()))
}

/// See [`refuse`]. The response type is axum's, so that it stands for a route.
#[derive(Clone)]
pub struct Refusing<E>(E);

impl<B, E: Into<BoxError> + Clone> Service<Request<B>> for Refusing<E> {
    type Response = ::axum::response::Response;
    type Error = BoxError;
    type Future = Ready<Result<Self::Response, BoxError>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), BoxError>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Err(self.0.clone().into()))
    }
}

/// Serves HTTP/1.1 and HTTP/2 until the test ends.
pub async fn serve<S, B>(service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let _ = auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    address
}

/// What a client has received.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub async fn of<B>(response: Response<B>) -> Self
    where
        B: Body,
        B::Error: std::fmt::Debug,
    {
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Self {
            status: head.status,
            headers: head.headers,
            body: String::from_utf8(body.into()).unwrap(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Asserts the status, the body, and the headers that describe it.
    #[track_caller]
    pub fn assert_json(&self, status: u16, body: &str) {
        assert_eq!(self.status, status);
        assert_eq!(self.body, body);
        assert_eq!(self.header("content-type"), Some("application/json"));
        let length = body.len().to_string();
        assert_eq!(self.header("content-length"), Some(&*length));
    }
}

pub const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

pub fn client(
    version: Version,
) -> Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new())
        .http2_only(version == Version::HTTP_2)
        .build_http()
}

/// Sends one request over a connection of its own.
pub async fn send(
    address: SocketAddr,
    version: Version,
    mut request: Request<&'static str>,
) -> Answer {
    let path = request.uri().path().to_owned();
    *request.uri_mut() = format!("http://{address}{path}").parse().unwrap();
    *request.version_mut() = version;
    let response = client(version)
        .request(request.map(Full::from))
        .await
        .unwrap();
    assert_eq!(response.version(), version);
    Answer::of(response).await
}

pub fn post(path: &str) -> Request<&'static str> {
    Request::post(path)
        .header("content-type", "application/json")
        .body(r#"{"model":"tiny","stream":true}"#)
        .unwrap()
}

/// Runs `future` on a runtime of its own.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
