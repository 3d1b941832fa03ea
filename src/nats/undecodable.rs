use std::fmt;

/// What is wrong with a message that could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Defect {
    /// It ends before it is complete.
    Truncated,
    /// It is complete, but not of the layout that is documented: a member of
    /// another type or out of its range, one that is missing or there twice,
    /// something behind the end.
    Mistyped,
    /// It is longer, or nested deeper, than what is read.
    Oversized,
    /// It is of another kind, and meant for others.
    Foreign,
}

impl Defect {
    /// The defect as a label: `truncated`, `mistyped`, `oversized` or `foreign`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Mistyped => "mistyped",
            Self::Oversized => "oversized",
            Self::Foreign => "foreign",
        }
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A message could not be decoded. It says nothing about any worker.
///
/// Displays the [`Defect`] and where it is. What it repeats of the message is
/// escaped and short, whatever the message was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecodable {
    defect: Defect,
    detail: String,
}

impl Undecodable {
    /// The longest detail, in characters.
    const MAX_DETAIL: usize = 200;

    pub(super) fn new(defect: Defect, detail: impl fmt::Display) -> Self {
        let mut detail = detail.to_string();
        if let Some((end, _)) = detail.char_indices().nth(Self::MAX_DETAIL) {
            detail.truncate(end);
            detail.push('…');
        }
        Self { defect, detail }
    }

    /// What is wrong with the message.
    pub const fn defect(&self) -> Defect {
        self.defect
    }
}

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} message: {}", self.defect, self.detail)
    }
}

impl std::error::Error for Undecodable {}
