use super::{
    Api, FrontBody, FrontBuilder, Problem, ResponseFuture, WholeBody,
    builder::Check,
    collect::Collect,
    page,
    read::{Read, Reading},
};
use crate::{
    api::{
        EstimateTokens, ScriptEstimator,
        models::{self, ModelsPath},
    },
    fleet::Fleet,
    limits::Streamed,
    status::DEFAULT_REASON_HEADER,
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, ORIGIN},
    request::Parts,
};
use http_body::Body;
use std::{
    convert::Infallible,
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// Sends each request to the model that it is for. See the [module
/// documentation](super).
///
/// Always ready, and fails never: every error is an answer. Clones are the same
/// front.
pub struct Front<S, M, E = ScriptEstimator> {
    inner: Arc<Inner<S, M, E>>,
}

pub(super) struct Inner<S, M, E> {
    pub(super) fleet: Fleet<S, M>,
    pub(super) reading: Reading<E>,
    pub(super) collect: Collect,
    pub(super) check: Check,
}

impl<S, M> Front<S, M> {
    /// The front of a fleet, with the defaults.
    pub fn new(fleet: Fleet<S, M>) -> Self {
        FrontBuilder::new().build(fleet)
    }
}

impl<S, M, E> Front<S, M, E> {
    pub(super) fn of(inner: Inner<S, M, E>) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }
}

impl<S, M, E, B, RB> Service<Request<B>> for Front<S, M, E>
where
    S: Clone + Send + 'static,
    M: Service<Request<WholeBody>, Response = Response<RB>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    M::Future: Send,
    E: EstimateTokens + Clone + Send + Sync + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: fmt::Display + Send,
{
    type Response = Response<FrontBody<RB>>;
    type Error = Infallible;
    type Future = ResponseFuture<RB>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = self.inner.clone();
        ResponseFuture::new(async move { Ok(inner.answer(request).await) })
    }
}

/// The methods of requests for workers.
const ALL: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
/// Those of what the front knows itself.
const READS: &str = "GET, HEAD, OPTIONS";

