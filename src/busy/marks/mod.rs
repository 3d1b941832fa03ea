//! The marks of one worker: a pure state machine, `now` is an argument.

use super::{
    health::Outcomes,
    probation::{Probation, Probe},
};
use std::time::Duration;
use tokio::time::Instant;

/// One of the five reasons for which a worker gets no new request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// The monitor found its load over a threshold.
    Busy,
    /// It refused a request.
    Leased,
    /// A connection to it failed before any byte of a response.
    Unreachable,
    /// It answers, and what it answers are failures.
    Failing,
    /// The operator takes it out of service.
    Draining,
}

impl Mark {
    /// All of them, in the order of their bits.
    pub const ALL: [Self; 5] = [
        Self::Busy,
        Self::Leased,
        Self::Unreachable,
        Self::Failing,
        Self::Draining,
    ];

    /// The mark as a label: `busy`, `leased`, `unreachable`, `failing` or
    /// `draining`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Leased => "leased",
            Self::Unreachable => "unreachable",
            Self::Failing => "failing",
            Self::Draining => "draining",
        }
    }

    pub(crate) const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// The bits that exclude a worker from routing.
pub(crate) const EXCLUDED: u64 = 0b11111;
/// One request at a time is sent, to find out.
pub(crate) const SUSPECT: u64 = 1 << 5;
/// Some of its recent requests have failed: the others are watched.
pub(crate) const TROUBLED: u64 = 1 << 6;

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
    /// Unreachable, failing or draining, or on probation and not to be probed:
    /// there is no path to it.
    Unusable,
}

impl Standing {
    /// Whether a request may be sent now.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Suspect)
    }
}

/// Where a worker stands in a pool that honours the *failing* mark, and in one
/// that ignores it since most of its workers have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stands {
    pub(crate) honoured: Standing,
    pub(crate) ignored: Standing,
    /// It failed, and has not shown that it is well again.
    pub(crate) failing: bool,
    /// It is neither unreachable nor draining.
    pub(crate) reachable: bool,
}

impl Stands {
    #[inline]
    pub(crate) fn at(self, ignoring: bool) -> Standing {
        if ignoring {
            self.ignored
        } else {
            self.honoured
        }
    }

    #[cfg(all(test, not(tower_overload_loom)))]
    pub(crate) fn both(standing: Standing) -> Self {
        Self {
            honoured: standing,
            ignored: standing,
            failing: false,
            reachable: standing != Standing::Unusable,
        }
    }
}

/// The standing of a worker, and when it may change by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outlook {
    pub(crate) stands: Stands,
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
    /// How long a worker is busy by the same counts before it is asked.
    pub(crate) probe_after: Option<Duration>,
}

/// What is known of a worker beside a refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Witness {
    /// A request has completed there since the refused one was sent.
    pub(crate) completed_since: bool,
    /// No request of ours is there that could complete.
    pub(crate) idle: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Busy {
    /// `None` is a mark without an end of its own.
    until: Option<Instant>,
    /// When a request finds out whether it is still so.
    ask_at: Option<Instant>,
    /// That time has come.
    ask: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    busy: Option<Busy>,
    leased: Option<Instant>,
    reach: Probation,
    failing: Probation,
    outcomes: Outcomes,
    /// How long a successful request takes, if it is known.
    takes: Option<Duration>,
    probes: u64,
    /// How many say that it is to drain.
    draining: usize,
}

