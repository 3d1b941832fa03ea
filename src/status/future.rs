use super::{Answer, Mode, PassThrough, RequestInfo, StatusBody, responder::Responder};
use crate::BoxError;
use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;
use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

pin_project! {
    /// The response of an [`OverloadStatus`](super::OverloadStatus).
    ///
    /// Dropping it drops the inner future: nothing is answered or counted.
    pub struct ResponseFuture<F, M = PassThrough> {
        #[pin]
        state: State<F>,
        mode: PhantomData<fn() -> M>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        Running {
            #[pin]
            inner: F,
            info: RequestInfo,
            responder: Arc<Responder>,
        },
        Answered { response: Option<Response<Bytes>> },
    }
}

impl<F, M> ResponseFuture<F, M> {
    pub(super) const fn running(inner: F, info: RequestInfo, responder: Arc<Responder>) -> Self {
        Self {
            state: State::Running {
                inner,
                info,
                responder,
            },
            mode: PhantomData,
        }
    }

    pub(super) const fn answered(response: Response<Bytes>) -> Self {
        Self {
            state: State::Answered {
                response: Some(response),
            },
            mode: PhantomData,
        }
    }
}

impl<F, M, R, E> Future for ResponseFuture<F, M>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
    M: Mode,
{
    type Output = Result<Response<StatusBody<R>>, M::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match self.project().state.project() {
            StateProj::Running {
                inner,
                info,
                responder,
            } => match ready!(inner.poll(cx)) {
                Ok(mut response) => {
                    responder.strip(response.headers_mut());
                    return Poll::Ready(Ok(response.map(StatusBody::inner)));
                }
                Err(error) => {
                    let error = error.into();
                    let answer = match Answer::of(&*error) {
                        Some(answer) => answer,
                        None => {
                            M::other(error)?;
                            Answer::INTERNAL
                        }
                    };
                    responder.respond(answer, info)
                }
            },
            StateProj::Answered { response } => response.take().expect("polled after it was ready"),
        };
        Poll::Ready(Ok(response.map(StatusBody::answer)))
    }
}

impl<F, M> fmt::Debug for ResponseFuture<F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Running { .. } => "Running",
            State::Answered { .. } => "Answered",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
