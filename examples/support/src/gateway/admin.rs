//! What operators and workers see, on an address of its own, so that clients
//! can neither change thresholds nor forge load.

use super::{
    json::{Object, Objects},
    registry::{Kept, ModelView, Refused, Registration, Registry, WorkerView},
    stack::Id,
};
use axum::{
    Json, Router,
    extract::{
        DefaultBodyLimit, Path, Request, State,
        rejection::{JsonRejection, PathRejection},
    },
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use http::{
    StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde::{Deserialize, Serialize};
use std::{fmt::Display, sync::Arc};
use tokio::time::Instant;
use tower_overload::{admin::BusyThreshold, load::LoadEvent};

/// The longest body of an admin request.
const MAX_BODY: usize = 4 * 1024 * 1024;

pub(super) fn router(registry: Arc<Registry>) -> Router {
    let thresholds = BusyThreshold::new(registry.thresholds());
    Router::new()
        .route("/workers", get(workers))
        .route("/models", get(models))
        .route("/workers/{id}", put(register).delete(remove))
        .route("/worker_load", post(load))
        .route_service("/busy_threshold", thresholds)
        .route("/metrics", get(metrics))
        .fallback(|request: Request| async move {
            let message = format!("there is no {}", request.uri().path());
            Problem(StatusCode::NOT_FOUND, message)
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let message = format!("{} is not allowed here", request.method());
            Problem(StatusCode::METHOD_NOT_ALLOWED, message)
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(registry)
}

/// An answer that says what was wrong; nothing has changed.
#[derive(Debug)]
struct Problem(StatusCode, String);

impl Problem {
    fn unprocessable(error: impl Display) -> Self {
        Self(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        Self(rejection.status(), rejection.body_text())
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self(rejection.status(), rejection.body_text())
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        Self::unprocessable(refused)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self(status, error) = self;
        (status, Json(serde_json::json!({ "error": error }))).into_response()
    }
}

#[derive(Serialize)]
struct Workers {
    workers: Vec<WorkerView>,
}

async fn workers(State(registry): State<Arc<Registry>>) -> Json<Workers> {
    Json(Workers {
        workers: registry.views(),
    })
}

#[derive(Serialize)]
struct Models {
    models: Vec<ModelView>,
}

async fn models(State(registry): State<Arc<Registry>>) -> Json<Models> {
    Json(Models {
        models: registry.model_views(),
    })
}

async fn register(
    State(registry): State<Arc<Registry>>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Json<Object<Registration>>, JsonRejection>,
) -> Result<Json<WorkerView>, Problem> {
    let (Path(id), Json(Object(registration))) = (id?, body?);
    let kept = Kept::WhileHeard(Instant::now());
    Ok(Json(registry.register(&id, registration, kept)?))
}

async fn remove(
    State(registry): State<Arc<Registry>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Problem> {
    let Path(id) = id?;
    if registry.remove(&id) {
        Ok(StatusCode::NO_CONTENT)
    } else {
        let message = format!("there is no worker {id:?}");
        Err(Problem(StatusCode::NOT_FOUND, message))
    }
}

/// One event; an absent or `null` count leaves the last one. A member that is
/// not known is refused: a misspelt count must not look like one that was taken.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    worker: String,
    #[serde(default)]
    dp_rank: u32,
    active_decode_blocks: Option<u64>,
    kv_used_blocks: Option<u64>,
    active_prefill_tokens: Option<u64>,
}

impl From<Load> for LoadEvent<Id> {
    fn from(load: Load) -> Self {
        Self::new(load.worker.into(), load.dp_rank)
            .active_decode_blocks(load.active_decode_blocks)
            .kv_used_blocks(load.kv_used_blocks)
            .active_prefill_tokens(load.active_prefill_tokens)
    }
}

#[derive(Serialize)]
struct Taken {
    accepted: u64,
    dropped: u64,
}

async fn load(
    State(registry): State<Arc<Registry>>,
    body: Result<Json<Objects<Load>>, JsonRejection>,
) -> Result<Json<Taken>, Problem> {
    let Json(Objects(loads)) = body?;
    let events: Vec<LoadEvent<Id>> = loads.into_iter().map(LoadEvent::from).collect();
    let observed = registry.load(&events);
    Ok(Json(Taken {
        accepted: observed.accepted,
        dropped: observed.dropped,
    }))
}

async fn metrics(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(CONTENT_TYPE, text)], registry.metrics())
}
