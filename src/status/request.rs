use super::Model;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header::CONTENT_TYPE};

const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// Which of the model APIs a request is for: the `endpoint` label of the
/// rejection counters.
///
/// Told from the end of the path, so it holds under a prefix
/// (`/team/v1/completions`) and inside a nested router that has taken `/v1`
/// away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Endpoint {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    AnthropicMessages,
    /// Any other path.
    Other,
}

impl Endpoint {
    pub(super) const ALL: [Self; 5] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Responses,
        Self::AnthropicMessages,
        Self::Other,
    ];

    /// The endpoint that `path` leads to.
    pub fn of_path(path: &str) -> Self {
        let path = path.strip_suffix('/').unwrap_or(path);
        let ends_in = |name| {
            path.strip_suffix(name)
                .is_some_and(|mount| mount.is_empty() || mount.ends_with("/v1"))
        };
        if ends_in("/chat/completions") {
            Self::ChatCompletions
        } else if ends_in("/completions") {
            Self::Completions
        } else if ends_in("/responses") {
            Self::Responses
        } else if ends_in("/messages") {
            Self::AnthropicMessages
        } else {
            Self::Other
        }
    }

    /// The label: `chat_completions`, `completions`, `responses`,
    /// `anthropic_messages` or `other`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::AnthropicMessages => "anthropic_messages",
            Self::Other => "other",
        }
    }
}

/// What the client expects an error to look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    General,
    Anthropic,
    /// With the content type to answer in.
    Grpc(HeaderValue),
}

/// What an answer has to know of the request, which is gone by the time the
/// answer is due.
///
/// Making one allocates nothing.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    pub(super) protocol: Protocol,
    pub(super) endpoint: Endpoint,
    /// The answer has a head only.
    pub(super) head: bool,
    pub(super) model: Option<Model>,
}

impl RequestInfo {
    /// Reads path, method and headers of `request`, and the [`Model`] in its
    /// extensions.
    pub fn of<B>(request: &Request<B>) -> Self {
        let mut info = Self::without_model(request);
        info.model = request.extensions().get().cloned();
        info
    }

    pub(super) fn without_model<B>(request: &Request<B>) -> Self {
        let path = request.uri().path();
        let endpoint = Endpoint::of_path(path);
        Self {
            protocol: protocol(endpoint, path, request.headers()),
            endpoint,
            head: request.method() == Method::HEAD,
            model: None,
        }
    }

    /// The endpoint that the request was for.
    pub const fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The model that the request was for, if it is known yet.
    pub const fn model(&self) -> Option<&Model> {
        self.model.as_ref()
    }

    /// Whether the request was a gRPC call.
    pub const fn is_grpc(&self) -> bool {
        matches!(self.protocol, Protocol::Grpc(_))
    }

    /// Whether the request was for Anthropic's API: by its path, or because it
    /// has an `anthropic-version` header.
    pub const fn is_anthropic(&self) -> bool {
        matches!(self.protocol, Protocol::Anthropic)
    }
}

fn protocol(endpoint: Endpoint, path: &str, headers: &HeaderMap) -> Protocol {
    if let Some(answer_in) = headers.get(CONTENT_TYPE).and_then(grpc_content_type) {
        return Protocol::Grpc(answer_in);
    }
    // `/v1/messages/count_tokens`, `/v1/messages/batches/…`
    let anthropic = match endpoint {
        Endpoint::AnthropicMessages => true,
        Endpoint::Other if path.contains("/v1/messages/") => true,
        _ => headers.contains_key(ANTHROPIC_VERSION),
    };
    if anthropic {
        Protocol::Anthropic
    } else {
        Protocol::General
    }
}

/// The content type that a gRPC request of content type `asked` is answered
/// in: the same one, without parameters. `None` if it is not gRPC.
fn grpc_content_type(asked: &HeaderValue) -> Option<HeaderValue> {
    const GRPC: &[u8] = b"application/grpc";
    let value = asked.as_bytes();
    let (start, rest) = value.split_at_checked(GRPC.len())?;
    if !start.eq_ignore_ascii_case(GRPC) {
        return None;
    }
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-._".contains(byte);
    let subtype = rest.iter().take_while(|byte| token(byte)).count();
    let (subtype, parameters) = rest.split_at(subtype);
    if !matches!(subtype.first(), None | Some(b'+' | b'-')) {
        return None;
    }
    match parameters.first() {
        None => Some(asked.clone()),
        Some(b';' | b' ' | b'\t') => {
            HeaderValue::from_bytes(&value[..GRPC.len() + subtype.len()]).ok()
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_told_from_the_end_of_the_path() {
        for (path, endpoint) in [
            ("/v1/chat/completions", Endpoint::ChatCompletions),
            ("/v1/completions", Endpoint::Completions),
            ("/v1/responses", Endpoint::Responses),
            ("/v1/messages", Endpoint::AnthropicMessages),
            ("/v1/messages/", Endpoint::AnthropicMessages),
            ("/team/a/v1/chat/completions", Endpoint::ChatCompletions),
            ("/chat/completions", Endpoint::ChatCompletions),
            ("/completions", Endpoint::Completions),
            ("/v1/threads/t1/messages", Endpoint::Other),
            ("/v1/responses/r1", Endpoint::Other),
            ("/v1/models", Endpoint::Other),
            ("/v1/xcompletions", Endpoint::Other),
            ("/", Endpoint::Other),
            ("*", Endpoint::Other),
            ("", Endpoint::Other),
        ] {
            assert_eq!(Endpoint::of_path(path), endpoint, "{path}");
        }
    }

    fn info(path: &str, headers: &[(HeaderName, &str)]) -> RequestInfo {
        let mut request = Request::new(());
        *request.uri_mut() = path.parse().unwrap();
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).unwrap();
            request.headers_mut().append(name.clone(), value);
        }
        RequestInfo::of(&request)
    }

    #[test]
    fn a_request_is_anthropics_by_its_path_or_by_its_header() {
        assert!(info("/v1/messages", &[]).is_anthropic());
        assert!(info("/v1/messages/count_tokens", &[]).is_anthropic());
        assert!(info("/v1/models", &[(ANTHROPIC_VERSION, "2023-06-01")]).is_anthropic());
        assert!(!info("/v1/chat/completions", &[]).is_anthropic());
        assert!(!info("/v1/threads/t1/messages", &[]).is_anthropic());
    }

    #[test]
    fn a_grpc_request_is_told_by_its_content_type_and_answered_in_it() {
        for (asked, answered) in [
            ("application/grpc", Some("application/grpc")),
            ("application/grpc+proto", Some("application/grpc+proto")),
            ("Application/gRPC+json", Some("Application/gRPC+json")),
            (
                "application/grpc-web+proto",
                Some("application/grpc-web+proto"),
            ),
            ("application/grpc;v=1", Some("application/grpc")),
            (
                "application/grpc+proto; charset=utf-8",
                Some("application/grpc+proto"),
            ),
            ("application/grpcx", None),
            ("application/grpc/x", None),
            ("application/grpc+a\"b", None),
            ("application/json", None),
            ("application/", None),
            ("", None),
        ] {
            let info = info("/pkg.Service/Call", &[(CONTENT_TYPE, asked)]);
            let expected = answered.map(|value| Protocol::Grpc(HeaderValue::from_static(value)));
            assert_eq!(
                info.protocol,
                expected.unwrap_or(Protocol::General),
                "{asked}"
            );
        }
    }
}
