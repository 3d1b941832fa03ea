//! Bodies that are compressed.

use super::ReadError;
use flate2::{
    bufread::GzDecoder,
    read::{DeflateDecoder, ZlibDecoder},
};
use http::{HeaderMap, header::CONTENT_ENCODING};
use std::{
    borrow::Cow,
    io::{self, Read},
};

/// What can be decoded, as `Accept-Encoding` says it.
pub(super) const ACCEPTED: &str = "gzip, deflate, br, zstd";

/// The most codings of one body, one upon the other. Nobody sends two.
const MOST: usize = 3;

/// The most gzip members or zstd frames of one body. Each costs as much as
/// some KB of text, however little is in it; block-wise writers make one for
/// each 64 KB.
const MOST_PIECES: usize = 1024;

/// How long a body may be that has lost a coding and is still compressed:
/// so many times as long as it came, or so many bytes. What is compressed
/// hardly gets shorter when it is compressed again, unless it was made to: a
/// few KB could become the MBs that are the slowest to decode.
const BETWEEN: (usize, usize) = (4, 64 * 1024);

/// What a zstd frame may ask for: what [RFC 9659][rfc] allows.
///
/// [rfc]: https://www.rfc-editor.org/rfc/rfc9659
const ZSTD_WINDOW: u64 = 8 * 1024 * 1024;

#[derive(Clone, Copy, Debug)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Coding {
    /// `None` for `identity`.
    fn named(name: &str) -> Result<Option<Self>, ReadError> {
        Ok(Some(match &*name.to_ascii_lowercase() {
            "" | "identity" => return Ok(None),
            "gzip" | "x-gzip" => Self::Gzip,
            "deflate" => Self::Deflate,
            "br" => Self::Brotli,
            "zstd" => Self::Zstd,
            _ => {
                let name: String = name.chars().take(40).collect();
                return Err(ReadError::unknown_coding(format!(
                    "The Content-Encoding {name:?} is not known: expected one of {ACCEPTED}"
                )));
            }
        }))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    fn decode(self, body: &[u8], max: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip => pieces(body, max, member),
            // With a header, as the RFC says, or without, as some send it.
            Self::Deflate if has_zlib_header(body) => all(ZlibDecoder::new(body), max),
            Self::Deflate => all(DeflateDecoder::new(body), max),
            // Its window may be of a GiB, and it is no part of the RFC.
            Self::Brotli if body.first().is_some_and(|byte| byte & 0x7f == 0x11) => {
                Err(io::Error::other("its window is too large"))
            }
            Self::Brotli => all(brotli_decompressor::Decompressor::new(body, 4096), max),
            Self::Zstd => pieces(body, max, frame),
        }
    }
}

/// Returns the body as it was before it was compressed.
pub(super) fn decode<'a>(
    headers: &HeaderMap,
    body: &'a [u8],
    max: usize,
) -> Result<Cow<'a, [u8]>, ReadError> {
    let mut codings = Vec::new();
    for value in headers.get_all(CONTENT_ENCODING) {
        let value = String::from_utf8_lossy(value.as_bytes());
        for name in value.split(',') {
            codings.extend(Coding::named(name.trim())?);
        }
    }
    if codings.len() > MOST {
        return Err(ReadError::malformed(format!(
            "The body has {} codings: at most {MOST} are read",
            codings.len()
        )));
    }
    let mut decoded = Cow::Borrowed(body);
    if body.is_empty() {
        return Ok(decoded);
    }
    let (times, least) = BETWEEN;
    let between = body.len().saturating_mul(times).max(least).min(max);
    for (codings_left, coding) in codings.into_iter().enumerate().rev() {
        let name = coding.name();
        let max = if codings_left > 0 { between } else { max };
        let bytes = coding.decode(&decoded, max).map_err(|error| {
            ReadError::malformed(format!("The body cannot be decoded as {name}: {error}"))
        })?;
        if bytes.len() > max {
            return Err(ReadError::too_large(format!(
                "The body is longer than {max} bytes when its {name} is decoded"
            )));
        }
        decoded = Cow::Owned(bytes);
    }
    Ok(decoded)
}

/// Reads to the end, or one byte more than `max`.
fn all(decoder: impl Read, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    decoder.take(max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A method of 8, a window of at most 32 KiB, and a checksum ([RFC 1950][rfc]).
///
/// [rfc]: https://www.rfc-editor.org/rfc/rfc1950
fn has_zlib_header(body: &[u8]) -> bool {
    match body {
        [method, flags, ..] => {
            method & 0x0f == 8
                && method >> 4 <= 7
                && (u16::from(*method) << 8 | u16::from(*flags)) % 31 == 0
        }
        _ => false,
    }
}

/// Decodes one piece behind the other, as they are in what was written in
/// pieces. `next` takes a piece off the body, and adds at most so many bytes.
fn pieces(
    mut body: &[u8],
    max: usize,
    next: fn(&mut &[u8], u64, &mut Vec<u8>) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut count = 0;
    while !body.is_empty() && bytes.len() <= max {
        count += 1;
        if count > MOST_PIECES {
            let message = format!("it is in more than {MOST_PIECES} pieces");
            return Err(io::Error::other(message));
        }
        next(&mut body, (max - bytes.len()) as u64 + 1, &mut bytes)?;
    }
    Ok(bytes)
}

fn member(body: &mut &[u8], room: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    GzDecoder::new(body).take(room).read_to_end(bytes)?;
    Ok(())
}

fn frame(body: &mut &[u8], room: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    use ruzstd::decoding::{
        StreamingDecoder,
        errors::{FrameDecoderError, ReadFrameHeaderError},
    };
    match StreamingDecoder::new_with_max_window_size(&mut *body, ZSTD_WINDOW) {
        Ok(frame) => {
            frame.take(room).read_to_end(bytes)?;
        }
        Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
            length,
            ..
        })) => {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            *body = body
                .get(length..)
                .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        }
        Err(error) => return Err(io::Error::other(error)),
    }
    Ok(())
}
