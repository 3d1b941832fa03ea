//! The marks of one worker: a pure state machine, `now` is an argument.

use std::time::Duration;
use tokio::time::Instant;

/// One of the four reasons for which a worker gets no new request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// The monitor found its load over a threshold.
    Busy,
    /// It refused a request.
    Leased,
    /// A connection to it failed before any byte of a response.
    Unreachable,
    /// The operator takes it out of service.
    Draining,
}

impl Mark {
    /// The four, in the order of their bits.
    pub const ALL: [Self; 4] = [Self::Busy, Self::Leased, Self::Unreachable, Self::Draining];

    /// The mark as a label: `busy`, `leased`, `unreachable` or `draining`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Leased => "leased",
            Self::Unreachable => "unreachable",
            Self::Draining => "draining",
        }
    }

    pub(crate) const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// The bits that exclude a worker from routing.
pub(crate) const EXCLUDED: u64 = 0b1111;
/// A worker that was unreachable gets one request at a time until one succeeds.
pub(crate) const SUSPECT: u64 = 1 << 4;

/// How a worker counts in the verdict, and whether a request may be sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No mark: it takes requests.
    Open,
    /// On probation: it takes one request, which finds out whether it is back.
    Suspect,
    /// On probation, and that request is under way: the others wait for its
    /// outcome.
    Held,
    /// Busy or leased: it lives, and has no room.
    Shed,
    /// Unreachable or draining, or on probation and not to be probed: there is
    /// no path to it.
    Unusable,
}

impl Standing {
    /// Whether a request may be sent now.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Suspect)
    }
}

/// The standing of a worker, and when it may change by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outlook {
    pub(crate) standing: Standing,
    pub(crate) until: Option<Instant>,
}

impl Outlook {
    /// Whether one who waits by `other` would look too late.
    pub(crate) fn changes_before(self, other: Self) -> bool {
        match (self.until, other.until) {
            (Some(ours), Some(theirs)) => ours < theirs,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

/// The durations of the marks that end by time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) lease: Duration,
    pub(crate) max_lease: Duration,
    pub(crate) cooldown: Duration,
    pub(crate) max_cooldown: Duration,
    pub(crate) probe_timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Reachable,
    /// Excluded until then.
    Down {
        until: Instant,
        cooldown: Duration,
    },
    /// The mark is over, and nothing has shown yet that the worker is back.
    Suspect {
        cooldown: Duration,
    },
    /// One request is on its way to find out; others wait for it until then,
    /// and then another finds out. That it takes long is no failure.
    Probing {
        until: Instant,
        cooldown: Duration,
        probe: Probe,
    },
}

/// Which request probes: one that is given up late must not end another's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe(u64);

#[derive(Clone, Debug)]
pub(crate) struct Marks {
    /// `Some(None)` is a mark without an end of its own.
    busy: Option<Option<Instant>>,
    /// Our own lease, which a response that completes ends early.
    leased: Option<Instant>,
    /// The time that the worker named; nothing ends it early.
    leased_by_name: Option<Instant>,
    reach: Reach,
    probes: u64,
    /// How many say that it is to drain.
    draining: usize,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            busy: None,
            leased: None,
            leased_by_name: None,
            reach: Reach::Reachable,
            probes: 0,
            draining: 0,
        }
    }
}

impl Marks {
    /// What a new worker under the same id starts with: the marks whose owners
    /// (the monitor, the operator) speak of the id, not of the connection.
    pub(crate) fn for_successor(&self) -> Self {
        Self {
            busy: self.busy,
            draining: self.draining,
            ..Self::default()
        }
    }

    pub(crate) fn bits(&self) -> u64 {
        let mut bits = 0;
        if self.busy.is_some() {
            bits |= Mark::Busy.bit();
        }
        if self.leased.is_some() || self.leased_by_name.is_some() {
            bits |= Mark::Leased.bit();
        }
        if self.draining > 0 {
            bits |= Mark::Draining.bit();
        }
        bits | match self.reach {
            Reach::Reachable => 0,
            Reach::Down { .. } => Mark::Unreachable.bit(),
            Reach::Suspect { .. } | Reach::Probing { .. } => SUSPECT,
        }
    }

