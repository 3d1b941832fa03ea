//! The body of a request, which can be sent again while little of it was.

use crate::BoxError;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::sync::oneshot;

/// How much of a body is kept to be sent again. One that is longer, and on its
/// way when the connection is lost, is for its owner to send again.
const KEPT: usize = 64 * 1024;

type Rest = Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>;

#[derive(Clone, Debug)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

/// A request body, in the parts that are to be sent yet and those that were.
pub(super) struct Upload {
    next: VecDeque<Piece>,
    rest: Option<Rest>,
    /// `None` when more was sent than is kept.
    sent: Option<Vec<Piece>>,
    kept: usize,
}

impl Upload {
    pub(super) fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let rest = (!body.is_end_stream()).then(|| Box::pin(Foreign { body }) as Rest);
        Self {
            next: VecDeque::new(),
            rest,
            sent: Some(Vec::new()),
            kept: 0,
        }
    }

    pub(super) fn whole(body: Bytes) -> Self {
        let next = match body.is_empty() {
            true => VecDeque::new(),
            false => [Piece::Data(body)].into(),
        };
        Self {
            next,
            rest: None,
            sent: Some(Vec::new()),
            kept: 0,
        }
    }

    /// Whether all of it was sent.
    pub(super) fn is_over(&self) -> bool {
        self.next.is_empty() && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
    }

    /// How long it is, if that is known.
    pub(super) fn length(&self) -> Option<u64> {
        if self.is_over() {
            return Some(0);
        }
        self.size_hint().exact()
    }

    /// Begins anew, if all that was sent is still there.
    pub(super) fn again(mut self) -> Option<Self> {
        let sent = self.sent.replace(Vec::new())?;
        for piece in sent.into_iter().rev() {
            self.next.push_front(piece);
        }
        self.kept = 0;
        Some(self)
    }

    fn keep(&mut self, piece: &Piece) {
        let Some(sent) = &mut self.sent else { return };
        self.kept += match piece {
            Piece::Data(data) => data.len(),
            Piece::Trailers(_) => 0,
        };
        if self.kept > KEPT {
            self.sent = None;
        } else {
            sent.push(piece.clone());
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let piece = match self.next.pop_front() {
            Some(piece) => piece,
            None => {
                let Some(rest) = &mut self.rest else {
                    return Poll::Ready(None);
                };
                match ready!(rest.as_mut().poll_frame(cx)) {
                    None => {
                        self.rest = None;
                        return Poll::Ready(None);
                    }
                    Some(Err(error)) => {
                        self.rest = None;
                        self.sent = None;
                        return Poll::Ready(Some(Err(error)));
                    }
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => Piece::Data(data),
                        Err(frame) => match frame.into_trailers() {
                            Ok(mut trailers) => {
                                super::forward::clean_trailers(&mut trailers);
                                Piece::Trailers(trailers)
                            }
                            // Of a kind that this does not know.
                            Err(_) => Piece::Data(Bytes::new()),
                        },
                    },
                }
            }
        };
        self.keep(&piece);
        Poll::Ready(Some(Ok(match piece {
            Piece::Data(data) => Frame::data(data),
            Piece::Trailers(trailers) => Frame::trailers(trailers),
        })))
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = match &self.rest {
            Some(rest) => rest.size_hint(),
            None => SizeHint::with_exact(0),
        };
        let (mut more, mut trailers) = (0_u64, false);
        for piece in &self.next {
            match piece {
                Piece::Data(data) => more += data.len() as u64,
                Piece::Trailers(_) => trailers = true,
            }
        }
        // Trailers need chunks, so a body that has them has no length.
        let upper = hint.upper().filter(|_| !trailers);
        let lower = hint.lower().saturating_add(more);
        hint = SizeHint::new();
        hint.set_lower(lower);
        if let Some(upper) = upper {
            hint.set_upper(upper.saturating_add(more));
        }
        hint
    }
}

/// An [`Upload`] on its way: what is left of it comes back when hyper has done
/// with it.
pub(super) struct Outgoing {
    upload: Option<Upload>,
    back: Option<oneshot::Sender<Upload>>,
}

