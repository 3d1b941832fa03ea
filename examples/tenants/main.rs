//! Gives each tenant a gate of its own in front of one engine: what one sends too
//! much costs the others nothing.
//!
//! A gate belongs to an [`EngineAdmissionLayer`] value, so there is a layer for
//! each tenant, and the header `x-tenant` says whose it is. The series of a gate
//! start with the [`Prefix`] that its layer was given, which keeps them apart.
//!
//! ```console
//! $ cargo run --example tenants
//! ```

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use metrics_exporter_prometheus::PrometheusBuilder;
use std::{collections::HashMap, convert::Infallible, sync::Arc};
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_overload::{BoxError, EngineAdmissionLayer, OverloadStatusLayer, metrics::Prefix};

type Gate = BoxCloneSyncService<Request, Response, Infallible>;
type Gates = Arc<HashMap<&'static str, Gate>>;

/// The tenants, with the requests that each may have in the engine and waiting.
const TENANTS: [(&str, usize, usize); 2] = [("acme", 1, 0), ("globex", 4, 8)];

async fn engine(_: Request) -> Result<Response, Infallible> {
    Ok("tokens".into_response())
}

fn gates() -> Result<Gates, BoxError> {
    let gate = |(tenant, slots, queue)| {
        let prefix = Prefix::new(format!("tenant_{tenant}"));
        let admission = EngineAdmissionLayer::new(slots, queue)?.with_metrics_prefix(prefix);
        let stack = ServiceBuilder::new()
            .map_response(IntoResponse::into_response)
            .layer(OverloadStatusLayer::new().infallible())
            .layer(admission)
            .service_fn(engine);
        Ok((tenant, BoxCloneSyncService::new(stack)))
    };
    let gates: Result<_, BoxError> = TENANTS.into_iter().map(gate).collect();
    Ok(Arc::new(gates?))
}

async fn admit(State(gates): State<Gates>, request: Request) -> Response {
    let tenant = request.headers().get("x-tenant");
    let gate = tenant.and_then(|name| gates.get(name.to_str().ok()?));
    let Some(gate) = gate.cloned() else {
        return StatusCode::FORBIDDEN.into_response();
    };
    let Ok(response) = gate.oneshot(request).await;
    response
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    // Before the gates, which make their handles once.
    let recorder = PrometheusBuilder::new().build_recorder();
    let series = recorder.handle();
    metrics::set_global_recorder(recorder)?;

    let app: Router = Router::new().fallback(admit).with_state(gates()?);
    let send = async |tenant: &str| {
        let request = Request::get("/").header("x-tenant", tenant);
        let response = app
            .clone()
            .oneshot(request.body(axum::body::Body::empty())?)
            .await?;
        println!("{tenant}: {}", response.status());
        Ok::<_, BoxError>(response)
    };

    // A response that is not read holds its slot.
    let running = send("acme").await?;
    assert_eq!(running.status(), 200);
    assert_eq!(send("acme").await?.status(), 529);
    let others = [send("globex").await?, send("globex").await?];
    assert!(others.iter().all(|response| response.status() == 200));
    assert_eq!(send("nobody").await?.status(), 403);

    let rendered = series.render();
    for series in [
        "tenant_acme_engine_request 1",
        "tenant_acme_rejection_request_total 1",
        "tenant_globex_engine_request 2",
        "tenant_globex_rejection_request_total 0",
    ] {
        println!("{series}");
        assert!(rendered.lines().any(|line| line == series), "{rendered}");
    }
    drop(running);
    assert_eq!(send("acme").await?.status(), 200);
    Ok(())
}
