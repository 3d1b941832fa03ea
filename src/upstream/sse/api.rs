//! What each API calls an error in the middle of a stream.

use crate::status::{Endpoint, RequestInfo};
use bytes::Bytes;
use http::Request;

/// The API whose events a stream has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    /// Chat and text completions.
    Completions,
    Responses,
    Anthropic,
}

const MESSAGE: &str = "The answer broke off: its worker failed";

impl Api {
    /// `None` if it is one whose errors are not known here.
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        let info = RequestInfo::of(request);
        match info.endpoint() {
            Endpoint::ChatCompletions | Endpoint::Completions => Some(Self::Completions),
            Endpoint::Responses => Some(Self::Responses),
            Endpoint::AnthropicMessages => Some(Self::Anthropic),
            _ => None,
        }
    }

    /// The events that a stream ends with of which `count` events have come.
    pub(super) fn end(self, count: u64) -> Bytes {
        let events = match self {
            Self::Completions => format!(
                "data: {{\"error\":{{\"message\":\"{MESSAGE}\",\"type\":\"server_error\",\
                 \"param\":null,\"code\":\"worker_failed\"}}}}\n\ndata: [DONE]\n\n"
            ),
            Self::Responses => format!(
                "event: error\ndata: {{\"type\":\"error\",\"code\":\"worker_failed\",\
                 \"message\":\"{MESSAGE}\",\"param\":null,\"sequence_number\":{count}}}\n\n"
            ),
            Self::Anthropic => format!(
                "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"api_error\",\
                 \"message\":\"{MESSAGE}\"}}}}\n\n"
            ),
        };
        events.into()
    }
}
