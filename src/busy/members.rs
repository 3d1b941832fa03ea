//! Who is alive behind one balancer or pool, and how many of them could take a
//! request.

use super::{
    marks::{Outlook, Standing, Stands},
    notify::Notifier,
    worker::Watch,
};
use crate::{
    UnavailableReason,
    sync::{Arc, AtomicBool, AtomicU64, Ordering},
};
use std::fmt;

/// The membership of one [`WorkerPool`](crate::pool::WorkerPool) or one
/// [`BusyDiscover`](super::BusyDiscover): its living workers, counted by
/// whether they can take a request.
///
/// It can be read at any time, and is the handle that
/// [`BusyFilterLayer`](super::BusyFilterLayer) takes. Clones share the
/// membership.
///
/// A worker counts while it lives. One that was dropped because its service
/// failed counts as gone, without any event of the discovery.
#[derive(Clone)]
pub struct Members {
    inner: Arc<Inner>,
}

struct Inner {
    /// Open workers, those on probation, and those without room, read
    /// together: 21 bits each. Once as the *failing* mark is honoured, and once
    /// as it is ignored.
    counts: [AtomicU64; 2],
    /// The members that are failing, and those that can be reached, read
    /// together: 32 bits each.
    health: AtomicU64,
    /// It began or ended that the mark is ignored, and those who wait do not
    /// know it yet.
    has_turned: AtomicBool,
    /// Wakes those who wait for one failing worker when that changes.
    turns: Notifier,
    alive: AtomicU64,
    /// Counts the workers that ever joined.
    joins: AtomicU64,
    discovered: AtomicBool,
    notifier: Notifier,
}

const BITS: u32 = 21;
const MASK: u64 = (1 << BITS) - 1;

/// What a request gets when no worker is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some usable worker has no mark and is only not ready yet: wait for it.
    Wait,
    /// There are usable workers, and every one is busy, leased or full.
    Overloaded,
    /// There is no usable worker.
    Unavailable(UnavailableReason),
}

/// How many members stand where, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    open: u64,
    /// On probation, and a request can or does find out whether they are back.
    probation: u64,
    shed: u64,
}

impl Counts {
    fn unpack(packed: u64) -> Self {
        Self {
            open: packed & MASK,
            probation: packed >> BITS & MASK,
            shed: packed >> (2 * BITS) & MASK,
        }
    }
}

impl Members {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::new(Inner {
                counts: [AtomicU64::new(0), AtomicU64::new(0)],
                health: AtomicU64::new(0),
                has_turned: AtomicBool::new(false),
                turns: Notifier::new(),
                alive: AtomicU64::new(0),
                joins: AtomicU64::new(0),
                discovered: AtomicBool::new(false),
                notifier: Notifier::new(),
            }),
        }
    }

    #[inline]
    fn counts(&self) -> Counts {
        let counts = &self.inner.counts[usize::from(self.ignores_failing())];
        Counts::unpack(counts.load(Ordering::Acquire))
    }

    /// Whether more than half of the members that can be reached are failing.
    ///
    /// It is then more likely the requests, or something behind all of them,
    /// than the workers, and passing most of them over would bring the load of
    /// all to the few that are left: the *failing* mark keeps no request away
    /// while this lasts. (Envoy calls the same rule its panic threshold, and
    /// has it at a half too.)
    #[inline]
    pub fn ignores_failing(&self) -> bool {
        are_mostly_failing(self.inner.health.load(Ordering::Acquire))
    }

    /// Wakes those who wait for one failing worker when it begins or ends that
    /// the mark is ignored.
    pub(crate) fn turns(&self) -> &Notifier {
        &self.inner.turns
    }

    /// The workers that are alive.
    #[inline]
    pub fn alive(&self) -> u64 {
        self.inner.alive.load(Ordering::Acquire)
    }

    /// The workers that are neither unreachable, failing nor draining.
    pub fn usable(&self) -> u64 {
        let counts = self.counts();
        counts.open + counts.probation + counts.shed
    }

    /// The workers without any mark; at most one request at a time goes to
    /// those of them that are on probation.
    pub fn eligible(&self) -> u64 {
        let counts = self.counts();
        counts.open + counts.probation
    }

    /// The workers that take any number of requests.
    #[inline]
    pub(crate) fn open(&self) -> u64 {
        self.counts().open
    }

    /// What a request gets while no worker is ready, by the counts alone.
    ///
    /// A mark whose time is over counts until somebody has noticed, which a
    /// timer of those who wait makes them do.
    #[inline]
    pub fn verdict(&self) -> Verdict {
        let counts = self.counts();
        if counts.open + counts.probation != 0 {
            Verdict::Wait
        } else if counts.shed != 0 {
            Verdict::Overloaded
        } else if self.alive() == 0 {
            Verdict::Unavailable(UnavailableReason::NoWorkers)
        } else {
            Verdict::Unavailable(UnavailableReason::NoneReachable)
        }
    }

    /// How many workers ever joined: another number is another chance.
    pub(crate) fn joins(&self) -> u64 {
        self.inner.joins.load(Ordering::Acquire)
    }

    /// Whether the discovery has answered at all.
    pub(crate) fn discovered(&self) -> bool {
        self.inner.discovered.load(Ordering::Acquire)
    }

    pub(crate) fn set_discovered(&self) {
        if !self.discovered() && !self.inner.discovered.swap(true, Ordering::AcqRel) {
            self.notifier().notify();
        }
    }

    /// Wakes those who wait for a worker.
    #[inline]
    pub(crate) fn notifier(&self) -> &Notifier {
        &self.inner.notifier
    }

    /// A worker joins, stands elsewhere, or leaves.
    pub(crate) fn count(&self, from: Option<Stands>, to: Option<Stands>) {
        match (from, to) {
            (None, Some(_)) => {
                self.inner.joins.fetch_add(1, Ordering::AcqRel);
                self.inner.alive.fetch_add(1, Ordering::AcqRel);
            }
            (Some(_), None) => {
                self.inner.alive.fetch_sub(1, Ordering::AcqRel);
            }
            _ => {}
        }
        // All counts change in one step; their sum never borrows across the
        // bits of one for longer than this one operation.
        let add = |to: &AtomicU64, change: u64| {
            if change != 0 {
                to.fetch_add(change, Ordering::AcqRel);
            }
        };
        let change = |weight: fn(Stands) -> u64| {
            let weight = |stands: Option<Stands>| stands.map_or(0, weight);
            weight(to).wrapping_sub(weight(from))
        };
        let [honoured, ignored] = &self.inner.counts;
        add(honoured, change(|stands| weight(stands.honoured)));
        add(ignored, change(|stands| weight(stands.ignored)));
        let change = change(health);
        if change != 0 {
            let was = self.inner.health.fetch_add(change, Ordering::AcqRel);
            if are_mostly_failing(was) != are_mostly_failing(was.wrapping_add(change)) {
                self.inner.has_turned.store(true, Ordering::Release);
            }
        }
    }
}

