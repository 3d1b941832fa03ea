//! The response future of both services.

use super::{
    permit::Permit,
    shared::{Admission, Wait},
};
use crate::BoxError;
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::load::TrackCompletion;
use tower_service::Service;

pin_project! {
    /// The response future of [`EngineAdmission`](super::EngineAdmission) and
    /// [`EngineBackpressure`](super::EngineBackpressure).
    ///
    /// Dropping it at any time gives back what it holds: its place in the
    /// queue, or its slot.
    ///
    /// # Panics
    ///
    /// When it is polled again after it has completed.
    pub struct EngineAdmissionFuture<S, R, C>
    where
        S: Service<R>,
    {
        #[pin]
        state: State<S, R, S::Future>,
        // After the state, so that it is dropped when the engine is done.
        permit: Permit,
        completion: C,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, R, F> {
        Refused {
            error: Option<BoxError>,
        },
        Queued {
            // Boxed, so that requests which do not wait are not moved about
            // with room for it.
            wait: Box<Wait>,
            start: Option<Start<S, R>>,
        },
        Readying {
            start: Option<Start<S, R>>,
        },
        Running {
            #[pin]
            future: F,
        },
        Done,
    }
}

/// What is needed to start: the engine, ready or not, and the request.
struct Start<S, R> {
    engine: S,
    request: R,
}

const OWNED: &str = "owned until the next state";
const ONCE: &str = "polled after it has completed";

impl<S, R, C> EngineAdmissionFuture<S, R, C>
where
    S: Service<R> + Clone,
{
    #[inline]
    pub(super) fn start(permit: Permit, engine: &S, request: R, completion: C) -> Self {
        Self {
            state: State::Readying {
                start: Some(Start::new(engine, request)),
            },
            permit,
            completion,
        }
    }

    #[inline]
    pub(super) fn refuse(error: BoxError, completion: C) -> Self {
        Self {
            state: State::Refused { error: Some(error) },
            permit: Permit::empty(),
            completion,
        }
    }

    pub(super) fn new(admission: Admission, engine: &S, request: R, completion: C) -> Self {
        match admission {
            Admission::Start(permit) => Self::start(permit, engine, request, completion),
            Admission::Refuse(error) => Self::refuse(error, completion),
            Admission::Wait(wait) => Self {
                state: State::Queued {
                    wait,
                    start: Some(Start::new(engine, request)),
                },
                permit: Permit::empty(),
                completion,
            },
        }
    }
}

impl<S: Clone, R> Start<S, R> {
    fn new(engine: &S, request: R) -> Self {
        Self {
            engine: engine.clone(),
            request,
        }
    }
}

impl<S, R, C> Future for EngineAdmissionFuture<S, R, C>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    C: TrackCompletion<Permit, S::Response>,
{
    type Output = Result<C::Output, BoxError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A refusal is to be cheap, wherever it is awaited.
        if let StateProj::Refused { error } = self.as_mut().project().state.project() {
            return Poll::Ready(Err(error.take().expect(ONCE)));
        }
        self.poll_admitted(cx)
    }
}

impl<S, R, C> EngineAdmissionFuture<S, R, C>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    C: TrackCompletion<Permit, S::Response>,
{
    fn poll_admitted(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<C::Output, BoxError>> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Queued { wait, start } => match ready!(wait.poll(cx)) {
                    Ok(permit) => {
                        *this.permit = permit;
                        let start = start.take();
                        this.state.set(State::Readying { start });
                    }
                    Err(error) => {
                        this.state.set(State::Done);
                        return Poll::Ready(Err(error));
                    }
                },
                StateProj::Readying { start } => {
                    let engine = &mut start.as_mut().expect(OWNED).engine;
                    if let Err(error) = ready!(engine.poll_ready(cx)) {
                        this.state.set(State::Done);
                        drop(this.permit.take());
                        return Poll::Ready(Err(error.into()));
                    }
                    let Start {
                        mut engine,
                        request,
                    } = start.take().expect(OWNED);
                    let future = engine.call(request);
                    this.state.set(State::Running { future });
                }
                StateProj::Running { future } => {
                    let result = ready!(future.poll(cx));
                    let permit = this.permit.take();
                    // The engine's own leftovers go before the slot does.
                    this.state.set(State::Done);
                    return Poll::Ready(match result {
                        Ok(response) => Ok(this.completion.track_completion(permit, response)),
                        Err(error) => Err(error.into()),
                    });
                }
                StateProj::Refused { .. } | StateProj::Done => panic!("{ONCE}"),
            }
        }
    }
}

impl<S, R, C> fmt::Debug for EngineAdmissionFuture<S, R, C>
where
    S: Service<R>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Refused { .. } => "Refused",
            State::Queued { .. } => "Queued",
            State::Readying { .. } => "Readying",
            State::Running { .. } => "Running",
            State::Done => "Done",
        };
        f.debug_struct("EngineAdmissionFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
