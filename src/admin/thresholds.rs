use super::{
    AdminBody, ResponseFuture,
    json::{self, Object, change, error, is_json},
};
use crate::load::{Change, ModelThresholds, ThresholdUpdate, Thresholds};
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use serde::{Deserialize, Serialize};
use std::{
    convert::Infallible,
    task::{Context, Poll},
};
use tower_service::Service;

/// The largest request body that [`BusyThreshold`] reads: 64 KiB, hundreds of
/// times what a request needs.
pub const MAX_BODY_BYTES: usize = 64 * 1024;

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
    type Future = ResponseFuture<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match *request.method() {
            Method::GET | Method::HEAD => ResponseFuture::answer(list(&self.thresholds)),
            Method::POST if is_json(request.headers()) => {
                let thresholds = self.thresholds.clone();
                let post = move |body: &[u8]| post(&thresholds, body);
                ResponseFuture::read(request.into_body(), MAX_BODY_BYTES, post)
            }
            Method::POST => ResponseFuture::answer(json::not_json()),
            _ => ResponseFuture::answer(json::only("GET, HEAD, POST")),
        }
    }
}

#[derive(Serialize)]
struct Entry<'a> {
    model: &'a str,
    active_decode_blocks_threshold: Option<f64>,
    active_prefill_tokens_threshold: Option<u64>,
    active_prefill_tokens_threshold_frac: Option<f64>,
}

impl<'a> Entry<'a> {
    fn new(model: &'a str, thresholds: &Thresholds) -> Self {
        Self {
            model,
            active_decode_blocks_threshold: thresholds.active_decode_blocks(),
            active_prefill_tokens_threshold: thresholds.active_prefill_tokens(),
            active_prefill_tokens_threshold_frac: thresholds.active_prefill_tokens_frac(),
        }
    }
}

#[derive(Serialize)]
struct List<'a> {
    thresholds: Vec<Entry<'a>>,
}

/// An unknown field is refused: a misspelt threshold must not look like one
/// that was set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    model: String,
    #[serde(default, deserialize_with = "change")]
    active_decode_blocks_threshold: Change<f64>,
    #[serde(default, deserialize_with = "change")]
    active_prefill_tokens_threshold: Change<u64>,
    #[serde(default, deserialize_with = "change")]
    active_prefill_tokens_threshold_frac: Change<f64>,
}

fn list(thresholds: &ModelThresholds) -> Response<AdminBody> {
    let all = thresholds.all();
    let entries = all
        .iter()
        .map(|(model, thresholds)| Entry::new(model, thresholds));
    json::json(
        StatusCode::OK,
        &List {
            thresholds: entries.collect(),
        },
    )
}

fn post(thresholds: &ModelThresholds, body: &[u8]) -> Response<AdminBody> {
    let request: Update = match json::parse(body) {
        Ok(Object(request)) => request,
        Err(wrong) => return wrong.answer(),
    };
    let update = ThresholdUpdate::new()
        .active_decode_blocks(request.active_decode_blocks_threshold)
        .active_prefill_tokens(request.active_prefill_tokens_threshold)
        .active_prefill_tokens_frac(request.active_prefill_tokens_threshold_frac);
    if let Err(invalid) = update.validate() {
        return error(StatusCode::BAD_REQUEST, &invalid.to_string());
    }
    let result = match thresholds.get(&request.model) {
        Some(handle) if update.is_empty() => Ok(handle.get()),
        Some(handle) => handle.update(update),
        None if update.is_empty() => Ok(Thresholds::default()),
        None => {
            let message = format!("there is no model {:?}", request.model);
            return error(StatusCode::NOT_FOUND, &message);
        }
    };
    match result {
        Ok(thresholds) => json::json(StatusCode::OK, &Entry::new(&request.model, &thresholds)),
        Err(invalid) => error(StatusCode::BAD_REQUEST, &invalid.to_string()),
    }
}
