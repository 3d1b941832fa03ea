use std::fmt::{self, Display};

/// Something was not done, and nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    kind: RefusedKind,
    why: String,
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusedKind {
    /// Something of it cannot be used.
    Invalid,
    /// There is no such worker.
    Unknown,
    /// An operator has removed the worker, and has not brought it back.
    Removed,
    /// There are as many workers or models as there may be.
    Full,
}

impl Refused {
    /// Why.
    pub fn kind(&self) -> RefusedKind {
        self.kind
    }

    pub(super) fn invalid(why: impl Display) -> Self {
        Self::because(RefusedKind::Invalid, why)
    }

    pub(super) fn full(why: impl Display) -> Self {
        Self::because(RefusedKind::Full, why)
    }

    pub(super) fn unknown(id: &str) -> Self {
        Self::because(RefusedKind::Unknown, format!("there is no worker {id:?}"))
    }

    pub(super) fn removed(id: &str) -> Self {
        let why = format!("worker {id:?} was removed by an operator, and only one brings it back");
        Self::because(RefusedKind::Removed, why)
    }

    fn because(kind: RefusedKind, why: impl Display) -> Self {
        let why = why.to_string();
        Self { kind, why }
    }
}

impl Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Refused {}
