//! What operators see.

use super::{super::json::json, AdminBody};
use crate::{
    busy::Mark,
    fleet::{ModelMarks, Origin, ServedModel, WorkerView},
    load::RankSnapshot,
};
use http::{Response, StatusCode};
use serde::Serialize;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

#[derive(Serialize)]
struct Workers<'a> {
    workers: Vec<Worker<'a>>,
}

#[derive(Serialize)]
struct Worker<'a> {
    id: &'a str,
    url: String,
    /// `static`, `reported`, or the name of a discovery.
    origin: &'a str,
    eligible: bool,
    busy: bool,
    leased: bool,
    unreachable: bool,
    failing: bool,
    draining: bool,
    marks: Vec<MarkState<'a>>,
    ranks: Vec<Rank>,
    kv_total_blocks: Option<u64>,
    max_num_batched_tokens: Option<u64>,
    models: Vec<&'a str>,
}

impl<'a> Worker<'a> {
    fn of(view: &'a WorkerView) -> Self {
        let models = view.models.iter();
        Self {
            id: &view.id,
            url: view.url.to_string().trim_end_matches('/').to_owned(),
            origin: match &view.origin {
                Origin::Static => "static",
                Origin::Reported(_) => "reported",
                Origin::Source(name) => name,
            },
            eligible: view.is_eligible(),
            busy: view.has(Mark::Busy),
            leased: view.has(Mark::Leased),
            unreachable: view.has(Mark::Unreachable),
            failing: view.has(Mark::Failing),
            draining: view.has(Mark::Draining),
            marks: models.clone().flat_map(MarkState::all).collect(),
            ranks: view.ranks.iter().map(Rank::of).collect(),
            kv_total_blocks: view.kv_total_blocks,
            max_num_batched_tokens: view.max_num_batched_tokens,
            models: models.map(|model| &*model.model).collect(),
        }
    }
}

#[derive(Serialize)]
struct MarkState<'a> {
    model: &'a str,
    mark: &'static str,
    /// For how long it has been on.
    for_ms: Option<u64>,
    /// When it ends by itself, if it does.
    ends_in_ms: Option<u64>,
    failures_in_a_row: u32,
    failures_of_last_32: u32,
}

impl<'a> MarkState<'a> {
    fn all(model: &'a ModelMarks) -> impl Iterator<Item = Self> {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let now = Instant::now();
        model.states.iter().map(move |state| Self {
            model: &model.model,
            mark: state.mark().as_str(),
            for_ms: state.since().map(|since| ms(now - since)),
            ends_in_ms: state.until().map(|until| ms(until - now)),
            failures_in_a_row: state.failures_in_a_row(),
            failures_of_last_32: state.failures_of_last_32(),
        })
    }
}

#[derive(Serialize)]
struct Rank {
    dp_rank: u32,
    active_decode_blocks: Option<u64>,
    kv_used_blocks: Option<u64>,
    active_prefill_tokens: Option<u64>,
    busy: bool,
}

impl Rank {
    fn of(rank: &RankSnapshot) -> Self {
        Self {
            dp_rank: rank.dp_rank,
            active_decode_blocks: rank.active_decode_blocks,
            kv_used_blocks: rank.kv_used_blocks,
            active_prefill_tokens: rank.active_prefill_tokens,
            busy: rank.busy,
        }
    }
}

#[derive(Serialize)]
struct Models<'a> {
    models: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    model: &'a str,
    /// Those that it knows.
    alive: u64,
    /// Of these, the ones that are neither unreachable, failing nor draining.
    usable: u64,
    /// Of those, the ones that are neither busy nor leased.
    eligible: u64,
}

pub(super) fn worker(view: &WorkerView) -> Response<AdminBody> {
    json(StatusCode::OK, &Worker::of(view))
}

pub(super) fn workers(views: &[WorkerView]) -> Response<AdminBody> {
    let workers = views.iter().map(Worker::of).collect();
    json(StatusCode::OK, &Workers { workers })
}

pub(super) fn models<M>(models: &[Arc<ServedModel<M>>]) -> Response<AdminBody> {
    let models = models.iter().map(|model| Model {
        model: model.name(),
        alive: model.members().alive(),
        usable: model.members().usable(),
        eligible: model.members().eligible(),
    });
    let models = models.collect();
    json(StatusCode::OK, &Models { models })
}
