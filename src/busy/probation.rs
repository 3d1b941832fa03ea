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
        spell: Spell,
    },
    /// The exclusion is over, and nothing has shown yet that the worker is
    /// well.
    Suspect { spell: Spell },
    /// One request is on its way to find out; others wait for it until then,
    /// and then another finds out. That it takes long is no failure.
    Probing {
        until: Instant,
        spell: Spell,
        probe: Probe,
    },
    /// It began to answer well, and takes requests as one that is trusted.
    /// Until so many have ended well too, one that fails is enough to exclude
    /// it again.
    Parole { spell: Spell, left: u8 },
}

/// What the exclusions in a row, with nothing well in between, have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spell {
    /// How long the last one was to be.
    cooldown: Duration,
    /// What signs of life were worth.
    signs: Signs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signs {
    /// Not known.
    Unknown,
    /// One was believed: whether that was right, a request finds out.
    Believed,
    /// One was believed, and the worker was not well.
    Worthless,
}

/// As many requests have to end well before a worker is trusted again.
const PAROLE: u8 = 5;

impl Probation {
    /// Whether the worker takes requests like any other.
    pub(super) fn is_trusted(self) -> bool {
        matches!(self, Self::Trusted | Self::Parole { .. })
    }

    pub(super) fn is_on_parole(self) -> bool {
        matches!(self, Self::Parole { .. })
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
            Self::Trusted | Self::Suspect { .. } | Self::Parole { .. } => None,
        }
    }

    pub(super) fn expire(&mut self, now: Instant) {
        match *self {
            Self::Down { until, spell, .. } | Self::Probing { until, spell, .. }
                if until <= now =>
            {
                *self = Self::Suspect { spell };
            }
            _ => {}
        }
    }

    /// The worker is excluded, for twice as long as the last time if nothing
    /// was well in between.
    pub(super) fn exclude(&mut self, now: Instant, times: &Times) {
        let spell = match *self {
            // What was on its way when the worker went down fails together: it
            // is one failure.
            Self::Down { .. } => return,
            Self::Trusted => Spell {
                cooldown: times.cooldown,
                signs: Signs::Unknown,
            },
            Self::Suspect { spell } | Self::Probing { spell, .. } | Self::Parole { spell, .. } => {
                Spell {
                    cooldown: spell.cooldown.saturating_mul(2).min(times.max_cooldown),
                    signs: match spell.signs {
                        Signs::Unknown => Signs::Unknown,
                        Signs::Believed | Signs::Worthless => Signs::Worthless,
                    },
                }
            }
        };
        *self = Self::Down {
            since: now,
            until: now + spell.cooldown,
            spell,
        };
    }

    /// Something says that the worker lives: the exclusion lasts no longer than
    /// the first one would, and then a request finds out.
    pub(super) fn shorten(&mut self, now: Instant, times: &Times) {
        if let Self::Down {
            since,
            until,
            mut spell,
        } = *self
        {
            if spell.signs == Signs::Unknown {
                spell.signs = Signs::Believed;
            }
            let until = until.min(since + times.cooldown);
            *self = Self::Down {
                since,
                until,
                spell,
            };
            self.expire(now);
        }
    }

    /// As [`shorten`](Self::shorten), unless one such sign was wrong already.
    pub(super) fn shorten_once(&mut self, now: Instant, times: &Times) {
        match *self {
            Self::Down { spell, .. } if spell.signs == Signs::Worthless => {}
            _ => self.shorten(now, times),
        }
    }

    /// A request leaves for the worker, and finds out if nobody does.
    pub(super) fn probe(&mut self, now: Instant, probe: Probe, times: &Times) -> bool {
        let Self::Suspect { spell } = *self else {
            return false;
        };
        *self = Self::Probing {
            until: now + times.probe_timeout,
            spell,
            probe,
        };
        true
    }

    /// The request that was to find out was given up.
    pub(super) fn give_up(&mut self, given_up: Probe) {
        match *self {
            Self::Probing { spell, probe, .. } if probe == given_up => {
                *self = Self::Suspect { spell };
            }
            _ => {}
        }
    }

    /// A request begins to be answered well. Whether the worker was on
    /// probation, and is no longer.
    pub(super) fn begins_well(&mut self) -> bool {
        match *self {
            Self::Suspect { spell } | Self::Probing { spell, .. } => {
                *self = Self::Parole {
                    spell,
                    left: PAROLE,
                };
                true
            }
            _ => false,
        }
    }

    /// A request has ended well.
    pub(super) fn ended_well(&mut self) {
        if let Self::Parole { left, .. } = self {
            *left -= 1;
            if *left == 0 {
                *self = Self::Trusted;
            }
        }
    }
}
