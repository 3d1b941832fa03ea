//! Where lines, fields and events begin and end.

/// As much of a field's name as it takes to know it.
const LONGEST_FIELD: usize = 5;

const BOM: [u8; 3] = [0xef, 0xbb, 0xbf];

/// A part of a stream of events, as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// More of the name of the event that is under way: of its `event` field.
    Name(&'a [u8]),
    /// More data of the event that is under way. Between two lines of data
    /// there is a line feed.
    Data(&'a [u8]),
    /// The event that was under way has ended.
    End,
    /// A comment or an empty line has ended, and no event is under way.
    Between,
}

/// Reads a stream of server-sent events in pieces of any size.
///
/// It keeps where it is in the stream, and none of its bytes: so it takes a
/// few bytes of memory whatever the stream has, and time that is linear in its
/// length, and nothing can be too long for it. What it reads it hands out as
/// [`Part`]s, whose text is as it was cut.
///
/// Lines end with LF, CR or CR LF; a byte order mark at the beginning is
/// skipped. The bytes need not be UTF-8.
///
/// ```
/// use tower_overload::sse::{Part, Reader};
///
/// let mut reader = Reader::default();
/// let mut parts: Vec<_> = reader.feed(b": hello\ndata: one\nda").collect();
/// assert_eq!(parts, [Part::Between, Part::Data(b"one")]);
/// parts = reader.feed(b"ta: two\r\n\r").collect();
/// assert_eq!(parts, [Part::Data(b"\n"), Part::Data(b"two"), Part::End]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Reader {
    at: At,
    /// The line before ended with a CR, which may be half of its end.
    after_cr: bool,
    /// The event that is under way has a field, and one of data.
    in_event: bool,
    has_data: bool,
    /// A line feed is to come before the next data.
    joins: bool,
    /// The field of the line that is under way.
    field: Field,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// The stream has just begun; so many bytes of a byte order mark came.
    Bom(u8),
    /// In the name of the field: its bytes so far.
    Field([u8; LONGEST_FIELD], u8),
    /// After the colon, where a space does not count.
    Colon,
    Value,
}

impl At {
    const LINE: Self = Self::Field([0; LONGEST_FIELD], 0);
}

impl Default for At {
    fn default() -> Self {
        Self::Bom(0)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Field {
    Comment,
    Event,
    Data,
    #[default]
    Other,
}

impl Reader {
    /// Takes a piece of the stream, and hands out its parts.
    ///
    /// What is left of the iterator when it is dropped was not read.
    pub fn feed<'a>(&'a mut self, mut bytes: &'a [u8]) -> impl Iterator<Item = Part<'a>> + 'a {
        std::iter::from_fn(move || self.next(&mut bytes))
    }

    /// Reads on to the end of the next part, and takes that much off `bytes`.
    /// Without a part it is all of them.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Part<'a>> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let At::Bom(seen) = self.at {
                if BOM.get(usize::from(seen)) == Some(&byte) {
                    *bytes = rest;
                    self.at = At::Bom(seen + 1);
                    continue;
                }
                let is_part = (1..BOM.len()).contains(&usize::from(seen));
                self.at = if is_part {
                    // Half of one: then it was the name of a field.
                    self.field = Field::Other;
                    At::Value
                } else {
                    At::LINE
                };
            }
            if matches!(byte, b'\n' | b'\r') {
                *bytes = rest;
                let is_second = byte == b'\n' && std::mem::take(&mut self.after_cr);
                if is_second {
                    if self.is_between() {
                        return Some(Part::Between);
                    }
                    continue;
                }
                self.after_cr = byte == b'\r';
                match self.end_line() {
                    Some(part) => return Some(part),
                    None => continue,
                }
            }
            self.after_cr = false;
            match &mut self.at {
                At::Field(name, length) => {
                    *bytes = rest;
                    if byte == b':' {
                        self.field = field(name, *length);
                        self.at = At::Colon;
                    } else {
                        if let Some(place) = name.get_mut(usize::from(*length)) {
                            *place = byte;
                        }
                        *length = length.saturating_add(1);
                    }
                }
                At::Colon => {
                    self.at = At::Value;
                    if byte == b' ' {
                        *bytes = rest;
                    }
                    if self.field == Field::Data && self.begin_data() {
                        return Some(Part::Data(b"\n"));
                    }
                }
                At::Value | At::Bom(_) => {
                    let end = bytes.iter().position(|it| matches!(it, b'\n' | b'\r'));
                    let (value, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
                    *bytes = rest;
                    match self.field {
                        Field::Event => return Some(Part::Name(value)),
                        Field::Data => return Some(Part::Data(value)),
                        Field::Comment | Field::Other => {}
                    }
                }
            }
        }
        None
    }

    /// Whether the event that is under way has data, empty or not.
    pub const fn has_data(&self) -> bool {
        self.has_data
    }

    fn is_between(&self) -> bool {
        !self.in_event && matches!(self.at, At::Field(_, 0))
    }

    /// A line of data has begun. Says whether it is not the first one.
    fn begin_data(&mut self) -> bool {
        self.has_data = true;
        std::mem::replace(&mut self.joins, true)
    }

    fn end_line(&mut self) -> Option<Part<'static>> {
        let joins = match std::mem::replace(&mut self.at, At::LINE) {
            At::Field(_, 0) | At::Bom(_) => {
                (self.has_data, self.joins) = (false, false);
                return Some(match std::mem::take(&mut self.in_event) {
                    true => Part::End,
                    false => Part::Between,
                });
            }
            // Without a value.
            At::Field(name, length) => {
                self.field = field(&name, length);
                self.field == Field::Data && self.begin_data()
            }
            At::Colon => self.field == Field::Data && self.begin_data(),
            At::Value => false,
        };
        if self.field != Field::Comment {
            self.in_event = true;
        } else if !self.in_event {
            return Some(Part::Between);
        }
        joins.then_some(Part::Data(b"\n"))
    }
}