/// Where an [`Upload`] comes back.
pub(super) type Back = oneshot::Receiver<Upload>;

impl Outgoing {
    pub(super) fn new(upload: Upload) -> (Self, Back) {
        let (back, came_back) = oneshot::channel();
        let outgoing = Self {
            upload: Some(upload),
            back: Some(back),
        };
        (outgoing, came_back)
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let (Some(upload), Some(back)) = (self.upload.take(), self.back.take()) {
            // Whoever does not listen any more does not want it.
            drop(back.send(upload));
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.upload {
            Some(upload) => upload.poll(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.upload.as_ref().is_none_or(Upload::is_over)
    }

    fn size_hint(&self) -> SizeHint {
        self.upload
            .as_ref()
            .map(Upload::size_hint)
            .unwrap_or_default()
    }
}

pin_project! {
    /// A body whose errors are boxed.
    struct Foreign<B> {
        #[pin]
        body: B,
    }
}

impl<B> Body for Foreign<B>
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
        self.project().body.poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full, StreamBody};

    fn streamed(frames: Vec<Frame<Bytes>>) -> Upload {
        let frames = frames.into_iter().map(Ok::<_, BoxError>);
        Upload::new(StreamBody::new(futures::stream::iter(frames)))
    }

    fn data(length: usize) -> Frame<Bytes> {
        Frame::data(Bytes::from(vec![b'x'; length]))
    }

    #[tokio::test]
    async fn what_was_sent_is_sent_again_and_then_the_rest() {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, "x".parse().unwrap())]);
        let frames = vec![data(1), data(2), Frame::trailers(trailers.clone())];
        let (mut outgoing, back) = Outgoing::new(streamed(frames));
        assert_eq!(
            outgoing
                .frame()
                .await
                .unwrap()
                .unwrap()
                .into_data()
                .unwrap()
                .len(),
            1
        );
        drop(outgoing);
        let again = back.await.unwrap().again().unwrap();
        let (outgoing, back) = Outgoing::new(again);
        let all = outgoing.collect().await.unwrap();
        assert_eq!(all.trailers(), Some(&trailers));
        assert_eq!(all.to_bytes().len(), 3);
        let (outgoing, _) = Outgoing::new(back.await.unwrap().again().unwrap());
        assert_eq!(outgoing.size_hint().exact(), None, "it has trailers");
        assert_eq!(
            outgoing.collect().await.unwrap().trailers(),
            Some(&trailers)
        );
    }

    #[tokio::test]
    async fn what_is_too_long_to_be_kept_is_not_sent_again() {
        for (lengths, kept) in [([KEPT, 0], true), ([KEPT, 1], false), ([1, KEPT], false)] {
            let (outgoing, back) = Outgoing::new(streamed(lengths.map(data).into()));
            outgoing.collect().await.unwrap();
            assert_eq!(back.await.unwrap().again().is_some(), kept, "{lengths:?}");
        }
        let long = Upload::new(Full::new(Bytes::from(vec![b'x'; KEPT * 2])));
        assert!(long.again().is_some(), "nothing of it was sent");
    }

    #[tokio::test]
    async fn its_length_and_its_end_are_those_of_the_body() {
        let upload = Upload::new(Full::new(Bytes::from_static(b"abc")));
        assert_eq!(upload.size_hint().exact(), Some(3));
        assert!(!upload.is_over());
        for empty in [
            Upload::new(Full::new(Bytes::new())),
            Upload::whole(Bytes::new()),
        ] {
            assert!(empty.is_over());
            assert_eq!(empty.size_hint().exact(), Some(0));
        }
        assert_eq!(
            Upload::whole(Bytes::from_static(b"ab")).size_hint().exact(),
            Some(2)
        );
    }

    #[tokio::test]
    async fn a_body_that_failed_is_not_sent_again() {
        let frames = [Ok(data(1)), Err(BoxError::from("gone"))];
        let body = StreamBody::new(futures::stream::iter(frames));
        let (outgoing, back) = Outgoing::new(Upload::new(body));
        assert!(outgoing.collect().await.is_err());
        assert!(back.await.unwrap().again().is_none());
    }
}
