use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::Serialize;
use std::{borrow::Cow, fmt};

/// An error as OpenAI's API answers it:
/// `{"error": {"message", "type", "param", "code"}}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Body {
    message: Cow<'static, str>,
    r#type: &'static str,
    param: Option<Cow<'static, str>>,
    code: Option<&'static str>,
}

/// How much of a model's name is shown.
const LONGEST_NAME: usize = 256;

impl ApiError {
    /// An error of the client's with this status.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            body: Body {
                message: message.into(),
                r#type: "invalid_request_error",
                param: None,
                code: None,
            },
        }
    }

    /// 400: `param` of the request cannot be used, and why.
    pub fn bad_param(
        param: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, message);
        error.body.param = Some(param.into());
        error
    }

    /// 404: nobody serves `model`.
    pub fn unknown_model(model: &str) -> Self {
        // A client that sends a megabyte for it need not get it back.
        let name = model.chars().take(LONGEST_NAME).collect::<String>();
        let cut = if name.len() < model.len() { "…" } else { "" };
        let message = format!("The model `{name}{cut}` does not exist");
        let mut error = Self::new(StatusCode::NOT_FOUND, message);
        error.body.param = Some("model".into());
        error.body.code = Some("model_not_found");
        error
    }

    /// The same error for a client of Anthropic's API:
    /// `{"type": "error", "error": {"type", "message"}}`.
    pub fn into_anthropic_response(self) -> Response {
        let kind = match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            _ => "invalid_request_error",
        };
        let error = serde_json::json!({ "type": kind, "message": self.body.message });
        let body = serde_json::json!({ "type": "error", "error": error });
        (self.status, Json(body)).into_response()
    }

    /// The status that it is answered with.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Which part of the request is wrong, if it is one.
    pub fn param(&self) -> Option<&str> {
        self.body.param.as_deref()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.body.message)
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Envelope {
            error: Body,
        }
        (self.status, Json(Envelope { error: self.body })).into_response()
    }
}
