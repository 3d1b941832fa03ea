//! The bodies of requests, which are in memory until a worker has answered, so
//! that they can be sent again.

use super::Problem;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::StatusCode;
use http_body::{Body, Frame};
use std::{
    fmt,
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// What bounds the bodies of requests.
#[derive(Clone, Debug)]
pub(super) struct Collect {
    pub(super) most: usize,
    /// How long a client may send nothing of a body that it has begun.
    pub(super) silence: Duration,
    room: Arc<Semaphore>,
}

/// The room that a body takes, until it is dropped.
pub(super) type Room = Option<OwnedSemaphorePermit>;

/// What one permit stands for.
const UNIT: usize = 4 * 1024;

impl Collect {
    /// Bodies of at most `most` bytes each and `memory` bytes in all.
    pub(super) fn new(most: usize, memory: usize, silence: Duration) -> Self {
        let units = memory.div_ceil(UNIT).min(Semaphore::MAX_PERMITS);
        Self {
            most,
            silence,
            room: Arc::new(Semaphore::new(units)),
        }
    }

    /// Reads a body, and takes the room for it.
    pub(super) async fn read<B>(&self, body: B) -> Result<(Bytes, Room), Problem>
    where
        B: Body,
        B::Error: fmt::Display,
    {
        if body.size_hint().lower() > self.most as u64 {
            return Err(self.too_large());
        }
        let mut body = pin!(body);
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        let mut room: Room = None;
        while let Some(frame) = self.next(body.as_mut()).await? {
            let frame = frame.map_err(|error| {
                let message = format!("The body cannot be read: {error}");
                Problem::new(StatusCode::BAD_REQUEST, message)
            })?;
            let Ok(mut data) = frame.into_data() else {
                continue;
            };
            let new = data.remaining();
            let length = first.len() + rest.len() + new;
            if length > self.most {
                return Err(self.too_large());
            }
            self.take(&mut room, length)?;
            // Nearly every body is one frame, and is not copied.
            if length == new {
                first = data.copy_to_bytes(new);
            } else {
                rest.put(mem::take(&mut first));
                rest.put(data);
            }
        }
        let body = if rest.is_empty() {
            first
        } else {
            rest.freeze()
        };
        Ok((body, room))
    }

    /// Has `room` be that of so many bytes.
    fn take(&self, room: &mut Room, length: usize) -> Result<(), Problem> {
        let units = length.div_ceil(UNIT);
        let held = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if units <= held {
            return Ok(());
        }
        let more = u32::try_from(units - held).unwrap_or(u32::MAX);
        let more = self.room.clone().try_acquire_many_owned(more);
        let more = more.map_err(|_| {
            let message = "Too many long requests are on their way";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        match room {
            Some(room) => room.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// The next frame of a body, unless the client sends nothing for too long.
    async fn next<B: Body>(
        &self,
        mut body: Pin<&mut B>,
    ) -> Result<Option<Result<Frame<B::Data>, B::Error>>, Problem> {
        // Nearly every frame is there already, and needs no timer.
        let there = poll_fn(|cx| Poll::Ready(body.as_mut().poll_frame(cx))).await;
        if let Poll::Ready(next) = there {
            return Ok(next);
        }
        let next = poll_fn(|cx| body.as_mut().poll_frame(cx));
        timeout(self.silence, next).await.map_err(|_| {
            let message = format!("Nothing of the body came for {:?}", self.silence);
            Problem::new(StatusCode::REQUEST_TIMEOUT, message)
        })
    }

    fn too_large(&self) -> Problem {
        let message = format!("The body is longer than {} bytes", self.most);
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }
}
