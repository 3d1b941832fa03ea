//! The frames of a body, read as the stream that they may be.

use super::{StreamProgress, is_event_stream};
use bytes::Buf;
use http::HeaderMap;
use http_body::Frame;
use std::io::IoSlice;

/// Pieces of one frame that are looked at.
const PIECES: usize = 16;

/// Reads the frames of a response body, whose headers say what it is.
///
/// Of a body that is no [stream of events](is_event_stream) each data frame is
/// a token, and the first frame, whatever it is, ends the prefill.
#[derive(Clone, Debug, Default)]
pub struct FrameProgress {
    /// `None`: it is no stream of events. Boxed, so that requests and answers
    /// of other kinds stay small.
    stream: Option<Box<StreamProgress>>,
    /// Data frames that were not read.
    frames: u64,
    /// Some frame was not read.
    has_begun: bool,
}

impl FrameProgress {
    /// Knows nothing yet.
    pub const fn new() -> Self {
        Self {
            stream: None,
            frames: 0,
            has_begun: false,
        }
    }

    /// Of a response with these headers.
    pub fn of(headers: &HeaderMap) -> Self {
        Self {
            stream: is_event_stream(headers).then(Box::default),
            ..Self::new()
        }
    }

    /// Takes the next frame.
    ///
    /// Data of a frame in more than 16 pieces cannot be read here: from there
    /// on, frames are counted.
    pub fn frame<D: Buf>(&mut self, frame: &Frame<D>) {
        if let (Some(stream), Some(data)) = (&mut self.stream, frame.data_ref()) {
            if feed(stream, data) {
                return;
            }
            self.frames = stream.tokens();
            self.stream = None;
        }
        // Trailers: whatever was to come has come.
        self.has_begun = true;
        self.frames = self.frames.saturating_add(u64::from(frame.is_data()));
    }

    /// As [`StreamProgress::has_begun`].
    pub fn has_begun(&self) -> bool {
        self.has_begun || self.stream().is_some_and(StreamProgress::has_begun)
    }

    /// As [`StreamProgress::tokens`].
    pub fn tokens(&self) -> u64 {
        match self.stream() {
            Some(stream) => stream.tokens(),
            None => self.frames,
        }
    }

    /// What the stream says, if it is one that is read.
    pub fn stream(&self) -> Option<&StreamProgress> {
        self.stream.as_deref()
    }
}

/// Returns whether all of it was read.
fn feed(stream: &mut StreamProgress, data: &impl Buf) -> bool {
    let length = data.remaining();
    if data.chunk().len() == length {
        stream.feed(data.chunk());
        return true;
    }
    let mut pieces = [IoSlice::new(&[]); PIECES];
    let count = data.chunks_vectored(&mut pieces);
    let pieces = pieces.get(..count).unwrap_or_default();
    if pieces.iter().map(|piece| piece.len()).sum::<usize>() != length {
        return false;
    }
    pieces.iter().for_each(|piece| stream.feed(piece));
    true
}
