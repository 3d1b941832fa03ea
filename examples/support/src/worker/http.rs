use crate::openai::{Endpoint, Generate, models};
use axum::{
    Json, Router,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use http::{
    StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::{convert::Infallible, sync::Arc};
use tower::{Service, ServiceExt};
use tower_http::decompression::RequestDecompressionLayer;
use tower_overload::front::{Api, Problem};

/// The longest body of a request: more than a gateway lets pass.
const MAX_BODY: usize = 32 * 1024 * 1024;

#[derive(Clone, Debug)]
struct App<S> {
    stack: S,
    model: Arc<str>,
}

/// Health, metrics and models are outside of `stack`, so that they answer
/// while it refuses everything.
pub(super) fn router<S, B>(
    stack: S,
    model: String,
    metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> Router
where
    S: Service<http::Request<Generate>, Response = http::Response<B>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let app = App {
        stack,
        model: model.into(),
    };
    let model = Arc::clone(&app.model);
    let list = move || std::future::ready(Json(models([&*model])));
    let render = move || async move {
        let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        ([(CONTENT_TYPE, text)], metrics())
    };
    Router::new()
        .route(
            "/v1/chat/completions",
            post(|State(app): State<App<S>>, request: Request| {
                answered(app, Endpoint::ChatCompletions, request)
            }),
        )
        .route(
            "/v1/completions",
            post(|State(app): State<App<S>>, request: Request| {
                answered(app, Endpoint::Completions, request)
            }),
        )
        // A gateway passes a compressed body on as it came.
        .route_layer(RequestDecompressionLayer::new())
        .route("/v1/models", get(list))
        .route(
            "/health",
            get(|| async { Json(serde_json::json!({"status": "ok"})) }),
        )
        .route("/metrics", get(render))
        .fallback(|request: Request| async move {
            let message = format!("There is no {}", request.uri().path());
            refuse(&Problem::new(StatusCode::NOT_FOUND, message))
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let message = format!("{} is not allowed here", request.method());
            refuse(&Problem::new(StatusCode::METHOD_NOT_ALLOWED, message))
        })
        .with_state(app)
}

fn refuse(problem: &Problem) -> Response {
    problem.response(Api::OpenAi).map(Body::from)
}

async fn answered<S, B>(app: App<S>, endpoint: Endpoint, request: Request) -> Response
where
    S: Service<http::Request<Generate>, Response = http::Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let answer = generate(app, endpoint, request).await;
    answer.unwrap_or_else(|problem| refuse(&problem))
}

/// Reads and checks the request, and only then lets the stack decide.
async fn generate<S, B>(
    app: App<S>,
    endpoint: Endpoint,
    request: Request,
) -> Result<Response, Problem>
where
    S: Service<http::Request<Generate>, Response = http::Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let (parts, body) = request.into_parts();
    let body = read(body).await?;
    let generate = Generate::parse(endpoint, &body)?;
    if generate.model != *app.model {
        return Err(Problem::unknown_model(&generate.model));
    }
    let request = http::Request::from_parts(parts, generate);
    match app.stack.oneshot(request).await {
        Ok(response) => Ok(response.map(Body::new).into_response()),
        Err(never) => match never {},
    }
}

async fn read(body: Body) -> Result<Bytes, Problem> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("The body is longer than {MAX_BODY} bytes"),
        )),
        Err(error) => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            format!("The body cannot be read: {error}"),
        )),
    }
}