impl<S, M, E> Inner<S, M, E>
where
    S: Clone,
    E: EstimateTokens + Clone + Send + 'static,
{
    async fn answer<B, RB>(&self, request: Request<B>) -> Response<FrontBody<RB>>
    where
        M: Service<Request<WholeBody>, Response = Response<RB>, Error = Infallible> + Clone,
        B: Body,
        B::Error: fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let client = Client::of(&parts);
        match self.route(parts, body, client).await {
            Ok(response) => response,
            Err(problem) => client.own(problem.response(client.api)),
        }
    }

    async fn route<B, RB>(
        &self,
        mut parts: Parts,
        body: B,
        client: Client,
    ) -> Result<Response<FrontBody<RB>>, Problem>
    where
        M: Service<Request<WholeBody>, Response = Response<RB>, Error = Infallible> + Clone,
        B: Body,
        B::Error: fmt::Display,
    {
        if let Some(own) = self.own_answer(&parts, client)? {
            return Ok(client.own(own));
        }
        can_be_read(&parts)?;
        (self.check)(&parts)?;
        let (body, _room) = self.collect.read(body).await?;
        let read = self.reading.read(&parts.headers, &body).await?;
        let model = {
            let default = || self.fleet.default_model().map(|name| &**name);
            let name = read.request.model.as_deref().or_else(default);
            let name = name.ok_or_else(|| {
                Problem::new(StatusCode::BAD_REQUEST, "The request names no model")
                    .with_param("model")
            })?;
            let known = self.fleet.model(name);
            known.ok_or_else(|| Problem::unknown_model(name))?
        };
        parts.extensions.clear();
        parts.extensions.insert(model.label().clone());
        extend(&mut parts, &read);
        drop(read);
        let request = Request::from_parts(parts, WholeBody::from(body));
        let mut stack = model.service().clone();
        let Ok(()) = poll_fn(|cx| stack.poll_ready(cx)).await;
        let Ok(mut response) = stack.call(request).await;
        if client.is_page && response.headers().contains_key(DEFAULT_REASON_HEADER) {
            page::may_read(&mut response);
        }
        Ok(response.map(FrontBody::behind))
    }

    /// The answer, if it is not for a worker to give.
    fn own_answer(
        &self,
        parts: &Parts,
        client: Client,
    ) -> Result<Option<Response<Bytes>>, Problem> {
        let path = parts.uri.path();
        let asked = ModelsPath::of(path);
        if asked.is_none() && path != "/health" {
            let is_preflight = page::is_preflight(&parts.method, &parts.headers);
            return Ok(is_preflight.then(|| page::options(&parts.headers, ALL)));
        }
        match parts.method {
            Method::GET | Method::HEAD => match asked {
                Some(asked) => self.models(&asked).map(Some),
                None => Ok(Some(json(r#"{"status":"ok"}"#))),
            },
            Method::OPTIONS => Ok(Some(page::options(&parts.headers, READS))),
            ref other => {
                let message = format!("{other} is not allowed here");
                let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, message);
                let mut response = problem.response(client.api);
                let allowed = HeaderValue::from_static(READS);
                response.headers_mut().insert(ALLOW, allowed);
                Ok(Some(response))
            }
        }
    }

    /// All models that the fleet knows, or one of them.
    fn models(&self, asked: &ModelsPath<'_>) -> Result<Response<Bytes>, Problem> {
        let models = match asked {
            ModelsPath::List => {
                let known = self.fleet.models();
                models::list(known.iter().map(|model| (&**model.name(), model.since())))
            }
            ModelsPath::Model(name) => {
                let known = self.fleet.model(name);
                let model = known.ok_or_else(|| Problem::unknown_model(name))?;
                models::one(model.name(), model.since())
            }
        };
        Ok(json(models))
    }
}

fn json(json: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(json.into());
    response.headers_mut().insert(CONTENT_TYPE, super::JSON);
    response
}

fn extend(parts: &mut Parts, read: &Read<'_>) {
    if let Some(streamed) = read.request.streamed {
        parts.extensions.insert(Streamed(streamed));
    }
    if let Some(cost) = read.cost {
        parts.extensions.insert(cost);
    }
    if let Some(key) = read.key {
        parts.extensions.insert(key);
    }
}

/// The longest path and query. With a worker's URL before it, it is one that
/// a client can still send.
const MAX_TARGET: usize = 8 * 1024;

fn can_be_read(parts: &Parts) -> Result<(), Problem> {
    let path = parts.uri.path();
    if path.strip_prefix("/v1/").is_none_or(str::is_empty) {
        let message = format!("There is no {path}");
        return Err(Problem::new(StatusCode::NOT_FOUND, message));
    }
    let target = parts.uri.path_and_query();
    if target.is_some_and(|target| target.as_str().len() > MAX_TARGET) {
        let message = format!("The path and the query are longer than {MAX_TARGET} bytes");
        return Err(Problem::new(StatusCode::URI_TOO_LONG, message));
    }
    Ok(())
}

/// Who asks, as far as the answer depends on it.
#[derive(Clone, Copy)]
struct Client {
    api: Api,
    is_page: bool,
}

impl Client {
    fn of(parts: &Parts) -> Self {
        let headers: &HeaderMap = &parts.headers;
        Self {
            api: Api::of(parts.uri.path(), headers),
            is_page: headers.contains_key(ORIGIN),
        }
    }

    /// An answer of the front's own.
    fn own<RB>(self, mut response: Response<Bytes>) -> Response<FrontBody<RB>> {
        if self.is_page {
            page::may_read(&mut response);
        }
        response.map(FrontBody::own)
    }
}

impl<S, M, E> Clone for Front<S, M, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<S, M, E> fmt::Debug for Front<S, M, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front")
            .field("fleet", &self.inner.fleet)
            .finish_non_exhaustive()
    }
}
