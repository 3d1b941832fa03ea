use super::{
    Front, Problem,
    collect::Collect,
    read::{Keys, Reading},
    service::Inner,
};
use crate::{
    api::{EstimateTokens, RequestReader, ScriptEstimator},
    fleet::Fleet,
};
use http::{HeaderName, request::Parts};
use std::{fmt, num::NonZeroU64, sync::Arc, time::Duration};

pub(super) type Check = Arc<dyn Fn(&Parts) -> Result<(), Problem> + Send + Sync>;

/// Makes a [`Front`].
#[must_use]
pub struct FrontBuilder<E = ScriptEstimator> {
    reader: RequestReader<E>,
    block_size: Option<NonZeroU64>,
    keys: Keys,
    max_body_bytes: usize,
    max_memory: usize,
    body_silence: Duration,
    check: Check,
}

impl FrontBuilder {
    /// A builder with the defaults.
    pub fn new() -> Self {
        Self::with_reader(RequestReader::new())
    }
}

impl Default for FrontBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> FrontBuilder<E> {
    /// A builder whose front reads with `reader`, such as one with an
    /// [estimator](RequestReader::estimator) of the application's own. What it
    /// reads, and how long a body may be when it is decoded, is set here.
    pub fn with_reader(reader: RequestReader<E>) -> Self {
        Self {
            reader,
            block_size: None,
            keys: Keys::Nowhere,
            max_body_bytes: 10 * 1024 * 1024,
            max_memory: 256 * 1024 * 1024,
            body_silence: Duration::from_secs(30),
            check: Arc::new(|_| Ok(())),
        }
    }

    /// Puts the [`Cost`](crate::load::tracker::Cost) of each request into its
    /// extensions, in KV blocks of this many tokens (default: prompts are not
    /// read).
    pub fn costs(mut self, block_size: NonZeroU64) -> Self {
        self.block_size = Some(block_size);
        self
    }

    /// Puts a [`Key`](super::Key) into the extensions of each request that has
    /// one: the value of `header`, or else the head of its prompt (default: no
    /// keys).
    pub fn keys(mut self, header: Option<HeaderName>) -> Self {
        self.keys = Keys::In(header);
        self
    }

    /// How long a body may be, also when it is decoded (default: 10 MiB). A
    /// longer one is answered with 413.
    pub fn max_body_bytes(mut self, bytes: usize) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// How much memory the bodies of all requests take that no worker has
    /// answered yet (default: 256 MiB). One that does not fit is answered with
    /// 503.
    pub fn max_memory(mut self, bytes: usize) -> Self {
        self.max_memory = bytes;
        self
    }

    /// How long a client may send nothing of a body that it has begun
    /// (default: 30 s). Then it is answered with 408.
    pub fn body_silence(mut self, silence: Duration) -> Self {
        self.body_silence = silence;
        self
    }

    /// What refuses requests by their head, before anything of the body is
    /// read (default: nothing does). With
    /// [`HttpWorker`](crate::upstream::HttpWorker)s, give it
    /// [`Forwarding::check`](crate::upstream::forward::Forwarding::check): what
    /// cannot be sent on says nothing about the workers.
    pub fn check(
        mut self,
        check: impl Fn(&Parts) -> Result<(), Problem> + Send + Sync + 'static,
    ) -> Self {
        self.check = Arc::new(check);
        self
    }

    /// The front of a fleet.
    pub fn build<S, M>(self, fleet: Fleet<S, M>) -> Front<S, M, E>
    where
        E: EstimateTokens + Clone + Send + 'static,
    {
        Front::of(Inner {
            fleet,
            reading: Reading::new(self.reader, self.block_size, self.keys, self.max_body_bytes),
            collect: Collect::new(self.max_body_bytes, self.max_memory, self.body_silence),
            check: self.check,
        })
    }
}

impl<E> fmt::Debug for FrontBuilder<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontBuilder")
            .field("block_size", &self.block_size)
            .field("keys", &self.keys)
            .field("max_body_bytes", &self.max_body_bytes)
            .field("max_memory", &self.max_memory)
            .field("body_silence", &self.body_silence)
            .finish_non_exhaustive()
    }
}
