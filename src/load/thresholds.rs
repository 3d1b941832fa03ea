use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use std::{collections::BTreeMap, fmt};

/// The names of the thresholds, as the API and the environment spell them.
pub(crate) const DECODE: &str = "active_decode_blocks_threshold";
pub(crate) const PREFILL_TOKENS: &str = "active_prefill_tokens_threshold";
pub(crate) const PREFILL_FRAC: &str = "active_prefill_tokens_threshold_frac";

/// When a rank counts as busy. A check whose threshold is not set is off, and
/// all of them are by default.
///
/// Always valid: made from nothing by [`ThresholdUpdate`]s that were accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    decode: Option<f64>,
    prefill_tokens: Option<u64>,
    prefill_frac: Option<f64>,
}

impl Thresholds {
    /// The rank is busy when it uses more than this part of its KV blocks.
    pub const fn active_decode_blocks(&self) -> Option<f64> {
        self.decode
    }

    /// The rank is busy when it has more than this many tokens in prefill.
    pub const fn active_prefill_tokens(&self) -> Option<u64> {
        self.prefill_tokens
    }

    /// The rank is busy when it has more tokens in prefill than this multiple
    /// of what it takes into one batch.
    pub const fn active_prefill_tokens_frac(&self) -> Option<f64> {
        self.prefill_frac
    }

    /// These thresholds with `update` applied.
    ///
    /// # Errors
    ///
    /// A value is outside of what is allowed; the update is refused whole.
    pub fn updated(self, update: ThresholdUpdate) -> Result<Self, InvalidThreshold> {
        update.validate()?;
        Ok(Self {
            decode: update.decode.onto(self.decode),
            prefill_tokens: update.prefill_tokens.onto(self.prefill_tokens),
            prefill_frac: update.prefill_frac.onto(self.prefill_frac),
        })
    }
}

/// What an update does to one threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change<T> {
    /// Leaves it as it is.
    #[default]
    Keep,
    /// Turns its check off.
    Clear,
    /// Sets it.
    Set(T),
}

impl<T> Change<T> {
    pub(crate) fn onto(self, current: Option<T>) -> Option<T> {
        match self {
            Self::Keep => current,
            Self::Clear => None,
            Self::Set(value) => Some(value),
        }
    }
}

impl<T> From<T> for Change<T> {
    fn from(value: T) -> Self {
        Self::Set(value)
    }
}

/// A partial update of [`Thresholds`]: what it does not name stays.
///
/// ```
/// use tower_overload::load::{Change, ThresholdUpdate, Thresholds};
///
/// let thresholds = Thresholds::default()
///     .updated(ThresholdUpdate::new().active_decode_blocks(0.85).active_prefill_tokens(10_000))?
///     .updated(ThresholdUpdate::new().active_prefill_tokens(Change::Clear))?;
/// assert_eq!(thresholds.active_decode_blocks(), Some(0.85));
/// assert_eq!(thresholds.active_prefill_tokens(), None);
///
/// let error = thresholds.updated(ThresholdUpdate::new().active_decode_blocks(85.0)).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "active_decode_blocks_threshold is 85, allowed: a number from 0 to 1",
/// );
/// # Ok::<_, tower_overload::load::InvalidThreshold>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThresholdUpdate {
    decode: Change<f64>,
    prefill_tokens: Change<u64>,
    prefill_frac: Change<f64>,
}

impl ThresholdUpdate {
    /// An update that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes [`Thresholds::active_decode_blocks`]; allowed is 0 to 1.
    #[must_use]
    pub fn active_decode_blocks(mut self, change: impl Into<Change<f64>>) -> Self {
        self.decode = change.into();
        self
    }

    /// Changes [`Thresholds::active_prefill_tokens`].
    #[must_use]
    pub fn active_prefill_tokens(mut self, change: impl Into<Change<u64>>) -> Self {
        self.prefill_tokens = change.into();
        self
    }

    /// Changes [`Thresholds::active_prefill_tokens_frac`]; allowed is any
    /// finite number from 0 on, also above 1.
    #[must_use]
    pub fn active_prefill_tokens_frac(mut self, change: impl Into<Change<f64>>) -> Self {
        self.prefill_frac = change.into();
        self
    }

    /// Whether the update names no threshold.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the values without applying them.
    ///
    /// # Errors
    ///
    /// A value is outside of what is allowed.
    pub fn validate(&self) -> Result<(), InvalidThreshold> {
        if let Change::Set(value) = self.decode {
            if !(0.0..=1.0).contains(&value) {
                return Err(InvalidThreshold {
                    field: DECODE,
                    value,
                    allowed: "a number from 0 to 1",
                });
            }
        }
        if let Change::Set(value) = self.prefill_frac {
            if !(value.is_finite() && value >= 0.0) {
                return Err(InvalidThreshold {
                    field: PREFILL_FRAC,
                    value,
                    allowed: "a finite number of at least 0",
                });
            }
        }
        Ok(())
    }
}

