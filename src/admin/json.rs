//! JSON that is read and written: no I/O.

use super::AdminBody;
use crate::load::Change;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::error::Category;
use std::{fmt, marker::PhantomData};

/// `application/json`, or `application/…+json`, with or without parameters.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(CONTENT_TYPE).map(HeaderValue::to_str) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    match essence.strip_prefix("application/") {
        Some(subtype) => subtype == "json" || subtype.ends_with("+json"),
        None => false,
    }
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response<AdminBody> {
    let (status, bytes) = match serde_json::to_vec(value) {
        Ok(bytes) => (status, bytes),
        // Not reached: every map has string keys, every number is finite.
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
    };
    let mut response = Response::new(AdminBody::new(bytes));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

pub(super) fn error(status: StatusCode, message: &str) -> Response<AdminBody> {
    #[derive(Serialize)]
    struct Error<'a> {
        error: &'a str,
    }
    json(status, &Error { error: message })
}

pub(super) fn not_json() -> Response<AdminBody> {
    error(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "the content type must be application/json",
    )
}

/// The answer to a method that is not one of `allowed`, separated by commas.
pub(super) fn only(allowed: &'static str) -> Response<AdminBody> {
    let message = format!("allowed methods: {allowed}");
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, &message);
    let allowed = HeaderValue::from_static(allowed);
    response.headers_mut().insert(ALLOW, allowed);
    response
}

/// What is wrong with a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) status: StatusCode,
    message: String,
}

impl Wrong {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    pub(super) fn answer(&self) -> Response<AdminBody> {
        error(self.status, &self.message)
    }
}

/// What a body says.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Wrong> {
    serde_json::from_slice(body).map_err(|invalid| {
        let status = match invalid.classify() {
            Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
            Category::Syntax | Category::Eof | Category::Io => StatusCode::BAD_REQUEST,
        };
        Wrong::new(status, invalid.to_string())
    })
}

/// A member that is there. Absent is the default, which keeps.
pub(super) fn change<'de, D, T>(deserializer: D) -> Result<Change<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let value = Option::<T>::deserialize(deserializer)?;
    Ok(value.map_or(Change::Clear, Change::Set))
}

/// A `T` that was written as an object: a derived `Deserialize` also takes an
/// array for a struct, member by member.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

/// One object, or an array of them.
#[derive(Debug)]
pub(super) struct Objects<T>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Only<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Only<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(Only(PhantomData)).map(Self)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Objects<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMany<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or an array of objects")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vec<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(|one| vec![one])
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
                let mut many = Vec::new();
                while let Some(Object(one)) = seq.next_element()? {
                    many.push(one);
                }
                Ok(many)
            }
        }

        deserializer
            .deserialize_any(OneOrMany(PhantomData))
            .map(Self)
    }
}
