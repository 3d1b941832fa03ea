use super::stack::Stack;
use crate::openai::{Endpoint, Generate};
use axum::{
    Json, Router,
    body::Body,
    extract::{DefaultBodyLimit, OriginalUri, rejection::BytesRejection},
    response::Response,
    routing::{MethodRouter, get, post},
};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header::CONTENT_TYPE, request::Parts};
use std::{convert::Infallible, sync::Arc, time::SystemTime};
use tower::ServiceExt;
use tower_http::decompression::RequestDecompressionLayer;
use tower_overload::{
    api::models,
    front::{Api, Problem},
};

/// The longest body of a request: more than a gateway lets pass.
const MAX_BODY: usize = 32 * 1024 * 1024;

/// Health, metrics and models are outside of `stack`, so that they answer
/// while it refuses everything.
pub(super) fn router(
    stack: Stack,
    model: String,
    metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> Router {
    let list = models::list([(&*model, SystemTime::now())]);
    let list = move || async { ([(CONTENT_TYPE, "application/json")], list) };
    let text = "text/plain; version=0.0.4; charset=utf-8";
    let render = move || async move { ([(CONTENT_TYPE, text)], metrics()) };
    let health = || async { Json(serde_json::json!({"status": "ok"})) };
    let model: Arc<str> = model.into();
    let generate = |endpoint| generate(stack.clone(), Arc::clone(&model), endpoint);
    Router::new()
        .route("/v1/chat/completions", generate(Endpoint::ChatCompletions))
        .route("/v1/completions", generate(Endpoint::Completions))
        .route_layer(DefaultBodyLimit::max(MAX_BODY))
        // A gateway passes a compressed body on as it came.
        .route_layer(RequestDecompressionLayer::new())
        .route("/v1/models", get(list))
        .route("/health", get(health))
        .route("/metrics", get(render))
        .fallback(|OriginalUri(uri): OriginalUri| async move {
            let message = format!("There is no {}", uri.path());
            refuse(&Problem::new(StatusCode::NOT_FOUND, message))
        })
        .method_not_allowed_fallback(|method: Method| async move {
            let message = format!("{method} is not allowed here");
            refuse(&Problem::new(StatusCode::METHOD_NOT_ALLOWED, message))
        })
}

fn refuse(problem: &Problem) -> Response {
    problem.response(Api::OpenAi).map(Body::from)
}

/// Reads and checks the request, and only then lets the stack decide.
fn generate(stack: Stack, model: Arc<str>, endpoint: Endpoint) -> MethodRouter {
    post(
        async move |parts: Parts, body: Result<Bytes, BytesRejection>| {
            let generate = read(endpoint, body).and_then(|generate| match &*generate.model {
                known if known == &*model => Ok(generate),
                unknown => Err(Problem::unknown_model(unknown)),
            });
            match generate {
                Ok(generate) => answer(stack, Request::from_parts(parts, generate)).await,
                Err(problem) => refuse(&problem),
            }
        },
    )
}

fn read(endpoint: Endpoint, body: Result<Bytes, BytesRejection>) -> Result<Generate, Problem> {
    let body = body.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    Generate::parse(endpoint, &body)
}

async fn answer(stack: Stack, request: Request<Generate>) -> Response {
    let response: Result<_, Infallible> = stack.oneshot(request).await;
    response.unwrap_or_else(|never| match never {})
}
