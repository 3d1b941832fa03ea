//! A pool as its documentation has it, kept as plainly as can be: whoever asks
//! has everything worked out anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
}

/// What a worker's connection is like.
#[derive(Clone, Debug)]
pub struct Member {
    pub number: u32,
    pub lease: Option<u64>,
    pub named: Option<u64>,
    pub reach: Reach,
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
                let member = Member {
                    number,
                    lease: None,
                    named: None,
                    reach: Reach::Fine,
                };
                self.members.insert(id, member);
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
        busy.is_some_and(|until| until.is_none() || ahead(until))
            || ahead(member.lease)
            || ahead(member.named)
    }

    pub fn is_draining(&self, id: u8) -> bool {
        self.said.get(&id).is_some_and(|said| said.drains > 0)
    }

    /// Whether, and how, the worker can be reached now.
    pub fn reach(&self, id: u8) -> Reach {
        match self.members[&id].reach {
            Reach::Down { until, cooldown }
            | Reach::Probed {
                until, cooldown, ..
            } if until <= self.now => Reach::Suspect { cooldown },
            reach => reach,
        }
    }

    pub fn standing(&self, id: u8) -> Standing {
        let reach = self.reach(id);
        let is_full = |limit| self.in_flight_of((id, self.members[&id].number)) >= limit;
        let is_down = matches!(reach, Reach::Down { .. }) || self.is_draining(id);
        match (reach, self.is_marked(id)) {
            _ if is_down => Standing::Unusable,
            (Reach::Fine, true) => Standing::Shed,
            (_, true) => Standing::Unusable,
            (Reach::Probed { .. }, _) => Standing::Held,
            (Reach::Fine, _) if self.limit.is_some_and(is_full) => Standing::Shed,
            (_, _) if self.limit.is_some_and(is_full) => Standing::Unusable,
            _ => Standing::Open,
        }
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
    Failed,
    Other,
    Answered,
    /// The response of one that was answered is over.
    Completed,
}
