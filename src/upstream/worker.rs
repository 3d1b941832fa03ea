//! A worker over HTTP, as a Tower service.

use super::{
    Fault, FaultKind, MalformedAnswer, Protocol, WorkerBody, alias,
    forward::{self, Forwarding, Rejected},
    future::ResponseFuture,
    pool::{Held, Pool, keep_alive},
    upload::{Outgoing, Upload},
};
use crate::BoxError;
use bytes::{Buf, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING},
    request,
    uri::{PathAndQuery, Scheme},
};
use http_body::Body;
use hyper::body::Incoming;
use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// A worker over HTTP/1.1 or HTTP/2, as a Tower service.
///
/// Made by [`HttpWorkerBuilder`](super::HttpWorkerBuilder). Always ready; a
/// clone shares the connections, which are closed when the last clone and the
/// last answer are gone. See the [module](super) for what it promises.
#[derive(Clone)]
pub struct HttpWorker {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) pool: Arc<Pool>,
    pub(super) forwarding: Forwarding,
    pub(super) headers: HeaderMap,
    pub(super) aliases: Vec<(String, String)>,
    pub(super) alias_limit: usize,
}

impl HttpWorker {
    pub(super) fn new(shared: Shared) -> Self {
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Returns the worker's URL.
    pub fn url(&self) -> &str {
        &self.shared.pool.connector().base.name
    }
}

impl fmt::Debug for HttpWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpWorker")
            .field("url", &self.url())
            .finish_non_exhaustive()
    }
}

impl<B> Service<Request<B>> for HttpWorker
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<WorkerBody>;
    type Error = Fault;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let shared = self.shared.clone();
        let (parts, body) = request.into_parts();
        ResponseFuture::new(async move {
            match shared.forward(parts, Upload::new(body)).await {
                Err(Stop::Fault(fault)) => Err(fault),
                Err(Stop::Rejected(rejected)) => Ok(answer(rejected)),
                Ok(response) => Ok(response),
            }
        })
    }
}

/// Why there is no answer of the worker.
enum Stop {
    Rejected(Rejected),
    Fault(Fault),
}

