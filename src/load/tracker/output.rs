use super::worker::Tracked;
use crate::{completion::ObserveFrame, sse::FrameProgress};
use bytes::Buf;
use http::HeaderMap;
use http_body::Frame;
use std::num::NonZeroU64;

/// How many tokens a frame of a response body carries.
///
/// Implemented for every `FnMut(&Frame<D>) -> u64`. Each response gets a clone
/// of its own, so one that reads a format may remember where it is.
pub trait OutputTokens<D> {
    /// The head of the response has arrived, with these headers.
    fn head(&mut self, headers: &HeaderMap) {
        let _ = headers;
    }

    /// The tokens of the next frame, which may be trailers.
    fn tokens(&mut self, frame: &Frame<D>) -> u64;

    /// Whether the prefill is over, as of the last frame. The default is that
    /// the first one ends it.
    fn has_begun(&self) -> bool {
        true
    }
}

impl<D, F: FnMut(&Frame<D>) -> u64> OutputTokens<D> for F {
    fn tokens(&mut self, frame: &Frame<D>) -> u64 {
        self(frame)
    }
}

/// Of a stream of events the tokens of its events, as
/// [`StreamProgress`](crate::sse::StreamProgress) counts them; of another body
/// each data frame is one token. The default.
///
/// The prefill ends with the first token, which a comment is not, nor an event
/// with a role only. Blocks that were estimated are not given back if the
/// stream says later that there were fewer tokens.
#[derive(Clone, Debug, Default)]
pub struct StreamTokens {
    progress: FrameProgress,
    counted: u64,
}

impl StreamTokens {
    /// Of a response of which nothing is known yet.
    pub const fn new() -> Self {
        Self {
            progress: FrameProgress::new(),
            counted: 0,
        }
    }
}

impl<D: Buf> OutputTokens<D> for StreamTokens {
    fn head(&mut self, headers: &HeaderMap) {
        *self = Self {
            progress: FrameProgress::of(headers),
            counted: 0,
        };
    }

    fn tokens(&mut self, frame: &Frame<D>) -> u64 {
        self.progress.frame(frame);
        let tokens = self.progress.tokens();
        let more = tokens.saturating_sub(self.counted);
        self.counted = self.counted.max(tokens);
        more
    }

    fn has_begun(&self) -> bool {
        self.progress.has_begun()
    }
}

/// Each data frame is one token, whatever it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneToken;

impl<D> OutputTokens<D> for OneToken {
    fn tokens(&mut self, frame: &Frame<D>) -> u64 {
        u64::from(frame.is_data())
    }
}

/// Counts the frames of a response as its request's load: the observer of the
/// bodies that [`TrackLoad`](super::TrackLoad) answers with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames<T = StreamTokens> {
    pub(super) tokens: T,
    /// `None`: the output does not count.
    pub(super) block_size: Option<NonZeroU64>,
}

impl Frames {
    pub(super) const fn untracked() -> Self {
        Self {
            tokens: StreamTokens::new(),
            block_size: None,
        }
    }
}

impl<T> Frames<T> {
    pub(super) fn counting<U>(self, tokens: U) -> Frames<U> {
        Frames {
            tokens,
            block_size: self.block_size,
        }
    }
}

impl<D, T: OutputTokens<D>> ObserveFrame<Tracked, D> for Frames<T> {
    fn head(&mut self, tracked: &mut Tracked, headers: &HeaderMap) {
        if self.block_size.is_some() || tracked.is_in_prefill() {
            self.tokens.head(headers);
        }
    }

    fn observe(&mut self, tracked: &mut Tracked, frame: &Frame<D>) {
        let output = match self.block_size {
            Some(block_size) => Some((self.tokens.tokens(frame), block_size)),
            None if tracked.is_in_prefill() && !self.tokens.has_begun() => {
                self.tokens.tokens(frame);
                None
            }
            None => None,
        };
        tracked.frame(output, self.tokens.has_begun());
    }
}
