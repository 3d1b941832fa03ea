//! What operators and workers see, on an address of its own, so that clients
//! can neither change thresholds nor forge load.

use super::{Fleet, metrics::Metrics};
use axum::{Json, Router, extract::State, response::IntoResponse, routing::get};
use http::{StatusCode, header::CONTENT_TYPE};
use serde_json::json;
use tower_overload::admin::FleetApi;

pub fn router(fleet: Fleet, metrics: Metrics) -> Router {
    Router::new()
        .route("/metrics", get(text))
        .method_not_allowed_fallback(|| async {
            let error = Json(json!({"error": "allowed methods: GET, HEAD"}));
            (StatusCode::METHOD_NOT_ALLOWED, error)
        })
        .fallback_service(FleetApi::new(fleet.clone()))
        .with_state((fleet, metrics))
}

async fn text(State((fleet, metrics)): State<(Fleet, Metrics)>) -> impl IntoResponse {
    // What has ended by itself is counted when somebody looks.
    fleet.models().iter().for_each(|model| model.set().sweep());
    let text = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, text)], metrics.text())
}
