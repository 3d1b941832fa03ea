use super::worker::Tracked;
use crate::completion::ObserveFrame;
use http_body::Frame;
use std::num::NonZeroU64;

/// How many tokens a frame of a response body carries.
///
/// Implemented for every `FnMut(&Frame<D>) -> u64`. Each response gets a clone
/// of its own, so one that reads a format may remember where it is.
pub trait OutputTokens<D> {
    /// The tokens of the next frame, which may be trailers.
    fn tokens(&mut self, frame: &Frame<D>) -> u64;
}

impl<D, F: FnMut(&Frame<D>) -> u64> OutputTokens<D> for F {
    fn tokens(&mut self, frame: &Frame<D>) -> u64 {
        self(frame)
    }
}

/// Each data frame is one token. The default.
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
pub struct Frames<T = OneToken> {
    pub(super) tokens: T,
    /// `None`: the output does not count.
    pub(super) block_size: Option<NonZeroU64>,
}

impl Frames {
    pub(super) const fn untracked() -> Self {
        Self {
            tokens: OneToken,
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
    fn observe(&mut self, tracked: &mut Tracked, frame: &Frame<D>) {
        let output = self
            .block_size
            .map(|block_size| (self.tokens.tokens(frame), block_size));
        tracked.frame(output);
    }
}