impl From<Rejected> for Stop {
    fn from(rejected: Rejected) -> Self {
        Self::Rejected(rejected)
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

fn answer(rejected: Rejected) -> Response<WorkerBody> {
    let mut response = Response::new(WorkerBody::rejected(rejected));
    *response.status_mut() = rejected.status();
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

impl Shared {
    async fn forward(
        self: &Arc<Self>,
        mut parts: request::Parts,
        mut upload: Upload,
    ) -> Result<Response<WorkerBody>, Stop> {
        self.forwarding.request(&mut parts)?;
        let target = self.pool.connector().base.target(&parts.uri)?;
        if !self.aliases.is_empty() && may_name_a_model(&parts.headers) {
            upload = self.renamed(upload).await?;
        }
        let mut parts = self.head(parts, target, &upload)?;
        let mut lease = self.pool.take(None).await?;
        let mut sent_again = false;
        loop {
            let (reused, lost_on) = (lease.is_reused(), lease.on());
            let kept = (!sent_again && lease.may_be_sent_again()).then(|| parts.clone());
            let (outgoing, back) = Outgoing::new(upload);
            let request = Request::from_parts(parts, outgoing);
            let (fault, back) = match lease.send(request, back).await {
                Ok((response, held)) if reused && is_farewell(&response) => {
                    let farewell = MalformedAnswer::Farewell;
                    (self.fault(FaultKind::LostReused, farewell), held.give_up())
                }
                Ok((response, held)) => return self.answered(response, held),
                Err(lost) => lost.told(self.pool.connector(), reused),
            };
            let (Some(kept), Some(back)) = (kept, back) else {
                return Err(fault.into());
            };
            let Some(again) = back.await.ok().and_then(Upload::again) else {
                return Err(fault.into());
            };
            tracing::debug!(error = &fault as &dyn std::error::Error, "sent again");
            (parts, upload, sent_again) = (kept, again, true);
            lease = self.pool.take(Some(lost_on)).await?;
        }
    }

    fn answered(
        self: &Arc<Self>,
        response: Response<Incoming>,
        held: Held,
    ) -> Result<Response<WorkerBody>, Stop> {
        let (mut parts, incoming) = response.into_parts();
        let said = keep_alive(&parts.headers);
        if let Err(malformed) = self.forwarding.response(&mut parts) {
            return Err(self.fault(FaultKind::Malformed, malformed).into());
        }
        let body = WorkerBody::new(incoming, held, said, self.pool.clone());
        Ok(Response::from_parts(parts, body))
    }

    fn fault(&self, kind: FaultKind, source: impl Into<BoxError>) -> Fault {
        self.pool.connector().fault(kind, source)
    }

    /// The head as the worker gets it: where it goes, for whom, and how long
    /// the body is.
    fn head(
        &self,
        mut parts: request::Parts,
        target: PathAndQuery,
        upload: &Upload,
    ) -> Result<request::Parts, Rejected> {
        let connector = self.pool.connector();
        let base = &connector.base;
        parts.extensions.clear();
        parts.headers.remove(HOST);
        for (name, value) in &self.headers {
            parts.headers.insert(name, value.clone());
        }
        match connector.protocol {
            Protocol::Http1 => {
                parts.headers.insert(HOST, base.host_header.clone());
                forward::name_te_in_connection(&mut parts);
                frame(&mut parts, upload);
                parts.uri = Uri::from(target);
                parts.version = Version::HTTP_11;
            }
            Protocol::Http2 => {
                let mut uri = http::uri::Parts::default();
                let scheme = if base.https {
                    Scheme::HTTPS
                } else {
                    Scheme::HTTP
                };
                uri.scheme = Some(scheme);
                uri.authority = Some(base.authority.clone());
                uri.path_and_query = Some(target);
                parts.uri = Uri::from_parts(uri).map_err(|_| Rejected::NO_PATH)?;
                parts.version = Version::HTTP_2;
            }
        }
        Ok(parts)
    }

    /// The body with the name that the model has at this worker.
    async fn renamed(&self, upload: Upload) -> Result<Upload, Stop> {
        let body = collect(upload, self.alias_limit)
            .await
            .map_err(|end| match end {
                End::TooLong => Stop::Rejected(Rejected::BODY_TOO_LARGE),
                End::Failed(error) => Stop::Fault(self.fault(FaultKind::Request, error)),
            })?;
        let renamed = self.aliases.iter();
        let renamed = renamed
            .filter_map(|(from, to)| alias::replace(&body, from, to))
            .next();
        Ok(Upload::whole(renamed.unwrap_or(body)))
    }
}

/// Whether it is what some servers say when they close an idle connection,
/// and no answer to the request that met it.
fn is_farewell<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::REQUEST_TIMEOUT
        && forward::closes(response.headers())
        && response.version() < Version::HTTP_2
}

/// Says how long the body is, for hyper guesses where it is not told.
fn frame(parts: &mut request::Parts, upload: &Upload) {
    let (name, value) = match upload.length() {
        Some(0) if !matches!(parts.method, Method::POST | Method::PUT | Method::PATCH) => return,
        Some(length) => (CONTENT_LENGTH, HeaderValue::from(length)),
        None => (TRANSFER_ENCODING, HeaderValue::from_static("chunked")),
    };
    parts.headers.insert(name, value);
}

/// Multipart forms and compressed bodies hold no name that can be read here.
fn may_name_a_model(headers: &HeaderMap) -> bool {
    let multipart = headers.get(CONTENT_TYPE).is_some_and(|value| {
        let start = value.as_bytes().get(..10);
        start.is_some_and(|start| start.eq_ignore_ascii_case(b"multipart/"))
    });
    !multipart && !headers.contains_key(CONTENT_ENCODING)
}

/// Why a body could not be read.
enum End {
    TooLong,
    Failed(BoxError),
}

async fn collect(upload: Upload, limit: usize) -> Result<Bytes, End> {
    let too_long = |length: u64| length > limit as u64;
    let (outgoing, _) = Outgoing::new(upload);
    if too_long(outgoing.size_hint().lower()) {
        return Err(End::TooLong);
    }
    let mut body = pin!(outgoing);
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(data) = frame.map_err(End::Failed)?.into_data() else {
            continue;
        };
        if too_long((first.len() + rest.len() + data.remaining()) as u64) {
            return Err(End::TooLong);
        }
        // Nearly every body is one frame, and is not copied.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() {
        first
    } else {
        rest.freeze()
    })
}
