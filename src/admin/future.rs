use super::{AdminBody, json::error};
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
    /// The answer to an operator's request.
    ///
    /// Cancel safe: dropped before it is ready, it has changed nothing.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<B> {
        #[pin]
        state: State<B>,
    }
}

/// What a request does when all of it is there.
type Act = Box<dyn FnOnce(&[u8]) -> Response<AdminBody> + Send>;

pin_project! {
    #[project = StateProj]
    enum State<B> {
        Read { #[pin] body: B, received: Vec<u8>, most: usize, act: Option<Act> },
        Answer { response: Option<Response<AdminBody>> },
    }
}

impl<B> ResponseFuture<B> {
    pub(super) fn answer(response: Response<AdminBody>) -> Self {
        Self {
            state: State::Answer {
                response: Some(response),
            },
        }
    }

    /// Reads a body of at most so many bytes first.
    pub(super) fn read(
        body: B,
        most: usize,
        act: impl FnOnce(&[u8]) -> Response<AdminBody> + Send + 'static,
    ) -> Self {
        Self {
            state: State::Read {
                body,
                received: Vec::new(),
                most,
                act: Some(Box::new(act)),
            },
        }
    }
}

impl<B: Body> Future for ResponseFuture<B> {
    type Output = Result<Response<AdminBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match self.project().state.project() {
            StateProj::Answer { response } => response.take().expect("polled after it was ready"),
            StateProj::Read {
                mut body,
                received,
                most,
                act,
            } => loop {
                if body.size_hint().lower() > (*most - received.len()) as u64 {
                    break too_large(*most);
                }
                match ready!(body.as_mut().poll_frame(cx)) {
                    Some(Ok(frame)) => {
                        let Ok(mut data) = frame.into_data() else {
                            continue;
                        };
                        if data.remaining() > *most - received.len() {
                            break too_large(*most);
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
                    None => {
                        let act = act.take().expect("polled after it was ready");
                        break act(received);
                    }
                }
            },
        };
        Poll::Ready(Ok(response))
    }
}

fn too_large(most: usize) -> Response<AdminBody> {
    let message = format!("the request body is too large, allowed: {most} bytes");
    error(StatusCode::PAYLOAD_TOO_LARGE, &message)
}

impl<B> fmt::Debug for ResponseFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
