//! What was configured and cannot be.

use std::{error::Error, fmt};

/// A setting of a worker or of what is forwarded to it is not one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSetting {
    setting: &'static str,
    value: String,
    allowed: String,
}

impl InvalidSetting {
    pub(super) fn new(
        setting: &'static str,
        value: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        Self {
            setting,
            value: value.into(),
            allowed: allowed.into(),
        }
    }
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            setting,
            value,
            allowed,
        } = self;
        write!(f, "invalid {setting}: {value:?}; allowed is {allowed}")
    }
}

impl Error for InvalidSetting {}
