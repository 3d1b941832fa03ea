//! A pool as its documentation has it, kept as plainly as can be: whoever asks
//! has everything worked out anew.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

/// Times in milliseconds.
pub const LEASE: u64 = 10;
pub const MAX_LEASE: u64 = 40;
pub const COOLDOWN: u64 = 8;
pub const MAX_COOLDOWN: u64 = 20;
pub const PROBE_TIMEOUT: u64 = 12;
pub const MAX_WAIT: u64 = 30;
pub const MAX_WAITING: usize = 3;

/// A connection to a worker: its id, and which of those that had it.
pub type Connection = (u8, u32);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    Fine,
    Down {
        until: u64,
        cooldown: u64,
    },
    Suspect {
        cooldown: u64,
    },
    Probed {
        until: u64,
        cooldown: u64,
        by: usize,
    },
    /// It takes requests, and the next failure excludes it.
    Parole {
        cooldown: u64,
        left: u8,
    },
}

/// What a worker's connection is like.
#[derive(Clone, Debug)]
pub struct Member {
    pub number: u32,
    pub lease: Option<u64>,
    pub reach: Reach,
    pub failing: Reach,
    /// The last 32 outcomes, the latest first, and whether each was a failure.
    pub outcomes: VecDeque<bool>,
    /// How long a success takes there.
    pub takes: Option<Duration>,
    /// Until when failures count as load, since the start.
    pub handicaps: Vec<Duration>,
    pub completed: u64,
}

impl Member {
    fn new(number: u32) -> Self {
        Self {
            number,
            lease: None,
            reach: Reach::Fine,
            failing: Reach::Fine,
            outcomes: VecDeque::new(),
            takes: None,
            handicaps: Vec::new(),
            completed: 0,
        }
    }

    /// Whether too many requests have failed.
    fn fails(&self) -> bool {
        let in_a_row = self.outcomes.iter().take_while(|failed| **failed).count();
        in_a_row >= 5 || self.outcomes.iter().filter(|failed| **failed).count() >= 16
    }

    fn outcome(&mut self, failed: bool) {
        self.outcomes.push_front(failed);
        self.outcomes.truncate(32);
    }

    pub fn succeeded(&mut self, now: u64) {
        if let Reach::Suspect { cooldown } | Reach::Probed { cooldown, .. } = self.failing.at(now) {
            self.failing = Reach::Parole { cooldown, left: 5 };
            self.outcomes.clear();
        }
        self.outcome(false);
        if let Reach::Parole { left, .. } = &mut self.failing {
            *left -= 1;
            if *left == 0 {
                self.failing = Reach::Fine;
            }
        }
    }

    pub fn failed(&mut self, now: u64, since: Option<u64>) {
        self.outcome(true);
        self.failing = match self.failing.at(now) {
            Reach::Fine if !self.fails() => Reach::Fine,
            failing => failing.excluded(now),
        };
        let takes = self.takes.unwrap_or(Duration::from_millis(COOLDOWN));
        let took = Duration::from_millis(since.map_or(0, |since| now - since));
        let counts = takes.saturating_sub(took);
        self.handicaps.push(Duration::from_millis(now) + counts);
    }
}

impl Reach {
    pub fn at(self, now: u64) -> Self {
        match self {
            Self::Down { until, cooldown }
            | Self::Probed {
                until, cooldown, ..
            } if until <= now => Self::Suspect { cooldown },
            reach => reach,
        }
    }

    pub fn excluded(self, now: u64) -> Self {
        let cooldown = match self {
            Self::Down { .. } => return self,
            Self::Fine => COOLDOWN,
            Self::Suspect { cooldown }
            | Self::Probed { cooldown, .. }
            | Self::Parole { cooldown, .. } => (cooldown * 2).min(MAX_COOLDOWN),
        };
        let until = now + cooldown;
        Self::Down { until, cooldown }
    }

    fn is_trusted(self) -> bool {
        matches!(self, Self::Fine | Self::Parole { .. })
    }

    fn is_down(self) -> bool {
        matches!(self, Self::Down { .. })
    }
}

