//! The frames of a body, read as the stream that they may be.

use super::{StreamProgress, is_event_stream, json::Word};
use bytes::Buf;
use http::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body::Frame;
use std::io::IoSlice;

/// Pieces of one frame that are looked at.
const PIECES: usize = 16;

/// Reads the frames of a response body, whose headers say what it is.
///
/// Of a body that is no [stream of events](is_event_stream) each data frame is
/// a token, and the first frame, whatever it is, ends the prefill. One without
/// a `Content-Type` is a stream if it begins as one, with a comment or a field.
#[derive(Clone, Debug, Default)]
pub struct FrameProgress {
    /// `None`: it is no stream of events. Boxed, so that requests and answers
    /// of other kinds stay small.
    stream: Option<Box<StreamProgress>>,
    /// How the body begins, while that says whether it is one.
    begins: Option<Word>,
    /// Data frames of a body that is none.
    frames: u64,
    /// By a frame that was not read.
    has_begun: bool,
}

impl FrameProgress {
    /// Knows nothing yet.
    pub const fn new() -> Self {
        Self {
            stream: None,
            begins: None,
            frames: 0,
            has_begun: false,
        }
    }

    /// Of a response with these headers.
    pub fn of(headers: &HeaderMap) -> Self {
        let is_unknown =
            !headers.contains_key(CONTENT_TYPE) && !headers.contains_key(CONTENT_ENCODING);
        Self {
            stream: (is_unknown || is_event_stream(headers)).then(Box::default),
            begins: is_unknown.then(Word::default),
            ..Self::new()
        }
    }

    /// Takes the next frame.
    ///
    /// Data of a frame in more than 16 pieces cannot be read here: from there
    /// on, frames are counted.
    pub fn frame<D: Buf>(&mut self, frame: &Frame<D>) {
        if let (Some(stream), Some(data)) = (&mut self.stream, frame.data_ref()) {
            self.frames = self.frames.saturating_add(1);
            let is_read = each_piece(data, |piece| {
                stream.feed(piece);
                if let Some(begins) = &mut self.begins {
                    begins.push(piece);
                }
            });
            let is_stream = match &self.begins {
                Some(begins) => begins_stream(begins.get()),
                None => Some(true),
            };
            if is_stream == Some(true) {
                self.begins = None;
            }
            if is_read && is_stream != Some(false) {
                return;
            }
            if is_stream != Some(false) {
                self.frames = stream.tokens().saturating_add(1);
            }
            self.stream = None;
            self.has_begun = true;
            return;
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

/// Whether a body that begins so is a stream of events; `None` if that is too
/// little to know.
fn begins_stream(begins: &[u8]) -> Option<bool> {
    const BEGINS: [&[u8]; 5] = [b":", b"data:", b"event:", b"id:", b"retry:"];
    const BOM: &[u8] = b"\xef\xbb\xbf";
    if begins.len() < BOM.len() && BOM.starts_with(begins) {
        return None;
    }
    let begins = begins.strip_prefix(BOM).unwrap_or(begins);
    let begins = begins.trim_ascii_start();
    if BEGINS.iter().any(|it| begins.starts_with(it)) {
        return Some(true);
    }
    match BEGINS.iter().any(|it| it.starts_with(begins)) {
        true => None,
        false => Some(false),
    }
}

/// Returns whether that was all of it.
fn each_piece(data: &impl Buf, mut take: impl FnMut(&[u8])) -> bool {
    let length = data.remaining();
    if data.chunk().len() == length {
        take(data.chunk());
        return true;
    }
    let mut pieces = [IoSlice::new(&[]); PIECES];
    let count = data.chunks_vectored(&mut pieces);
    let pieces = pieces.get(..count).unwrap_or_default();
    if pieces.iter().map(|piece| piece.len()).sum::<usize>() != length {
        return false;
    }
    pieces.iter().for_each(|piece| take(piece));
    true
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;
    use bytes::Bytes;

    const EVENT: &str = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";

    /// Begun and tokens, after each of these frames.
    fn after(headers: &[(&'static str, &'static str)], frames: &[&str]) -> Vec<(bool, u64)> {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let mut progress = FrameProgress::of(&headers.collect());
        let after = |data: &&str| {
            progress.frame(&Frame::data(Bytes::copy_from_slice(data.as_bytes())));
            (progress.has_begun(), progress.tokens())
        };
        frames.iter().map(after).collect()
    }

    #[test]
    fn the_content_type_says_what_it_is() {
        let frames = [": ping\n\n", EVENT, "data: [DONE]\n\n"];
        let read = [(false, 0), (true, 1), (true, 1)];
        let counted = [(true, 1), (true, 2), (true, 3)];
        let stream = ("content-type", "Text/Event-Stream ; charset=utf-8");
        assert_eq!(after(&[stream], &frames), read);
        assert_eq!(after(&[], &frames), read);
        let zipped = ("content-encoding", "gzip");
        for headers in [
            &[("content-type", "application/json")][..],
            &[stream, zipped],
            &[zipped],
        ] {
            assert_eq!(after(headers, &frames), counted);
        }
    }

    #[test]
    fn without_one_it_is_how_it_begins() {
        let first = |begin: &str| after(&[], &[begin])[0];
        for stream in [
            "",
            "d",
            "data",
            ":",
            "\n\ndata:",
            "event: x\n",
            "id: 1\n",
            "retry: 1\n",
            "\u{feff}: x",
        ] {
            assert_eq!(first(stream), (false, 0), "{stream:?}");
        }
        for other in ["token", "{", "dat:", "database", "<p>"] {
            assert_eq!(first(other), (true, 1), "{other:?}");
        }
        let pieces: Vec<_> = EVENT.split_inclusive("").collect();
        assert_eq!(after(&[], &pieces).last(), Some(&(true, 1)));
        assert_eq!(
            after(&[], &["da", "ta", "base", "x"]),
            [(false, 0), (false, 0), (true, 3), (true, 4)]
        );
    }

    #[test]
    fn a_frame_in_pieces_is_read_as_one() {
        let mut progress = FrameProgress::of(&HeaderMap::new());
        let (one, two) = EVENT.split_at(9);
        progress.frame(&Frame::data(one.as_bytes().chain(two.as_bytes())));
        assert_eq!((progress.has_begun(), progress.tokens()), (true, 1));
        // One that shows its first piece only is a token, and so is the rest.
        let hidden = Hidden(one.as_bytes().chain(two.as_bytes()));
        progress.frame(&Frame::data(hidden));
        assert_eq!(progress.tokens(), 2);
        progress.frame(&Frame::data(EVENT.as_bytes()));
        assert_eq!((progress.has_begun(), progress.tokens()), (true, 3));
    }

    #[test]
    fn trailers_end_the_prefill_and_are_no_token() {
        let mut progress = FrameProgress::of(&HeaderMap::new());
        progress.frame(&Frame::<Bytes>::trailers(HeaderMap::new()));
        assert_eq!((progress.has_begun(), progress.tokens()), (true, 0));
    }

    struct Hidden<B>(B);

    impl<B: Buf> Buf for Hidden<B> {
        fn remaining(&self) -> usize {
            self.0.remaining()
        }

        fn chunk(&self) -> &[u8] {
            self.0.chunk()
        }

        fn advance(&mut self, count: usize) {
            self.0.advance(count);
        }
    }
}
