use super::{Answer, AnswerAll, PassThrough, ResponseFuture, StatusBody, responder::Responder};
use crate::BoxError;
use http::{Request, Response};
use std::{
    convert::Infallible,
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tower_service::Service;

/// What happens to the errors that are not about overload: [`PassThrough`] or
/// [`AnswerAll`].
pub trait Mode: sealed::Sealed {
    /// The error of the service.
    type Error;

    /// `Err` to pass the error on, `Ok` to answer it.
    #[doc(hidden)]
    fn other(error: BoxError) -> Result<(), Self::Error>;
}

impl Mode for PassThrough {
    type Error = BoxError;

    fn other(error: BoxError) -> Result<(), BoxError> {
        Err(error)
    }
}

impl Mode for AnswerAll {
    type Error = Infallible;

    fn other(error: BoxError) -> Result<(), Infallible> {
        tracing::error!(
            error = &*error as &(dyn std::error::Error + 'static),
            "request failed"
        );
        Ok(())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::PassThrough {}
    impl Sealed for super::AnswerAll {}
}

/// Answers overload errors of `S`; made by
/// [`OverloadStatusLayer`](super::OverloadStatusLayer).
///
/// An error of `S::poll_ready` is final in Tower: the instance is dead. If it
/// is one to answer, this service stays ready, answers every further call
/// with it, and does not touch the dead instance again. A clone is an
/// instance of its own and asks its own inner clone.
pub struct OverloadStatus<S, M = PassThrough> {
    inner: S,
    state: State,
    responder: Arc<Responder>,
    mode: PhantomData<fn() -> M>,
}

enum State {
    Serving,
    Dead(Answer),
}

impl<S, M> OverloadStatus<S, M> {
    pub(super) const fn new(inner: S, responder: Arc<Responder>) -> Self {
        Self {
            inner,
            state: State::Serving,
            responder,
            mode: PhantomData,
        }
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, taken out.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

/// The clone has not found its inner service dead yet.
impl<S: Clone, M> Clone for OverloadStatus<S, M> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.responder.clone())
    }
}

impl<S: fmt::Debug, M> fmt::Debug for OverloadStatus<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dead = match &self.state {
            State::Serving => None,
            State::Dead(answer) => Some(answer),
        };
        f.debug_struct("OverloadStatus")
            .field("inner", &self.inner)
            .field("dead", &dead)
            .finish_non_exhaustive()
    }
}

impl<S, M, B, R> Service<Request<B>> for OverloadStatus<S, M>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    M: Mode,
{
    type Response = Response<StatusBody<R>>;
    type Error = M::Error;
    type Future = ResponseFuture<S::Future, M>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if let State::Dead(_) = self.state {
            return Poll::Ready(Ok(()));
        }
        let Err(error) = ready!(self.inner.poll_ready(cx)) else {
            return Poll::Ready(Ok(()));
        };
        let error = error.into();
        let answer = match Answer::of(&*error) {
            Some(answer) => {
                self.responder.log_death(&*error);
                answer
            }
            None => {
                M::other(error)?;
                Answer::INTERNAL
            }
        };
        self.state = State::Dead(answer);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.state {
            State::Serving => {
                let (info, request) = self.responder.info(request);
                ResponseFuture::running(self.inner.call(request), info, self.responder.clone())
            }
            State::Dead(answer) => {
                let (info, _) = self.responder.info(request);
                ResponseFuture::answered(self.responder.respond(answer, &info))
            }
        }
    }
}
