//! Which workers of a pool are open, kept together, and when that changes by
//! itself.
//!
//! A worker has a *row*. The open rows are the first ones of an order that is
//! read without a lock: what is read may be out of date by the changes that
//! come with the reading, and whoever chooses a worker asks the worker itself
//! before it gets the request. All changes are made under one lock, which is
//! taken under that of the worker and takes no other.

use super::grow::Grow;
use crate::{
    busy::{self, InFlight, Members, Outlook, Standing, Stands},
    random::below,
    sync::{AtomicU64, Mutex, Ordering, lock},
};
use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};
use tokio::time::Instant;

pub(super) struct Rows {
    /// The rows in order: the open ones first.
    order: Grow<AtomicU64>,
    open: AtomicU64,
    facts: Grow<Facts>,
    /// When the earliest end of a mark is due, in nanoseconds since `start`.
    next_end: AtomicU64,
    start: Instant,
    /// A worker with as many requests in flight is full.
    limit: u64,
    /// How long a worker that has come, or come back, is spared the load that
    /// the others have: until then it counts as if it had more and more of its
    /// own requests, and less and less of theirs.
    slow_start: Duration,
    members: Members,
    table: Mutex<Table>,
}

/// What a choice reads of a worker without a lock: aligned so that it is never
/// in two cache lines.
#[repr(align(32))]
pub(super) struct Facts {
    pub(super) in_flight: InFlight,
    /// Load that it is taken to have beside that.
    handicap: AtomicU64,
    weight: AtomicU64,
    key: AtomicU64,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            in_flight: InFlight::new(),
            handicap: AtomicU64::new(0),
            weight: AtomicU64::new(1),
            key: AtomicU64::new(0),
        }
    }
}

impl Facts {
    /// The requests in flight, and those that count as such.
    #[inline]
    pub(super) fn load(&self) -> u64 {
        self.in_flight.get() + self.handicap()
    }

    #[inline]
    pub(super) fn handicap(&self) -> u64 {
        self.handicap.load(Ordering::Relaxed)
    }

    /// How much of the load the worker takes, in relation to the others.
    #[inline]
    pub(super) fn weight(&self) -> u64 {
        self.weight.load(Ordering::Relaxed)
    }

    /// The hash of the worker's id.
    #[inline]
    pub(super) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Table {
    rows: Vec<Row>,
    free: Vec<u32>,
    /// When the marks of which rows end, in nanoseconds since the start. At
    /// most one entry a row counts: that of the time it is armed for.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    /// When handicaps end, of which rows, and of which of their workers.
    handicaps: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// Most workers are failing, and get requests all the same.
    ignores_failing: bool,
}

/// Small, because a mark that flips reads two of them.
struct Row {
    /// As what it is counted.
    counted: Option<Stands>,
    /// Where the worker stands; `None` while it is no member.
    stands: Option<Stands>,
    full: bool,
    /// It has been open, and lost no connection since.
    is_settled: bool,
    /// The handicaps that it has, and of how many workers it was the row.
    handicaps: u32,
    workers: u32,
    position: u32,
    /// In nanoseconds since the start, or [`NEVER`].
    armed: u64,
}

/// As many others are asked how loaded they are.
const SAMPLE: u32 = 16;

/// A worker has no more handicaps at once.
const MOST_HANDICAPS: u32 = 1024;

/// Nothing ends by itself.
const NEVER: u64 = u64::MAX;

impl Rows {
    pub(super) fn new(members: Members, limit: u64, slow_start: Duration) -> Self {
        Self {
            order: Grow::new(),
            open: AtomicU64::new(0),
            facts: Grow::new(),
            next_end: AtomicU64::new(NEVER),
            start: Instant::now(),
            limit,
            slow_start,
            members,
            table: Mutex::new(Table::default()),
        }
    }

    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    /// How many rows are open.
    #[inline]
    pub(super) fn open(&self) -> u32 {
        self.open.load(Ordering::Acquire) as u32
    }

    /// The row at a position below [`open`](Self::open).
    #[inline]
    pub(super) fn at(&self, position: u32) -> Option<u32> {
        let row = self.order.get(position)?.load(Ordering::Acquire);
        Some(row as u32)
    }

    #[inline]
    pub(super) fn facts(&self, row: u32) -> Option<&Facts> {
        self.facts.get(row)
    }

    /// The requests in flight on all rows, of workers that have left as well.
    pub(super) fn in_flight(&self) -> u64 {
        let rows = lock(&self.table).rows.len() as u32;
        let facts = (0..rows).filter_map(|row| self.facts.get(row));
        facts.map(|facts| facts.in_flight.get()).sum()
    }