    /// Whether a request may be sent, and if not, when that may change by itself.
    pub(crate) fn outlook(&self) -> Outlook {
        let bits = self.bits();
        let unreachable = Mark::Unreachable.bit() | Mark::Draining.bit();
        let standing = if bits & unreachable != 0 {
            Standing::Unusable
        } else if bits & EXCLUDED != 0 {
            match self.reach {
                Reach::Suspect { .. } | Reach::Probing { .. } => Standing::Unusable,
                Reach::Reachable | Reach::Down { .. } => Standing::Shed,
            }
        } else {
            match self.reach {
                Reach::Suspect { .. } => Standing::Suspect,
                Reach::Probing { .. } => Standing::Held,
                Reach::Reachable | Reach::Down { .. } => Standing::Open,
            }
        };
        let until = (!standing.is_open()).then(|| self.earliest_end()).flatten();
        Outlook { standing, until }
    }

    fn earliest_end(&self) -> Option<Instant> {
        // The lease is over when both of its ends have passed.
        let lease = self.leased.max(self.leased_by_name);
        let reach = match self.reach {
            Reach::Down { until, .. } | Reach::Probing { until, .. } => Some(until),
            Reach::Reachable | Reach::Suspect { .. } => None,
        };
        [self.busy.flatten(), lease, reach]
            .into_iter()
            .flatten()
            .min()
    }

    /// Ends every mark whose time has come.
    pub(crate) fn expire(&mut self, now: Instant) {
        let over = |until: Instant| until <= now;
        if self.busy.flatten().is_some_and(over) {
            self.busy = None;
        }
        self.leased = self.leased.filter(|until| !over(*until));
        self.leased_by_name = self.leased_by_name.filter(|until| !over(*until));
        match self.reach {
            Reach::Down { until, cooldown }
            | Reach::Probing {
                until, cooldown, ..
            } if over(until) => {
                self.reach = Reach::Suspect { cooldown };
            }
            _ => {}
        }
    }

    pub(crate) fn set_busy(&mut self, busy: Option<Option<Instant>>) {
        self.busy = busy;
    }

    pub(crate) fn drain(&mut self) {
        self.draining += 1;
    }

    pub(crate) fn undrain(&mut self) {
        self.draining = self.draining.saturating_sub(1);
    }

    /// The worker refused a request.
    pub(crate) fn refused(&mut self, now: Instant, named: Option<Duration>, times: &Times) {
        let (end, until) = match named {
            Some(named) => (&mut self.leased_by_name, now + named.min(times.max_lease)),
            None => (&mut self.leased, now + times.lease),
        };
        *end = (*end).max(Some(until));
    }

    /// A response of the worker that was no refusal has ended.
    pub(crate) fn completed(&mut self) {
        self.leased = None;
    }

    /// A connection failed before any byte of a response.
    pub(crate) fn failed(&mut self, now: Instant, times: &Times) {
        let cooldown = match self.reach {
            // The requests that were on their way when the worker went down
            // fail together; they are one failure.
            Reach::Down { .. } => return,
            Reach::Reachable => times.cooldown,
            Reach::Suspect { cooldown } | Reach::Probing { cooldown, .. } => {
                cooldown.saturating_mul(2).min(times.max_cooldown)
            }
        };
        self.reach = Reach::Down {
            until: now + cooldown,
            cooldown,
        };
    }

    /// The worker answered: whatever it said, it can be reached.
    pub(crate) fn answered(&mut self) {
        self.reach = Reach::Reachable;
    }

    /// A request leaves for the worker; `Some` if it is the one that finds out
    /// whether a suspect worker is back.
    pub(crate) fn dispatched(&mut self, now: Instant, times: &Times) -> Option<Probe> {
        let Reach::Suspect { cooldown } = self.reach else {
            return None;
        };
        let probe = Probe(self.probes);
        self.probes = self.probes.wrapping_add(1);
        self.reach = Reach::Probing {
            until: now + times.probe_timeout,
            cooldown,
            probe,
        };
        Some(probe)
    }

    /// The probing request was given up without an answer.
    pub(crate) fn probe_abandoned(&mut self, given_up: Probe) {
        match self.reach {
            Reach::Probing {
                cooldown, probe, ..
            } if probe == given_up => self.reach = Reach::Suspect { cooldown },
            _ => {}
        }
    }

