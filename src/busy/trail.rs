//! What a request that is sent again takes with it.

use http::Request;
use std::sync::Arc;
use tokio::time::Instant;

/// Where a request has been, and since when it waits.
///
/// [`RetryRefused`](super::RetryRefused) puts it into the extensions of a
/// request that it sends again. A [`WorkerPool`](crate::pool::WorkerPool) reads
/// it: workers that were asked are chosen last, and all attempts together wait
/// no longer than `max_wait`.
#[derive(Clone, Debug, Default)]
pub struct Trail {
    since: Option<Instant>,
    asked: Vec<Arc<str>>,
}

/// As many names are kept: those after them are not passed over.
const MAX_ASKED: usize = 64;

impl Trail {
    /// A request that has been nowhere, and waits from its first attempt on.
    pub const fn new() -> Self {
        Self {
            since: None,
            asked: Vec::new(),
        }
    }

    /// The request has been here since then: its waits count from this instant.
    #[must_use]
    pub const fn since(mut self, arrival: Instant) -> Self {
        self.since = Some(arrival);
        self
    }

    /// The request has been to this worker, named as it is displayed. At most
    /// 64 names are kept.
    pub fn add(&mut self, worker: &str) {
        if self.asked.len() < MAX_ASKED && !self.has(worker) {
            self.asked.push(worker.into());
        }
    }

    /// Whether the request has been to this worker.
    pub fn has(&self, worker: &str) -> bool {
        self.asked.iter().any(|asked| **asked == *worker)
    }

    /// When the request came, if that was said.
    pub const fn arrival(&self) -> Option<Instant> {
        self.since
    }

    /// The workers that the request has been to, in order.
    pub fn asked(&self) -> impl ExactSizeIterator<Item = &str> {
        self.asked.iter().map(|worker| &**worker)
    }
}

/// Where requests of a type carry their [`Trail`].
pub trait Carry<Req> {
    /// The trail of a request that was sent before.
    fn trail<'a>(&self, request: &'a Req) -> Option<&'a Trail>;

    /// Has the request carry the trail, in place of an earlier one.
    fn set_trail(&self, request: &mut Req, trail: Trail);
}

/// In the extensions of an [`http::Request`].
#[derive(Clone, Copy, Debug, Default)]
pub struct InExtensions;

impl<B> Carry<Request<B>> for InExtensions {
    fn trail<'a>(&self, request: &'a Request<B>) -> Option<&'a Trail> {
        request.extensions().get()
    }

    fn set_trail(&self, request: &mut Request<B>, trail: Trail) {
        request.extensions_mut().insert(trail);
    }
}

/// Nowhere: requests of any type, which may be sent to the same worker again,
/// and of which each attempt has a wait of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyRequest;

impl<Req> Carry<Req> for AnyRequest {
    fn trail<'a>(&self, _: &'a Req) -> Option<&'a Trail> {
        None
    }

    fn set_trail(&self, _: &mut Req, _: Trail) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trail_names_each_worker_once_and_is_bounded() {
        let mut trail = Trail::new();
        for worker in ["a", "b", "a"] {
            trail.add(worker);
        }
        assert_eq!(trail.asked().collect::<Vec<_>>(), ["a", "b"]);
        for n in 0..1000 {
            trail.add(&n.to_string());
        }
        assert_eq!(trail.asked().len(), MAX_ASKED);
        assert!(trail.has("b") && !trail.has("999"));
    }
}
