//! What is read of requests before a worker is picked.

use super::Key;
use crate::{
    api::{EstimateTokens, ReadError, ReadRequest, RequestReader},
    load::tracker::Cost,
    pool::pick::hash_key,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, header::CONTENT_ENCODING};
use std::{num::NonZeroU64, panic::resume_unwind, sync::Arc, thread};
use tokio::{sync::Semaphore, task::spawn_blocking};

/// A longer body is not read where requests are served: it would hold the
/// others up.
const READ_AT_ONCE: usize = 64 * 1024;

/// Reads models, and what counting and choosing workers need.
#[derive(Clone, Debug)]
pub(super) struct Reading<E> {
    reader: RequestReader<E>,
    /// The size of KV blocks, if prompts are read.
    block_size: Option<NonZeroU64>,
    keys: Keys,
    /// One permit for each long body that is read: as many as there are
    /// processors, since each takes the memory that decoding takes.
    long: Arc<Semaphore>,
}

/// Where the keys of requests are.
#[derive(Clone, Debug, Default)]
pub(super) enum Keys {
    #[default]
    Nowhere,
    /// In this header, or else in the prompt's head.
    In(Option<HeaderName>),
}

/// What was read of a request.
pub(super) struct Read<'a> {
    pub(super) request: ReadRequest<'a>,
    pub(super) cost: Option<Cost>,
    pub(super) key: Option<Key>,
}

impl<E: EstimateTokens + Clone + Send + 'static> Reading<E> {
    pub(super) fn new(
        reader: RequestReader<E>,
        block_size: Option<NonZeroU64>,
        keys: Keys,
        most: usize,
    ) -> Self {
        Self {
            reader: reader
                .prompts(block_size.is_some())
                .keys(matches!(keys, Keys::In(_)))
                .max_decoded_bytes(most),
            block_size,
            keys,
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
            key: key.map(Key),
            request,
        })
    }

    /// Waits for those that are read, each of which ends by itself.
    async fn read_long(
        &self,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<ReadRequest<'static>, ReadError> {
        // Nobody closes it.
        let permit = self.long.clone().acquire_owned().await.ok();
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
        let Keys::In(Some(header)) = &self.keys else {
            return None;
        };
        Some(hash_key(headers.get(header)?.as_bytes()))
    }
}
