//! The list of models, as clients of OpenAI's and of Anthropic's API read it.
//!
//! A gateway answers it by itself: it knows all models, and the question is no
//! load. Each model has the members of both APIs, so one answer serves the
//! clients of both, and all are on one page.
//!
//! ```
//! use std::time::SystemTime;
//! use tower_overload::api::models::{self, ModelsPath};
//!
//! let known = [("Qwen/Qwen3-32B", SystemTime::now()), ("tiny", SystemTime::now())];
//! let answer = match ModelsPath::of("/v1/models/Qwen/Qwen3-32B") {
//!     Some(ModelsPath::List) => Some(models::list(known)),
//!     Some(ModelsPath::Model(id)) => {
//!         let known = known.into_iter().find(|(name, _)| *name == id);
//!         known.map(|(name, since)| models::one(name, since))
//!     }
//!     None => None,
//! };
//! assert!(answer.is_some_and(|json| json.starts_with(r#"{"id":"Qwen/Qwen3-32B""#)));
//! ```

use percent_encoding::percent_decode_str;
use serde::Serialize;
use std::{
    borrow::Cow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// What a path under `/v1/models` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelsPath<'a> {
    /// All models.
    List,
    /// The one of this name, decoded. Names have slashes, which clients send
    /// as they are or encoded.
    Model(Cow<'a, str>),
}

impl<'a> ModelsPath<'a> {
    /// Returns what `path` asks for, without the query; `None` if it is none
    /// of these.
    pub fn of(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix("/v1/models")?;
        match rest.strip_prefix('/') {
            None if !rest.is_empty() => None,
            None | Some("") => Some(Self::List),
            Some(id) => Some(Self::Model(percent_decode_str(id).decode_utf8_lossy())),
        }
    }
}

/// Returns the list of `models`, of which each has a name and the time since
/// which it is there, as JSON.
pub fn list<'a>(models: impl IntoIterator<Item = (&'a str, SystemTime)>) -> String {
    let data: Vec<_> = models
        .into_iter()
        .map(|(id, since)| Entry::new(id, since))
        .collect();
    json(&List {
        object: "list",
        first_id: data.first().map(|entry| entry.id),
        last_id: data.last().map(|entry| entry.id),
        has_more: false,
        data,
    })
}

/// Returns one model as JSON.
pub fn one(id: &str, since: SystemTime) -> String {
    json(&Entry::new(id, since))
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Entry<'a>>,
    // Anthropic's.
    has_more: bool,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
}

#[derive(Serialize)]
struct Entry<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    // Anthropic's.
    r#type: &'static str,
    display_name: &'a str,
    created_at: String,
}

impl<'a> Entry<'a> {
    fn new(id: &'a str, since: SystemTime) -> Self {
        let created = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let created = created.as_secs().min(LATEST);
        let since = UNIX_EPOCH + Duration::from_secs(created);
        Self {
            id,
            object: "model",
            created,
            owned_by: "system",
            r#type: "model",
            display_name: id,
            created_at: humantime::format_rfc3339_seconds(since).to_string(),
        }
    }
}

/// The last second of the year 9999: RFC 3339 knows no later one.
const LATEST: u64 = 253_402_300_799;

fn json(it: &impl Serialize) -> String {
    serde_json::to_string(it).expect("there is nothing in it that JSON has not")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_model_has_what_the_clients_of_both_apis_read() {
        let one: Value = serde_json::from_str(&one("org/big", at(1_700_000_000))).unwrap();
        let expected = json!({"id": "org/big", "object": "model", "created": 1_700_000_000,
            "owned_by": "system", "type": "model", "display_name": "org/big",
            "created_at": "2023-11-14T22:13:20Z"});
        assert_eq!(one, expected);
        let models = [("org/big", at(1_700_000_000)), ("a \"b\"", at(0))];
        let list: Value = serde_json::from_str(&list(models)).unwrap();
        assert_eq!(list["object"], "list");
        assert_eq!(list["data"][0], expected);
        assert_eq!(list["data"][1]["created_at"], "1970-01-01T00:00:00Z");
        assert_eq!(list["has_more"], false);
        assert_eq!(
            (&list["first_id"], &list["last_id"]),
            (&json!("org/big"), &json!("a \"b\""))
        );
    }

    #[test]
    fn no_model_is_an_empty_list() {
        let list: Value = serde_json::from_str(&list([])).unwrap();
        let expected = json!({"object": "list", "data": [], "has_more": false,
            "first_id": null, "last_id": null});
        assert_eq!(list, expected);
    }

    #[test]
    fn a_clock_that_is_wrong_is_no_panic() {
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert!(one("a", before).contains("1970-01-01"));
        let far = at(u64::MAX >> 8);
        assert!(one("a", far).contains("9999-12-31T23:59:59Z"));
    }

    #[test]
    fn a_path_names_a_model_with_its_slashes() {
        let model = |id: &'static str| Some(ModelsPath::Model(id.into()));
        for (path, expected) in [
            ("/v1/models", Some(ModelsPath::List)),
            ("/v1/models/", Some(ModelsPath::List)),
            ("/v1/models/tiny", model("tiny")),
            ("/v1/models/org/big", model("org/big")),
            ("/v1/models/org%2Fbig%20one", model("org/big one")),
            ("/v1/models/%C3%A9%ff%", model("\u{e9}\u{fffd}%")),
            ("/v1/modelsx", None),
            ("/v1/model", None),
            ("/v2/models", None),
            ("", None),
        ] {
            assert_eq!(ModelsPath::of(path), expected, "{path}");
        }
    }
}
