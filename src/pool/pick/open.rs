//! What a choice sees of the workers.

use crate::{busy::Trail, pool::member::Member, random::below};
use std::{fmt, sync::Arc};

/// Where the open workers of a pool are.
pub(in crate::pool) trait Table<Req> {
    /// How many there are now.
    fn open(&self) -> u32;
    /// The one at a position, unless it has just left.
    fn candidate(&self, position: u32) -> Option<Candidate<Req>>;
    /// Its requests in flight, its weight, and the hash of its id.
    fn facts(&self, position: u32) -> Option<(u64, u64, u64)>;
}

/// The workers that take requests now.
///
/// Their order means nothing, and changes.
pub struct OpenWorkers<'a, Req> {
    source: Source<'a, Req>,
    len: u32,
}

enum Source<'a, Req> {
    All(&'a dyn Table<Req>),
    Some(Vec<Candidate<Req>>),
}

/// As many workers that a request has not been to are looked for.
const MOST_UNASKED: u32 = 64;

impl<'a, Req> OpenWorkers<'a, Req> {
    pub(in crate::pool) fn all(table: &'a dyn Table<Req>) -> Self {
        Self {
            len: table.open(),
            source: Source::All(table),
        }
    }

    /// Those that a request has not been to, or all if it has been to all.
    /// Looks from a random one on until it has found 64.
    pub(in crate::pool) fn unasked(table: &'a dyn Table<Req>, trail: &Trail) -> Self {
        let len = table.open();
        let start = below(len);
        let positions = (0..len).map(|n| (start + n) % len);
        let unasked = positions
            .filter_map(|position| table.candidate(position))
            .filter(|candidate| !trail.has(candidate.name()));
        let some: Vec<_> = unasked.take(MOST_UNASKED as usize).collect();
        if some.is_empty() {
            return Self::all(table);
        }
        Self {
            len: some.len() as u32,
            source: Source::Some(some),
        }
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The worker at a position below [`len`](Self::len), unless it has just
    /// closed. Takes a short lock of its own worker.
    pub fn get(&self, position: u32) -> Option<Candidate<Req>> {
        // Those after the open ones are the others.
        if position >= self.len {
            return None;
        }
        match &self.source {
            Source::All(table) => table.candidate(position),
            Source::Some(some) => some.get(position as usize).cloned(),
        }
    }

    /// The requests in flight of the worker at a position, and those that count
    /// as such, divided by its weight; `None` as for [`get`](Self::get). Takes no lock.
    pub fn in_flight(&self, position: u32) -> Option<f64> {
        let (in_flight, weight, _) = self.facts(position)?;
        Some(per_weight(in_flight, weight))
    }

    /// A random position; 0 if there is no worker.
    pub fn random(&self) -> u32 {
        below(self.len)
    }

    pub(super) fn facts(&self, position: u32) -> Option<(u64, u64, u64)> {
        match &self.source {
            Source::All(table) => table.facts(position),
            Source::Some(some) => some.get(position as usize).map(Candidate::facts),
        }
    }
}

pub(super) fn per_weight(load: u64, weight: u64) -> f64 {
    load as f64 / weight.max(1) as f64
}

impl<Req> fmt::Debug for OpenWorkers<'_, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenWorkers")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// One open worker.
pub struct Candidate<Req> {
    pub(in crate::pool) member: Arc<Member<Req>>,
}

impl<Req> Candidate<Req> {
    /// The worker's id, as it is displayed.
    pub fn name(&self) -> &str {
        self.member.seat.worker().label()
    }

    /// Its requests in flight: those that it works on, and those that wait for
    /// it to become ready.
    pub fn in_flight(&self) -> u64 {
        self.member.watch.in_flight()
    }

    /// The [load](crate::load::WorkerLoad) that is kept beside the worker; without
    /// one, its requests in flight.
    pub fn load(&self) -> u64 {
        let load = self.member.load.as_ref();
        load.map_or_else(|| self.in_flight(), |load| load.load())
    }

    /// How many requests the worker is taken to have beside those that it has:
    /// one for each that failed a short while ago, and some while it is
    /// [started slowly](crate::pool::WorkerPoolBuilder::slow_start).
    pub fn handicap(&self) -> u64 {
        self.member.watch.handicap()
    }

    /// How much the worker takes, in relation to the others.
    pub fn weight(&self) -> u64 {
        self.member.weight
    }

    fn facts(&self) -> (u64, u64, u64) {
        (self.member.watch.load(), self.weight(), self.member.key)
    }
}

impl<Req> Clone for Candidate<Req> {
    fn clone(&self) -> Self {
        Self {
            member: self.member.clone(),
        }
    }
}

impl<Req> fmt::Debug for Candidate<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("name", &self.name())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
