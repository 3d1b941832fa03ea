//! The limits of the gate, and the environment variables that set them.

use super::word::MAX;
use std::{error::Error, ffi::OsStr, fmt};

/// The variable that holds the number of slots; unset: no cap at all.
pub const ENGINE_REQUEST_LIMIT: &str = "DYN_ENGINE_REQUEST_LIMIT";

/// The variable that holds the number of places in the queue; read only when
/// [`ENGINE_REQUEST_LIMIT`] is set.
pub const REQUEST_QUEUE_LIMIT: &str = "DYN_DYNAMO_REQUEST_QUEUE_LIMIT";

/// The places in the queue when the environment does not say, as in the
/// reference.
pub const DEFAULT_QUEUE_LIMIT: usize = 16;

/// The fewest places in the queue that [`REQUEST_QUEUE_LIMIT`] may ask for:
/// the reference's documented minimum. Limits given in code may be lower.
pub const MIN_QUEUE_LIMIT_IN_ENV: usize = 2;

/// The highest value of any limit: 2²⁷ − 1, more than a hundred million.
pub const MAX_LIMIT: usize = MAX as usize;

/// How many requests may be in the engine and how many may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    slots: u32,
    queue: u32,
}

impl Limits {
    /// `slots` requests in the engine and `queue` waiting.
    ///
    /// # Errors
    ///
    /// `slots` must be 1 to [`MAX_LIMIT`], `queue` 0 to [`MAX_LIMIT`].
    pub fn new(slots: usize, queue: usize) -> Result<Self, LimitError> {
        Ok(Self {
            slots: check("slots", slots, 1)?,
            queue: check("queue limit", queue, 0)?,
        })
    }

    /// The limits that [`ENGINE_REQUEST_LIMIT`] and [`REQUEST_QUEUE_LIMIT`]
    /// ask for; `None` when the first is unset: no cap.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    pub fn from_env() -> Result<Option<Self>, EnvError> {
        Self::parse(
            std::env::var_os(ENGINE_REQUEST_LIMIT).as_deref(),
            std::env::var_os(REQUEST_QUEUE_LIMIT).as_deref(),
        )
    }

    /// What [`from_env`](Self::from_env) makes of the values of the two
    /// variables.
    ///
    /// An empty value counts as unset, and white space around a number does
    /// not matter. The second value is looked at only if the first is set.
    ///
    /// # Errors
    ///
    /// A value that is no integer, or not one of those that are allowed: at
    /// least 1 for the slots, at least [`MIN_QUEUE_LIMIT_IN_ENV`] for the
    /// queue, at most [`MAX_LIMIT`] for both.
    pub fn parse(slots: Option<&OsStr>, queue: Option<&OsStr>) -> Result<Option<Self>, EnvError> {
        let Some(slots) = parse(ENGINE_REQUEST_LIMIT, slots, 1)? else {
            return Ok(None);
        };
        let queue = parse(REQUEST_QUEUE_LIMIT, queue, MIN_QUEUE_LIMIT_IN_ENV)?;
        Ok(Some(Self {
            slots,
            queue: queue.unwrap_or(DEFAULT_QUEUE_LIMIT as u32),
        }))
    }

    /// The most requests in the engine.
    pub const fn slots(&self) -> usize {
        self.slots as usize
    }

    /// The most requests waiting.
    pub const fn queue_limit(&self) -> usize {
        self.queue as usize
    }

    pub(super) const fn raw(self) -> (u32, u32) {
        (self.slots, self.queue)
    }
}

/// `value` as a limit named `what`, if it is at least `min`.
pub(super) fn check(what: &'static str, value: usize, min: usize) -> Result<u32, LimitError> {
    match u32::try_from(value) {
        Ok(limit) if value >= min && limit <= MAX => Ok(limit),
        _ => Err(LimitError { what, value, min }),
    }
}

