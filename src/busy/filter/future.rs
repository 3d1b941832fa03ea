use crate::{BoxError, busy::answer::Answer};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// The response of a [`BusyFilter`](crate::busy::BusyFilter): the worker's, or
    /// the error that says why none got the request.
    pub struct ResponseFuture<F> {
        #[pin]
        kind: Kind<F>,
    }
}

pin_project! {
    #[project = KindProj]
    enum Kind<F> {
        Running { #[pin] future: F },
        Answered { answer: Answer },
        Failed { error: Option<BoxError> },
    }
}

impl<F> ResponseFuture<F> {
    pub(super) fn running(future: F) -> Self {
        Self {
            kind: Kind::Running { future },
        }
    }

    pub(super) fn answered(answer: Answer) -> Self {
        Self {
            kind: Kind::Answered { answer },
        }
    }

    pub(super) fn failed(error: BoxError) -> Self {
        let error = Some(error);
        Self {
            kind: Kind::Failed { error },
        }
    }
}

impl<F, Res, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Res, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Res, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProj::Running { future } => future.poll(cx).map_err(Into::into),
            KindProj::Answered { answer } => Poll::Ready(Err(answer.into_error())),
            KindProj::Failed { error } => {
                Poll::Ready(Err(error.take().expect("polled after completion")))
            }
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