    /// A new process answers under the id: what the connections to the old one
    /// said is void.
    pub(crate) fn forget_connections(&mut self) {
        *self = self.for_successor();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times {
        lease: Duration::from_secs(1),
        max_lease: Duration::from_secs(30),
        cooldown: Duration::from_secs(1),
        max_cooldown: Duration::from_secs(4),
        probe_timeout: Duration::from_secs(1),
    };
    const MS: Duration = Duration::from_millis(1);

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn every_mark_excludes_by_itself_and_ends_by_itself() {
        let start = Instant::now();
        let mut marks = Marks::default();
        assert_eq!(marks.outlook().standing, Standing::Open);

        marks.set_busy(Some(Some(after(start, 5))));
        marks.refused(start, None, &TIMES);
        marks.failed(start, &TIMES);
        marks.drain();
        assert_eq!(marks.bits(), EXCLUDED);
        assert_eq!(marks.outlook().until, Some(after(start, 5)));

        marks.expire(after(start, 5));
        assert_eq!(marks.bits() & Mark::Busy.bit(), 0);
        marks.expire(after(start, 1000));
        assert_eq!(marks.bits(), Mark::Draining.bit() | SUSPECT);
        marks.undrain();
        assert_eq!(marks.outlook().standing, Standing::Suspect);
        marks.answered();
        assert_eq!(marks.outlook().standing, Standing::Open);
    }

    #[test]
    fn a_lease_ends_early_unless_the_worker_named_its_time() {
        let start = Instant::now();
        let mut marks = Marks::default();
        marks.refused(start, None, &TIMES);
        marks.completed();
        assert_eq!(marks.outlook().standing, Standing::Open);

        marks.refused(start, Some(Duration::from_secs(2)), &TIMES);
        let later = after(start, 1500);
        marks.refused(later, None, &TIMES);
        assert_eq!(marks.outlook().until, Some(later + TIMES.lease));
        marks.completed();
        assert_eq!(marks.outlook().until, Some(after(start, 2000)));
    }

    #[test]
    fn a_named_lease_is_bounded() {
        let start = Instant::now();
        let mut marks = Marks::default();
        marks.refused(start, Some(Duration::MAX), &TIMES);
        assert_eq!(marks.outlook().until, Some(start + TIMES.max_lease));
    }

    #[test]
    fn failures_double_the_cooldown_up_to_its_cap_and_a_success_resets_it() {
        let mut now = Instant::now();
        let mut marks = Marks::default();
        for cooldown in [1, 2, 4, 4] {
            marks.failed(now, &TIMES);
            marks.failed(now + MS, &TIMES);
            let until = now + Duration::from_secs(cooldown);
            assert_eq!(marks.outlook().until, Some(until));
            now = until;
            marks.expire(now);
            assert!(
                marks.dispatched(now, &TIMES).is_some(),
                "the first request is the probe"
            );
            assert!(marks.dispatched(now, &TIMES).is_none(), "and there is one");
        }
        marks.answered();
        marks.failed(now, &TIMES);
        assert_eq!(marks.outlook().until, Some(now + TIMES.cooldown));
    }

    #[test]
    fn a_probe_holds_the_others_back_until_it_is_answered_given_up_or_too_old() {
        let start = Instant::now();
        let mut marks = Marks::default();
        marks.failed(start, &TIMES);
        let now = after(start, 1000);
        marks.expire(now);
        let first = marks.dispatched(now, &TIMES).unwrap();
        assert_eq!(marks.outlook().until, Some(after(start, 2000)));
        assert_eq!(
            marks.outlook().standing,
            Standing::Held,
            "callers wait for the outcome instead of being refused"
        );
        marks.probe_abandoned(first);
        assert_eq!(marks.outlook().standing, Standing::Suspect);

        let second = marks.dispatched(now, &TIMES).unwrap();
        marks.probe_abandoned(first);
        assert_eq!(
            marks.outlook().standing,
            Standing::Held,
            "the second is still on its way"
        );
        marks.expire(after(start, 2000));
        assert_eq!(marks.outlook().standing, Standing::Suspect);
        marks.dispatched(after(start, 2000), &TIMES).unwrap();
        marks.probe_abandoned(second);
        assert_eq!(
            marks.outlook().standing,
            Standing::Held,
            "and now the third is"
        );
    }

    #[test]
    fn a_worker_on_probation_that_cannot_be_probed_is_not_usable() {
        let start = Instant::now();
        let mut marks = Marks::default();
        marks.failed(start, &TIMES);
        marks.expire(after(start, 1000));
        marks.set_busy(Some(None));
        assert_eq!(marks.outlook().standing, Standing::Unusable);
        marks.set_busy(None);
        marks.refused(after(start, 1000), None, &TIMES);
        assert_eq!(marks.outlook().standing, Standing::Unusable);
        marks.answered();
        assert_eq!(marks.outlook().standing, Standing::Shed, "it has answered");
    }

    #[test]
    fn a_successor_inherits_what_is_said_of_the_id_only() {
        let start = Instant::now();
        let mut marks = Marks::default();
        marks.set_busy(Some(None));
        marks.drain();
        marks.refused(start, None, &TIMES);
        marks.failed(start, &TIMES);
        let bits = marks.for_successor().bits();
        assert_eq!(bits, Mark::Busy.bit() | Mark::Draining.bit());
    }
}
