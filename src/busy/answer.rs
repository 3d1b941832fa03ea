//! What a request gets that no worker takes.

use super::members::Verdict;
use crate::{
    BoxError, OverloadReason, ServiceOverloaded, Unavailable, UnavailableReason,
    metrics::{Prefix, VERDICTS},
};
use ::metrics::Counter;

/// A request that no worker gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Overloaded(OverloadReason),
    Unavailable(UnavailableReason),
}

impl Answer {
    pub(crate) const WAITED_TOO_LONG: Self = Self::Unavailable(UnavailableReason::WaitedTooLong);

    const ALL: [Self; 6] = [
        Self::Overloaded(OverloadReason::AllWorkersBusy),
        Self::Overloaded(OverloadReason::BusyAtDispatch),
        Self::Unavailable(UnavailableReason::NoWorkers),
        Self::Unavailable(UnavailableReason::NoneReachable),
        Self::WAITED_TOO_LONG,
        Self::Overloaded(OverloadReason::TooManyWaiting),
    ];

    pub(crate) fn due(verdict: Verdict) -> Option<Self> {
        match verdict {
            Verdict::Wait => None,
            Verdict::Overloaded => Some(Self::Overloaded(OverloadReason::AllWorkersBusy)),
            Verdict::Unavailable(reason) => Some(Self::Unavailable(reason)),
        }
    }

    /// Its place in [`ALL`](Self::ALL); past the end for what is never said
    /// here.
    fn index(self) -> usize {
        match self {
            Self::Overloaded(OverloadReason::AllWorkersBusy) => 0,
            Self::Overloaded(OverloadReason::BusyAtDispatch) => 1,
            Self::Unavailable(UnavailableReason::NoWorkers) => 2,
            Self::Unavailable(UnavailableReason::NoneReachable) => 3,
            Self::Unavailable(UnavailableReason::WaitedTooLong) => 4,
            Self::Overloaded(OverloadReason::TooManyWaiting) => 5,
            Self::Overloaded(_) | Self::Unavailable(_) => Self::ALL.len(),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Overloaded(reason) => reason.as_str(),
            Self::Unavailable(reason) => reason.as_str(),
        }
    }

    pub(crate) fn into_error(self) -> BoxError {
        match self {
            Self::Overloaded(reason) => ServiceOverloaded::new(reason).into(),
            Self::Unavailable(reason) => Unavailable::new(reason).into(),
        }
    }
}

/// The handles of the counters, one for each answer.
pub(crate) struct Answers {
    counters: [Counter; 6],
}

impl Answers {
    pub(crate) fn new(prefix: &Prefix, model: &str) -> Self {
        Self {
            counters: Answer::ALL.map(|answer| VERDICTS.counter(prefix, &[model, answer.as_str()])),
        }
    }

    pub(crate) fn count(&self, answer: Answer) {
        if let Some(counter) = self.counters.get(answer.index()) {
            counter.increment(1);
        }
    }
}
