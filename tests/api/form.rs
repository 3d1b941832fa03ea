//! Forms, as audio is sent in.

use crate::{content_type, words};
use http::StatusCode;
use tower_overload::api::{ReadError, ReadRequest};

const TYPE: &str = "multipart/form-data; boundary=\"b-1\"";

/// A form of these parts: what stands in their heads, and their content.
fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (head, content) in parts {
        body.extend_from_slice(b"--b-1\r\nContent-Disposition: form-data; ");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(b"\r\n\r\n");
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--b-1--\r\n");
    body
}

fn read(body: &[u8]) -> Result<ReadRequest<'_>, ReadError> {
    words().read(&content_type(TYPE), body)
}

#[test]
fn a_transcription_is_read_wherever_its_model_stands() {
    let audio = vec![0; 300_000];
    let file = (
        "name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav",
        &audio[..],
    );
    let model = ("name=\"model\"", &b"whisper"[..]);
    let prompt = ("name=\"prompt\"", &b"two words"[..]);
    let stream = ("name=\"stream\"", &b"true"[..]);
    for parts in [
        [file, model, prompt, stream],
        [model, stream, prompt, file],
        [stream, file, prompt, model],
    ] {
        let body = form(&parts);
        let read = read(&body).unwrap();
        assert_eq!(read.model.as_deref(), Some("whisper"));
        assert_eq!(read.streamed, Some(true));
        assert_eq!((read.prompt_tokens, read.choices), (302, 1));
    }
}

#[test]
fn a_form_without_a_model_names_none() {
    let body = form(&[("name=\"n\"", b"3")]);
    let read = read(&body).unwrap();
    assert_eq!((read.model, read.streamed), (None, Some(false)));
    assert_eq!(read.choices, 3);
    // A file of that name is no field.
    let body = form(&[("name=\"model\"; filename=\"m\"", b"tiny")]);
    assert_eq!(self::read(&body).unwrap().model, None);
}

#[test]
fn a_form_that_cannot_be_read_is_refused_with_what_is_wrong() {
    let mut long = form(&[("name=\"model\"", &[b'a'; 1025])]);
    let twice = form(&[("name=\"model\"", b"a"), ("name=\"model\"", b"b")]);
    let no_text = form(&[("name=\"model\"", b"\xff")]);
    for (body, wrong) in [
        (long.clone(), "`model` is longer than 1024 bytes"),
        (twice, "`model` is in it twice"),
        (no_text, "`model` is not UTF-8"),
        (
            b"--b-1\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny".to_vec(),
            "incomplete",
        ),
        (b"nothing of the kind".to_vec(), "incomplete"),
    ] {
        let error = read(&body).unwrap_err();
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        let message = error.to_string();
        assert!(message.contains(wrong), "{wrong}: {message}");
    }
    long.clear();
    let no_boundary = words().read(&content_type("multipart/form-data"), b"a");
    let message = no_boundary.unwrap_err().to_string();
    assert!(message.contains("boundary"), "{message}");
}
