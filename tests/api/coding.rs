//! Compressed bodies.

use crate::{content_type, words};
use flate2::{
    Compression,
    write::{DeflateEncoder, GzEncoder, ZlibEncoder},
};
use http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_ENCODING};
use std::io::Write;
use tower_overload::api::{ReadError, ReadRequest, RequestReader};

const BODY: &[u8] = br#"{"model":"tiny","stream":true,"prompt":"one two three"}"#;

macro_rules! compressed {
    ($encoder:ident, $bytes:expr) => {{
        let mut encoder = $encoder::new(Vec::new(), Compression::default());
        encoder.write_all($bytes).unwrap();
        encoder.finish().unwrap()
    }};
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    compressed!(GzEncoder, bytes)
}

fn brotli(bytes: &[u8]) -> Vec<u8> {
    let mut compressed = Vec::new();
    let mut encoder = brotli::CompressorWriter::new(&mut compressed, 4096, 5, 22);
    encoder.write_all(bytes).unwrap();
    drop(encoder);
    compressed
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn encoded(codings: &[&str]) -> HeaderMap {
    let mut headers = content_type("application/json");
    for coding in codings {
        headers.append(CONTENT_ENCODING, HeaderValue::from_str(coding).unwrap());
    }
    headers
}

fn read(codings: &[&str], body: &[u8]) -> Result<ReadRequest<'static>, ReadError> {
    let headers = encoded(codings);
    words().read(&headers, body).map(|read| {
        assert_eq!(read.model.as_deref(), Some("tiny"));
        assert_eq!((read.streamed, read.prompt_tokens), (Some(true), 3));
        ReadRequest::default()
    })
}

#[test]
fn a_body_in_any_usual_coding_is_read() {
    let two_frames = [&zstd(&BODY[..10])[..], &zstd(&BODY[10..])].concat();
    let skipped = [b"\x50\x2a\x4d\x18\x03\0\0\0abc", &zstd(BODY)[..]].concat();
    let two_members = [gzip(&BODY[..10]), gzip(&BODY[10..])].concat();
    for (codings, body) in [
        (&["gzip"][..], gzip(BODY)),
        (&["x-gzip"], gzip(BODY)),
        (&["GZIP"], gzip(BODY)),
        (&["gzip"], two_members),
        (&["deflate"], compressed!(ZlibEncoder, BODY)),
        (&["deflate"], compressed!(DeflateEncoder, BODY)),
        (&["br"], brotli(BODY)),
        (&["zstd"], zstd(BODY)),
        (&["zstd"], two_frames),
        (&["zstd"], skipped),
        (&["identity"], BODY.to_vec()),
        (&["br, gzip"], gzip(&brotli(BODY))),
        (&["br", "identity", "gzip"], gzip(&brotli(BODY))),
    ] {
        let read = read(codings, &body);
        assert!(read.is_ok(), "{codings:?}: {read:?}");
    }
}

