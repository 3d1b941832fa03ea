//! Forms, as audio is sent in: `multipart/form-data`.

use super::{
    EstimateTokens, ReadError,
    reader::{Found, RequestReader},
    scalar::is_true,
};
use bytes::Bytes;
use futures::{FutureExt, stream};
use multer::{Field, Multipart};
use std::convert::Infallible;

/// The longest value that says something of the request.
const LONGEST: usize = 1024;

/// The body is there already, and nothing waits for it.
const READY: &str = "a stream of pieces that are there is always ready";

pub(super) fn read<E: EstimateTokens>(
    reader: &RequestReader<E>,
    content_type: &str,
    body: &[u8],
) -> Result<Found<'static>, ReadError> {
    let boundary = multer::parse_boundary(content_type).map_err(malformed)?;
    let pieces = body.chunks(64 * 1024).map(Bytes::copy_from_slice);
    let pieces = stream::iter(pieces.map(Ok::<_, Infallible>));
    let mut form = Multipart::new(pieces, boundary);
    let mut counter = reader.counter();
    let mut found = Found {
        streamed: Some(false),
        ..Found::nothing()
    };
    while let Some(mut field) = next(form.next_field())? {
        match field.name().unwrap_or_default() {
            _ if field.file_name().is_some() => {
                let mut length = 0;
                while let Some(piece) = next(field.chunk())? {
                    length += piece.len();
                }
                if reader.prompts {
                    counter.file(length);
                }
            }
            "model" => {
                let model = value("model", field)?;
                if found.model.replace(model.into()).is_some() {
                    return Err(malformed("`model` is in it twice"));
                }
            }
            "stream" => found.streamed = Some(is_true(value("stream", field)?.trim())),
            "n" => {
                let number = value("n", field)?.trim().parse().ok();
                found.choices = number.map_or(found.choices, |number: u64| number.max(1));
            }
            "prompt" | "input" if reader.prompts => {
                let text = next(field.bytes().map(|bytes| bytes.map(Some)))?;
                counter.text(&String::from_utf8_lossy(&text.unwrap_or_default()));
            }
            _ => while next(field.chunk())?.is_some() {},
        }
    }
    found.prompt_tokens = counter.tokens;
    Ok(found)
}

fn value(name: &str, mut field: Field<'_>) -> Result<String, ReadError> {
    let mut value = Vec::new();
    while let Some(piece) = next(field.chunk())? {
        if value.len() + piece.len() > LONGEST {
            return Err(malformed(format!(
                "`{name}` is longer than {LONGEST} bytes"
            )));
        }
        value.extend_from_slice(&piece);
    }
    String::from_utf8(value).map_err(|_| malformed(format!("`{name}` is not UTF-8")))
}

fn next<T>(
    future: impl Future<Output = multer::Result<Option<T>>>,
) -> Result<Option<T>, ReadError> {
    future.now_or_never().expect(READY).map_err(malformed)
}

fn malformed(error: impl std::fmt::Display) -> ReadError {
    ReadError::malformed(format!("The body must be a form with a `model`: {error}"))
}
