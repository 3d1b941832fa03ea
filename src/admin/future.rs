use super::{
    AdminBody, MAX_BODY_BYTES,
    exchange::{error, post},
};
use crate::load::ModelThresholds;
use bytes::Buf;
use http::{Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// The answer of a [`BusyThreshold`](super::BusyThreshold).
    ///
    /// Cancel safe: dropped before it is ready, it has changed nothing.
    #[must_use = "futures do nothing unless polled"]
    pub struct BusyThresholdFuture<B> {
        #[pin]
        state: State<B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<B> {
        Read { #[pin] body: B, received: Vec<u8>, thresholds: ModelThresholds },
        Answer { response: Option<Response<AdminBody>> },
    }
}

impl<B> BusyThresholdFuture<B> {
    pub(super) fn answer(response: Response<AdminBody>) -> Self {
        Self {
            state: State::Answer {
                response: Some(response),
            },
        }
    }

    pub(super) fn read(thresholds: ModelThresholds, body: B) -> Self {
        Self {
            state: State::Read {
                body,
                received: Vec::new(),
                thresholds,
            },
        }
    }
}

impl<B: Body> Future for BusyThresholdFuture<B> {
    type Output = Result<Response<AdminBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match self.project().state.project() {
            StateProj::Answer { response } => response.take().expect("polled after it was ready"),
            StateProj::Read {
                mut body,
                received,
                thresholds,
            } => loop {
                if body.size_hint().lower() > (MAX_BODY_BYTES - received.len()) as u64 {
                    break too_large();
                }
                match ready!(body.as_mut().poll_frame(cx)) {
                    Some(Ok(frame)) => {
                        let Ok(mut data) = frame.into_data() else {
                            continue;
                        };
                        if data.remaining() > MAX_BODY_BYTES - received.len() {
                            break too_large();
                        }
                        while data.has_remaining() {
                            let chunk = data.chunk();
                            received.extend_from_slice(chunk);
                            let taken = chunk.len();
                            data.advance(taken);
                        }
                    }
                    Some(Err(_)) => {
                        break error(StatusCode::BAD_REQUEST, "the request body broke off");
                    }
                    None => break post(thresholds, received),
                }
            },
        };
        Poll::Ready(Ok(response))
    }
}

fn too_large() -> Response<AdminBody> {
    let message = format!("the request body is too large, allowed: {MAX_BODY_BYTES} bytes");
    error(StatusCode::PAYLOAD_TOO_LARGE, &message)
}

impl<B> fmt::Debug for BusyThresholdFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusyThresholdFuture")
            .finish_non_exhaustive()
    }
}