fn parse(
    variable: &'static str,
    value: Option<&OsStr>,
    min: usize,
) -> Result<Option<u32>, EnvError> {
    let Some(value) = value else { return Ok(None) };
    let value = value.to_string_lossy();
    if value.trim().is_empty() {
        return Ok(None);
    }
    let number = value.trim().parse::<usize>().ok();
    match number.and_then(|number| check(variable, number, min).ok()) {
        Some(limit) => Ok(Some(limit)),
        None => Err(EnvError {
            variable,
            value: value.into_owned(),
            min,
        }),
    }
}

/// A limit that cannot be: nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitError {
    what: &'static str,
    value: usize,
    min: usize,
}

impl LimitError {
    /// The value that was refused.
    pub const fn value(&self) -> usize {
        self.value
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, min } = self;
        write!(f, "{what} must be from {min} to {MAX_LIMIT}, not {value}")
    }
}

impl Error for LimitError {}

/// An environment variable whose value is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvError {
    variable: &'static str,
    value: String,
    min: usize,
}

impl EnvError {
    /// The name of the variable.
    pub const fn variable(&self) -> &'static str {
        self.variable
    }

    /// Its value.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl fmt::Display for EnvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            variable,
            value,
            min,
        } = self;
        write!(
            f,
            "{variable}={value:?}: an integer from {min} to {MAX_LIMIT} is allowed"
        )
    }
}

impl Error for EnvError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(slots: &str, queue: &str) -> Result<Option<(usize, usize)>, EnvError> {
        let limits = Limits::parse(Some(slots.as_ref()), Some(queue.as_ref()))?;
        Ok(limits.map(|limits| (limits.slots(), limits.queue_limit())))
    }

    #[test]
    fn without_a_slot_limit_there_is_no_cap_and_the_queue_is_not_read() {
        assert_eq!(Limits::parse(None, None), Ok(None));
        assert_eq!(Limits::parse(None, Some("nonsense".as_ref())), Ok(None));
        assert_eq!(parse("", "nonsense"), Ok(None));
        assert_eq!(parse("  ", "-1"), Ok(None));
    }

    #[test]
    fn the_queue_defaults_to_sixteen_and_is_at_least_two() {
        assert_eq!(parse("2", ""), Ok(Some((2, 16))));
        assert_eq!(
            Limits::parse(Some("2".as_ref()), None),
            Ok(Some(Limits {
                slots: 2,
                queue: 16
            }))
        );
        assert_eq!(parse(" 2 ", "2\n"), Ok(Some((2, 2))));
        assert_eq!(parse("1", "3"), Ok(Some((1, 3))));
    }

    #[test]
    fn a_bad_value_is_named_with_what_is_allowed() {
        for bad in ["0", "-1", "abc", "1.5", "134217728", "99999999999999999999"] {
            let error = parse(bad, "").unwrap_err();
            assert_eq!(error.variable(), "DYN_ENGINE_REQUEST_LIMIT");
            assert_eq!(error.value(), bad);
            assert_eq!(
                error.to_string(),
                format!(
                    "DYN_ENGINE_REQUEST_LIMIT={bad:?}: an integer from 1 to 134217727 is allowed"
                )
            );
        }
        for bad in ["0", "1", "-2", "many"] {
            assert_eq!(
                parse("2", bad).unwrap_err().to_string(),
                format!(
                    "DYN_DYNAMO_REQUEST_QUEUE_LIMIT={bad:?}: an integer from 2 to 134217727 is allowed"
                )
            );
        }
    }

    #[test]
    fn zero_slots_and_more_than_the_most_are_refused() {
        assert_eq!(
            Limits::new(0, 4).unwrap_err().to_string(),
            "slots must be from 1 to 134217727, not 0"
        );
        assert!(Limits::new(MAX_LIMIT, MAX_LIMIT).is_ok());
        assert!(Limits::new(MAX_LIMIT + 1, 0).is_err());
        assert_eq!(
            Limits::new(1, usize::MAX).unwrap_err().to_string(),
            format!(
                "queue limit must be from 0 to 134217727, not {}",
                usize::MAX
            )
        );
    }
}
