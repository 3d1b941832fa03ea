use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// The body of a response: the inner service's, or that of an answer.
    ///
    /// It asks of the inner body only that its data can be made from [`Bytes`]
    /// (`B::Data: From<Bytes>`), which holds for the bodies of axum, hyper and
    /// tonic, for boxed ones and for those of `http-body-util` alike. Asking
    /// `B: From<Bytes>` instead would shut out hyper's `Incoming` and the
    /// boxed ones, and with them every proxy.
    #[derive(Debug)]
    pub struct StatusBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProj]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Answer { rest: Bytes },
    }
}

impl<B> StatusBody<B> {
    pub(super) const fn inner(body: B) -> Self {
        Self {
            kind: Kind::Inner { body },
        }
    }

    pub(super) const fn answer(rest: Bytes) -> Self {
        Self {
            kind: Kind::Answer { rest },
        }
    }
}

/// An empty body.
impl<B> Default for StatusBody<B> {
    fn default() -> Self {
        Self::answer(Bytes::new())
    }
}

impl<B> Body for StatusBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().kind.project() {
            KindProj::Inner { body } => body.poll_frame(cx),
            KindProj::Answer { rest } if rest.is_empty() => Poll::Ready(None),
            KindProj::Answer { rest } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(rest).into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Answer { rest } => rest.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Answer { rest } => SizeHint::with_exact(rest.len() as u64),
        }
    }
}