/// A failure counts as load for no longer.
const LONGEST_HANDICAP: Duration = Duration::from_secs(10);

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
        let bit = |on: bool, bit: u64| if on { bit } else { 0 };
        let suspect = |it: Probation| !it.is_trusted() && !it.is_down();
        let is_suspect =
            suspect(self.reach) || suspect(self.failing) || self.busy.is_some_and(|busy| busy.ask);
        bit(self.busy.is_some(), Mark::Busy.bit())
            | bit(self.leased.is_some(), Mark::Leased.bit())
            | bit(self.reach.is_down(), Mark::Unreachable.bit())
            | bit(self.failing.is_down(), Mark::Failing.bit())
            | bit(self.draining > 0, Mark::Draining.bit())
            | bit(is_suspect, SUSPECT)
            | bit(self.is_troubled(), TROUBLED)
    }

    /// Whether each of its requests is watched.
    fn is_troubled(&self) -> bool {
        !self.outcomes.is_clean() || self.failing.is_on_parole()
    }

    /// Whether a request may be sent, and if not, when that may change by itself.
    pub(crate) fn outlook(&self) -> Outlook {
        let stands = Stands {
            honoured: self.standing(self.failing),
            ignored: self.standing(Probation::Trusted),
            failing: !self.failing.is_trusted(),
            reachable: self.draining == 0 && !self.reach.is_down(),
        };
        let is_open = stands.honoured.is_open() && stands.ignored.is_open();
        let until = (!is_open).then(|| self.earliest_end()).flatten();
        Outlook { stands, until }
    }

    fn standing(&self, failing: Probation) -> Standing {
        let both = [self.reach, failing];
        let any = |is: fn(Probation) -> bool| both.into_iter().any(is);
        if self.draining > 0 || any(Probation::is_down) {
            return Standing::Unusable;
        }
        let is_asked = self.busy.is_some_and(|busy| busy.ask);
        if self.leased.is_some() || (self.busy.is_some() && !is_asked) {
            let is_known = both.into_iter().all(Probation::is_trusted);
            return if is_known {
                Standing::Shed
            } else {
                Standing::Unusable
            };
        }
        if any(Probation::is_probing) {
            Standing::Held
        } else if is_asked || any(Probation::is_suspect) {
            Standing::Suspect
        } else {
            Standing::Open
        }
    }

    fn earliest_end(&self) -> Option<Instant> {
        let busy = self.busy.map(|busy| {
            let ask_at = busy.ask_at.filter(|_| !busy.ask);
            [busy.until, ask_at].into_iter().flatten().min()
        });
        let ends = [
            busy.flatten(),
            self.leased,
            self.reach.until(),
            self.failing.until(),
        ];
        ends.into_iter().flatten().min()
    }

    /// Ends every mark whose time has come.
    pub(crate) fn expire(&mut self, now: Instant) {
        let over = |until: Instant| until <= now;
        if let Some(busy) = &mut self.busy {
            busy.ask |= busy.ask_at.is_some_and(over);
            if busy.until.is_some_and(over) {
                self.busy = None;
            }
        }
        self.leased = self.leased.filter(|until| !over(*until));
        self.reach.expire(now);
        self.failing.expire(now);
    }

    /// The worker is busy until then, says news of it.
    pub(crate) fn set_busy(&mut self, until: Option<Instant>, ask_at: Option<Instant>) {
        let ask = false;
        self.busy = Some(Busy { until, ask_at, ask });
    }

    /// It is still busy, by the same counts.
    pub(crate) fn keep_busy(&mut self, until: Option<Instant>, ask_at: Option<Instant>) {
        match &mut self.busy {
            Some(busy) => busy.until = until,
            None => self.set_busy(until, ask_at),
        }
    }

    pub(crate) fn clear_busy(&mut self) {
        self.busy = None;
    }

    pub(crate) fn drain(&mut self) {
        self.draining += 1;
    }

    pub(crate) fn undrain(&mut self) {
        self.draining = self.draining.saturating_sub(1);
    }

    /// The worker refused a request.
    ///
    /// What it names is when a client may come again. It knows of its queue
    /// only then, and has room as soon as a request completes: so a completion
    /// ends the lease, and where none can come the lease is not longer than
    /// one without a name.
    pub(crate) fn refused(
        &mut self,
        now: Instant,
        named: Option<Duration>,
        witness: Witness,
        times: &Times,
    ) {
        if witness.completed_since {
            return;
        }
        let longest = if witness.idle {
            times.lease
        } else {
            times.max_lease
        };
        let lease = named.map_or(times.lease, |named| named.min(longest));
        self.leased = self.leased.max(Some(now + lease));
    }

    /// A response of the worker that was no refusal has ended.
    pub(crate) fn completed(&mut self) {
        self.leased = None;
    }

    /// A connection failed before any byte of a response.
    pub(crate) fn failed_to_connect(&mut self, now: Instant, times: &Times) {
        self.reach.exclude(now, times);
    }

    /// A connection was lost before any byte of a response. Where others of
    /// ours run, and nothing was known against the worker's connections, it is
    /// a failure of this request. Returns how long that counts as load.
    pub(crate) fn lost(
        &mut self,
        now: Instant,
        is_alone: bool,
        took: Option<Duration>,
        times: &Times,
    ) -> Option<Duration> {
        if is_alone || !self.reach.is_trusted() {
            self.failed_to_connect(now, times);
            return None;
        }
        Some(self.failed(now, took, times))
    }

    /// The worker answered, or a connection to it was made: whatever it says,
    /// it can be reached.
    pub(crate) fn reached(&mut self) {
        self.reach = Probation::Trusted;
    }

    /// It is well, by what it has answered.
    pub(crate) fn recovered(&mut self) {
        self.reach = Probation::Trusted;
        self.failing = Probation::Trusted;
        self.outcomes = Outcomes::default();
    }

    /// Something says that the worker lives, and not that this side reaches it.
    pub(crate) fn seen_alive(&mut self, now: Instant, times: &Times) {
        // Asking for a connection costs nothing; a request that fails does.
        self.reach.shorten(now, times);
        self.failing.shorten_once(now, times);
    }

    /// A request has failed at the worker, after `took`. Returns how long it
    /// counts as load from now on: for as long as if it had been served.
    pub(crate) fn failed(
        &mut self,
        now: Instant,
        took: Option<Duration>,
        times: &Times,
    ) -> Duration {
        if self.outcomes.failed() || self.failing != Probation::Trusted {
            self.failing.exclude(now, times);
        }
        let takes = self.takes.unwrap_or(times.cooldown).min(LONGEST_HANDICAP);
        takes.saturating_sub(took.unwrap_or_default())
    }

    /// A request begins to be answered well: the first frame is there.
    pub(crate) fn begins_well(&mut self) {
        if self.failing.begins_well() {
            self.outcomes = Outcomes::default();
        }
    }

    /// A request was answered well, to its end.
    pub(crate) fn succeeded(&mut self) {
        self.begins_well();
        self.outcomes.succeeded();
        self.failing.ended_well();
    }

    /// A request that was answered well took so long.
    pub(crate) fn took(&mut self, took: Duration) {
        // An average over about the last eight.
        self.takes = Some(self.takes.map_or(took, |takes| (takes * 7 + took) / 8));
    }

    /// A request leaves for the worker; `Some` if it is one that finds out.
    pub(crate) fn dispatched(&mut self, now: Instant, times: &Times) -> Option<Probe> {
        if let Some(busy) = &mut self.busy {
            busy.ask = false;
            busy.ask_at = times.probe_after.map(|after| now + after);
        }
        let probe = Probe(self.probes);
        let reach = self.reach.probe(now, probe, times);
        let failing = self.failing.probe(now, probe, times);
        if !reach && !failing {
            return None;
        }
        self.probes = self.probes.wrapping_add(1);
        Some(probe)
    }

    /// A busy worker that is at work needs not be asked.
    pub(crate) fn at_work(&mut self, now: Instant, times: &Times) {
        if let Some(busy) = &mut self.busy {
            busy.ask = false;
            busy.ask_at = times.probe_after.map(|after| now + after);
        }
    }

    /// The probing request was given up without an answer.
    pub(crate) fn probe_abandoned(&mut self, given_up: Probe) {
        self.reach.give_up(given_up);
        self.failing.give_up(given_up);
    }

    /// A new process answers under the id: what the connections to the old one
    /// said is void.
    pub(crate) fn forget_connections(&mut self) {
        *self = self.for_successor();
    }

    /// The failures in a row, and among the last 32 outcomes.
    pub(crate) fn failures(&self) -> (u32, u32) {
        (self.outcomes.in_a_row(), self.outcomes.of_recent())
    }

    /// When a mark ends by itself.
    pub(crate) fn end(&self, mark: Mark) -> Option<Instant> {
        match mark {
            Mark::Busy => self.busy?.until,
            Mark::Leased => self.leased,
            Mark::Unreachable => self.reach.until(),
            Mark::Failing => self.failing.until(),
            Mark::Draining => None,
        }
    }
}

#[cfg(test)]
mod tests;
