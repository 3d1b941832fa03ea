//! The gate from outside.

use super::{LimitError, Snapshot, gate::Gate, limits::check};
use crate::sync::Arc;

/// Looks at a gate and changes its limits while it is in use.
///
/// Every change takes effect at once and revokes nothing: after a limit was
/// lowered below what is in use, the count only falls until it is below the
/// new limit. A raised limit admits as many of the waiting requests as it
/// makes room for.
#[derive(Clone, Debug)]
pub struct AdmissionHandle {
    gate: Arc<Gate>,
}

impl AdmissionHandle {
    pub(super) const fn new(gate: Arc<Gate>) -> Self {
        Self { gate }
    }

    /// Lets at most `slots` requests into the engine.
    ///
    /// # Errors
    ///
    /// `slots` must be 1 to [`MAX_LIMIT`](super::MAX_LIMIT); otherwise
    /// nothing changes.
    pub fn set_slots(&self, slots: usize) -> Result<(), LimitError> {
        self.gate.set_slots(check("slots", slots, 1)?);
        Ok(())
    }

    /// Lets at most `queue_limit` requests wait.
    ///
    /// # Errors
    ///
    /// `queue_limit` must be 0 to [`MAX_LIMIT`](super::MAX_LIMIT); otherwise
    /// nothing changes.
    pub fn set_queue_limit(&self, queue_limit: usize) -> Result<(), LimitError> {
        self.gate
            .set_queue_limit(check("queue limit", queue_limit, 0)?);
        Ok(())
    }

    /// Lets at most this many requests in the engine await their first token;
    /// `None`: as many as there are slots. Requests that were admitted while
    /// there was no such limit do not count.
    ///
    /// # Errors
    ///
    /// A limit must be 1 to [`MAX_LIMIT`](super::MAX_LIMIT); otherwise
    /// nothing changes.
    pub fn set_first_token_limit(&self, limit: Option<usize>) -> Result<(), LimitError> {
        let limit = limit
            .map(|limit| check("first-token limit", limit, 1))
            .transpose()?;
        self.gate.set_first_token_limit(limit);
        Ok(())
    }

    /// Limits and counts, all of one instant.
    pub fn snapshot(&self) -> Snapshot {
        self.gate.snapshot()
    }

    /// Admits nothing more, for good: those that wait, and those that come,
    /// get [`Unavailable`](crate::Unavailable). What is in the engine goes on.
    pub fn close(&self) {
        self.gate.close();
    }
}
