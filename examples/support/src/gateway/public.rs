//! What clients see: everything under `/v1/` goes to a worker.

use super::{
    balance::AffinityKey,
    registry::Registry,
    tracking::{OfPrompt, prompt_tokens_of_bytes},
};
use crate::openai::ApiError;
use axum::{
    Json, Router,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::{Bytes, BytesMut};
use futures::poll;
use http::{HeaderMap, HeaderName, StatusCode, request::Parts};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Full};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    num::NonZeroU64,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tower::ServiceExt;
use tower_overload::{
    limits::Streamed, load::tracker::Cost, pool::pick::hash_key, upstream::forward::Forwarding,
};

#[derive(Clone, Debug)]
struct Public {
    registry: Arc<Registry>,
    limits: BodyLimits,
    memory: Memory,
}

/// Health is outside of the stack: it answers while everything is refused.
///
/// Requests for workers come to the fallback: a route with a wildcard would
/// take the path apart, which nobody needs.
pub(super) fn router(registry: Arc<Registry>, limits: BodyLimits) -> Router {
    Router::new()
        .route(
            "/health",
            get(|| async { Json(serde_json::json!({"status": "ok"})) }),
        )
        .fallback(proxy)
        .method_not_allowed_fallback(|request: Request| async move {
            let message = format!("{} is not allowed here", request.method());
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
        })
        .with_state(Public {
            registry,
            limits,
            memory: Memory::new(),
        })
}

async fn proxy(State(public): State<Public>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path();
    if path.strip_prefix("/v1/").is_none_or(str::is_empty) {
        let message = format!("There is no {path}");
        return ApiError::new(StatusCode::NOT_FOUND, message).into_response();
    }
    let is_anthropic = parts.uri.path().starts_with("/v1/messages")
        || parts.headers.contains_key("anthropic-version");
    let refuse = |error: ApiError| {
        if is_anthropic {
            error.into_anthropic_response()
        } else {
            error.into_response()
        }
    };
    if let Err(error) = can_be_sent_on(public.registry.forwarding(), &parts) {
        return refuse(error);
    }
    let (body, _room) = match public.memory.read(body, &public.limits).await {
        Ok(read) => read,
        Err(error) => return refuse(error),
    };
    let registry = &public.registry;
    let read = match registry.reading().read(&parts.headers, &body) {
        Ok(read) => read,
        Err(error) => return refuse(error),
    };
    let name = read.model;
    let model = match name {
        Some(name) => registry.model(&name).ok_or(name),
        None => {
            let name = registry.default_model();
            registry.model(name).ok_or_else(|| name.into())
        }
    };
    let model = match model {
        Ok(model) => model,
        Err(name) => return refuse(ApiError::unknown_model(&name)),
    };

    parts.extensions.clear();
    parts.extensions.insert(model.label.clone());
    if let Some(cost) = read.cost {
        parts.extensions.insert(cost);
    }
    if let Some(streamed) = read.streamed {
        parts.extensions.insert(streamed);
    }
    if let Some(key) = read.key {
        parts.extensions.insert(key);
    }
    let request = http::Request::from_parts(parts, Full::new(body));
    match model.stack.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The longest path and query. With a worker's URL before it, it is one that
/// a client can still send.
const MAX_TARGET: usize = 8 * 1024;

/// What cannot be sent on says nothing about the workers.
fn can_be_sent_on(forwarding: &Forwarding, parts: &Parts) -> Result<(), ApiError> {
    let target = parts.uri.path_and_query();
    if target.is_some_and(|target| target.as_str().len() > MAX_TARGET) {
        let message = format!("The path and the query are longer than {MAX_TARGET} bytes");
        return Err(ApiError::new(StatusCode::URI_TOO_LONG, message));
    }
    let check = forwarding.check(parts);
    check.map_err(|rejected| ApiError::new(rejected.status(), rejected.reason()))
}

/// What bounds the body of a request.
#[derive(Clone, Debug)]
pub(super) struct BodyLimits {
    pub(super) bytes: usize,
    /// How long a client may send nothing of a body that it has begun.
    pub(super) silence: Duration,
}

/// The memory for the bodies of requests that no worker has answered yet.
#[derive(Clone, Debug)]
struct Memory(Arc<Semaphore>);

impl Memory {
    /// What one permit stands for.
    const UNIT: usize = 4 * 1024;
    /// 256 MiB in all.
    const UNITS: usize = 64 * 1024;

    fn new() -> Self {
        Self(Arc::new(Semaphore::new(Self::UNITS)))
    }

    /// Reads a body, and the room that it takes.
    async fn read(
        &self,
        body: Body,
        limits: &BodyLimits,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
        let limit = limits.bytes;
        let too_large = || {
            let message = format!("The body is longer than {limit} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        if body.size_hint().lower() > limit as u64 {
            return Err(too_large());
        }
        let mut body = pin!(body);
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        let mut room: Option<OwnedSemaphorePermit> = None;
        while let Some(frame) = next_frame(body.as_mut(), limits.silence).await? {
            let frame = frame.map_err(|error| {
                let message = format!("The body cannot be read: {error}");
                ApiError::new(StatusCode::BAD_REQUEST, message)
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let length = first.len() + rest.len() + data.len();
            if length > limit {
                return Err(too_large());
            }
            let units = length.div_ceil(Self::UNIT);
            let held = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            if units > held {
                let more = u32::try_from(units - held).unwrap_or(u32::MAX);
                let more = self.0.clone().try_acquire_many_owned(more).map_err(|_| {
                    let message = "Too many long requests are on their way";
                    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
                })?;
                match &mut room {
                    Some(room) => room.merge(more),
                    none => *none = Some(more),
                }
            }
            // Nearly every body is one frame, and is not copied.
            if length == data.len() {
                first = data;
            } else {
                rest.extend_from_slice(&std::mem::take(&mut first));
                rest.extend_from_slice(&data);
            }
        }
        let body = if rest.is_empty() {
            first
        } else {
            rest.freeze()
        };
        Ok((body, room))
    }
}

type Next = Option<Result<Frame<Bytes>, axum::Error>>;

/// The next frame of a body, unless the client sends nothing for too long.
async fn next_frame(mut body: Pin<&mut Body>, silence: Duration) -> Result<Next, ApiError> {
    let mut next = body.frame();
    // Nearly every frame is there already, and needs no timer.
    if let Poll::Ready(next) = poll!(&mut next) {
        return Ok(next);
    }
    timeout(silence, next).await.map_err(|_| {
        let message = format!("Nothing of the body came for {silence:?}");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    })
}

/// The members of a request that the gateway reads in any case.
#[derive(Deserialize)]
struct OfModel<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    /// As it is: whether it can be read is for the worker to judge.
    #[serde(borrow, default)]
    stream: Option<&'a RawValue>,
}

/// What a body in JSON says of whether its answer is streamed. It is not if
/// nothing is said.
fn streamed(stream: Option<&RawValue>) -> Option<Streamed> {
    Some(Streamed(stream.is_some_and(|it| it.get() == "true")))
}

/// The model that a request names, if its body is JSON.
///
/// What is not said to be something else is taken for JSON, as workers do; and
/// curl says that everything is a form.
fn model_of<'a>(headers: &HeaderMap, body: &'a [u8], read: &mut Read<'a>) -> Result<(), ApiError> {
    if !may_be_json(headers, body) {
        return Ok(());
    }
    match serde_json::from_slice::<OfModel<'_>>(body) {
        Ok(of) => {
            read.model = of.model;
            read.streamed = streamed(of.stream);
            Ok(())
        }
        Err(error) => Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            format!("The body must be a JSON object whose `model` is a string: {error}"),
        )),
    }
}

