use super::Engine;
use crate::openai::Generate;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use metrics::NoopRecorder;
use std::convert::Infallible;
use tower::{Service, ServiceBuilder};
use tower_overload::{admission::EngineAdmissionLayer, status::OverloadStatusLayer};

/// The worker's stack, from outside to inside: refusals become 529s, at most
/// N requests are in the engine and at most Q wait, the engine.
///
/// A request that says `x-no-queue: true` does not wait.
pub fn stack(
    admission: EngineAdmissionLayer,
    engine: Engine,
) -> impl Service<
    Request<Generate>,
    Response = Response<impl Body<Data = Bytes, Error = Infallible> + Send + use<>>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    ServiceBuilder::new()
        .layer(status().infallible())
        .layer(admission.no_queue_when(no_queue))
        .service(engine)
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

fn no_queue(request: &Request<Generate>) -> bool {
    request
        .headers()
        .get("x-no-queue")
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}
