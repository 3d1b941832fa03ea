//! Strings that are borrowed where they can be, and values whose type is not
//! known.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::{borrow::Cow, fmt};

/// The name of a member.
#[derive(Debug)]
pub(super) struct Name<'a>(pub(super) Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_str(OfScalar)? {
            Scalar::Text(name) => Ok(Self(name)),
            // All names are strings.
            _ => Ok(Self(Cow::Borrowed(""))),
        }
    }
}

/// A value, unless it is made of others.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Scalar<'a> {
    #[default]
    Null,
    Bool(bool),
    /// A whole one; one that is below 0 or has a fraction is not told apart.
    Number(Option<u64>),
    Text(Cow<'a, str>),
    Object,
    Array,
}

impl Scalar<'_> {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it is what the validators of the engines, which are written in
    /// Python, take for `true`.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Bool(it) => *it,
            Self::Number(it) => *it == Some(1),
            Self::Text(text) => is_true(text),
            _ => false,
        }
    }

    /// The whole number that it is, or that it says.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(it) => *it,
            Self::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// What it is, for a message.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::Object => "an object",
            Self::Array => "an array",
        }
    }
}

/// Whether a text is one that is taken for `true`, in a form as well.
pub(super) fn is_true(text: &str) -> bool {
    ["true", "t", "yes", "y", "on", "1"]
        .iter()
        .any(|it| text.eq_ignore_ascii_case(it))
}

impl<'de> Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfScalar)
    }
}

struct OfScalar;

impl<'de> Visitor<'de> for OfScalar {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Scalar::Number(Some(number)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Scalar::Number(u64::try_from(number).ok()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        // Saturates.
        let whole = number as u64;
        Ok(Scalar::Number((whole as f64 == number).then_some(whole)))
    }

    fn visit_bool<E>(self, it: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Bool(it))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Array)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Object)
    }
}
