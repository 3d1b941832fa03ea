//! What is wrong with a request, in the words of its API.

use crate::api::ReadError;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{ACCEPT_ENCODING, CONTENT_TYPE},
};
use serde::Serialize;
use std::{borrow::Cow, fmt};

/// Whose clients an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Api {
    /// OpenAI's, and of all others that do not say.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Api {
    /// Returns the API of a request, by its path and headers: those of
    /// Anthropic's clients ask for `/v1/messages`, or send `anthropic-version`.
    pub fn of(path: &str, headers: &HeaderMap) -> Self {
        let is_anthropic =
            path.starts_with("/v1/messages") || headers.contains_key("anthropic-version");
        if is_anthropic {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }
}

/// What is wrong with a request. It is the client's to mend, or to send again
/// if the status is a server's; it says nothing of the workers, so no
/// [reason](crate::status) goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    accept_encoding: Option<&'static str>,
    body: OpenAiError,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct OpenAiError {
    message: Cow<'static, str>,
    r#type: &'static str,
    param: Option<Cow<'static, str>>,
    code: Option<&'static str>,
}

/// How much of a model's name is shown.
const LONGEST_NAME: usize = 256;

impl Problem {
    /// A problem that is answered with this status, and said in these words.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            accept_encoding: None,
            body: OpenAiError {
                message: message.into(),
                // A client that is at fault has nothing to gain from asking again.
                r#type: match status.is_server_error() {
                    true => "server_error",
                    false => "invalid_request_error",
                },
                param: None,
                code: None,
            },
        }
    }

    /// The member of the request that is wrong.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.body.param = Some(param.into());
        self
    }

    /// 404: nobody serves `model`.
    pub fn unknown_model(model: &str) -> Self {
        // A client that sends a megabyte for it need not get it back.
        let name = model.chars().take(LONGEST_NAME).collect::<String>();
        let cut = if name.len() < model.len() { "…" } else { "" };
        let message = format!("The model `{name}{cut}` does not exist");
        let mut problem = Self::new(StatusCode::NOT_FOUND, message).with_param("model");
        problem.body.code = Some("model_not_found");
        problem
    }

    /// The member of the request that is wrong, if it is one.
    pub fn param(&self) -> Option<&str> {
        self.body.param.as_deref()
    }

    /// The status that it is answered with.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the answer for the clients of an API.
    ///
    /// | API | body |
    /// |---|---|
    /// | OpenAI's | `{"error": {"message", "type", "param", "code"}}` |
    /// | Anthropic's | `{"type": "error", "error": {"type", "message"}}` |
    pub fn response(&self, api: Api) -> Response<Bytes> {
        let json = match api {
            Api::OpenAi => json(&OpenAiEnvelope { error: &self.body }),
            Api::Anthropic => json(&AnthropicEnvelope {
                r#type: "error",
                error: AnthropicError {
                    r#type: match self.status {
                        StatusCode::NOT_FOUND => "not_found_error",
                        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
                        status if status.is_server_error() => "api_error",
                        _ => "invalid_request_error",
                    },
                    message: &self.body.message,
                },
            }),
        };
        let mut response = Response::new(json);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, super::JSON);
        if let Some(codings) = self.accept_encoding {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(codings));
        }
        response
    }
}

#[derive(Serialize)]
struct OpenAiEnvelope<'a> {
    error: &'a OpenAiError,
}

#[derive(Serialize)]
struct AnthropicEnvelope<'a> {
    r#type: &'static str,
    error: AnthropicError<'a>,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    r#type: &'static str,
    message: &'a str,
}

fn json(value: &impl Serialize) -> Bytes {
    // Strings under names that are known: nothing of it can fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        Self {
            accept_encoding: error.accept_encoding(),
            ..Self::new(error.status(), error.to_string())
        }
    }
}

#[cfg(feature = "upstream")]
impl From<crate::upstream::forward::Rejected> for Problem {
    fn from(rejected: crate::upstream::forward::Rejected) -> Self {
        Self::new(rejected.status(), rejected.reason().to_owned())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.body.message)
    }
}

impl std::error::Error for Problem {}