/// What is read of requests, beside their model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'a> {
    /// The size of KV blocks, if prompts are read.
    pub(super) block_size: Option<NonZeroU64>,
    /// Whether requests have keys.
    pub(super) affinity: bool,
    /// Where a key is, if it is there.
    pub(super) header: Option<&'a HeaderName>,
}

/// What was read of a request.
struct Read<'a> {
    model: Option<Cow<'a, str>>,
    streamed: Option<Streamed>,
    cost: Option<Cost>,
    key: Option<AffinityKey>,
}

impl Reading<'_> {
    /// What the gateway takes does not depend on what it reads: a prompt that
    /// it cannot read is for the worker to refuse.
    fn read<'a>(self, headers: &HeaderMap, body: &'a [u8]) -> Result<Read<'a>, ApiError> {
        let mut read = Read {
            model: None,
            streamed: None,
            cost: None,
            key: self.key_of(headers),
        };
        let Some(block_size) = self.block_size else {
            model_of(headers, body, &mut read)?;
            return Ok(read);
        };
        if !may_be_json(headers, body) {
            read.cost = Some(Cost::default());
            return Ok(read);
        }
        let tokens = match serde_json::from_slice::<OfPrompt<'_>>(body) {
            Ok(of) => {
                let tokens = of.prompt_tokens();
                if self.affinity && read.key.is_none() {
                    read.key = of.head().map(AffinityKey);
                }
                read.model = of.model;
                read.streamed = streamed(of.stream);
                tokens
            }
            Err(_) => {
                model_of(headers, body, &mut read)?;
                prompt_tokens_of_bytes(body)
            }
        };
        read.cost = Some(Cost::of_prompt(tokens, block_size));
        Ok(read)
    }

    fn key_of(self, headers: &HeaderMap) -> Option<AffinityKey> {
        let value = headers.get(self.header.filter(|_| self.affinity)?)?;
        Some(AffinityKey(hash_key(value.as_bytes())))
    }
}

fn may_be_json(headers: &HeaderMap, body: &[u8]) -> bool {
    let is_json = headers.get(http::header::CONTENT_TYPE).is_none_or(|value| {
        let value = value.as_bytes();
        let kinds: [&[u8]; 3] = [b"application/json", b"application/x-www-form-", b"text/"];
        kinds.iter().any(|kind| {
            let start = value.get(..kind.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(kind))
        })
    });
    !body.is_empty() && is_json
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use tokio::time::sleep;

    /// A body that comes in pieces of one byte, so far apart.
    fn body(pieces: usize, apart: Duration) -> Body {
        let piece = move |left: usize| async move {
            sleep(apart).await;
            let bytes = Bytes::from_static(b" ");
            (left > 0).then(|| (Ok::<_, std::io::Error>(bytes), left - 1))
        };
        Body::from_stream(stream::unfold(pieces, piece))
    }

    async fn read(body: Body) -> Result<usize, StatusCode> {
        let limits = BodyLimits {
            bytes: 1000,
            silence: Duration::from_secs(30),
        };
        let read = Memory::new().read(body, &limits).await;
        read.map(|(body, _)| body.len())
            .map_err(|error| error.into_response().status())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_take_any_time_but_not_stop() {
        assert_eq!(read(body(1000, Duration::from_secs(29))).await, Ok(1000));
        let stops = body(2, Duration::from_secs(31));
        assert_eq!(read(stops).await, Err(StatusCode::REQUEST_TIMEOUT));
        let long = body(1001, Duration::ZERO);
        assert_eq!(read(long).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
    }
}
