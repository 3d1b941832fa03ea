//! What clients see: everything under `/v1/` goes to a worker, but for the list
//! of models.

use super::{
    Fleet,
    body::{BodyLimits, Memory},
    pages,
    reading::Reading,
};
use crate::openai::ApiError;
use axum::{
    Json, Router,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{ACCEPT_ENCODING, ALLOW, CONTENT_TYPE, ORIGIN},
    request::Parts,
};
use http_body_util::Full;
use tower::ServiceExt;
use tower_overload::{
    api::{
        ReadError,
        models::{self, ModelsPath},
    },
    status::DEFAULT_REASON_HEADER,
    upstream::forward::Forwarding,
};

#[derive(Clone, Debug)]
struct Public {
    fleet: Fleet,
    forwarding: Forwarding,
    reading: Reading,
    limits: BodyLimits,
    memory: Memory,
}

/// The methods of requests for workers.
const ALL: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
/// Those of what the gateway knows itself.
const READS: &str = "GET, HEAD, OPTIONS";

/// Health is outside of the stack: it answers while everything is refused.
///
/// Requests for workers come to the fallback: a route with a wildcard would
/// take the path apart, which nobody needs.
pub(super) fn router(
    fleet: Fleet,
    forwarding: Forwarding,
    reading: Reading,
    limits: BodyLimits,
) -> Router {
    Router::new()
        .route(
            "/health",
            get(|| async { Json(serde_json::json!({"status": "ok"})) }),
        )
        .fallback(proxy)
        .method_not_allowed_fallback(|request: Request| async move {
            let client = Client::of(request.uri().path(), request.headers());
            only_reads(client, request.method(), request.headers())
        })
        .with_state(Public {
            fleet,
            forwarding,
            reading,
            limits,
            memory: Memory::new(),
        })
}

async fn proxy(State(public): State<Public>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path();
    let client = Client::of(path, &parts.headers);
    if let Some(asked) = ModelsPath::of(path) {
        return match parts.method {
            Method::GET | Method::HEAD => client.own(list(&public.fleet, client, &asked)),
            _ => only_reads(client, &parts.method, &parts.headers),
        };
    }
    if pages::is_preflight(&parts.method, &parts.headers) {
        return pages::options(&parts.headers, ALL);
    }
    if path.strip_prefix("/v1/").is_none_or(str::is_empty) {
        let message = format!("There is no {path}");
        return client.refuse(ApiError::new(StatusCode::NOT_FOUND, message));
    }
    if let Err(error) = can_be_sent_on(&public.forwarding, &parts) {
        return client.refuse(error);
    }
    let (body, _room) = match public.memory.read(body, &public.limits).await {
        Ok(read) => read,
        Err(error) => return client.refuse(error),
    };
    let read = match public.reading.read(&parts.headers, &body).await {
        Ok(read) => read,
        Err(error) => return client.refuse_body(&error),
    };
    let asked = read.request.model.as_deref();
    let default = || public.fleet.default_model().map(|name| &**name);
    let name = asked.or_else(default).unwrap_or_default();
    let Some(model) = public.fleet.model(name) else {
        return client.refuse(ApiError::unknown_model(name));
    };

    parts.extensions.clear();
    parts.extensions.insert(model.label().clone());
    if let Some(streamed) = read.streamed() {
        parts.extensions.insert(streamed);
    }
    if let Some(cost) = read.cost {
        parts.extensions.insert(cost);
    }
    if let Some(key) = read.key {
        parts.extensions.insert(key);
    }
    drop(read);
    let request = http::Request::from_parts(parts, Full::new(body));
    match model.service().clone().oneshot(request).await {
        Ok(response) if response.headers().contains_key(DEFAULT_REASON_HEADER) => {
            client.own(response)
        }
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Who asks, as far as the answer depends on it.
#[derive(Clone, Copy, Debug)]
struct Client {
    is_anthropic: bool,
    is_page: bool,
}

impl Client {
    fn of(path: &str, headers: &HeaderMap) -> Self {
        Self {
            is_anthropic: path.starts_with("/v1/messages")
                || headers.contains_key("anthropic-version"),
            is_page: headers.contains_key(ORIGIN),
        }
    }

    /// An answer of the gateway's own.
    fn own(self, mut response: Response) -> Response {
        if self.is_page {
            pages::may_read(&mut response);
        }
        response
    }

    fn refuse(self, error: ApiError) -> Response {
        self.own(if self.is_anthropic {
            error.into_anthropic_response()
        } else {
            error.into_response()
        })
    }

    fn refuse_body(self, error: &ReadError) -> Response {
        let mut response = self.refuse(ApiError::new(error.status(), error.to_string()));
        if let Some(codings) = error.accept_encoding() {
            let codings = HeaderValue::from_static(codings);
            response.headers_mut().insert(ACCEPT_ENCODING, codings);
        }
        response
    }
}

/// All models that the gateway knows, or one of them.
fn list(fleet: &Fleet, client: Client, asked: &ModelsPath<'_>) -> Response {
    let json = match asked {
        ModelsPath::List => {
            let known = fleet.models();
            models::list(known.iter().map(|model| (&**model.name(), model.since())))
        }
        ModelsPath::Model(name) => match fleet.model(name) {
            Some(model) => models::one(model.name(), model.since()),
            None => return client.refuse(ApiError::unknown_model(name)),
        },
    };
    ([(CONTENT_TYPE, "application/json")], json).into_response()
}

/// The answer to other methods, where something can only be read.
fn only_reads(client: Client, method: &Method, headers: &HeaderMap) -> Response {
    if method == Method::OPTIONS {
        return pages::options(headers, READS);
    }
    let message = format!("{method} is not allowed here");
    let mut response = client.refuse(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message));
    let allowed = HeaderValue::from_static(READS);
    response.headers_mut().insert(ALLOW, allowed);
    response
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
