//! What a request asks and what it is answered: no I/O.

use super::AdminBody;
use crate::load::{Change, ModelThresholds, ThresholdUpdate, Thresholds};
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::error::Category;

/// The largest request body that is read: 64 KiB, hundreds of times what a
/// request needs.
pub const MAX_BODY_BYTES: usize = 64 * 1024;

/// What the head of a request calls for.
pub(super) enum Head {
    /// The body matters.
    Read,
    /// It does not: this is the answer.
    Answer(Response<AdminBody>),
}

pub(super) fn head(thresholds: &ModelThresholds, method: &Method, headers: &HeaderMap) -> Head {
    match *method {
        Method::GET | Method::HEAD => Head::Answer(list(thresholds)),
        Method::POST if is_json(headers) => Head::Read,
        Method::POST => Head::Answer(error(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the content type must be application/json",
        )),
        _ => {
            let mut response = error(
                StatusCode::METHOD_NOT_ALLOWED,
                "allowed methods: GET, HEAD, POST",
            );
            let allowed = HeaderValue::from_static("GET, HEAD, POST");
            response.headers_mut().insert(ALLOW, allowed);
            Head::Answer(response)
        }
    }
}

/// `application/json`, or `application/…+json`, with or without parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(CONTENT_TYPE).map(HeaderValue::to_str) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    match essence.strip_prefix("application/") {
        Some(subtype) => subtype == "json" || subtype.ends_with("+json"),
        None => false,
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

/// Called for a field that is there: absent is the default, which keeps.
fn change<'de, D, T>(deserializer: D) -> Result<Change<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let value = Option::<T>::deserialize(deserializer)?;
    Ok(value.map_or(Change::Clear, Change::Set))
}

fn list(thresholds: &ModelThresholds) -> Response<AdminBody> {
    let all = thresholds.all();
    let entries = all
        .iter()
        .map(|(model, thresholds)| Entry::new(model, thresholds));
    json(
        StatusCode::OK,
        &List {
            thresholds: entries.collect(),
        },
    )
}

pub(super) fn post(thresholds: &ModelThresholds, body: &[u8]) -> Response<AdminBody> {
    let request: Update = match serde_json::from_slice(body) {
        // A derived `Deserialize` also takes an array, member by member.
        Ok(_) if !body.trim_ascii_start().starts_with(b"{") => {
            return error(StatusCode::UNPROCESSABLE_ENTITY, "expected an object");
        }
        Ok(request) => request,
        Err(invalid) => {
            let status = match invalid.classify() {
                Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
                Category::Syntax | Category::Eof | Category::Io => StatusCode::BAD_REQUEST,
            };
            return error(status, &invalid.to_string());
        }
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
        Ok(thresholds) => json(StatusCode::OK, &Entry::new(&request.model, &thresholds)),
        Err(invalid) => error(StatusCode::BAD_REQUEST, &invalid.to_string()),
    }
}

pub(super) fn error(status: StatusCode, message: &str) -> Response<AdminBody> {
    #[derive(Serialize)]
    struct Error<'a> {
        error: &'a str,
    }
    json(status, &Error { error: message })
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<AdminBody> {
    let (status, bytes) = match serde_json::to_vec(value) {
        Ok(bytes) => (status, bytes),
        // Not reached: every map has string keys, every number is finite.
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
    };
    let mut response = Response::new(AdminBody::new(bytes));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