const fn weight(standing: Standing) -> u64 {
    match standing {
        Standing::Open => 1,
        Standing::Suspect | Standing::Held => 1 << BITS,
        Standing::Shed => 1 << (2 * BITS),
        Standing::Unusable => 0,
    }
}

/// Of a `health`, more than half.
const fn are_mostly_failing(health: u64) -> bool {
    2 * (health >> 32) > health & u32::MAX as u64
}

fn health(stands: Stands) -> u64 {
    if stands.reachable {
        u64::from(stands.failing) << 32 | 1
    } else {
        0
    }
}

impl Watch for Members {
    fn moved(&self, from: Option<Outlook>, to: Option<Outlook>) {
        self.count(
            from.map(|outlook| outlook.stands),
            to.map(|outlook| outlook.stands),
        );
    }

    fn touched(&self) {
        let has_turned = &self.inner.has_turned;
        if has_turned.load(Ordering::Acquire) && has_turned.swap(false, Ordering::AcqRel) {
            self.turns().notify();
        }
        self.notifier().notify();
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members")
            .field("alive", &self.alive())
            .field("usable", &self.usable())
            .field("eligible", &self.eligible())
            .finish()
    }
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_waits_only_for_who_may_still_take_the_request() {
        let members = Members::new();
        let no = Verdict::Unavailable;
        assert_eq!(members.verdict(), no(UnavailableReason::NoWorkers));
        let mut at = None;
        for (standing, verdict) in [
            (Standing::Unusable, no(UnavailableReason::NoneReachable)),
            (Standing::Shed, Verdict::Overloaded),
            (Standing::Held, Verdict::Wait),
            (Standing::Suspect, Verdict::Wait),
            (Standing::Open, Verdict::Wait),
        ] {
            members.count(at, Some(Stands::both(standing)));
            at = Some(Stands::both(standing));
            assert_eq!(members.verdict(), verdict, "{standing:?}");
        }
        assert_eq!((members.alive(), members.open()), (1, 1));
        members.count(at, None);
        assert_eq!(members.verdict(), no(UnavailableReason::NoWorkers));
        assert_eq!(members.joins(), 1);
    }

    #[test]
    fn a_hundred_thousand_of_each_are_counted() {
        let members = Members::new();
        for _ in 0..100_000 {
            for standing in [Standing::Open, Standing::Held, Standing::Shed] {
                members.count(None, Some(Stands::both(standing)));
            }
        }
        assert_eq!((members.usable(), members.eligible()), (300_000, 200_000));
        assert_eq!(members.open(), 100_000);
    }
}