/// What is said of an id, whoever has it.
#[derive(Clone, Debug, Default)]
pub struct Said {
    busy: Option<Option<u64>>,
    drains: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Parked,
    /// With a worker whose own service is not ready.
    Chosen(Connection),
    Sent(Connection),
    Answered(Connection),
    Over,
}

#[derive(Clone, Debug)]
pub struct Asking {
    pub phase: Phase,
    pub deadline: u64,
    pub asked: BTreeSet<u8>,
    pub has_place: bool,
    /// Since when it is with its worker, if that is watched.
    pub since: Option<u64>,
    /// The responses that had completed there when it came.
    pub before: u64,
    /// Its response says that it failed.
    pub has_failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    AllBusy,
    NoWorkers,
    NoneReachable,
    TooLong,
    TooMany,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Open,
    Held,
    Shed,
    Unusable,
}

/// What the workers did while a request was polled.
#[derive(Debug, Default)]
pub struct Seen {
    pub chosen: VecDeque<Connection>,
    pub sent: VecDeque<Connection>,
}

#[derive(Debug, Default)]
pub struct Plain {
    pub now: u64,
    pub limit: Option<usize>,
    /// Of all open ones the least loaded is chosen; otherwise of two.
    pub of_all: bool,
    said: BTreeMap<u8, Said>,
    pub members: BTreeMap<u8, Member>,
    /// What the discovery has said, and nobody has applied.
    pub unapplied: BTreeMap<u8, Option<u32>>,
    pub unready: BTreeSet<Connection>,
    pub broken: BTreeSet<Connection>,
    pub requests: Vec<Asking>,
}

impl Plain {
    pub fn new(limit: Option<usize>, of_all: bool) -> Self {
        Self {
            limit,
            of_all,
            ..Self::default()
        }
    }

    pub fn set_busy(&mut self, id: u8, busy: Option<Option<u64>>) {
        self.said.entry(id).or_default().busy = busy;
    }

    pub fn drains(&mut self, id: u8) -> &mut usize {
        &mut self.said.entry(id).or_default().drains
    }

    pub fn set_ready(&mut self, connection: Connection, ready: bool) {
        match ready {
            true => self.unready.remove(&connection),
            false => self.unready.insert(connection),
        };
    }

    pub fn break_service(&mut self, connection: Connection) {
        self.broken.insert(connection);
    }

    /// Applies what the discovery said.
    pub fn apply(&mut self) {
        for (id, number) in std::mem::take(&mut self.unapplied) {
            self.members.remove(&id);
            if let Some(number) = number {
                self.members.insert(id, Member::new(number));
            }
        }
    }

    pub fn has(&self, (id, number): Connection) -> bool {
        self.members
            .get(&id)
            .is_some_and(|member| member.number == number)
    }

    pub fn in_flight_of(&self, connection: Connection) -> usize {
        let on_it = |asking: &&Asking| match asking.phase {
            Phase::Chosen(it) | Phase::Sent(it) | Phase::Answered(it) => it == connection,
            Phase::Parked | Phase::Over => false,
        };
        self.requests.iter().filter(on_it).count()
    }

    pub fn in_flight(&self) -> usize {
        let on_any = |asking: &&Asking| !matches!(asking.phase, Phase::Parked | Phase::Over);
        self.requests.iter().filter(on_any).count()
    }

    pub fn waiting(&self) -> usize {
        self.requests
            .iter()
            .filter(|asking| asking.has_place)
            .count()
    }

    pub fn is_marked(&self, id: u8) -> bool {
        let ahead = |until: Option<u64>| until.is_some_and(|until| until > self.now);
        let busy = self.said.get(&id).and_then(|said| said.busy);
        let member = &self.members[&id];
        busy.is_some_and(|until| until.is_none() || ahead(until)) || ahead(member.lease)
    }

    pub fn is_draining(&self, id: u8) -> bool {
        self.said.get(&id).is_some_and(|said| said.drains > 0)
    }

