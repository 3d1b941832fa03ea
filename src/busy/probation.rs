//! An exclusion that ends by time, and the requests that find out afterwards
//! whether it may stay ended: a pure state machine, `now` is an argument.

use super::marks::Times;
use std::time::Duration;
use tokio::time::Instant;

/// Which request probes: one that is given up late must not end another's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe(pub(super) u64);

/// Whether a worker is trusted, excluded, or on probation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Probation {
    /// Nothing is held against the worker.
    #[default]
    Trusted,
    /// Excluded until then.
    Down {
        since: Instant,
        until: Instant,
        cooldown: Duration,
    },
    /// The exclusion is over, and nothing has shown yet that the worker is
    /// well.
    Suspect { cooldown: Duration },
    /// One request is on its way to find out; others wait for it until then,
    /// and then another finds out. That it takes long is no failure.
    Probing {
        until: Instant,
        cooldown: Duration,
        probe: Probe,
    },
}

impl Probation {
    pub(super) fn is_trusted(self) -> bool {
        self == Self::Trusted
    }

    pub(super) fn is_down(self) -> bool {
        matches!(self, Self::Down { .. })
    }

    pub(super) fn is_suspect(self) -> bool {
        matches!(self, Self::Suspect { .. })
    }

    /// One request finds out, and the others wait for it.
    pub(super) fn is_probing(self) -> bool {
        matches!(self, Self::Probing { .. })
    }

    /// When it changes by itself.
    pub(super) fn until(self) -> Option<Instant> {
        match self {
            Self::Down { until, .. } | Self::Probing { until, .. } => Some(until),
            Self::Trusted | Self::Suspect { .. } => None,
        }
    }

    pub(super) fn expire(&mut self, now: Instant) {
        match *self {
            Self::Down {
                until, cooldown, ..
            }
            | Self::Probing {
                until, cooldown, ..
            } if until <= now => *self = Self::Suspect { cooldown },
            _ => {}
        }
    }

    /// The worker is excluded, for twice as long as the last time if nothing
    /// was well in between.
    pub(super) fn exclude(&mut self, now: Instant, times: &Times) {
        let cooldown = match *self {
            // What was on its way when the worker went down fails together: it
            // is one failure.
            Self::Down { .. } => return,
            Self::Trusted => times.cooldown,
            Self::Suspect { cooldown } | Self::Probing { cooldown, .. } => {
                cooldown.saturating_mul(2).min(times.max_cooldown)
            }
        };
        *self = Self::Down {
            since: now,
            until: now + cooldown,
            cooldown,
        };
    }

    /// Something says that the worker lives: the exclusion lasts no longer than
    /// the first one would, and then a request finds out.
    pub(super) fn shorten(&mut self, now: Instant, times: &Times) {
        if let Self::Down {
            since,
            until,
            cooldown,
        } = *self
        {
            let until = until.min(since + times.cooldown);
            *self = Self::Down {
                since,
                until,
                cooldown,
            };
            self.expire(now);
        }
    }

    /// A request leaves for the worker, and finds out if nobody does.
    pub(super) fn probe(&mut self, now: Instant, probe: Probe, times: &Times) -> bool {
        let Self::Suspect { cooldown } = *self else {
            return false;
        };
        *self = Self::Probing {
            until: now + times.probe_timeout,
            cooldown,
            probe,
        };
        true
    }

    /// The request that was to find out was given up.
    pub(super) fn give_up(&mut self, given_up: Probe) {
        match *self {
            Self::Probing {
                cooldown, probe, ..
            } if probe == given_up => *self = Self::Suspect { cooldown },
            _ => {}
        }
    }
}
