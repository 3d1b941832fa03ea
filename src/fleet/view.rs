use super::{Id, Origin};
use crate::{
    busy::{Mark, MarkState, WorkerMarks},
    load::RankSnapshot,
};
use http::Uri;
use std::sync::Arc;

/// A worker as the fleet knows it at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerView {
    /// What it is called.
    pub id: Id,
    /// Where it is reached.
    pub url: Uri,
    /// Who says that it is there.
    pub origin: Origin,
    /// Its models, adapters included.
    pub models: Vec<ModelMarks>,
    /// What it last reported, by rank.
    pub ranks: Vec<RankSnapshot>,
    /// The KV blocks of each rank, as given or as read from its metrics.
    pub kv_total_blocks: Option<u64>,
    /// The tokens that each rank takes into one batch.
    pub max_num_batched_tokens: Option<u64>,
}

impl WorkerView {
    /// Whether no mark keeps requests of any of its models away.
    pub fn is_eligible(&self) -> bool {
        !self.models.iter().any(|model| model.marks.is_excluded())
    }

    /// Whether one of its models has this mark on it.
    pub fn has(&self, mark: Mark) -> bool {
        self.models.iter().any(|model| model.marks.has(mark))
    }
}

/// What keeps requests of one model away from a worker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelMarks {
    /// The model.
    pub model: Arc<str>,
    /// Its marks on the worker.
    pub marks: WorkerMarks,
    /// Since when, until when, and the failures behind them.
    pub states: Vec<MarkState>,
}