fn field(name: &[u8; LONGEST_FIELD], length: u8) -> Field {
    match name.get(..usize::from(length)) {
        Some(b"") => Field::Comment,
        Some(b"data") => Field::Data,
        Some(b"event") => Field::Event,
        _ => Field::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of a stream that comes in these pieces: name and data.
    fn events(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut reader = Reader::default();
        let (mut all, mut name, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for piece in pieces {
            for part in reader.feed(piece) {
                match part {
                    Part::Name(more) => name.extend_from_slice(more),
                    Part::Data(more) => data.extend_from_slice(more),
                    Part::Between => assert!(name.is_empty() && data.is_empty()),
                    Part::End => {
                        let text =
                            |bytes: &mut Vec<u8>| String::from_utf8(std::mem::take(bytes)).unwrap();
                        all.push((text(&mut name), text(&mut data)));
                    }
                }
            }
        }
        all
    }

    fn expected(all: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |it: &(&str, &str)| (it.0.to_owned(), it.1.to_owned());
        all.iter().map(owned).collect()
    }

    #[test]
    fn every_way_to_cut_a_stream_is_read_the_same() {
        let stream = "\u{feff}data: a\n\n: c\n\ndata:b\r\n\r\nevent: x\rdata\rdata:  d\r\r\n\
                      id: 7\nretry: 1\n\ndata:\ndata:\n\ndataset: no\nevents: no\nevent\n\n\
                      data: e\n: no\ndata: f\n\n:\n:: x\ndata: unfinished";
        let all = expected(&[
            ("", "a"),
            ("", "b"),
            ("x", "\n d"),
            ("", ""),
            ("", "\n"),
            ("", ""),
            ("", "e\nf"),
        ]);
        let stream = stream.as_bytes();
        assert_eq!(events(&[stream]), all);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(events(&bytes), all);
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(events(&pieces), all);
            }
        }
    }

    #[test]
    fn a_byte_order_mark_is_one_at_the_beginning_only() {
        let all = expected(&[("", "b")]);
        assert_eq!(events(&[b"\xef\xbb\xbfdata: b\n\n"]), all);
        assert_eq!(events(&[b"data: b\n\xef\xbb\xbfdata: c\n\n"]), all);
        assert_eq!(events(&[b"\xef\xbbdata: a\ndata: b\n\n"]), all);
        assert_eq!(
            events(&[b"\xef\xbb\xbf\xef\xbb\xbfdata: a\ndata: b\n\n"]),
            all
        );
        assert_eq!(events(&[b"\xef\xbb\xbf\n\xef"]), expected(&[]));
    }
}
