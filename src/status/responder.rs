use super::{
    Answer, AnswerKind, Format, KnownModels, Model, Refusal, RequestInfo,
    format::{Content, Rendering},
    headers::{GrpcStatus, RetryAfter, insert_retry_after},
    request::Protocol,
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
    request::Parts,
};
use std::{
    error::Error,
    fmt,
    sync::{Arc, Once},
};

/// Everything that is said in answers of one kind.
#[derive(Clone, Debug)]
pub(super) struct Said {
    status: StatusCode,
    message: String,
    general: Rendering,
    anthropic: Rendering,
    grpc: GrpcStatus,
}

impl Said {
    pub(super) const fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn prepare(
        kind: AnswerKind,
        status: StatusCode,
        message: String,
        grpc_code: u16,
        general: &Format,
        anthropic: &Format,
    ) -> Self {
        Self {
            general: Rendering::prepare(general, kind, status, &message),
            anthropic: Rendering::prepare(anthropic, kind, status, &message),
            grpc: GrpcStatus::prepare(grpc_code, &message),
            status,
            message,
        }
    }
}

pub(super) type ReadModel = dyn Fn(&Parts) -> Option<Model> + Send + Sync;

/// Where the model of a request is read.
#[derive(Clone)]
pub(super) enum ModelSource {
    Extension,
    Custom(Arc<ReadModel>),
}

impl fmt::Debug for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Extension => "Extension",
            Self::Custom(_) => "Custom",
        })
    }
}

/// Which response is given for which error and request: the rule, without a
/// service around it.
#[derive(Debug)]
pub(super) struct Responder {
    pub(super) overloaded: Said,
    pub(super) unavailable: Said,
    pub(super) bad_gateway: Said,
    pub(super) internal: Said,
    pub(super) retry_after: Option<RetryAfter>,
    pub(super) reason_header: Option<HeaderName>,
    pub(super) strip_reason: bool,
    pub(super) models: KnownModels,
    pub(super) model_source: ModelSource,
    /// A dead service is told of once, not by each of its clones.
    pub(super) death: Once,
}

impl Responder {
    pub(super) fn info<B>(&self, request: Request<B>) -> (RequestInfo, Request<B>) {
        match &self.model_source {
            ModelSource::Extension => (RequestInfo::of(&request), request),
            ModelSource::Custom(model) => {
                let mut info = RequestInfo::without_model(&request);
                let (parts, body) = request.into_parts();
                info.model = model(&parts);
                (info, Request::from_parts(parts, body))
            }
        }
    }

    /// Gives `answer` to the client, and counts it.
    pub(super) fn respond(&self, answer: Answer, info: &RequestInfo) -> Response<Bytes> {
        self.models
            .count(answer.kind(), info.model.as_ref(), info.endpoint);
        let said = match answer.kind() {
            AnswerKind::Overloaded => &self.overloaded,
            AnswerKind::Unavailable => &self.unavailable,
            AnswerKind::BadGateway => &self.bad_gateway,
            AnswerKind::Internal => &self.internal,
        };
        let default = self
            .retry_after
            .as_ref()
            .filter(|_| answer.kind() != AnswerKind::Internal);

        let mut headers = HeaderMap::with_capacity(6);
        if let (Some(name), Some(reason)) = (&self.reason_header, answer.reason()) {
            headers.insert(name, HeaderValue::from_static(reason));
        }
        let (status, body) = match &info.protocol {
            Protocol::Grpc(content_type) => {
                headers.insert(CONTENT_TYPE, content_type.clone());
                said.grpc
                    .insert_into(&mut headers, answer.retry_after(), default);
                (StatusCode::OK, Bytes::new())
            }
            protocol => {
                let rendering = match protocol {
                    Protocol::Anthropic => &said.anthropic,
                    Protocol::General | Protocol::Grpc(_) => &said.general,
                };
                let content = rendering.render(&Refusal {
                    answer,
                    status: said.status,
                    message: &said.message,
                    retry_after: answer
                        .retry_after()
                        .or_else(|| default.map(RetryAfter::after)),
                    endpoint: info.endpoint,
                    model: info.model.as_ref().and_then(Model::name),
                });
                insert_retry_after(&mut headers, answer.retry_after(), default);
                let body = insert_content(&mut headers, content, said.status, info.head);
                (said.status, body)
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    /// Says that the inner service has failed for good, the first time that it
    /// is found out.
    pub(super) fn log_death(&self, error: &(dyn Error + 'static)) {
        self.death.call_once(|| {
            tracing::warn!(
                error,
                "the inner service has failed for good: its requests are answered with this error"
            );
        });
    }

    /// Takes the reason header from a response of the inner service, if the
    /// layer was told to.
    pub(super) fn strip(&self, headers: &mut HeaderMap) {
        if let (true, Some(name)) = (self.strip_reason, &self.reason_header) {
            headers.remove(name);
        }
    }
}

/// Describes the body in the headers, and gives the part of it that is sent.
fn insert_content(
    headers: &mut HeaderMap,
    content: Content,
    status: StatusCode,
    head: bool,
) -> Bytes {
    // HTTP has no content for these, not even a length that says so.
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Bytes::new();
    }
    if status == StatusCode::RESET_CONTENT {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        return Bytes::new();
    }
    if let Some(content_type) = content.content_type {
        headers.insert(CONTENT_TYPE, content_type);
    }
    headers.insert(CONTENT_LENGTH, content.content_length);
    if head { Bytes::new() } else { content.body }
}
