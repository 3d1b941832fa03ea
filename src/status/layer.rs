use super::{
    Answer, AnswerAll, AnswerKind, Format, KnownModels, Model, OverloadStatus, PassThrough,
    RequestInfo,
    headers::{RetryAfter, is_reserved},
    responder::{ModelSource, Responder, Said},
};
use bytes::Bytes;
use http::{HeaderName, Response, StatusCode, request::Parts};
use std::{
    error::Error,
    fmt,
    marker::PhantomData,
    sync::{Arc, Once},
    time::Duration,
};
use tower_layer::Layer;

/// The environment variable with the status of overload answers.
pub const OVERLOAD_STATUS_VARIABLE: &str = "DYN_HTTP_OVERLOAD_STATUS_CODE";

/// The status of overload answers where nothing else is configured: 529.
pub const DEFAULT_OVERLOAD_STATUS: u16 = 529;

/// The name of the header with the reason, where nothing else is configured.
pub const DEFAULT_REASON_HEADER: HeaderName = HeaderName::from_static("x-overload-reason");

/// Answers overload errors with responses that clients understand.
///
/// See the [module's documentation](super). `M` says what happens to all the
/// other errors: [`PassThrough`] or [`AnswerAll`].
///
/// Cloning is cheap, and all the services of one layer share its
/// configuration and counters.
pub struct OverloadStatusLayer<M = PassThrough> {
    responder: Arc<Responder>,
    mode: PhantomData<fn() -> M>,
}

impl OverloadStatusLayer {
    /// With the defaults of [`Builder`]. Reads [`OVERLOAD_STATUS_VARIABLE`],
    /// once.
    pub fn new() -> Self {
        Self::from_builder(Builder::default(), Checked::default())
    }

    /// To be configured.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Answers *every* error: the ones that are not about overload with a 500
    /// that does not tell the client what went wrong. The service's error is
    /// then `Infallible`, as axum requires.
    ///
    /// The text of such an error goes to a `tracing` event instead.
    pub fn infallible(self) -> OverloadStatusLayer<AnswerAll> {
        OverloadStatusLayer {
            responder: self.responder,
            mode: PhantomData,
        }
    }

    fn from_builder(builder: Builder, checked: Checked) -> Self {
        let Builder {
            format,
            anthropic_format,
            messages,
            ..
        } = builder;
        let said = |kind, status, message, code| {
            Said::prepare(kind, status, message, code, &format, &anthropic_format)
        };
        let Messages {
            overloaded,
            unavailable,
            bad_gateway,
        } = messages;
        let overload_status = overload_status(checked.overload_status, || {
            std::env::var(OVERLOAD_STATUS_VARIABLE).ok()
        });
        let unavailable_status = checked
            .unavailable_status
            .unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let (overloaded_code, unavailable_code) = builder.grpc_codes;
        Self {
            responder: Arc::new(Responder {
                overloaded: said(
                    AnswerKind::Overloaded,
                    overload_status,
                    overloaded,
                    overloaded_code,
                ),
                unavailable: said(
                    AnswerKind::Unavailable,
                    unavailable_status,
                    unavailable,
                    unavailable_code,
                ),
                bad_gateway: said(
                    AnswerKind::BadGateway,
                    checked
                        .bad_gateway_status
                        .unwrap_or(StatusCode::BAD_GATEWAY),
                    bad_gateway,
                    unavailable_code,
                ),
                internal: said(
                    AnswerKind::Internal,
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "Internal server error".into(),
                    GRPC_INTERNAL,
                ),
                retry_after: checked.retry_after.map(RetryAfter::prepare),
                reason_header: checked.reason_header,
                strip_reason: builder.strip_reason,
                models: builder.models.unwrap_or_default(),
                model_source: builder.model_source,
                death: Once::new(),
            }),
            mode: PhantomData,
        }
    }
}

impl<M> OverloadStatusLayer<M> {
    /// The status of overload answers.
    pub fn overload_status(&self) -> StatusCode {
        self.responder.overloaded.status()
    }

    /// The models that have counters of their own.
    pub fn models(&self) -> &KnownModels {
        &self.responder.models
    }

    /// The answer to `error`, without a service: for a handler that has the
    /// error in its hands. `None` if the error is not about overload.
    ///
    /// The answer is counted. Its body is complete, and empty where it has
    /// to be (gRPC, `HEAD`).
    pub fn answer(
        &self,
        error: &(dyn Error + 'static),
        request: &RequestInfo,
    ) -> Option<Response<Bytes>> {
        let answer = Answer::of(error)?;
        Some(self.responder.respond(answer, request))
    }

    /// As [`answer`](Self::answer), where the answer is certain.
    pub fn respond(&self, answer: impl Into<Answer>, request: &RequestInfo) -> Response<Bytes> {
        self.responder.respond(answer.into(), request)
    }
}

impl Default for OverloadStatusLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> Clone for OverloadStatusLayer<M> {
    fn clone(&self) -> Self {
        Self {
            responder: self.responder.clone(),
            mode: PhantomData,
        }
    }
}

impl<M> fmt::Debug for OverloadStatusLayer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverloadStatusLayer")
            .field("responder", &self.responder)
            .finish()
    }
}

