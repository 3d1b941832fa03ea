use std::fmt;

/// A model of that name exists already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateModel(pub(super) String);

impl fmt::Display for DuplicateModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model {:?} exists already", self.0)
    }
}

impl std::error::Error for DuplicateModel {}

/// There is no model of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownModel(pub(super) String);

impl UnknownModel {
    /// The name.
    pub fn model(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UnknownModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no model {:?}", self.0)
    }
}

impl std::error::Error for UnknownModel {}