    /// Whether, and how, the worker can be reached now.
    pub fn reach(&self, id: u8) -> Reach {
        self.members[&id].reach.at(self.now)
    }

    pub fn failing(&self, id: u8) -> Reach {
        self.members[&id].failing.at(self.now)
    }

    /// Most of those that can be reached are failing.
    pub fn ignores_failing(&self) -> bool {
        let ids = self.members.keys().copied();
        let reachable = ids.filter(|id| !self.is_draining(*id) && !self.reach(*id).is_down());
        let reachable: Vec<_> = reachable.collect();
        let failing = reachable
            .iter()
            .filter(|id| !self.failing(**id).is_trusted());
        2 * failing.count() > reachable.len()
    }

    /// What keeps requests from a worker that fails, or has failed.
    fn honoured(&self, id: u8) -> Reach {
        match self.ignores_failing() {
            false if !self.failing(id).is_trusted() => self.failing(id),
            _ => Reach::Fine,
        }
    }

    /// Whether a worker gets nothing, whoever asks.
    pub fn is_excluded(&self, id: u8) -> bool {
        let is_down = self.reach(id).is_down() || self.honoured(id).is_down();
        is_down || self.is_draining(id) || self.is_marked(id)
    }

    pub fn standing(&self, id: u8) -> Standing {
        let both = [self.reach(id), self.honoured(id)];
        let is_full = |limit| self.in_flight_of((id, self.members[&id].number)) >= limit;
        let is_full = self.limit.is_some_and(is_full);
        let is_known = both == [Reach::Fine; 2];
        if self.is_draining(id) || both.into_iter().any(Reach::is_down) {
            Standing::Unusable
        } else if self.is_marked(id) {
            match is_known {
                true => Standing::Shed,
                false => Standing::Unusable,
            }
        } else if both.iter().any(|it| matches!(it, Reach::Probed { .. })) {
            Standing::Held
        } else {
            match (is_full, is_known) {
                (false, _) => Standing::Open,
                (true, true) => Standing::Shed,
                (true, false) => Standing::Unusable,
            }
        }
    }

    /// The requests in flight, and the failures that count as such.
    pub fn load(&self, id: u8) -> usize {
        let member = &self.members[&id];
        let now = Duration::from_millis(self.now);
        let handicaps = member.handicaps.iter().filter(|until| **until > now);
        self.in_flight_of((id, member.number)) + handicaps.count()
    }

    /// A request is with a worker from here on.
    pub fn joins(&mut self, request: usize, (id, number): Connection) {
        let (reach, failing) = (self.reach(id), self.failing(id));
        let (now, member) = (self.now, self.members.get_mut(&id).unwrap());
        let is_troubled = member.outcomes.contains(&true);
        let is_watched = is_troubled || reach != Reach::Fine || failing != Reach::Fine;
        let probed = |it| match it {
            Reach::Suspect { cooldown } => Reach::Probed {
                until: now + PROBE_TIMEOUT,
                cooldown,
                by: request,
            },
            it => it,
        };
        (member.reach, member.failing) = (probed(reach), probed(failing));
        let before = member.completed;
        let asking = &mut self.requests[request];
        asking.phase = Phase::Chosen((id, number));
        asking.since = is_watched.then_some(now);
        asking.before = before;
    }

    /// Alive, usable and eligible workers.
    pub fn counts(&self) -> (u64, u64, u64) {
        let standings: Vec<_> = self.members.keys().map(|id| self.standing(*id)).collect();
        let count = |is: fn(&Standing) -> bool| standings.iter().copied().filter(is).count() as u64;
        let usable = count(|it| *it != Standing::Unusable);
        (
            standings.len() as u64,
            usable,
            usable - count(|it| *it == Standing::Shed),
        )
    }
}

/// The outcome of a request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Refused(Option<u64>),
    /// It could not be reached.
    Unreachable,
    /// The connection was lost.
    Lost,
    /// It took too long.
    Failed,
    Other,
    Answered,
    /// It answered with a failure.
    AnsweredBadly,
    /// The response of one that was answered is over.
    Completed,
}