impl<S, M> Layer<S> for OverloadStatusLayer<M> {
    type Service = OverloadStatus<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        OverloadStatus::new(inner, self.responder.clone())
    }
}

const GRPC_RESOURCE_EXHAUSTED: u16 = 8;
const GRPC_INTERNAL: u16 = 13;
const GRPC_UNAVAILABLE: u16 = 14;

#[derive(Clone, Debug)]
struct Messages {
    overloaded: String,
    unavailable: String,
    bad_gateway: String,
}

/// Configures an [`OverloadStatusLayer`].
///
/// Nothing is checked before [`build`](Self::build), which says what is wrong
/// with the first setting that is.
#[derive(Clone, Debug)]
pub struct Builder {
    overload_status: Option<u16>,
    unavailable_status: Option<u16>,
    bad_gateway_status: Option<u16>,
    grpc_codes: (u16, u16),
    format: Format,
    anthropic_format: Format,
    messages: Messages,
    retry_after_secs: Option<f64>,
    reason_header: Option<String>,
    strip_reason: bool,
    models: Option<KnownModels>,
    model_source: ModelSource,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            overload_status: None,
            unavailable_status: None,
            bad_gateway_status: None,
            grpc_codes: (GRPC_RESOURCE_EXHAUSTED, GRPC_UNAVAILABLE),
            format: Format::Reference,
            anthropic_format: Format::Anthropic,
            messages: Messages {
                overloaded: "Service temporarily overloaded".into(),
                unavailable: "Service temporarily unavailable".into(),
                bad_gateway: "Invalid answer from a worker".into(),
            },
            retry_after_secs: None,
            reason_header: Some(DEFAULT_REASON_HEADER.as_str().into()),
            strip_reason: false,
            models: None,
            model_source: ModelSource::Extension,
        }
    }
}

impl Builder {
    /// The status of overload answers, from 200 to 999. It wins over
    /// [`OVERLOAD_STATUS_VARIABLE`], which is then not read; without either it
    /// is [529](DEFAULT_OVERLOAD_STATUS).
    ///
    /// The body's `code` follows; what it says is about overload all the
    /// same, and so is the metric.
    #[must_use]
    pub fn overload_status(mut self, status: u16) -> Self {
        self.overload_status = Some(status);
        self
    }

    /// The status of answers to [`Unavailable`](crate::Unavailable) and to
    /// what else means that no worker has answered, from 200 to 999; 503 by
    /// default. See the table of [`Answer`].
    #[must_use]
    pub fn unavailable_status(mut self, status: u16) -> Self {
        self.unavailable_status = Some(status);
        self
    }

    /// The status of answers in place of one of a worker's that is no HTTP, or
    /// broke off before any of it was passed on, from 200 to 999; 502 by
    /// default.
    #[must_use]
    pub fn bad_gateway_status(mut self, status: u16) -> Self {
        self.bad_gateway_status = Some(status);
        self
    }

    /// The gRPC status codes for overloaded and for unavailable, from 1 to 16;
    /// RESOURCE_EXHAUSTED (8) and UNAVAILABLE (14) by default. A bad
    /// gateway is answered with the second one.
    #[must_use]
    pub fn grpc_codes(mut self, overloaded: u16, unavailable: u16) -> Self {
        self.grpc_codes = (overloaded, unavailable);
        self
    }

    /// The form of the bodies; [`Format::Reference`] by default. Requests for
    /// Anthropic's API are not affected, see
    /// [`anthropic_format`](Self::anthropic_format), and neither is gRPC,
    /// which has no body.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// The form of the bodies for requests that are for Anthropic's API by
    /// their path or by an `anthropic-version` header; [`Format::Anthropic`]
    /// by default.
    #[must_use]
    pub fn anthropic_format(mut self, format: Format) -> Self {
        self.anthropic_format = format;
        self
    }

    /// What an overload answer says in its body, or in `grpc-message`.
    /// "Service temporarily overloaded" by default. Any text: it is escaped.
    #[must_use]
    pub fn overloaded_message(mut self, message: impl Into<String>) -> Self {
        self.messages.overloaded = message.into();
        self
    }

