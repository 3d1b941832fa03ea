//! The bodies of requests, which are in memory until a worker has answered.

use crate::openai::ApiError;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::poll;
use http::StatusCode;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// What bounds the body of a request.
#[derive(Clone, Debug)]
pub(super) struct BodyLimits {
    pub(super) bytes: usize,
    /// How long a client may send nothing of a body that it has begun.
    pub(super) silence: Duration,
}

/// The memory for the bodies of requests that no worker has answered yet.
#[derive(Clone, Debug)]
pub(super) struct Memory(Arc<Semaphore>);

impl Memory {
    /// What one permit stands for.
    const UNIT: usize = 4 * 1024;
    /// 256 MiB in all.
    const UNITS: usize = 64 * 1024;

    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(Self::UNITS)))
    }

    /// Reads a body, and the room that it takes.
    pub(super) async fn read(
        &self,
        body: Body,
        limits: &BodyLimits,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
        let limit = limits.bytes;
        let too_large = || {
            let message = format!("The body is longer than {limit} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        if body.size_hint().lower() > limit as u64 {
            return Err(too_large());
        }
        let mut body = pin!(body);
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        let mut room: Option<OwnedSemaphorePermit> = None;
        while let Some(frame) = next_frame(body.as_mut(), limits.silence).await? {
            let frame = frame.map_err(|error| {
                let message = format!("The body cannot be read: {error}");
                ApiError::new(StatusCode::BAD_REQUEST, message)
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let length = first.len() + rest.len() + data.len();
            if length > limit {
                return Err(too_large());
            }
            let units = length.div_ceil(Self::UNIT);
            let held = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            if units > held {
                let more = u32::try_from(units - held).unwrap_or(u32::MAX);
                let more = self.0.clone().try_acquire_many_owned(more).map_err(|_| {
                    let message = "Too many long requests are on their way";
                    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
                })?;
                match &mut room {
                    Some(room) => room.merge(more),
                    none => *none = Some(more),
                }
            }
            // Nearly every body is one frame, and is not copied.
            if length == data.len() {
                first = data;
            } else {
                rest.extend_from_slice(&std::mem::take(&mut first));
                rest.extend_from_slice(&data);
            }
        }
        let body = if rest.is_empty() {
            first
        } else {
            rest.freeze()
        };
        Ok((body, room))
    }
}

type Next = Option<Result<Frame<Bytes>, axum::Error>>;

/// The next frame of a body, unless the client sends nothing for too long.
async fn next_frame(mut body: Pin<&mut Body>, silence: Duration) -> Result<Next, ApiError> {
    let mut next = body.frame();
    // Nearly every frame is there already, and needs no timer.
    if let Poll::Ready(next) = poll!(&mut next) {
        return Ok(next);
    }
    timeout(silence, next).await.map_err(|_| {
        let message = format!("Nothing of the body came for {silence:?}");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::response::IntoResponse;
    use futures::stream;
    use tokio::time::sleep;

    /// A body that comes in pieces of one byte, so far apart.
    fn body(pieces: usize, apart: Duration) -> Body {
        let piece = move |left: usize| async move {
            sleep(apart).await;
            let bytes = Bytes::from_static(b" ");
            (left > 0).then(|| (Ok::<_, std::io::Error>(bytes), left - 1))
        };
        Body::from_stream(stream::unfold(pieces, piece))
    }

    async fn read(body: Body) -> Result<usize, StatusCode> {
        let limits = BodyLimits {
            bytes: 1000,
            silence: Duration::from_secs(30),
        };
        let read = Memory::new().read(body, &limits).await;
        read.map(|(body, _)| body.len())
            .map_err(|error| error.into_response().status())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_take_any_time_but_not_stop() {
        assert_eq!(read(body(1000, Duration::from_secs(29))).await, Ok(1000));
        let stops = body(2, Duration::from_secs(31));
        assert_eq!(read(stops).await, Err(StatusCode::REQUEST_TIMEOUT));
        let long = body(1001, Duration::ZERO);
        assert_eq!(read(long).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
    }
}