    /// A row for a worker that joins; its seat gives it back.
    pub(super) fn allocate(&self, weight: u64, key: u64) -> u32 {
        let mut table = lock(&self.table);
        let row = table.free.pop().unwrap_or_else(|| {
            let row = table.rows.len() as u32;
            table.rows.push(Row {
                counted: None,
                stands: None,
                full: false,
                is_settled: false,
                handicaps: 0,
                workers: 0,
                position: row,
                armed: NEVER,
            });
            let order = self.order.ensure(row);
            order.store(u64::from(row), Ordering::Release);
            row
        });
        let facts = self.facts.ensure(row);
        facts.weight.store(weight, Ordering::Relaxed);
        facts.key.store(key, Ordering::Relaxed);
        row
    }

    /// When a mark may end next.
    #[inline]
    pub(super) fn next_end(&self) -> Option<Instant> {
        match self.next_end.load(Ordering::Acquire) {
            NEVER => None,
            nanos => Some(self.start + Duration::from_nanos(nanos)),
        }
    }

    /// The rows with a mark that may have ended by `now`. The caller has their
    /// workers look, and [arms](Self::arm) them anew.
    pub(super) fn take_due(&self, now: Instant) -> Vec<u32> {
        let now = self.nanos(now);
        let mut table = lock(&self.table);
        self.end_handicaps(&mut table, now);
        let mut due = Vec::new();
        while let Some(Reverse((end, row))) = table.ends.peek().copied() {
            if end > now {
                break;
            }
            table.ends.pop();
            let armed = &mut table.rows[row as usize].armed;
            if *armed == end {
                *armed = NEVER;
                due.push(row);
            }
        }
        self.publish_next_end(&table);
        due
    }

    /// Has the row be due at `until`, if it is not earlier. Whoever looked
    /// meanwhile did not see this end, and looks again.
    pub(super) fn arm(&self, row: u32, until: Option<Instant>) {
        let Some(until) = until else {
            return;
        };
        let mut table = lock(&self.table);
        if table.arm(row, self.nanos(until)) {
            self.publish_next_end(&table);
            drop(table);
            self.members.notifier().notify();
        }
    }

    /// An instant as nanoseconds since the start, [`NEVER`] excluded.
    fn nanos(&self, instant: Instant) -> u64 {
        let nanos = instant.saturating_duration_since(self.start).as_nanos();
        u64::try_from(nanos).unwrap_or(NEVER).min(NEVER - 1)
    }

    fn publish_next_end(&self, table: &Table) {
        let mark = table.ends.peek().map_or(NEVER, |Reverse((end, _))| *end);
        let handicap = table.handicaps.peek();
        let handicap = handicap.map_or(NEVER, |Reverse((end, ..))| *end);
        self.next_end.store(mark.min(handicap), Ordering::Release);
    }

    /// The worker of a row stands elsewhere.
    pub(super) fn moved(&self, row: u32, to: Option<Outlook>) {
        let mut table = lock(&self.table);
        table.rows[row as usize].stands = to.map(|outlook| outlook.stands);
        if let Some(until) = to.and_then(|outlook| outlook.until) {
            if table.arm(row, self.nanos(until)) {
                self.publish_next_end(&table);
            }
        }
        self.recount(&mut table, row);
        let ignores_failing = self.members.ignores_failing();
        if table.ignores_failing != ignores_failing {
            self.turn(&mut table, ignores_failing);
        }
    }

    /// The *failing* mark is ignored from here on, or honoured again.
    #[cold]
    fn turn(&self, table: &mut Table, ignores_failing: bool) {
        let was = std::mem::replace(&mut table.ignores_failing, ignores_failing);
        for row in 0..table.rows.len() as u32 {
            let stands = table.rows[row as usize].counted;
            let standing = |ignoring| stands.map(|stands| stands.at(ignoring));
            self.place(table, row, standing(was), standing(ignores_failing));
        }
    }

    /// Counts a row as what it is now, and keeps the open ones together.
    fn recount(&self, table: &mut Table, row: u32) {
        let this = &mut table.rows[row as usize];
        let full = this.full;
        let standing = |standing| match standing {
            Standing::Open if full => Standing::Shed,
            // It cannot be probed.
            Standing::Suspect if full => Standing::Unusable,
            standing => standing,
        };
        let is = this.stands.map(|stands| Stands {
            honoured: standing(stands.honoured),
            ignored: standing(stands.ignored),
            ..stands
        });
        let was = std::mem::replace(&mut this.counted, is);
        if was == is {
            return;
        }
        let ignoring = table.ignores_failing;
        let standing = |stands: Option<Stands>| stands.map(|stands| stands.at(ignoring));
        self.place(table, row, standing(was), standing(is));
        self.members.count(was, is);
    }