    /// What an unavailable answer says. "Service temporarily unavailable" by
    /// default.
    #[must_use]
    pub fn unavailable_message(mut self, message: impl Into<String>) -> Self {
        self.messages.unavailable = message.into();
        self
    }

    /// What the answer says in place of one that is no HTTP. "Invalid answer
    /// from a worker" by default.
    #[must_use]
    pub fn bad_gateway_message(mut self, message: impl Into<String>) -> Self {
        self.messages.bad_gateway = message.into();
        self
    }

    /// When to retry, in seconds from now, where the error does not know;
    /// finite and not negative. Nothing is said by default, as the reference
    /// does.
    ///
    /// It is for every answer but a 500. Clients see it as `retry-after` in
    /// whole seconds, rounded up and at least 1, as `retry-after-ms`, and in
    /// gRPC as `grpc-retry-pushback-ms`.
    #[must_use]
    pub fn default_retry_after_secs(mut self, secs: f64) -> Self {
        self.retry_after_secs = Some(secs);
        self
    }

    /// The name of the header with the reason, such as `worker_at_capacity`;
    /// [`x-overload-reason`](DEFAULT_REASON_HEADER) by default. Not one that an
    /// answer has for something else, such as `content-length`.
    #[must_use]
    pub fn reason_header(mut self, name: impl Into<String>) -> Self {
        self.reason_header = Some(name.into());
        self
    }

    /// No header names the reason.
    #[must_use]
    pub fn without_reason_header(mut self) -> Self {
        self.reason_header = None;
        self
    }

    /// Whether the reason header is taken from responses of the inner service;
    /// `false` by default.
    ///
    /// A gateway says `true`: then a client that sees the header knows that
    /// the gateway has set it. It is the one thing that this layer does to a
    /// response that is not its own.
    #[must_use]
    pub fn strip_reason_from_upstream(mut self, strip: bool) -> Self {
        self.strip_reason = strip;
        self
    }

    /// The models with counters of their own, a handle that can be shared
    /// with other layers. By default one of the layer's own, which
    /// [`OverloadStatusLayer::models`] gives access to.
    #[must_use]
    pub fn models(mut self, models: KnownModels) -> Self {
        self.models = Some(models);
        self
    }

    /// Reads the model of a request from its head. By default it is a
    /// [`Model`] among the request's extensions.
    ///
    /// It is called for every request, so it should be cheap.
    #[must_use]
    pub fn model_from<F>(mut self, model: F) -> Self
    where
        F: Fn(&Parts) -> Option<Model> + Send + Sync + 'static,
    {
        self.model_source = ModelSource::Custom(Arc::new(model));
        self
    }

    /// The layer, in pass-through mode; see
    /// [`infallible`](OverloadStatusLayer::infallible) for the other one.
    ///
    /// # Errors
    ///
    /// A setting is out of the range that its method names.
    pub fn build(self) -> Result<OverloadStatusLayer, InvalidSetting> {
        let checked = self.check()?;
        Ok(OverloadStatusLayer::from_builder(self, checked))
    }

    fn check(&self) -> Result<Checked, InvalidSetting> {
        let status = |setting, status: Option<u16>| {
            status
                .map(|status| {
                    valid_status(status).ok_or_else(|| InvalidSetting::status(setting, status))
                })
                .transpose()
        };
        for (setting, code) in [
            ("gRPC code for overloaded", self.grpc_codes.0),
            ("gRPC code for unavailable", self.grpc_codes.1),
        ] {
            if !(1..=16).contains(&code) {
                return Err(InvalidSetting::new(
                    setting,
                    code,
                    "a gRPC status code from 1 to 16",
                ));
            }
        }
        let retry_after = self.retry_after_secs.map(|secs| {
            Duration::try_from_secs_f64(secs).map_err(|_| {
                InvalidSetting::new(
                    "default retry-after",
                    secs,
                    "a finite number of seconds, 0 or more",
                )
            })
        });
        let reason_header = self.reason_header.as_ref().map(|name| {
            HeaderName::try_from(name)
                .ok()
                .filter(|name| !is_reserved(name))
                .ok_or_else(|| {
                    InvalidSetting::new(
                        "reason header",
                        name,
                        "an HTTP header name that has no other meaning in an answer",
                    )
                })
        });
        Ok(Checked {
            overload_status: status("overload status", self.overload_status)?,
            unavailable_status: status("unavailable status", self.unavailable_status)?,
            bad_gateway_status: status("bad gateway status", self.bad_gateway_status)?,
            retry_after: retry_after.transpose()?,
            reason_header: reason_header.transpose()?,
        })
    }
}

