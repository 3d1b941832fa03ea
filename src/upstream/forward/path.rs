//! Paths that lead out of the folder they are put under.

/// Whether some reader of `path` may take one of its segments for `..`.
///
/// Readers differ in what they decode first, so this takes each of them into
/// account: `%2e` is a dot, `\`, `%2f` and `%5c` end a segment, and what
/// follows a `;` is no part of its name.
pub(crate) fn has_parent_segment(path: &str) -> bool {
    let (mut dots, mut other) = (0_usize, false);
    let mut bytes = path.as_bytes();
    loop {
        let byte = next(&mut bytes);
        match byte {
            None | Some(b'/' | b'\\') => {
                if dots == 2 && !other {
                    return true;
                }
                (dots, other) = (0, false);
            }
            Some(b'.') => dots += 1,
            // The rest of the segment changes nothing more.
            Some(b';') => {
                if dots == 2 && !other {
                    return true;
                }
                other = true;
            }
            Some(_) => other = true,
        }
        if byte.is_none() {
            return false;
        }
    }
}

/// The next byte, decoded once.
fn next(bytes: &mut &[u8]) -> Option<u8> {
    let (&first, rest) = bytes.split_first()?;
    if let (b'%', [high, low, rest @ ..]) = (first, rest) {
        if let (Some(high), Some(low)) = (digit(*high), digit(*low)) {
            *bytes = rest;
            return Some(high << 4 | low);
        }
    }
    *bytes = rest;
    Some(first)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|it| it.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_parent_segment_is_seen() {
        for path in [
            "/v1/../../x",
            "/..",
            "..",
            "/v1/%2e%2e/x",
            "/v1/%2E./x",
            "/v1/.%2e",
            "/v1/..%2fx",
            "/v1/x%2F..%2Fy",
            "/v1/..\\x",
            "/v1/x\\..",
            "/v1/%5c..%5Cx",
            "/v1/..;a=b/x",
            "/v1/..%3bx",
        ] {
            assert!(has_parent_segment(path), "{path}");
        }
    }

    #[test]
    fn dots_in_names_are_no_parent_segment() {
        for path in [
            "/",
            "",
            "*",
            "/v1/chat/completions",
            "/v1/models/llama-3..1",
            "/v1/...",
            "/v1/..x",
            "/v1/x..",
            "/v1/./models",
            "/v1/a;../models",
            "/v1/%2e%2ex",
            "/v1/%252e%252e/x",
            "/v1/%",
            "/v1/%2",
            "/v1/%zz..",
            "/v1/files/a%2fb",
        ] {
            assert!(!has_parent_segment(path), "{path}");
        }
    }
}
