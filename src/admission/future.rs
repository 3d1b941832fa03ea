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
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // In the order in which a request goes through them. The common ways
        // are short, so that they can be inlined where the future is awaited.
        if let StateProj::Refused { error } = this.state.as_mut().project() {
            return Poll::Ready(Err(error.take().expect(ONCE)));
        }
        if let StateProj::Queued { .. } = this.state.as_mut().project() {
            if let Err(error) = ready!(poll_queued(this.state.as_mut(), this.permit, cx)) {
                return Poll::Ready(Err(error));
            }
        }
        if let StateProj::Readying { start } = this.state.as_mut().project() {
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
        let StateProj::Running { future } = this.state.as_mut().project() else {
            panic!("{ONCE}");
        };
        let result = ready!(future.poll(cx));
        // The engine's own leftovers go before the slot does.
        this.state.set(State::Done);
        let permit = this.permit.take();
        Poll::Ready(match result {
            Ok(response) => Ok(this.completion.track_completion(permit, response)),
            Err(error) => Err(error.into()),
        })
    }
}

/// Goes on to `Readying` with a permit, or is done.
#[cold]
fn poll_queued<S, R, F>(
    mut state: Pin<&mut State<S, R, F>>,
    permit: &mut Permit,
    cx: &mut Context<'_>,
) -> Poll<Result<(), BoxError>> {
    let StateProj::Queued { wait, start } = state.as_mut().project() else {
        return Poll::Ready(Ok(()));
    };
    let granted = ready!(wait.poll(cx));
    let start = start.take();
    Poll::Ready(match granted {
        Ok(granted) => {
            *permit = granted;
            state.set(State::Readying { start });
            Ok(())
        }
        Err(error) => {
            state.set(State::Done);
            Err(error)
        }
    })
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