/// The settings that can be wrong, and are not.
struct Checked {
    overload_status: Option<StatusCode>,
    unavailable_status: Option<StatusCode>,
    bad_gateway_status: Option<StatusCode>,
    retry_after: Option<Duration>,
    reason_header: Option<HeaderName>,
}

impl Default for Checked {
    fn default() -> Self {
        Self {
            overload_status: None,
            unavailable_status: None,
            bad_gateway_status: None,
            retry_after: None,
            reason_header: Some(DEFAULT_REASON_HEADER),
        }
    }
}

/// A setting of [`Builder`] is out of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSetting {
    setting: &'static str,
    value: String,
    allowed: &'static str,
}

impl InvalidSetting {
    fn new(setting: &'static str, value: impl ToString, allowed: &'static str) -> Self {
        Self {
            setting,
            value: value.to_string(),
            allowed,
        }
    }

    fn status(setting: &'static str, status: u16) -> Self {
        Self::new(setting, status, "an HTTP status from 200 to 999")
    }
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid {}: {:?}; allowed is {}",
            self.setting, self.value, self.allowed
        )
    }
}

impl Error for InvalidSetting {}

fn valid_status(status: u16) -> Option<StatusCode> {
    StatusCode::from_u16(status)
        .ok()
        .filter(|status| !status.is_informational())
}

/// The status that a value of [`OVERLOAD_STATUS_VARIABLE`] means: an integer
/// that is a valid status and not 1xx, with or without white space around it.
/// Anything else means 529.
///
/// ```
/// use tower_overload::status::parse_overload_status;
///
/// assert_eq!(parse_overload_status(" 429 "), 429);
/// assert_eq!(parse_overload_status("100"), 529);
/// assert_eq!(parse_overload_status("abc"), 529);
/// ```
pub fn parse_overload_status(value: &str) -> StatusCode {
    value
        .trim()
        .parse()
        .ok()
        .and_then(valid_status)
        .unwrap_or_else(default_overload_status)
}

fn overload_status(
    explicit: Option<StatusCode>,
    variable: impl FnOnce() -> Option<String>,
) -> StatusCode {
    explicit.unwrap_or_else(|| match variable() {
        Some(value) => parse_overload_status(&value),
        None => default_overload_status(),
    })
}

fn default_overload_status() -> StatusCode {
    StatusCode::from_u16(DEFAULT_OVERLOAD_STATUS).expect("529 is a valid status")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_variable_is_taken_as_the_reference_takes_it() {
        for status in [200, 400, 429, 503, 507, 600, 700, 999] {
            assert_eq!(parse_overload_status(&status.to_string()), status);
        }
        assert_eq!(parse_overload_status(" 507 "), 507);
        assert_eq!(parse_overload_status("\t200\n"), 200);
        for other in [
            "99",
            "100",
            "199",
            "1000",
            "-1",
            "0",
            "65536",
            "99999999999999999999",
            "abc",
            "",
            " ",
            "529.0",
            "0x211",
            "5 29",
        ] {
            assert_eq!(parse_overload_status(other), 529, "{other:?}");
        }
    }

    fn refused(builder: Builder) -> String {
        builder.build().unwrap_err().to_string()
    }

    #[test]
    fn a_setting_out_of_range_is_refused_by_name() {
        let builder = OverloadStatusLayer::builder;
        for status in [0, 99, 100, 199, 1000] {
            assert_eq!(
                refused(builder().overload_status(status)),
                format!(
                    "invalid overload status: \"{status}\"; allowed is an HTTP status from 200 to 999"
                )
            );
        }
        assert!(refused(builder().unavailable_status(101)).contains("unavailable status"));
        assert!(refused(builder().bad_gateway_status(42)).contains("bad gateway status"));
        assert!(refused(builder().grpc_codes(0, 14)).contains("gRPC code for overloaded: \"0\""));
        assert!(refused(builder().grpc_codes(8, 17)).contains("gRPC code for unavailable: \"17\""));
        for name in ["", "x reason", "x\nreason", "Content-Length", "retry-after"] {
            assert!(refused(builder().reason_header(name)).contains("reason header"));
        }
        for secs in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 1e300] {
            assert!(refused(builder().default_retry_after_secs(secs)).contains("retry-after"));
        }
    }

    #[test]
    fn an_explicit_status_wins_over_the_variable_which_is_not_read() {
        let untouched = || panic!("the variable was read");
        let status = valid_status(429);
        assert_eq!(overload_status(status, untouched), 429);
        assert_eq!(overload_status(None, || Some("507".into())), 507);
        assert_eq!(overload_status(None, || Some("many".into())), 529);
        assert_eq!(overload_status(None, || None), 529);

        let builder = OverloadStatusLayer::builder().overload_status(429);
        assert_eq!(builder.build().unwrap().overload_status(), 429);
    }
}
