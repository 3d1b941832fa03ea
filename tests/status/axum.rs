//! Each way of mounting the layer in axum.

use crate::support::*;
use axum::{Router, routing::get};
use http::Version;
use tower::ServiceBuilder;

async fn assert_refuses(app: Router, path: &str) {
    let address = serve(app).await;
    for version in VERSIONS {
        let answer = send(address, version, post(path)).await;
        answer.assert_json(529, REFERENCE_529);
        assert_eq!(answer.header("x-overload-reason"), Some("all_workers_busy"));
        let health = send(
            address,
            version,
            http::Request::get("/health").body("").unwrap(),
        )
        .await;
        assert_eq!((health.status.as_u16(), &*health.body), (200, "ok"));
    }
}

async fn health() -> &'static str {
    "ok"
}

#[tokio::test]
async fn refuses_as_a_layer_of_a_router() {
    let stack = ServiceBuilder::new()
        .layer(layer().infallible())
        .layer(refuse(BUSY));
    let app = Router::new()
        .route("/v1/completions", get(health).post(health))
        .layer(stack)
        .route("/health", get(health));
    assert_refuses(app, "/v1/completions").await;
}

#[tokio::test]
async fn refuses_as_a_route_layer() {
    let stack = ServiceBuilder::new()
        .layer(layer().infallible())
        .layer(refuse(BUSY));
    let api = Router::new()
        .route("/v1/completions", get(health).post(health))
        .route_layer(stack);
    let app = api.route("/health", get(health));
    assert_refuses(app, "/v1/completions").await;
}

#[tokio::test]
async fn refuses_as_a_route_service() {
    let service = ServiceBuilder::new()
        .layer(layer().infallible())
        .service(failing(BUSY));
    let app = Router::new()
        .route_service("/v1/completions", service)
        .route("/health", get(health));
    assert_refuses(app, "/v1/completions").await;
}

#[tokio::test]
async fn refuses_as_a_fallback_service() {
    let service = ServiceBuilder::new()
        .layer(layer().infallible())
        .service(failing(BUSY));
    let app = Router::new()
        .route("/health", get(health))
        .fallback_service(service);
    assert_refuses(app, "/v1/completions").await;
}

#[tokio::test]
async fn refuses_in_a_nested_router_in_the_form_of_the_endpoint() {
    let service = ServiceBuilder::new()
        .layer(layer().infallible())
        .service(failing(BUSY));
    let app = Router::new().nest("/v1", Router::new().route_service("/messages", service));
    let address = serve(app).await;
    let answer = send(address, Version::HTTP_11, post("/v1/messages")).await;
    answer.assert_json(529, ANTHROPIC_529);
}

#[tokio::test]
async fn lets_the_responses_of_the_routes_through() {
    let app = Router::new()
        .route("/v1/completions", get(health).post(health))
        .layer(layer().infallible());
    let address = serve(app).await;
    for version in VERSIONS {
        let answer = send(address, version, post("/v1/completions")).await;
        assert_eq!((answer.status.as_u16(), &*answer.body), (200, "ok"));
        assert_eq!(
            answer.header("content-type"),
            Some("text/plain; charset=utf-8")
        );
    }
}
