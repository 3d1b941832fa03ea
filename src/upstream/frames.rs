//! Frames of HTTP/2 as they pass by, as far as it takes to count heads.

/// The length of what every frame begins with.
const START: usize = 9;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;

/// Counts heads that end no stream: of answers, and of informational
/// responses, which hyper skips without an end.
#[derive(Debug, Default)]
pub(super) struct Frames {
    start: [u8; START],
    came: usize,
    /// What is to come of the frame that is under way.
    rest: usize,
}

impl Frames {
    /// Takes what has come, and returns how many heads began in it.
    pub(super) fn heads(&mut self, mut bytes: &[u8]) -> u32 {
        let mut heads = 0;
        loop {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            bytes = &bytes[skipped..];
            let taken = (START - self.came).min(bytes.len());
            if taken == 0 {
                return heads;
            }
            self.start[self.came..][..taken].copy_from_slice(&bytes[..taken]);
            self.came += taken;
            bytes = &bytes[taken..];
            if self.came == START {
                self.came = 0;
                let [high, middle, low, kind, flags, ..] = self.start;
                self.rest = u32::from_be_bytes([0, high, middle, low]) as usize;
                heads += u32::from(kind == HEADERS && flags & END_STREAM == 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let [_, high, middle, low] = u32::try_from(length).unwrap().to_be_bytes();
        let mut frame = vec![high, middle, low, kind, flags, 0, 0, 0, 1];
        // Looks like heads itself.
        frame.resize(START + length, 1);
        frame
    }

    #[test]
    fn heads_are_counted_however_they_are_cut() {
        const SETTINGS: u8 = 4;
        const DATA: u8 = 0;
        let bytes = [
            frame(SETTINGS, 0, 0),
            frame(HEADERS, 4, 20),
            frame(DATA, 0, 300),
            frame(HEADERS, 4, 0),
            frame(HEADERS, 4 | END_STREAM, 30),
            frame(HEADERS, 4, 1),
        ]
        .concat();
        for size in 1..=bytes.len() {
            let mut frames = Frames::default();
            let heads: u32 = bytes.chunks(size).map(|part| frames.heads(part)).sum();
            assert_eq!(heads, 3, "{size}");
        }
    }
}
