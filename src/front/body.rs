use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

/// The body of a request that was read: all of it at once. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct WholeBody(Option<Bytes>);

impl<T: Into<Bytes>> From<T> for WholeBody {
    fn from(bytes: T) -> Self {
        let bytes = bytes.into();
        Self(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}

impl Body for WholeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

pin_project! {
    /// The body of an answer: of the front itself, or of what stands behind it.
    pub struct FrontBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        Own { #[pin] body: WholeBody },
        Behind { #[pin] body: B },
    }
}

impl<B> FrontBody<B> {
    pub(super) fn own(bytes: Bytes) -> Self {
        Self {
            inner: Inner::Own { body: bytes.into() },
        }
    }

    pub(super) fn behind(body: B) -> Self {
        Self {
            inner: Inner::Behind { body },
        }
    }

    /// Makes one body of both, where what stands behind has a type that can be
    /// made of bytes, such as that of a server: it is not boxed once more then.
    pub fn either<T>(self, own: impl FnOnce(WholeBody) -> T, behind: impl FnOnce(B) -> T) -> T {
        match self.inner {
            Inner::Own { body } => own(body),
            Inner::Behind { body } => behind(body),
        }
    }
}

impl<B: Body<Data = Bytes>> Body for FrontBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().inner.project() {
            InnerProj::Own { body } => body.poll_frame(cx).map_err(|never| match never {}),
            InnerProj::Behind { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Own { body } => body.is_end_stream(),
            Inner::Behind { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Own { body } => body.size_hint(),
            Inner::Behind { body } => body.size_hint(),
        }
    }
}

impl<B> fmt::Debug for FrontBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontBody").finish_non_exhaustive()
    }
}
