//! What is read of requests: models, prompts, forms, compressed bodies.

mod coding;
mod estimate;
mod form;
mod hostile;
mod prompt;
mod request;

use http::{HeaderMap, HeaderValue, header};
use serde_json::Value;
use tower_overload::api::{ReadError, ReadRequest, RequestReader};

/// Counts words, so that a test can say what a prompt has.
fn words() -> RequestReader<impl Fn(&str) -> u64> {
    RequestReader::new().estimator(|text: &str| text.split_whitespace().count() as u64)
}

fn content_type(value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_str(value).expect("a value"),
    );
    headers
}

/// Reads JSON as a client sends it.
fn read_text(body: &str) -> Result<ReadRequest<'_>, ReadError> {
    words().read(&content_type("application/json"), body.as_bytes())
}

fn read(body: &Value) -> ReadRequest<'static> {
    let body = body.to_string();
    read_text(&body).expect("a request").into_owned()
}

fn prompt_tokens(body: &Value) -> u64 {
    read(body).prompt_tokens
}
