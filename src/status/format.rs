use super::{Answer, AnswerKind, Endpoint};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use std::{fmt, sync::Arc};

/// The form of an answer's body.
///
/// `code` is always the status that is configured, `type` what it is about
/// whatever the status.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Format {
    /// `{"message":"Service temporarily overloaded","type":"Overloaded","code":529}`
    Reference,
    /// `{"type":"error","error":{"type":"overloaded_error","message":"…"}}`;
    /// the inner type of all the others is `api_error`.
    Anthropic,
    /// `{"error":{"message":"…","type":"server_error","code":"overloaded","param":null}}`;
    /// the other codes are `unavailable`, `bad_gateway` and `internal_error`.
    /// `code` is a string here, as OpenAI's own clients parse it.
    OpenAi,
    /// No body, no content type, `content-length: 0`.
    Empty,
    /// The user's own; see [`Format::custom`].
    Custom(CustomFormat),
}

impl Format {
    /// The body is made by `render`, with the value of its `content-type`.
    ///
    /// It is called once an answer, on the path of the refusal, so it should
    /// be cheap: return clones of bodies made beforehand. A panic in it goes
    /// to whoever polls the response.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::HeaderValue;
    /// use tower_overload::status::Format;
    ///
    /// let format = Format::custom(|refusal| {
    ///     let text = format!("{}: {}", refusal.status().as_u16(), refusal.message());
    ///     (HeaderValue::from_static("text/plain"), Bytes::from(text))
    /// });
    /// # let _ = format;
    /// ```
    pub fn custom<F>(render: F) -> Self
    where
        F: Fn(&Refusal<'_>) -> (HeaderValue, Bytes) + Send + Sync + 'static,
    {
        Self::Custom(CustomFormat(Arc::new(render)))
    }
}

type Render = dyn Fn(&Refusal<'_>) -> (HeaderValue, Bytes) + Send + Sync;

/// A function that makes the body of an answer.
#[derive(Clone)]
pub struct CustomFormat(Arc<Render>);

impl fmt::Debug for CustomFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomFormat")
    }
}

/// What a [custom format](Format::custom) makes a body of.
#[derive(Debug)]
pub struct Refusal<'a> {
    pub(super) answer: Answer,
    pub(super) status: StatusCode,
    pub(super) message: &'a str,
    pub(super) retry_after: Option<std::time::Duration>,
    pub(super) endpoint: Endpoint,
    pub(super) model: Option<&'a str>,
}

impl Refusal<'_> {
    /// What it is about.
    pub const fn kind(&self) -> AnswerKind {
        self.answer.kind()
    }

    /// The reason as a label.
    pub const fn reason(&self) -> Option<&'static str> {
        self.answer.reason()
    }

    /// The status that the response has.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The configured message.
    pub const fn message(&self) -> &str {
        self.message
    }

    /// What the headers say about a retry: the error's own value or the
    /// configured default.
    pub const fn retry_after(&self) -> Option<std::time::Duration> {
        self.retry_after
    }

    /// The endpoint that the request was for.
    pub const fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The model that the request was for, if it is known. It comes from the
    /// client: escape it.
    pub const fn model(&self) -> Option<&str> {
        self.model
    }
}

/// A body with the headers that describe it.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) content_type: Option<HeaderValue>,
    pub(super) content_length: HeaderValue,
    pub(super) body: Bytes,
}

impl Content {
    fn new(content_type: Option<HeaderValue>, body: Bytes) -> Self {
        Self {
            content_type,
            content_length: HeaderValue::from(body.len()),
            body,
        }
    }
}

/// How the bodies of one kind of answer are made: beforehand, if they are
/// always the same.
#[derive(Clone, Debug)]
pub(super) enum Rendering {
    Fixed(Content),
    Custom(CustomFormat),
}

