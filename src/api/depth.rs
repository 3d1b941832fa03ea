//! How deep a JSON text is nested, before anything is made of it.

use memchr::memchr2;

/// Whether objects and arrays are in each other to more than `limit`. Of what
/// is no JSON it says something, or nothing.
pub(super) fn is_deeper_than(limit: usize, mut json: &[u8]) -> bool {
    let mut depth = 0_usize;
    while let Some(at) = json
        .iter()
        .position(|byte| matches!(byte, b'"' | b'[' | b']' | b'{' | b'}'))
    {
        let (byte, rest) = (json[at], &json[at + 1..]);
        json = match byte {
            b'"' => behind_string(rest),
            b'[' | b'{' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
                rest
            }
            _ => {
                depth = depth.saturating_sub(1);
                rest
            }
        };
    }
    false
}

/// What is behind the string that has begun.
fn behind_string(mut json: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', json) {
        let is_end = json[at] == b'"';
        json = json.get(at + if is_end { 1 } else { 2 }..).unwrap_or(&[]);
        if is_end {
            return json;
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_string_is_not_nested() {
        for (json, depth) in [
            ("", 0),
            ("1", 0),
            ("{}", 1),
            (r#"{"a":[1,{"b":[]}],"c":[[]]}"#, 4),
            (r#"{"a[[[":"[{\"[[\\"}"#, 1),
            (r#"["\\\"[[[[", [1]]"#, 2),
            ("[[[", 3),
            ("]]]]}[", 1),
            ("[\"[[[[", 1),
            ("[\"\\", 1),
        ] {
            let json = json.as_bytes();
            assert!(!is_deeper_than(depth, json), "{}", json.escape_ascii());
            if depth > 0 {
                assert!(is_deeper_than(depth - 1, json), "{}", json.escape_ascii());
            }
        }
        assert!(is_deeper_than(99_999, &[b'['; 100_000]));
        assert!(!is_deeper_than(100_000, &[b'['; 100_000]));
    }
}
