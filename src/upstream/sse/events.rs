//! Where one server-sent event ends and the next begins.

use crate::sse::{Part, Reader};
use bytes::{Bytes, BytesMut};

/// How much of an event is held back until its end has come. A longer one is
/// passed on as it comes, and cannot be taken back then.
const MAX_HELD: usize = 256 * 1024;
/// As much of a name or of data as it takes to know an event that is the last.
const HEAD: usize = 24;

/// Passes on whole events, so that a stream can end after any byte of it with
/// an event of somebody else.
///
/// Clients look at whole events only, so this takes no time from them. Comments
/// between events, which keep connections alive, are passed on by the line.
#[derive(Debug, Default)]
pub(super) struct Events {
    held: BytesMut,
    /// Bytes of the event that is under way have been passed on.
    torn: bool,
    reader: Reader,
    /// How the name and the data of the event that is under way begin.
    name: Head,
    data: Head,
    last_was_seen: bool,
    count: u64,
}

#[derive(Debug, Default)]
struct Head {
    length: usize,
    bytes: [u8; HEAD],
}

impl Head {
    fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        room.iter_mut()
            .zip(bytes)
            .for_each(|(to, byte)| *to = *byte);
        self.length = self.length.saturating_add(bytes.len());
    }

    /// `None` if it is too long.
    fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length).map(<[u8]>::trim_ascii)
    }
}

impl Events {
    /// Takes what has come, and returns what can be passed on.
    pub(super) fn push(&mut self, mut data: Bytes) -> Bytes {
        let (mut safe, mut rest) = (0, &data[..]);
        while let Some(part) = self.reader.next(&mut rest) {
            match part {
                Part::Name(name) => self.name.push(name),
                Part::Data(data) => self.data.push(data),
                Part::End => self.end_event(),
                Part::Between => {}
            }
            if matches!(part, Part::End | Part::Between) {
                safe = data.len() - rest.len();
            }
        }
        if safe > 0 {
            self.torn = false;
        } else if self.torn {
            return data;
        }
        let passed = data.split_to(safe);
        if self.held.len() + data.len() > MAX_HELD {
            self.torn = true;
            return self.joined(&[passed, data]);
        }
        let passed = match passed.is_empty() || self.held.is_empty() {
            true => passed,
            false => self.joined(&[passed]),
        };
        self.held.extend_from_slice(&data);
        passed
    }

    /// What was held back, and more.
    fn joined(&mut self, more: &[Bytes]) -> Bytes {
        for more in more {
            self.held.extend_from_slice(more);
        }
        self.rest()
    }

    /// Returns what was held back.
    pub(super) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    /// Whether an event can follow what was passed on.
    pub(super) fn can_be_ended(&self) -> bool {
        !self.torn
    }

    /// Whether the stream has said all it had to.
    pub(super) fn last_was_seen(&self) -> bool {
        self.last_was_seen
    }

    /// How many events have come.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    fn end_event(&mut self) {
        const LAST: [&[u8]; 5] = [
            b"message_stop",
            b"error",
            b"response.completed",
            b"response.incomplete",
            b"response.failed",
        ];
        let (name, data) = (
            std::mem::take(&mut self.name),
            std::mem::take(&mut self.data),
        );
        self.count += 1;
        self.last_was_seen |=
            name.get().is_some_and(|name| LAST.contains(&name)) || data.get() == Some(b"[DONE]");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(events: &mut Events, data: &str) -> String {
        let passed = events.push(Bytes::copy_from_slice(data.as_bytes()));
        String::from_utf8(passed.to_vec()).unwrap()
    }

    #[test]
    fn events_are_passed_on_whole() {
        let mut events = Events::default();
        for (data, expected) in [
            ("data: a\n\n", "data: a\n\n"),
            ("data: b", ""),
            ("\n", ""),
            ("\ndata: c\n\nda", "data: b\n\ndata: c\n\n"),
            ("ta: d\r\n\r", "data: d\r\n\r"),
            ("\n", "\n"),
            ("data: e\r\rdata: f\n\n", "data: e\r\rdata: f\n\n"),
            ("event: x\nid: 1\n: no\n", ""),
            ("data: g\n\n\n\n", "event: x\nid: 1\n: no\ndata: g\n\n\n\n"),
            (": keep-alive\n", ": keep-alive\n"),
            (": keep", ""),
            ("-alive\ndata", ": keep-alive\n"),
        ] {
            assert_eq!(passed(&mut events, data), expected, "{data:?}");
            assert!(events.can_be_ended());
        }
        assert_eq!((&*events.rest(), events.count()), (&b"data"[..], 7));
    }

    #[test]
    fn every_way_to_cut_a_stream_passes_on_the_same() {
        let stream = "data: a\n\n: c\n\ndata: b\r\n\r\nevent: x\rdata: d\r\r\n\ndata: [DONE]\n\n";
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let mut events = Events::default();
                let mut all = String::new();
                for part in [&stream[..first], &stream[first..second], &stream[second..]] {
                    all += &passed(&mut events, part);
                    assert!(all.is_empty() || all.ends_with(['\n', '\r']), "{all:?}");
                }
                assert_eq!((&*all, events.count()), (stream, 4));
                assert!(events.last_was_seen() && events.can_be_ended());
            }
        }
    }

    #[test]
    fn an_event_that_is_too_long_is_passed_on_and_cannot_be_taken_back() {
        let mut events = Events::default();
        let long = "x".repeat(MAX_HELD);
        assert_eq!(passed(&mut events, "data: a\n\ndata: "), "data: a\n\n");
        assert_eq!(passed(&mut events, &long).len(), MAX_HELD + 6);
        assert!(!events.can_be_ended());
        assert_eq!(passed(&mut events, "more\n"), "more\n");
        assert!(!events.can_be_ended());
        assert_eq!(passed(&mut events, "\ndata: b"), "\n");
        assert!(events.can_be_ended());
        assert_eq!(passed(&mut events, "\n\n"), "data: b\n\n");
    }

    #[test]
    fn the_last_event_of_each_api_is_known() {
        for last in [
            "data: [DONE]\n\n",
            "data:[DONE]\r\n\r\n",
            "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            "event: response.completed\ndata: {}\n\n",
            "event: error\ndata: {}\n\n",
        ] {
            let mut events = Events::default();
            passed(&mut events, last);
            assert!(events.last_was_seen(), "{last:?}");
        }
        for other in [
            "data: [DONE]",
            "data: [DONE]\n",
            "data: {\"content\":\"[DONE]\"}\n\n",
            "event: message_delta\ndata: {}\n\n",
            ": [DONE]\n\n",
            "\n\n",
        ] {
            let mut events = Events::default();
            passed(&mut events, other);
            assert!(!events.last_was_seen(), "{other:?}");
        }
    }
}