impl Rendering {
    pub(super) fn prepare(
        format: &Format,
        kind: AnswerKind,
        status: StatusCode,
        message: &str,
    ) -> Self {
        let message = json_string(message);
        let body = match format {
            Format::Reference => {
                let (kind, code) = (reference_type(kind), status.as_u16());
                format!(r#"{{"message":{message},"type":"{kind}","code":{code}}}"#)
            }
            Format::Anthropic => {
                let kind = anthropic_type(kind);
                format!(r#"{{"type":"error","error":{{"type":"{kind}","message":{message}}}}}"#)
            }
            Format::OpenAi => {
                let code = openai_code(kind);
                format!(
                    r#"{{"error":{{"message":{message},"type":"server_error","code":"{code}","param":null}}}}"#
                )
            }
            Format::Empty => return Self::Fixed(Content::new(None, Bytes::new())),
            Format::Custom(custom) => return Self::Custom(custom.clone()),
        };
        let json = HeaderValue::from_static("application/json");
        Self::Fixed(Content::new(Some(json), body.into()))
    }

    pub(super) fn render(&self, refusal: &Refusal<'_>) -> Content {
        match self {
            Self::Fixed(content) => content.clone(),
            Self::Custom(custom) => {
                let (content_type, body) = (custom.0)(refusal);
                Content::new(Some(content_type), body)
            }
        }
    }
}

const fn reference_type(kind: AnswerKind) -> &'static str {
    match kind {
        AnswerKind::Overloaded => "Overloaded",
        AnswerKind::Unavailable => "Service Unavailable",
        AnswerKind::BadGateway => "Bad Gateway",
        AnswerKind::Internal => "Internal Server Error",
    }
}

const fn anthropic_type(kind: AnswerKind) -> &'static str {
    match kind {
        AnswerKind::Overloaded => "overloaded_error",
        AnswerKind::Unavailable | AnswerKind::BadGateway | AnswerKind::Internal => "api_error",
    }
}

const fn openai_code(kind: AnswerKind) -> &'static str {
    match kind {
        AnswerKind::Overloaded => "overloaded",
        AnswerKind::Unavailable => "unavailable",
        AnswerKind::BadGateway => "bad_gateway",
        AnswerKind::Internal => "internal_error",
    }
}

/// `text` as a JSON string, quotes included.
fn json_string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for char in text.chars() {
        match char {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                json.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            char => json.push(char),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(format: &Format, kind: AnswerKind, status: u16, message: &str) -> String {
        let status = StatusCode::from_u16(status).unwrap();
        match Rendering::prepare(format, kind, status, message) {
            Rendering::Fixed(content) => String::from_utf8(content.body.to_vec()).unwrap(),
            Rendering::Custom(_) => panic!("not a custom format"),
        }
    }

    #[test]
    fn the_bodies_are_the_references_byte_for_byte() {
        let overloaded = "Service temporarily overloaded";
        assert_eq!(
            body(&Format::Reference, AnswerKind::Overloaded, 529, overloaded),
            r#"{"message":"Service temporarily overloaded","type":"Overloaded","code":529}"#
        );
        assert_eq!(
            body(&Format::Anthropic, AnswerKind::Overloaded, 529, overloaded),
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Service temporarily overloaded"}}"#
        );
        assert_eq!(
            body(
                &Format::Reference,
                AnswerKind::Unavailable,
                503,
                "Service temporarily unavailable"
            ),
            r#"{"message":"Service temporarily unavailable","type":"Service Unavailable","code":503}"#
        );
    }

    #[test]
    fn the_code_follows_the_status_and_the_type_does_not() {
        assert_eq!(
            body(&Format::Reference, AnswerKind::Overloaded, 503, "m"),
            r#"{"message":"m","type":"Overloaded","code":503}"#
        );
    }

    #[test]
    fn the_openai_envelope_has_its_four_fields() {
        let body = body(&Format::OpenAi, AnswerKind::Overloaded, 529, "m");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&body).unwrap(),
            serde_json::json!({"error": {
                "message": "m", "type": "server_error", "code": "overloaded", "param": null,
            }})
        );
    }

    const KINDS: [AnswerKind; 4] = [
        AnswerKind::Overloaded,
        AnswerKind::Unavailable,
        AnswerKind::BadGateway,
        AnswerKind::Internal,
    ];

    proptest! {
        #[test]
        fn every_body_is_json_that_holds_the_message(message in any::<String>(), kind in 0..4usize) {
            for (format, at) in [
                (Format::Reference, "/message"),
                (Format::Anthropic, "/error/message"),
                (Format::OpenAi, "/error/message"),
            ] {
                let body = body(&format, KINDS[kind], 529, &message);
                let json: serde_json::Value = serde_json::from_str(&body).unwrap();
                prop_assert_eq!(json.pointer(at).unwrap().as_str(), Some(&*message));
            }
        }
    }
}
