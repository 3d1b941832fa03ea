//! Another name for a model, in the body of a request.

use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// Puts `to` where the JSON object `body` has `from` as its `model`. `None` if
/// it has not, or is no JSON object: to judge that is for the worker.
///
/// Every byte but the name stays as it is.
pub(super) fn replace(body: &[u8], from: &str, to: &str) -> Option<Bytes> {
    let from = quoted(from);
    let places: Vec<_> = models(body)?
        .into_iter()
        .filter(|place| body[place.clone()] == *from.as_bytes())
        .collect();
    if places.is_empty() {
        return None;
    }
    let to = quoted(to);
    let mut replaced = BytesMut::with_capacity(body.len() + places.len() * to.len());
    let mut from = 0;
    for place in places {
        replaced.extend_from_slice(&body[from..place.start]);
        replaced.extend_from_slice(to.as_bytes());
        from = place.end;
    }
    replaced.extend_from_slice(&body[from..]);
    Some(replaced.freeze())
}

/// `text` as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\u{0}'..='\u{1f}' => quoted.push_str(&format!("\\u{:04x}", character as u32)),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// Where the strings are that the object has as its `model`: parsers differ in
/// which one of several they take. `None` if it is not an object.
fn models(body: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut at = spaces(body, 0);
    if *body.get(at)? != b'{' {
        return None;
    }
    let (mut depth, mut found) = (0_usize, Vec::new());
    // The start of a member of the outermost object: after `{` or `,`.
    let mut expects_name = false;
    while let Some(byte) = body.get(at) {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                expects_name = depth == 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                expects_name = false;
                at += 1;
            }
            b',' => {
                expects_name = depth == 1;
                at += 1;
            }
            b'"' => {
                let end = string(body, at)?;
                let name = &body[at..end];
                at = end;
                if std::mem::take(&mut expects_name) && name == b"\"model\"" {
                    at = spaces(body, at);
                    if body.get(at) != Some(&b':') {
                        return None;
                    }
                    at = spaces(body, at + 1);
                    if body.get(at) == Some(&b'"') {
                        let end = string(body, at)?;
                        found.push(at..end);
                        at = end;
                    }
                }
            }
            _ => at += 1,
        }
    }
    (depth == 0).then_some(found)
}

fn spaces(body: &[u8], from: usize) -> usize {
    let spaces = body[from..]
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace());
    from + spaces.count()
}

/// Where the string ends that begins at `from` with its quote.
fn string(body: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        match body.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(body: &str) -> Option<String> {
        let body = replace(body.as_bytes(), "public", "own/\"name\"")?;
        Some(String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn only_the_model_of_the_outermost_object_is_replaced() {
        for (body, expected) in [
            (
                r#"{"model":"public","n":1}"#,
                r#"{"model":"own/\"name\"","n":1}"#,
            ),
            (
                " { \"a\" : [1, {\"model\":\"public\"}] ,\n \"model\" : \"public\" } ",
                " { \"a\" : [1, {\"model\":\"public\"}] ,\n \"model\" : \"own/\\\"name\\\"\" } ",
            ),
            (
                r#"{"model":"public","model":"public"}"#,
                r#"{"model":"own/\"name\"","model":"own/\"name\""}"#,
            ),
            (
                r#"{"x":"model","y":"a\"b","model":"public"}"#,
                r#"{"x":"model","y":"a\"b","model":"own/\"name\""}"#,
            ),
            (
                r#"{"x":"{\\","model":"public"}"#,
                r#"{"x":"{\\","model":"own/\"name\""}"#,
            ),
        ] {
            assert_eq!(replaced(body).as_deref(), Some(expected), "{body}");
        }
    }

    #[test]
    fn what_is_not_the_models_name_stays_as_it_is() {
        for body in [
            "",
            "{",
            "{}",
            "[]",
            "null",
            r#"["model","public"]"#,
            r#"[{"model":"public"}]"#,
            r#"{"model":"other"}"#,
            r#"{"model":null,"x":"public"}"#,
            r#"{"model":["public"]}"#,
            r#"{"model":{"model":"public"}}"#,
            r#"{"x":{"model":"public"}}"#,
            r#"{"x":"model","public":"public"}"#,
            r#"{"model" "public"}"#,
            r#"{"model":"public"#,
            r#"{"model":"public\"#,
            r#"{"model":"public"}}"#,
            "model=public",
        ] {
            assert_eq!(replaced(body), None, "{body}");
        }
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a\u{1}\n\"\\é"), "\"a\\u0001\\u000a\\\"\\\\é\"");
    }
}
