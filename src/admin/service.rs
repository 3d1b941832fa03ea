use super::{
    AdminBody,
    exchange::{self, Head},
    future::BusyThresholdFuture,
};
use crate::load::ModelThresholds;
use http::{Request, Response};
use http_body::Body;
use std::{
    convert::Infallible,
    task::{Context, Poll},
};
use tower_service::Service;

/// Reads and changes thresholds over HTTP; see the [module
/// documentation](super).
///
/// Always ready, and fails never: every error is an answer. It does not look
/// at the path. How long a client may take to send its request is for the
/// server, or a timeout above, to say.
#[derive(Clone, Debug)]
pub struct BusyThreshold {
    thresholds: ModelThresholds,
}

impl BusyThreshold {
    /// For the models of a monitor: those it has when a request comes.
    pub fn new(thresholds: ModelThresholds) -> Self {
        Self { thresholds }
    }
}

impl<B: Body> Service<Request<B>> for BusyThreshold {
    type Response = Response<AdminBody>;
    type Error = Infallible;
    type Future = BusyThresholdFuture<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        match exchange::head(&self.thresholds, &parts.method, &parts.headers) {
            Head::Answer(response) => BusyThresholdFuture::answer(response),
            Head::Read => BusyThresholdFuture::read(self.thresholds.clone(), body),
        }
    }
}
