use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::Response,
};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// Is told of every answer of a gateway to a client, when its head is there,
/// and how long that took from the moment when the request's head had been
/// read.
///
/// It is called on the request's way, so it should be quick.
#[derive(Clone)]
pub struct Observer(Arc<Tell>);

type Tell = dyn Fn(&Response, Duration) + Send + Sync;

impl Observer {
    /// An observer that calls `tell`.
    pub fn new(tell: impl Fn(&Response, Duration) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub fn watch(self, app: Router) -> Router {
        app.layer(from_fn_with_state(self, watched))
    }
}

async fn watched(State(observer): State<Observer>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let response = next.run(request).await;
    (observer.0)(&response, start.elapsed());
    response
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}
