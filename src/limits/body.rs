use super::{Limits, timer::Timer};
use crate::{BoxError, Limit};
use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

pin_project! {
    /// A response body whose frames have to come in time.
    ///
    /// The error is that of the worker's body, or a
    /// [`LimitPassed`](crate::LimitPassed). After either the body is at its
    /// end, and the worker's is dropped, so that the worker knows that nobody
    /// listens any more.
    pub struct TimeLimitBody<B: Body> {
        #[pin]
        inner: Inner<B>,
        // The frame that the head was held back for.
        held: Option<Frame<B::Data>>,
        #[pin]
        timer: Timer,
        limits: Arc<Limits>,
        // A data frame has come.
        has_begun: bool,
    }
}

pin_project! {
    #[project = InnerProj]
    #[project_ref = InnerProjRef]
    enum Inner<B> {
        Passing { #[pin] body: B },
        // It was asked for a frame before the response was given out, and
        // cannot be moved since.
        HeldBack { body: Pin<Box<B>> },
        // It failed, or was over before anything of it was given out.
        Gone,
    }
}

impl<B: Body> TimeLimitBody<B> {
    pub(super) fn passing(body: B, limits: Arc<Limits>) -> Self {
        Self {
            inner: Inner::Passing { body },
            held: None,
            timer: Timer::default(),
            limits,
            has_begun: false,
        }
    }

    /// The body of a head that was held back for a first frame; without one it
    /// is over, and must not be asked again.
    pub(super) fn held_back(
        body: Pin<Box<B>>,
        held: Option<Frame<B::Data>>,
        limits: Arc<Limits>,
    ) -> Self {
        Self {
            inner: match held {
                Some(_) => Inner::HeldBack { body },
                None => Inner::Gone,
            },
            held,
            timer: Timer::default(),
            limits,
            has_begun: true,
        }
    }

    fn get(&self) -> Option<&B> {
        match &self.inner {
            Inner::Passing { body } => Some(body),
            Inner::HeldBack { body } => Some(body),
            Inner::Gone => None,
        }
    }
}

impl<B> Body for TimeLimitBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        if let Some(frame) = this.held.take() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let frame = match this.inner.as_mut().project() {
            InnerProj::Passing { body } => body.poll_frame(cx),
            InnerProj::HeldBack { body } => body.as_mut().poll_frame(cx),
            InnerProj::Gone => return Poll::Ready(None),
        };
        let error = match frame {
            Poll::Ready(Some(Ok(frame))) => {
                this.timer.stop();
                *this.has_begun |= frame.is_data();
                return Poll::Ready(Some(Ok(frame)));
            }
            Poll::Ready(Some(Err(error))) => error.into(),
            Poll::Ready(None) => {
                this.timer.stop();
                return Poll::Ready(None);
            }
            Poll::Pending => {
                let (limit, after) = match *this.has_begun {
                    true => (Limit::Frame, this.limits.frame),
                    false => (Limit::FirstFrame, this.limits.first_frame),
                };
                let Some(after) = after else {
                    return Poll::Pending;
                };
                ready!(this.timer.poll_passed(cx, after));
                this.limits.passed(limit, after).into()
            }
        };
        this.inner.set(Inner::Gone);
        Poll::Ready(Some(Err(error)))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.get().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let Some(body) = self.get() else {
            return SizeHint::with_exact(0);
        };
        let mut hint = body.size_hint();
        let held = self.held.as_ref().and_then(Frame::data_ref);
        let held = held.map_or(0, |data| data.remaining() as u64);
        if held > 0 {
            let upper = hint.upper().map(|upper| upper.saturating_add(held));
            let lower = hint.lower().saturating_add(held);
            hint = SizeHint::new();
            hint.set_lower(lower);
            if let Some(upper) = upper {
                hint.set_upper(upper);
            }
        }
        hint
    }
}

impl<B: Body> fmt::Debug for TimeLimitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeLimitBody")
            .field("limits", &self.limits)
            .field("has_begun", &self.has_begun)
            .field("is_holding", &self.held.is_some())
            .field("is_gone", &self.get().is_none())
            .finish_non_exhaustive()
    }
}
