//! Who a message has been through.

use super::hop::tokens;
use http::{HeaderMap, HeaderValue, Version, header::VIA};
use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, OnceLock},
};

/// The name of this instance in `Via`.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pseudonym(Arc<str>);

impl Pseudonym {
    /// `None` if it is not a token as RFC 9110 has it.
    pub(super) fn new(name: &str) -> Option<Self> {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let valid = !name.is_empty() && name.len() <= 64 && name.bytes().all(is_token);
        valid.then(|| Self(name.into()))
    }

    /// One for all of this process, and for no other.
    pub(super) fn of_process() -> Self {
        static NAME: OnceLock<Pseudonym> = OnceLock::new();
        let name = NAME.get_or_init(|| {
            let random = RandomState::new().hash_one(std::process::id());
            Self(format!("tower-overload-{random:016x}").into())
        });
        name.clone()
    }

    /// Whether a message with these headers has been here before.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        tokens(headers, &VIA).any(|hop| {
            let mut words = hop
                .split(u8::is_ascii_whitespace)
                .filter(|it| !it.is_empty());
            let received_by = words.nth(1);
            received_by.is_some_and(|name| name.eq_ignore_ascii_case(self.0.as_bytes()))
        })
    }

    pub(super) fn append_to(&self, headers: &mut HeaderMap, received: Version) {
        let version = match received {
            Version::HTTP_09 => "0.9",
            Version::HTTP_10 => "1.0",
            Version::HTTP_2 => "2.0",
            Version::HTTP_3 => "3.0",
            _ => "1.1",
        };
        // A token is a valid value.
        if let Ok(hop) = HeaderValue::try_from(format!("{version} {}", self.0)) {
            headers.append(VIA, hop);
        }
    }
}

impl fmt::Debug for Pseudonym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
