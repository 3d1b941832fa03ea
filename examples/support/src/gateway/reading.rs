//! What the gateway reads of requests, before it picks a worker.

use super::{
    balance::{AffinityKey, Balance},
    worker::RouterTracking,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, header::CONTENT_ENCODING};
use std::{num::NonZeroU64, panic::resume_unwind, sync::Arc, thread};
use tokio::{sync::Semaphore, task::spawn_blocking};
use tower_overload::{
    api::{ReadError, ReadRequest, RequestReader},
    limits::Streamed,
    load::tracker::Cost,
    pool::pick::hash_key,
};

/// Tokens of a KV block where nobody says: what engines have by default.
const DEFAULT_BLOCK_SIZE: NonZeroU64 = NonZeroU64::new(16).unwrap();

/// A longer body is not read where requests are served: it would hold the
/// others up.
const READ_AT_ONCE: usize = 64 * 1024;

/// Reads models, and what counting and choosing workers need.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    reader: RequestReader,
    /// The size of KV blocks, if prompts are read.
    block_size: Option<NonZeroU64>,
    /// Whether requests have keys.
    affinity: bool,
    /// Where a key is, if it is there.
    header: Option<HeaderName>,
    /// One permit for each long body that is read: as many as there are
    /// processors, since each takes the memory that decoding takes.
    long: Arc<Semaphore>,
}

/// What was read of a request.
pub(super) struct Read<'a> {
    pub(super) request: ReadRequest<'a>,
    pub(super) cost: Option<Cost>,
    pub(super) key: Option<AffinityKey>,
}

impl Read<'_> {
    /// Whether the answer is streamed, if the request says.
    pub(super) fn streamed(&self) -> Option<Streamed> {
        self.request.streamed.map(Streamed)
    }
}

impl Reading {
    /// Bodies may be as long as `max_body_bytes` when they are decoded.
    pub(super) fn new(
        balance: Balance,
        tracking: Option<RouterTracking>,
        header: Option<HeaderName>,
        max_body_bytes: usize,
    ) -> Self {
        let prompts = tracking.is_some() || balance.reads_prompts();
        let affinity = balance == Balance::Affinity;
        let block_size = tracking.map_or(DEFAULT_BLOCK_SIZE, |how| how.block_size);
        Self {
            reader: RequestReader::new()
                .prompts(prompts)
                .keys(affinity)
                .max_decoded_bytes(max_body_bytes),
            block_size: prompts.then_some(block_size),
            affinity,
            header,
            long: Arc::new(Semaphore::new(
                thread::available_parallelism().map_or(1, Into::into),
            )),
        }
    }

    pub(super) async fn read<'a>(
        &self,
        headers: &HeaderMap,
        body: &'a Bytes,
    ) -> Result<Read<'a>, ReadError> {
        let is_long = body.len() > READ_AT_ONCE || headers.contains_key(CONTENT_ENCODING);
        let request = if is_long {
            self.read_long(headers.clone(), body.clone()).await?
        } else {
            self.reader.read(headers, body)?
        };
        let key = self.key_in(headers).or(request.key);
        let tokens = request.prompt_tokens;
        Ok(Read {
            cost: self.block_size.map(|size| Cost::of_prompt(tokens, size)),
            key: key.map(AffinityKey),
            request,
        })
    }

    /// Waits for those that are read, each of which ends by itself.
    async fn read_long(
        &self,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<ReadRequest<'static>, ReadError> {
        let permit = self.long.clone().acquire_owned().await;
        let reader = self.reader.clone();
        let read = spawn_blocking(move || {
            let _until_it_is_read = permit;
            reader.read(&headers, &body).map(ReadRequest::into_owned)
        });
        match read.await {
            Ok(read) => read,
            // Nobody cancels it while the runtime runs.
            Err(error) => resume_unwind(error.into_panic()),
        }
    }

    fn key_in(&self, headers: &HeaderMap) -> Option<u64> {
        let header = self.header.as_ref().filter(|_| self.affinity)?;
        Some(hash_key(headers.get(header)?.as_bytes()))
    }
}
