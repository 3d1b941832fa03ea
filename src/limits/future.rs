//! The future of a response.

use super::{Limits, TimeLimitBody, streamed::is_event_stream, timer::Timer};
use crate::{BoxError, Limit};
use http::{Response, StatusCode, header::CONTENT_TYPE, response::Parts};
use http_body::{Body, Frame};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

pin_project! {
    /// The response of a [`TimeLimit`](super::TimeLimit).
    ///
    /// Dropped before it is ready, it drops what it waits for. So it does when
    /// a limit has passed, before it says so.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, B> {
        #[pin]
        state: State<F, B>,
        #[pin]
        timer: Timer,
        limits: Arc<Limits>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, B> {
        Head { #[pin] inner: F, limit: Option<Duration>, has_body: bool },
        FirstFrame { held_back: Option<HeldBack<B>>, limit: Duration },
        Done,
    }
}

/// A response that waits for the first frame of its body.
struct HeldBack<B> {
    head: Parts,
    body: Pin<Box<B>>,
}

impl<F, B> ResponseFuture<F, B> {
    pub(super) fn new(
        inner: F,
        limits: Arc<Limits>,
        limit: Option<Duration>,
        has_body: bool,
    ) -> Self {
        Self {
            state: State::Head {
                inner,
                limit,
                has_body,
            },
            timer: Timer::default(),
            limits,
        }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<TimeLimitBody<B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let result = match this.state.as_mut().project() {
                StateProj::Head {
                    inner,
                    limit,
                    has_body,
                } => match inner.poll(cx) {
                    Poll::Ready(Err(error)) => Err(error.into()),
                    Poll::Ready(Ok(response)) => {
                        let limit = this.limits.first_frame;
                        let limit = limit.filter(|_| *has_body && is_held_back(&response));
                        let Some(limit) = limit else {
                            this.state.set(State::Done);
                            let limits = this.limits.clone();
                            let response =
                                response.map(|body| TimeLimitBody::passing(body, limits));
                            return Poll::Ready(Ok(response));
                        };
                        let (head, body) = response.into_parts();
                        let body = Box::pin(body);
                        this.timer.as_mut().stop();
                        this.state.set(State::FirstFrame {
                            held_back: Some(HeldBack { head, body }),
                            limit,
                        });
                        continue;
                    }
                    Poll::Pending => {
                        let Some(after) = *limit else {
                            return Poll::Pending;
                        };
                        ready!(this.timer.poll_passed(cx, after));
                        Err(this.limits.passed(Limit::Head, after).into())
                    }
                },
                StateProj::FirstFrame { held_back, limit } => {
                    let waits = held_back
                        .as_mut()
                        .expect("it is there until it is given out");
                    match waits.body.as_mut().poll_frame(cx) {
                        Poll::Ready(Some(Err(error))) => Err(this.limits.lost(error.into())),
                        Poll::Ready(Some(Ok(frame))) => Ok(Some(frame)),
                        Poll::Ready(None) => Ok(None),
                        Poll::Pending => {
                            ready!(this.timer.poll_passed(cx, *limit));
                            Err(this.limits.passed(Limit::FirstFrame, *limit).into())
                        }
                    }
                    .map(|frame| (held_back.take(), frame))
                }
                StateProj::Done => panic!("polled after it was ready"),
            };
            this.state.set(State::Done);
            return Poll::Ready(result.map(|(held_back, frame)| {
                let held_back = held_back.expect("it is there until it is given out");
                given_out(held_back, frame, this.limits)
            }));
        }
    }
}

fn given_out<B: Body>(
    held_back: HeldBack<B>,
    frame: Option<Frame<B::Data>>,
    limits: &Arc<Limits>,
) -> Response<TimeLimitBody<B>> {
    let HeldBack { head, body } = held_back;
    let body = TimeLimitBody::held_back(body, frame, limits.clone());
    Response::from_parts(head, body)
}

/// Whether a first frame is to be waited for: it is a stream of events, and
/// not over yet.
fn is_held_back<B: Body>(response: &Response<B>) -> bool {
    let status = response.status();
    status.is_success()
        && !matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT)
        && is_event_stream(response.headers(), &CONTENT_TYPE)
        && !response.body().is_end_stream()
}

impl<F, B> fmt::Debug for ResponseFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Head { .. } => "Head",
            State::FirstFrame { .. } => "FirstFrame",
            State::Done => "Done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