/// A threshold was refused, and with it the whole update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InvalidThreshold {
    field: &'static str,
    value: f64,
    allowed: &'static str,
}

impl InvalidThreshold {
    /// The name of the threshold, as the API spells it.
    pub const fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for InvalidThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            value,
            allowed,
        } = self;
        write!(f, "{field} is {value}, allowed: {allowed}")
    }
}

impl std::error::Error for InvalidThreshold {}

/// The thresholds of one model, shared with the monitor that judges by them.
///
/// A change is stored at once, so [`get`](Self::get) returns it, and takes
/// effect for all workers of the model with the next load or configuration
/// event of any worker.
#[derive(Clone)]
pub struct ThresholdsHandle {
    stored: Arc<Mutex<Thresholds>>,
    changes: Arc<AtomicU64>,
}

impl ThresholdsHandle {
    pub(super) fn new(changes: Arc<AtomicU64>) -> Self {
        Self {
            stored: Arc::new(Mutex::new(Thresholds::default())),
            changes,
        }
    }

    /// The thresholds as last stored.
    pub fn get(&self) -> Thresholds {
        *lock(&self.stored)
    }

    /// Applies a partial update and returns the thresholds that result.
    ///
    /// # Errors
    ///
    /// A value is outside of what is allowed: nothing changes.
    pub fn update(&self, update: ThresholdUpdate) -> Result<Thresholds, InvalidThreshold> {
        let mut stored = lock(&self.stored);
        *stored = stored.updated(update)?;
        // Counted before the lock is released: whoever sees the count reads
        // what it counts.
        self.changes.fetch_add(1, Ordering::Release);
        Ok(*stored)
    }
}

impl fmt::Debug for ThresholdsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ThresholdsHandle")
            .field(&self.get())
            .finish()
    }
}

/// The thresholds of every model of a monitor, by name: what an operator's
/// interface needs. Clones share it.
#[derive(Clone)]
pub struct ModelThresholds {
    models: Arc<Mutex<BTreeMap<String, ThresholdsHandle>>>,
}

impl ModelThresholds {
    pub(super) fn new() -> Self {
        Self {
            models: Arc::new(Mutex::new(BTreeMap::new())),
        }
    }

    /// The handle of a model, if there is such a model.
    pub fn get(&self, model: &str) -> Option<ThresholdsHandle> {
        lock(&self.models).get(model).cloned()
    }

    /// Every model and its thresholds, by name.
    pub fn all(&self) -> Vec<(String, Thresholds)> {
        lock(&self.models)
            .iter()
            .map(|(model, handle)| (model.clone(), handle.get()))
            .collect()
    }

    /// Takes the handle unless the name is taken.
    pub(super) fn insert(&self, model: &str, handle: &ThresholdsHandle) -> bool {
        let mut models = lock(&self.models);
        if models.contains_key(model) {
            return false;
        }
        models.insert(model.to_owned(), handle.clone());
        true
    }

    pub(super) fn remove(&self, model: &str) -> bool {
        lock(&self.models).remove(model).is_some()
    }
}

impl fmt::Debug for ModelThresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.all()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_value_refuses_the_whole_update_and_names_itself() {
        let handle = ThresholdsHandle::new(Arc::new(AtomicU64::new(0)));
        let before = handle
            .update(ThresholdUpdate::new().active_decode_blocks(0.5))
            .unwrap();
        for (update, field) in [
            (ThresholdUpdate::new().active_decode_blocks(1.01), DECODE),
            (ThresholdUpdate::new().active_decode_blocks(-0.01), DECODE),
            (
                ThresholdUpdate::new().active_decode_blocks(f64::NAN),
                DECODE,
            ),
            (
                ThresholdUpdate::new().active_prefill_tokens_frac(-0.01),
                PREFILL_FRAC,
            ),
            (
                ThresholdUpdate::new().active_prefill_tokens_frac(f64::INFINITY),
                PREFILL_FRAC,
            ),
            (
                ThresholdUpdate::new().active_prefill_tokens_frac(f64::NAN),
                PREFILL_FRAC,
            ),
        ] {
            let error = handle.update(update.active_prefill_tokens(7)).unwrap_err();
            assert_eq!(error.field(), field);
            assert!(error.to_string().starts_with(field), "{error}");
            assert_eq!(handle.get(), before);
        }
    }

    #[test]
    fn the_ends_of_the_ranges_are_allowed() {
        for decode in [0.0, 1.0] {
            for frac in [0.0, 1.5, f64::MAX] {
                let update = ThresholdUpdate::new()
                    .active_decode_blocks(decode)
                    .active_prefill_tokens(u64::MAX)
                    .active_prefill_tokens_frac(frac);
                let thresholds = Thresholds::default().updated(update).unwrap();
                assert_eq!(thresholds.active_decode_blocks(), Some(decode));
                assert_eq!(thresholds.active_prefill_tokens(), Some(u64::MAX));
                assert_eq!(thresholds.active_prefill_tokens_frac(), Some(frac));
            }
        }
    }
}