    /// Puts a row to the open ones, or to the others.
    fn place(&self, table: &mut Table, row: u32, was: Option<Standing>, is: Option<Standing>) {
        let is_open = |standing: Option<Standing>| standing.is_some_and(Standing::is_open);
        if is == Some(Standing::Open) {
            self.start_slowly(table, row);
        } else if matches!(is, None | Some(Standing::Unusable | Standing::Held)) {
            table.rows[row as usize].is_settled = false;
        }
        let open = self.open.load(Ordering::Relaxed);
        match (is_open(was), is_open(is)) {
            (false, true) => {
                self.swap(table, row, open as u32);
                self.open.store(open + 1, Ordering::Release);
            }
            (true, false) => {
                self.swap(table, row, open as u32 - 1);
                self.open.store(open - 1, Ordering::Release);
            }
            _ => {}
        }
    }

    /// Has a worker that has come, or come back, count as loaded as the least
    /// loaded of some others, and less so with the time.
    fn start_slowly(&self, table: &mut Table, row: u32) {
        if std::mem::replace(&mut table.rows[row as usize].is_settled, true) {
            return;
        }
        if self.slow_start.is_zero() {
            return;
        }
        let open = self.open();
        let positions = open.min(SAMPLE);
        if positions == 0 {
            return;
        }
        let start = below(open);
        let others = (0..positions).filter_map(|n| self.at((start + n) % open));
        let others = others.filter(|other| *other != row);
        let loads = others.filter_map(|other| self.facts(other).map(Facts::load));
        // A sick one may have any number.
        let Some(least) = loads.min() else {
            return;
        };
        let own = self.facts(row).map_or(0, Facts::load);
        let missing = least.saturating_sub(own).min(u64::from(MOST_HANDICAPS)) as u32;
        let now = Instant::now();
        for n in 1..=missing {
            self.add_handicap(table, row, now + self.slow_start * n / missing);
        }
    }

    fn add_handicap(&self, table: &mut Table, row: u32, until: Instant) {
        let until = self.nanos(until);
        let this = &mut table.rows[row as usize];
        let Some(facts) = self
            .facts
            .get(row)
            .filter(|_| this.handicaps < MOST_HANDICAPS)
        else {
            return;
        };
        this.handicaps += 1;
        facts.handicap.fetch_add(1, Ordering::Relaxed);
        let workers = this.workers;
        table.handicaps.push(Reverse((until, row, workers)));
        self.publish_next_end(table);
    }

