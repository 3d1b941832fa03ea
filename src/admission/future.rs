//! The response future of both services.

use super::{
    permit::Permit,
    shared::{Admission, Rejection, Wait},
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
        completion: C,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, R, F> {
        Refused {
            rejection: Rejection,
        },
        Queued {
            wait: Wait,
            start: Option<Start<S, R>>,
        },
        // A permit comes after what it permits, so that it is dropped later.
        Readying {
            start: Option<Start<S, R>>,
            permit: Option<Permit>,
        },
        Running {
            #[pin]
            future: F,
            permit: Option<Permit>,
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

impl<S, R, C> EngineAdmissionFuture<S, R, C>
where
    S: Service<R> + Clone,
{
    pub(super) fn new(admission: Admission, engine: &S, request: R, completion: C) -> Self {
        let start = || {
            Some(Start {
                engine: engine.clone(),
                request,
            })
        };
        let state = match admission {
            Admission::Start(permit) => State::Readying {
                start: start(),
                permit: Some(permit),
            },
            Admission::Wait(wait) => State::Queued {
                wait,
                start: start(),
            },
            Admission::Refuse(rejection) => State::Refused { rejection },
        };
        Self { state, completion }
    }
}

impl<S, R, C> Future for EngineAdmissionFuture<S, R, C>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    C: TrackCompletion<Permit, S::Response>,
{
    type Output = Result<C::Output, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Refused { rejection } => {
                    let error = BoxError::from(*rejection);
                    this.state.set(State::Done);
                    return Poll::Ready(Err(error));
                }
                StateProj::Queued { wait, start } => match ready!(wait.poll(cx)) {
                    Ok(permit) => {
                        let next = State::Readying {
                            start: start.take(),
                            permit: Some(permit),
                        };
                        this.state.set(next);
                    }
                    Err(rejection) => {
                        this.state.set(State::Done);
                        return Poll::Ready(Err(rejection.into()));
                    }
                },
                StateProj::Readying { start, permit } => {
                    let engine = &mut start.as_mut().expect(OWNED).engine;
                    if let Err(error) = ready!(engine.poll_ready(cx)) {
                        this.state.set(State::Done);
                        return Poll::Ready(Err(error.into()));
                    }
                    let Start {
                        mut engine,
                        request,
                    } = start.take().expect(OWNED);
                    let next = State::Running {
                        future: engine.call(request),
                        permit: permit.take(),
                    };
                    this.state.set(next);
                }
                StateProj::Running { future, permit } => {
                    let result = ready!(future.poll(cx));
                    let permit = permit.take().expect(OWNED);
                    // The engine's own leftovers go before the slot does.
                    this.state.set(State::Done);
                    return Poll::Ready(match result {
                        Ok(response) => Ok(this.completion.track_completion(permit, response)),
                        Err(error) => Err(error.into()),
                    });
                }
                StateProj::Done => panic!("polled after it has completed"),
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
