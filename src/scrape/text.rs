//! A reader of Prometheus' text format, version 0.0.4: one line at a time,
//! borrowed from the text, and an allocation only for a label value that has
//! an escape in it.

use std::borrow::Cow;

/// One line of a text that has a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    pub(super) value: f64,
    /// What is between the braces, checked.
    labels: &'a str,
}

/// A line that is not of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl<'a> Sample<'a> {
    /// Reads a line without its end; `None` if it is empty or a comment.
    pub(super) fn read(line: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let line = line.trim_ascii();
        if line.is_empty() || line[0] == b'#' {
            return Ok(None);
        }
        let line = std::str::from_utf8(line).map_err(|_| Malformed)?;
        let (name, rest) = take_name(line, true)?;
        let mut rest = rest.trim_ascii_start();
        let mut labels = "";
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            while take_label(&mut rest)?.is_some() {}
            labels = &inside[..inside.len() - rest.len()];
        } else if rest.len() == line.len() - name.len() {
            // Nothing separates the name from what follows.
            return Err(Malformed);
        }
        let mut words = rest.split_ascii_whitespace();
        let value = words.next().ok_or(Malformed)?;
        let value = value.parse().map_err(|_| Malformed)?;
        let timestamp = words.next().map(str::parse::<f64>);
        if timestamp.is_some_and(|timestamp| timestamp.is_err()) || words.next().is_some() {
            return Err(Malformed);
        }
        Ok(Some(Self {
            name,
            value,
            labels,
        }))
    }

    /// The value of a label; `None` if it is absent or empty, which mean the
    /// same in this format.
    pub(super) fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.labels;
        while let Ok(Some((its, value))) = take_label(&mut rest) {
            if its == name {
                return Some(unescape(value)).filter(|value| !value.is_empty());
            }
        }
        None
    }
}

/// Takes a name off the front; `:` is for names of metrics only.
fn take_name(text: &str, colon: bool) -> Result<(&str, &str), Malformed> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colon && c == ':');
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() || name.as_bytes()[0].is_ascii_digit() {
        return Err(Malformed);
    }
    Ok((name, rest))
}

/// Takes a label and the comma after it off the front of what is between the
/// braces, or the closing brace: then it is `None`.
fn take_label<'a>(rest: &mut &'a str) -> Result<Option<(&'a str, &'a str)>, Malformed> {
    let text = rest.trim_ascii_start();
    if let Some(after) = text.strip_prefix('}') {
        *rest = after;
        return Ok(None);
    }
    let (name, after) = take_name(text, false)?;
    let after = after
        .trim_ascii_start()
        .strip_prefix('=')
        .ok_or(Malformed)?;
    let after = after
        .trim_ascii_start()
        .strip_prefix('"')
        .ok_or(Malformed)?;
    let end = closing_quote(after).ok_or(Malformed)?;
    let value = &after[..end];
    let after = after[end + 1..].trim_ascii_start();
    *rest = match after.strip_prefix(',') {
        Some(after) => after,
        None if after.starts_with('}') => after,
        None => return Err(Malformed),
    };
    Ok(Some((name, value)))
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let is_end = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        is_end
    })
}

/// `\\`, `\"` and `\n` are escapes; a backslash before anything else is one.
fn unescape(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut unescaped = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            unescaped.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => unescaped.push('\n'),
            Some(c @ ('\\' | '"')) => unescaped.push(c),
            other => {
                unescaped.push('\\');
                unescaped.extend(other);
            }
        }
    }
    Cow::Owned(unescaped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(line: &str) -> Result<Option<Sample<'_>>, Malformed> {
        Sample::read(line.as_bytes())
    }

    fn sample(line: &str) -> Sample<'_> {
        read(line).unwrap().unwrap()
    }

    #[test]
    fn names_labels_values_and_timestamps_are_told_apart() {
        for (line, name, value) in [
            ("up 1", "up", 1.0),
            ("vllm:x_total{a=\"b\"} 2.5e3", "vllm:x_total", 2500.0),
            ("x{} 1", "x", 1.0),
            ("x {a=\"b\",} -1 1790347303000", "x", -1.0),
            ("  x{ a = \"b\" , c=\"\" }\t+Inf \r", "x", f64::INFINITY),
            ("x{a=\"b\"}3", "x", 3.0),
        ] {
            let sample = sample(line);
            assert_eq!((sample.name, sample.value), (name, value), "{line}");
        }
        assert!(sample("x NaN").value.is_nan());
    }

    #[test]
    fn label_values_hold_commas_braces_and_escapes() {
        let line = r#"x{a="1,2}",b="say \"hi\" \\ \n\d",c="",d="é"} 1"#;
        let sample = sample(line);
        let label = |name| sample.label(name).map(Cow::into_owned);
        assert_eq!(label("a").as_deref(), Some("1,2}"));
        assert_eq!(label("b").as_deref(), Some("say \"hi\" \\ \n\\d"));
        assert_eq!(label("c"), None, "empty is absent");
        assert_eq!(label("d").as_deref(), Some("é"));
        assert_eq!(label("e"), None);
    }

    #[test]
    fn comments_and_empty_lines_are_no_samples() {
        for line in ["", "  ", "# HELP x y", "#", "\r"] {
            assert!(read(line).unwrap().is_none(), "{line:?}");
        }
    }

    #[test]
    fn what_is_not_of_the_format_is_refused() {
        for line in [
            "x",
            "x{",
            "x{a}",
            "x{a=}",
            "x{a=\"b} 1",
            "x{a=\"b\\\"} 1",
            "x{a=\"b\"c=\"d\"} 1",
            "x{a=\"b\"}",
            "x{,} 1",
            "x{a:b=\"c\"} 1",
            "9x 1",
            "x one",
            "x=1",
            "x 1 soon",
            "x 1 2 3",
            "x-y 1",
            "<html>",
            "{\"x\"} 1",
        ] {
            assert_eq!(read(line).err(), Some(Malformed), "{line}");
        }
        assert_eq!(Sample::read(b"x{a=\"\xff\"} 1").err(), Some(Malformed));
    }

    proptest! {
        #[test]
        fn any_line_is_read_without_a_panic(line in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some(sample)) = Sample::read(&line) {
                let _ = sample.label("a");
            }
        }

        #[test]
        fn every_label_value_survives_being_written_and_read(value in "[^\0]{1,20}", other in ".*") {
            let escape = |text: &str| {
                text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
            };
            let line = format!("x{{o=\"{}\",v=\"{}\"}} 1", escape(&other), escape(&value));
            let sample = Sample::read(line.as_bytes()).unwrap().unwrap();
            let read = sample.label("v");
            prop_assert_eq!(read.as_deref(), Some(value.as_str()));
        }
    }
}
