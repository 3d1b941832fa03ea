use super::Engine;
use crate::openai::Generate;
use axum::body::Body;
use http::{Request, Response};
use metrics::NoopRecorder;
use std::convert::Infallible;
use tower::{ServiceBuilder, util::BoxCloneSyncService};
use tower_overload::{
    BoxError, ServiceOverloaded, admission::EngineAdmissionLayer, status::OverloadStatusLayer,
};

/// What answers a request that was read.
pub type Stack = BoxCloneSyncService<Request<Generate>, Response<Body>, Infallible>;

/// The worker's stack, from outside to inside: refusals become 529s, at most
/// N requests are in the engine and at most Q wait, the engine.
///
/// A request that says `x-no-queue: true` does not wait.
///
/// A worker `behind_gateway` names no time in its refusals. A lease that a
/// worker named ends only by time, after a second at least; one of the
/// gateway's own ends with the next response of the worker, which is when there
/// is room again.
pub fn stack(admission: EngineAdmissionLayer, engine: Engine, behind_gateway: bool) -> Stack {
    let stack = ServiceBuilder::new()
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(status().infallible())
        .map_err(move |error| {
            if behind_gateway {
                without_time(error)
            } else {
                error
            }
        })
        .layer(admission.no_queue_when(no_queue))
        .service(engine);
    BoxCloneSyncService::new(stack)
}

/// 529 whatever the environment says: that is how a gateway tells a refusal,
/// and the gateway decides what clients see.
///
/// Its counters are those of a frontend; the worker has the admission's.
fn status() -> OverloadStatusLayer {
    metrics::with_local_recorder(&NoopRecorder, || {
        OverloadStatusLayer::builder()
            .overload_status(529)
            .build()
            .expect("529 is a status")
    })
}

fn without_time(error: BoxError) -> BoxError {
    match ServiceOverloaded::find_in(&*error) {
        Some(overloaded) => overloaded.clone().with_retry_after(None).into(),
        None => error,
    }
}

fn no_queue(request: &Request<Generate>) -> bool {
    request
        .headers()
        .get("x-no-queue")
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}
