//! What workers are loaded with.

use super::{
    super::json::{self, Objects, json},
    AdminBody,
};
use crate::{
    fleet::{Fleet, Id},
    load::LoadEvent,
};
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};

/// One event; an absent or `null` count leaves the last one. A member that is
/// not known is refused: a misspelt count must not look like one that was taken.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    worker: String,
    #[serde(default)]
    dp_rank: u32,
    active_decode_blocks: Option<u64>,
    kv_used_blocks: Option<u64>,
    active_prefill_tokens: Option<u64>,
}

impl From<Load> for LoadEvent<Id> {
    fn from(load: Load) -> Self {
        Self::new(load.worker.into(), load.dp_rank)
            .active_decode_blocks(load.active_decode_blocks)
            .kv_used_blocks(load.kv_used_blocks)
            .active_prefill_tokens(load.active_prefill_tokens)
    }
}

#[derive(Serialize)]
struct Taken {
    accepted: u64,
    dropped: u64,
}

pub(super) fn post<S: Clone, M>(fleet: &Fleet<S, M>, body: &[u8]) -> Response<AdminBody> {
    let Objects(loads) = match json::parse::<Objects<Load>>(body) {
        Ok(loads) => loads,
        Err(wrong) => return wrong.answer(),
    };
    let events: Vec<LoadEvent<Id>> = loads.into_iter().map(LoadEvent::from).collect();
    let observed = fleet.observe(&events);
    let taken = Taken {
        accepted: observed.accepted,
        dropped: observed.dropped,
    };
    json(StatusCode::OK, &taken)
}
