//! One worker of a pool.

use super::watch::RowWatch;
use crate::{busy::Seat, load::WorkerLoad, sync::Arc};
use std::{fmt, sync};

/// The load that is kept beside a worker.
pub(super) type LoadOf<Req> = Option<sync::Arc<dyn WorkerLoad<Req>>>;

/// What a choice and a waiting request know of one worker.
pub(super) struct Member<Req> {
    pub(super) seat: Arc<Seat>,
    pub(super) watch: sync::Arc<RowWatch>,
    pub(super) weight: u64,
    /// The hash of the worker's id.
    pub(super) key: u64,
    pub(super) load: LoadOf<Req>,
}

impl<Req> fmt::Debug for Member<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("seat", &self.seat)
            .finish_non_exhaustive()
    }
}

/// A member with its service, in the member's row. What each request needs is
/// here itself.
pub(super) struct Entry<S, Req> {
    pub(super) service: S,
    pub(super) seat: Arc<Seat>,
    pub(super) has_load: bool,
    pub(super) member: sync::Arc<Member<Req>>,
}
