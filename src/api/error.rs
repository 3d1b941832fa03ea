use http::StatusCode;
use std::{borrow::Cow, fmt};

/// A request that cannot be read, and so cannot be sent on: no worker could
/// read it either, or it cannot be told which one it is for.
///
/// Displays what is wrong and what is allowed, for the client to see. Has no
/// source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    fault: Fault,
    message: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Malformed,
    TooLarge,
    UnknownCoding,
}

impl ReadError {
    pub(super) fn malformed(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            fault: Fault::Malformed,
            message: message.into(),
        }
    }

    pub(super) fn too_large(message: String) -> Self {
        Self {
            fault: Fault::TooLarge,
            message: message.into(),
        }
    }

    pub(super) fn unknown_coding(message: String) -> Self {
        Self {
            fault: Fault::UnknownCoding,
            message: message.into(),
        }
    }

    /// Returns the status to answer with: 400 for what is malformed, 413 for a
    /// body that is too long when it is decoded, 415 for a `Content-Encoding`
    /// that is not known.
    pub const fn status(&self) -> StatusCode {
        match self.fault {
            Fault::Malformed => StatusCode::BAD_REQUEST,
            Fault::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Fault::UnknownCoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }

    /// Returns the `Accept-Encoding` to answer with, if the coding was not
    /// known ([RFC 9110, section 12.5.3][rfc]).
    ///
    /// [rfc]: https://www.rfc-editor.org/rfc/rfc9110#section-12.5.3
    pub const fn accept_encoding(&self) -> Option<&'static str> {
        match self.fault {
            Fault::UnknownCoding => Some(super::coding::ACCEPTED),
            _ => None,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ReadError {}
