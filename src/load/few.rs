use std::ops::{Deref, DerefMut};

/// Usually one item, which then lies in place: most workers have one rank and
/// serve one model, and at many workers each pointer that an event follows is
/// a cache miss.
pub(super) enum Few<T> {
    One([T; 1]),
    Other(Box<[T]>),
}

impl<T> Few<T> {
    pub(super) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(item) => item.into(),
            Self::Other(items) => items.into(),
        }
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(items: Vec<T>) -> Self {
        match <[T; 1]>::try_from(items) {
            Ok(item) => Self::One(item),
            Err(items) => Self::Other(items.into()),
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        items.into_iter().collect::<Vec<_>>().into()
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(item) => item,
            Self::Other(items) => items,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(item) => item,
            Self::Other(items) => items,
        }
    }
}