#[test]
fn a_coding_that_is_not_known_is_named() {
    let error = read(&["gzip, snappy"], BODY).unwrap_err();
    assert_eq!(error.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert!(error.to_string().contains("\"snappy\""), "{error}");
    assert_eq!(error.accept_encoding(), Some("gzip, deflate, br, zstd"));
    assert_eq!(read(&["gzip"], BODY).unwrap_err().accept_encoding(), None);
}

#[test]
fn a_body_that_is_not_what_it_says_is_refused_at_every_cut() {
    for (coding, body) in [
        ("gzip", gzip(BODY)),
        ("deflate", compressed!(ZlibEncoder, BODY)),
        ("br", brotli(BODY)),
        ("zstd", zstd(BODY)),
    ] {
        for end in 1..body.len() {
            let error = read(&[coding], &body[..end]).unwrap_err();
            assert_eq!(error.status(), StatusCode::BAD_REQUEST, "{coding} {end}");
        }
        let error = read(&[coding], b"hello, this is text").unwrap_err();
        assert!(error.to_string().contains(coding), "{error}");
    }
    let error = read(&["gzip, gzip, gzip, gzip"], BODY).unwrap_err();
    assert!(error.to_string().contains("at most 3"), "{error}");
}

#[test]
fn a_bomb_takes_no_more_than_its_bound() {
    let zeros = vec![b' '; 4_000_000];
    for (coding, body) in [
        ("gzip", gzip(&zeros)),
        ("gzip, gzip", gzip(&gzip(&zeros))),
        ("deflate", compressed!(ZlibEncoder, &zeros)),
        ("br", brotli(&zeros)),
        ("zstd", zstd(&zeros)),
    ] {
        let reader = RequestReader::new().max_decoded_bytes(3_999_999);
        let error = reader.read(&encoded(&[coding]), &body).unwrap_err();
        assert_eq!(error.status(), StatusCode::PAYLOAD_TOO_LARGE, "{coding}");
        assert!(error.to_string().contains("3999999 bytes"), "{error}");
        let reader = RequestReader::new().max_decoded_bytes(4_000_000);
        let error = reader.read(&encoded(&[coding]), &body).unwrap_err();
        assert_eq!(
            error.status(),
            StatusCode::BAD_REQUEST,
            "fits, and is no JSON"
        );
    }
    // A window of a GiB, and a frame that asks for one.
    let error = read(&["br"], &[0x11, 0x1e, 0, 0]).unwrap_err();
    assert!(error.to_string().contains("window"), "{error}");
    assert!(read(&["zstd"], b"\x28\xb5\x2f\xfd\x00\xa0\x01\0\0").is_err());
}

#[test]
fn a_body_of_a_million_tiny_pieces_is_refused_before_it_takes_its_time() {
    let frame = b"\x28\xb5\x2f\xfd\x00\x68\x09\0\0 ".to_vec();
    let skipped = b"\x50\x2a\x4d\x18\0\0\0\0".to_vec();
    let gzip: fn(&[u8]) -> Vec<u8> = gzip;
    let zstd: fn(&[u8]) -> Vec<u8> = zstd;
    for (coding, whole, piece) in [
        ("gzip", gzip, gzip(b"")),
        ("gzip", gzip, gzip(b" ")),
        ("zstd", zstd, frame),
        ("zstd", zstd, skipped),
    ] {
        let most = [piece.repeat(1023), whole(BODY)].concat();
        let read = read(&[coding], &most);
        assert!(read.is_ok(), "{coding}: {read:?}");
        let error = self::read(&[coding], &piece.repeat(1025)).unwrap_err();
        assert_eq!(error.status(), StatusCode::BAD_REQUEST, "{coding}");
        assert!(error.to_string().contains("1024 pieces"), "{error}");
    }
}

#[test]
fn what_is_compressed_twice_is_no_long_body_in_between() {
    // Megabytes for a decoder, of a few hundred bytes.
    let slow = gzip(&vec![0; 1_000_000]);
    for coding in ["deflate, gzip", "br, gzip", "zstd, gzip", "gzip, gzip"] {
        let error = read(&[coding], &slow).unwrap_err();
        assert_eq!(error.status(), StatusCode::PAYLOAD_TOO_LARGE, "{coding}");
        assert!(error.to_string().contains("65536 bytes"), "{error}");
    }
    // Noise does not get shorter, so it may be long.
    let noise: String = (0..100_000_u64)
        .map(|n| {
            format!(
                "{:016x}",
                n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
            )
        })
        .collect();
    let body = format!("{{\"model\":\"tiny\",\"prompt\":\"{noise}\"}}");
    let twice = gzip(&gzip(body.as_bytes()));
    assert!(twice.len() > 300_000);
    let read = RequestReader::new().read(&encoded(&["gzip, gzip"]), &twice);
    assert_eq!(read.unwrap().model.as_deref(), Some("tiny"));
}
