use std::{fmt, fmt::Write as _};

/// The most bytes of the id of a worker, or of the name of a model.
pub const MAX_NAME: usize = 256;

/// The root of the subjects if the application names no other.
pub const DEFAULT_ROOT: &str = "tower_overload.v1";

/// The most bytes of a root.
const MAX_ROOT: usize = 128;

/// Which subjects a fleet speaks on:
///
/// | subject | who publishes | what |
/// |---|---|---|
/// | `{root}.load.{model}.{worker}` | the worker | its load |
/// | `{root}.worker.{model}.{worker}` | the worker | that it is there, or leaves |
/// | `{root}.announce` | a gateway | that workers should say so now |
///
/// Models and workers may have any name of at most [`MAX_NAME`] bytes: each
/// byte that is none of `A-Z`, `a-z`, `0-9`, `_` and `-` is written as `=` and
/// two upper-case hexadecimal digits. Each name has exactly one such token, so
/// permissions of the server (`publish: tower_overload.v1.*.*.worker-7`) hold.
///
/// ```
/// use tower_overload::nats::Subjects;
///
/// let subjects = Subjects::new("acme.prod")?;
/// let subject = subjects.load("llama-3.1/8b", "10.0.0.1:8100")?;
/// assert_eq!(subject, "acme.prod.load.llama-3=2E1=2F8b.10=2E0=2E0=2E1=3A8100");
/// # Ok::<_, tower_overload::nats::InvalidName>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subjects {
    root: String,
}

/// A name that no subject can be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidName {
    /// The root of the subjects.
    Root(String),
    /// The id of a worker or the name of a model.
    Token(String),
    /// A subject to subscribe to.
    Subject(String),
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(root) => write!(
                f,
                "the root {root:?} is no root of subjects, allowed: words of letters, digits, \
                 '_' and '-', separated by dots, at most {MAX_ROOT} bytes"
            ),
            Self::Token(name) => {
                let (start, cut) = shortened(name);
                write!(
                    f,
                    "{start:?}{cut} is no name of a worker or a model, allowed: 1 to {MAX_NAME} bytes"
                )
            }
            Self::Subject(subject) => {
                let (start, cut) = shortened(subject);
                write!(
                    f,
                    "{start:?}{cut} is no subject, allowed: words without white space, separated by \
                     dots, '*' for any word"
                )
            }
        }
    }
}

/// The start of a text that may be long, and what stands for the rest.
fn shortened(text: &str) -> (&str, &'static str) {
    match text.char_indices().nth(64) {
        Some((end, _)) => (&text[..end], "…"),
        None => (text, ""),
    }
}

impl std::error::Error for InvalidName {}

impl Default for Subjects {
    fn default() -> Self {
        Self {
            root: DEFAULT_ROOT.to_owned(),
        }
    }
}

/// What a subject of ours says of its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) kind: Kind,
    pub(super) model: String,
    pub(super) worker: String,
}

/// The two kinds of what workers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Load,
    Worker,
}

impl Subjects {
    /// Subjects below `root`, such as `acme.prod`.
    ///
    /// # Errors
    ///
    /// If `root` is anything but words of letters, digits, `_` and `-` that
    /// are separated by dots, or is longer than 128 bytes.
    pub fn new(root: impl Into<String>) -> Result<Self, InvalidName> {
        let root = root.into();
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(is_plain);
        if root.len() <= MAX_ROOT && root.split('.').all(is_word) {
            Ok(Self { root })
        } else {
            Err(InvalidName::Root(root))
        }
    }

    /// What all subjects start with.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Where `worker` publishes its load.
    ///
    /// # Errors
    ///
    /// If a name is empty or too long.
    pub fn load(&self, model: &str, worker: &str) -> Result<String, InvalidName> {
        self.subject("load", &token(model)?, &token(worker)?)
    }

    /// Where `worker` says that it is there.
    ///
    /// # Errors
    ///
    /// If a name is empty or too long.
    pub fn worker(&self, model: &str, worker: &str) -> Result<String, InvalidName> {
        self.subject("worker", &token(model)?, &token(worker)?)
    }

    /// Where a gateway asks all workers to announce themselves.
    pub fn announce(&self) -> String {
        format!("{}.announce", self.root)
    }

    /// The load of all workers of a model, or of all models.
    pub(super) fn all_load(&self, model: Option<&str>) -> Result<String, InvalidName> {
        self.subject("load", &any_or_token(model)?, "*")
    }

    /// Both kinds, in one subscription so that their order is kept.
    pub(super) fn all(&self, model: Option<&str>) -> Result<String, InvalidName> {
        self.subject("*", &any_or_token(model)?, "*")
    }

    fn subject(&self, kind: &str, model: &str, worker: &str) -> Result<String, InvalidName> {
        Ok(format!("{}.{kind}.{model}.{worker}", self.root))
    }