    /// Takes back the handicaps that have ended.
    fn end_handicaps(&self, table: &mut Table, now: u64) {
        while let Some(Reverse((end, row, workers))) = table.handicaps.peek().copied() {
            if end > now {
                break;
            }
            table.handicaps.pop();
            let this = &mut table.rows[row as usize];
            if this.workers == workers {
                this.handicaps -= 1;
                if let Some(facts) = self.facts.get(row) {
                    facts.handicap.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Has a row change places with the one at a position.
    fn swap(&self, table: &mut Table, row: u32, position: u32) {
        let from = table.rows[row as usize].position;
        let Some(other) = self.at(position) else {
            return;
        };
        for (row, position) in [(row, position), (other, from)] {
            table.rows[row as usize].position = position;
            if let Some(place) = self.order.get(position) {
                place.store(u64::from(row), Ordering::Release);
            }
        }
    }
}

impl busy::Rows for Rows {
    #[inline]
    fn in_flight(&self, row: u32) -> Option<(&InFlight, u64)> {
        Some((&self.facts(row)?.in_flight, self.limit))
    }

    fn limit_crossed(&self, row: u32) {
        let mut table = lock(&self.table);
        let in_flight = self.facts(row).map_or(0, |facts| facts.in_flight.get());
        table.rows[row as usize].full = in_flight >= self.limit;
        self.recount(&mut table, row);
        drop(table);
        self.members.notifier().notify();
    }

    fn vacated(&self, row: u32) {
        let mut table = lock(&self.table);
        let this = &mut table.rows[row as usize];
        this.full = false;
        this.is_settled = false;
        this.handicaps = 0;
        this.workers = this.workers.wrapping_add(1);
        if let Some(facts) = self.facts(row) {
            facts.handicap.store(0, Ordering::Relaxed);
        }
        table.free.push(row);
    }

    fn ignores_failing(&self) -> bool {
        self.members.ignores_failing()
    }

    fn handicap(&self, row: u32, until: Instant) {
        if until <= Instant::now() {
            return;
        }
        let mut table = lock(&self.table);
        self.add_handicap(&mut table, row, until);
    }
}

impl Table {
    /// Whether the earliest end of all may be another one now.
    fn arm(&mut self, row: u32, until: u64) -> bool {
        let armed = &mut self.rows[row as usize].armed;
        if *armed <= until {
            return false;
        }
        *armed = until;
        self.ends.push(Reverse((until, row)));
        // Entries that were overtaken by earlier ones are left behind, and
        // are no more than those that count.
        if self.ends.len() > 2 * self.rows.len() + 64 {
            let rows = &self.rows;
            self.ends
                .retain(|Reverse((end, row))| rows[*row as usize].armed == *end);
        }
        true
    }
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;
    use crate::busy::Rows as _;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn outlook(standing: Standing, until: Option<Instant>) -> Option<Outlook> {
        let stands = Stands::both(standing);
        Some(Outlook { stands, until })
    }

    fn open(rows: &Rows) -> BTreeSet<u32> {
        (0..rows.open()).filter_map(|at| rows.at(at)).collect()
    }

    const STANDINGS: [Standing; 5] = [
        Standing::Open,
        Standing::Suspect,
        Standing::Held,
        Standing::Shed,
        Standing::Unusable,
    ];

    proptest! {
        #[test]
        fn the_open_rows_are_together_whatever_moves(
            moves in prop::collection::vec((0..20_u32, 0..6_usize), 0..200)
        ) {
            let rows = Rows::new(Members::new(), u64::MAX, Duration::ZERO);
            for row in 0..20 {
                prop_assert_eq!(rows.allocate(1, 0), row);
            }
            let mut model = [None; 20];
            for (row, to) in moves {
                let to = STANDINGS.get(to).copied();
                rows.moved(row, to.and_then(|to| outlook(to, None)));
                model[row as usize] = to;
                let is_open = |row: &u32| model[*row as usize].is_some_and(Standing::is_open);
                let expected: BTreeSet<u32> = (0..20).filter(is_open).collect();
                prop_assert_eq!(open(&rows), expected);
                let alive = model.iter().flatten().count() as u64;
                prop_assert_eq!(rows.members.alive(), alive);
            }
        }

        #[test]
        fn a_row_is_due_no_later_than_its_mark_ends_and_ends_stay_few(
            ends in prop::collection::vec((0..4_u32, 1..1000_u64), 1..300)
        ) {
            let rows = Rows::new(Members::new(), u64::MAX, Duration::ZERO);
            let start = rows.start;
            let at = |ms| start + Duration::from_millis(ms);
            (0..4).for_each(|_| { rows.allocate(1, 0); });
            let mut earliest = [None::<u64>; 4];
            for (row, end) in ends {
                rows.moved(row, outlook(Standing::Shed, Some(at(end))));
                let known = &mut earliest[row as usize];
                *known = Some(known.map_or(end, |known| known.min(end)));
            }
            prop_assert!(lock(&rows.table).ends.len() <= 2 * 4 + 64);
            let next = earliest.iter().flatten().min().copied();
            prop_assert_eq!(rows.next_end(), next.map(at));
            let mut due = rows.take_due(at(1000));
            due.sort_unstable();
            let armed = (0..4).filter(|row| earliest[*row as usize].is_some());
            prop_assert_eq!(due, armed.collect::<Vec<_>>());
            prop_assert_eq!(rows.next_end(), None);
        }
    }

    #[test]
    fn a_full_row_counts_as_busy_until_it_has_room() {
        let rows = Rows::new(Members::new(), 2, Duration::ZERO);
        let row = rows.allocate(1, 0);
        rows.moved(row, outlook(Standing::Open, None));
        rows.limit_crossed(row);
        assert_eq!(rows.open(), 1);
        lock(&rows.table).rows[0].full = true;
        rows.moved(row, outlook(Standing::Unusable, None));
        rows.moved(row, outlook(Standing::Open, None));
        assert_eq!((rows.open(), rows.members.usable()), (0, 1));
        rows.limit_crossed(row);
        assert_eq!(rows.open(), 1);
    }
}
