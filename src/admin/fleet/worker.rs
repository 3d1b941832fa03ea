//! What is said of a worker.

use super::super::json::change;
use crate::{fleet::WorkerUpdate, load::Change};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use std::{fmt, time::Duration};

/// The body of `PUT` and `PATCH`. A member that is not known is refused, as one
/// that is misspelt has to be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    url: Option<String>,
    #[serde(default, deserialize_with = "change")]
    dp_ranks: Change<Vec<u32>>,
    #[serde(default, deserialize_with = "change")]
    kv_total_blocks: Change<u64>,
    #[serde(default, deserialize_with = "change")]
    max_num_batched_tokens: Change<u64>,
    draining: Option<bool>,
    #[serde(default, deserialize_with = "change")]
    models: Change<Vec<String>>,
    #[serde(default, deserialize_with = "change")]
    loras: Change<Loras>,
    ttl_ms: Option<u64>,
}

impl From<Body> for WorkerUpdate {
    fn from(body: Body) -> Self {
        let update = Self::new()
            .dp_ranks(body.dp_ranks)
            .kv_total_blocks(body.kv_total_blocks)
            .max_num_batched_tokens(body.max_num_batched_tokens)
            .models(body.models)
            .loras(match body.loras {
                Change::Keep => Change::Keep,
                Change::Clear => Change::Clear,
                Change::Set(Loras(loras)) => Change::Set(loras),
            });
        let update = match body.url {
            Some(url) => update.url(url),
            None => update,
        };
        let update = match body.draining {
            Some(draining) => update.draining(draining),
            None => update,
        };
        match body.ttl_ms {
            Some(ms) => update.ttl(Duration::from_millis(ms)),
            None => update,
        }
    }
}

/// An object of adapters, each with its model. One that is there twice is kept
/// twice, so that it is refused.
#[derive(Debug)]
struct Loras(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Loras {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Loras;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of the names of adapters, each with that of its model")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Loras, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Loras(pairs))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}