    /// Who speaks, and of what; `None` for a subject that is not ours.
    pub(super) fn parse(&self, subject: &str) -> Option<Address> {
        let mut words = subject
            .strip_prefix(self.root.as_str())?
            .strip_prefix('.')?
            .split('.');
        let kind = match words.next()? {
            "load" => Kind::Load,
            "worker" => Kind::Worker,
            _ => return None,
        };
        let address = Address {
            kind,
            model: untoken(words.next()?)?,
            worker: untoken(words.next()?)?,
        };
        words.next().is_none().then_some(address)
    }
}

/// Whether a subscription to `subject` can be asked for.
pub(super) fn check_subject(subject: &str) -> Result<(), InvalidName> {
    let is_word = |word: &str| {
        !word.is_empty()
            && !word
                .chars()
                .any(|c| c.is_whitespace() || c.is_control() || c == '>')
    };
    if subject.len() <= 1024 && subject.split('.').all(is_word) {
        Ok(())
    } else {
        Err(InvalidName::Subject(subject.to_owned()))
    }
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn any_or_token(name: Option<&str>) -> Result<String, InvalidName> {
    name.map_or_else(|| Ok("*".to_owned()), token)
}

/// The one token of a name.
pub(super) fn token(name: &str) -> Result<String, InvalidName> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(InvalidName::Token(name.to_owned()));
    }
    let mut token = String::with_capacity(name.len());
    for byte in name.bytes() {
        if is_plain(byte) {
            token.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(token, "={byte:02X}");
        }
    }
    Ok(token)
}

/// The name whose token this is; `None` for what no name is written as.
fn untoken(text: &str) -> Option<String> {
    if text.len() > 3 * MAX_NAME {
        return None;
    }
    let mut name = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        name.push(match byte {
            b'=' => {
                let byte = hex(bytes.next()?)? << 4 | hex(bytes.next()?)?;
                // Two spellings of a name would be two workers to the server.
                if is_plain(byte) {
                    return None;
                }
                byte
            }
            byte if is_plain(byte) => byte,
            _ => return None,
        });
    }
    let name = String::from_utf8(name).ok()?;
    (1..=MAX_NAME).contains(&name.len()).then_some(name)
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_name_has_one_token_that_is_one_word(name in "\\PC{1,60}|.{1,60}") {
            let subjects = Subjects::default();
            let subject = subjects.load(&name, &name).unwrap();
            prop_assert_eq!(subject.split('.').count(), 5);
            prop_assert!(subject.bytes().all(|b| b.is_ascii_graphic() && b != b'*' && b != b'>'));
            let address = Address { kind: Kind::Load, model: name.clone(), worker: name };
            prop_assert_eq!(subjects.parse(&subject), Some(address));
        }

        #[test]
        fn whatever_is_read_as_a_name_is_written_the_same_way(text in "[a-zA-C0-9=._-]{0,12}") {
            if let Some(name) = untoken(&text) {
                prop_assert_eq!(token(&name).unwrap(), text);
            }
        }
    }

    #[test]
    fn what_no_name_is_written_as_is_not_read() {
        for bad in [
            "", "=", "=4", "=41", "=2e", "=GG", "a b", "a*", ">", "é", "=FF", "=C3",
        ] {
            assert_eq!(untoken(bad), None, "{bad:?}");
        }
        assert_eq!(
            untoken(&"a".repeat(MAX_NAME)).map(|name| name.len()),
            Some(MAX_NAME)
        );
        assert_eq!(untoken(&"a".repeat(MAX_NAME + 1)), None);
        assert_eq!(untoken("=C3=A9").as_deref(), Some("é"));
    }

    #[test]
    fn only_subjects_of_the_root_and_its_kinds_are_ours() {
        let subjects = Subjects::new("a.b").unwrap();
        assert!(subjects.parse("a.b.load.m.w").is_some());
        for foreign in [
            "a.b.load.m",
            "a.b.load.m.w.x",
            "a.b.loads.m.w",
            "a.bc.load.m.w",
            "a.b",
            "a.b.load..w",
            "x.a.b.load.m.w",
            "a.b.announce",
        ] {
            assert_eq!(subjects.parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_name_or_root_that_cannot_be_used_is_refused_and_said() {
        for bad in [
            "",
            ".",
            "a.",
            "a..b",
            "a b",
            "a.*",
            ">",
            "$SYS",
            &"a".repeat(MAX_ROOT + 1),
        ] {
            assert!(Subjects::new(bad).is_err(), "{bad}");
        }
        let subjects = Subjects::default();
        assert!(subjects.load("", "w").is_err());
        let long = "é".repeat(MAX_NAME);
        let error = subjects.worker("m", &long).unwrap_err().to_string();
        assert!(
            error.contains("1 to 256 bytes") && error.len() < 300,
            "{error}"
        );
        assert!(check_subject("namespace.*.kv_metrics").is_ok());
        for bad in ["", "a.", "a b", "a.>", "a..b", "a\r\nSUB x"] {
            assert!(check_subject(bad).is_err(), "{bad}");
        }
    }
}
