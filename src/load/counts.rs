//! The load of one worker as numbers that can be read at any time, without a
//! lock: what a choice among many workers compares.

use super::rank::{Clock, Moment};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// The load of one worker, in a unit of the application's, such as tokens.
///
/// A [`WorkerPool`](crate::pool::WorkerPool) reads it at each choice, so it
/// should be an atomic that somebody else keeps up to date, as [`WorkerCounts`]
/// are. Any `Fn() -> u64` is one.
pub trait WorkerLoad<Req>: Send + Sync {
    /// The load as far as it is known.
    fn load(&self) -> u64;

    /// A request is sent to the worker. An implementation may count it until
    /// the known load includes it; the default does not.
    fn sent(&self, _: &Req) {}
}

impl<Req, F> WorkerLoad<Req> for F
where
    F: Fn() -> u64 + Send + Sync,
{
    fn load(&self) -> u64 {
        self()
    }
}

impl<Req> WorkerLoad<Req> for Box<dyn WorkerLoad<Req>> {
    fn load(&self) -> u64 {
        (**self).load()
    }

    fn sent(&self, request: &Req) {
        (**self).sent(request);
    }
}

/// The counts of one worker, over all its ranks: a handle that is kept up to
/// date by the [`LoadTracker`](super::tracker::LoadTracker) or the
/// [`WorkerMonitor`](super::WorkerMonitor) that made it.
///
/// Reading one costs two atomic loads, and a look at the clock if counts of
/// this kind age and there is one. Clones are the same counts.
///
/// ```
/// use http::Request;
/// use tower_overload::{
///     BusySet,
///     busy::roster,
///     load::{WorkerCounts, WorkerMonitor, tracker::{Cost, LoadTracker}},
///     pool::{WorkerPool, WorkerPoolBuilder, pick::LeastLoaded},
/// };
///
/// # type Client = tower::util::BoxCloneSyncService<Request<()>, http::Response<()>, std::io::Error>;
/// let tracker = LoadTracker::new(WorkerMonitor::new(), |_: &Request<()>| Cost::new(100, 7));
/// let (roster, changes) = roster::<String, Client>();
/// // The worker with the fewest prompt tokens in prefill.
/// let pool: WorkerPool<_, Request<()>> = WorkerPoolBuilder::new(BusySet::new())
///     .pick(LeastLoaded::of_all().by_load())
///     .load(move |id: &String| tracker.counts(id.clone()).by(WorkerCounts::prefill_tokens))
///     .build(changes);
/// ```
#[derive(Clone)]
pub struct WorkerCounts {
    inner: Arc<Inner>,
    /// Keeps who reports them.
    owner: Option<Arc<dyn Owner>>,
}

/// Anything that is kept for as long as a handle lives.
pub(super) trait Owner: Send + Sync {}

impl<T: Send + Sync> Owner for T {}

struct Inner {
    prefill_tokens: AtomicU64,
    decode_blocks: AtomicU64,
    /// How often they were reported.
    reports: AtomicU64,
    /// A [`Moment`]: they say nothing from then on.
    good_until: AtomicU64,
    /// How long a report is good.
    good_for: Option<Duration>,
    clock: Clock,
}

impl WorkerCounts {
    pub(super) fn new(clock: Clock, good_for: Option<Duration>) -> Self {
        Self {
            inner: Arc::new(Inner {
                prefill_tokens: AtomicU64::new(0),
                decode_blocks: AtomicU64::new(0),
                reports: AtomicU64::new(0),
                good_until: AtomicU64::new(Moment::FOREVER.bits()),
                good_for,
                clock,
            }),
            owner: None,
        }
    }

    pub(super) fn owned_by(mut self, owner: Arc<dyn Owner>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Prompt tokens that wait for prefill or are in it; 0 if that is not known
    /// or not known any more.
    pub fn prefill_tokens(&self) -> u64 {
        self.good(&self.inner.prefill_tokens)
    }

    /// KV blocks in use; 0 if that is not known or not known any more. Where a
    /// worker has two counts of them, the larger one.
    pub fn decode_blocks(&self) -> u64 {
        self.good(&self.inner.decode_blocks)
    }

    fn good(&self, count: &AtomicU64) -> u64 {
        let inner = &*self.inner;
        let count = count.load(Ordering::Acquire);
        if count == 0 {
            return 0;
        }
        let good_until = Moment::from_bits(inner.good_until.load(Ordering::Acquire));
        let is_good = good_until == Moment::FOREVER
            || !good_until.is_over(inner.clock.moment(Instant::now()));
        if is_good { count } else { 0 }
    }

    /// These counts, read by `read`, as a load to choose by.
    pub fn by(&self, read: fn(&Self) -> u64) -> LoadBy {
        LoadBy {
            counts: self.clone(),
            read,
        }
    }

    pub(super) fn report(&self, prefill_tokens: u64, decode_blocks: u64, good_until: Moment) {
        let inner = &*self.inner;
        inner.good_until.store(good_until.bits(), Ordering::Release);
        inner
            .prefill_tokens
            .store(prefill_tokens, Ordering::Release);
        inner.decode_blocks.store(decode_blocks, Ordering::Release);
        inner.reports.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether only those who report them have them.
    pub(super) fn is_unread(&self, reporters: usize) -> bool {
        Arc::strong_count(&self.inner) <= reporters
    }
}

impl fmt::Debug for WorkerCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerCounts")
            .field("prefill_tokens", &self.prefill_tokens())
            .field("decode_blocks", &self.decode_blocks())
            .finish_non_exhaustive()
    }
}

/// One of the [`WorkerCounts`], as a [`WorkerLoad`].
#[derive(Clone, Debug)]
pub struct LoadBy {
    counts: WorkerCounts,
    read: fn(&WorkerCounts) -> u64,
}

impl LoadBy {
    /// Adds to counts that are reported now and then what was sent since: each
    /// request counts with its `cost`, in the same unit, until the next report
    /// of this worker, and for no longer than a report is good.
    ///
    /// Reports come once a second or so, and without this all requests of that
    /// second go to the worker that was the least loaded at its beginning.
    /// Counts of a tracker include each request at once and need it not.
    pub fn and_sent<C>(self, cost: C) -> WithSent<C> {
        WithSent {
            load: self,
            cost,
            sent: AtomicU64::new(0),
            since: AtomicU64::new(0),
            good_until: AtomicU64::new(0),
        }
    }

    fn known(&self) -> u64 {
        (self.read)(&self.counts)
    }
}

impl<Req> WorkerLoad<Req> for LoadBy {
    fn load(&self) -> u64 {
        self.known()
    }
}

/// A reported load, and what was sent since: see [`LoadBy::and_sent`].
pub struct WithSent<C> {
    load: LoadBy,
    cost: C,
    sent: AtomicU64,
    /// The reports that there were when `sent` began.
    since: AtomicU64,
    good_until: AtomicU64,
}

impl<C> WithSent<C> {
    fn reports(&self) -> u64 {
        self.load.counts.inner.reports.load(Ordering::Acquire)
    }

    fn is_over(&self, now: impl FnOnce() -> Moment) -> bool {
        let good_until = Moment::from_bits(self.good_until.load(Ordering::Acquire));
        self.since.load(Ordering::Acquire) != self.reports()
            || good_until != Moment::FOREVER && good_until.is_over(now())
    }

    fn now(&self) -> Moment {
        self.load.counts.inner.clock.moment(Instant::now())
    }
}

impl<Req, C> WorkerLoad<Req> for WithSent<C>
where
    C: Fn(&Req) -> u64 + Send + Sync,
{
    fn load(&self) -> u64 {
        let known = self.load.known();
        match self.sent.load(Ordering::Acquire) {
            0 => known,
            _ if self.is_over(|| self.now()) => known,
            sent => known.saturating_add(sent),
        }
    }

    fn sent(&self, request: &Req) {
        let cost = (self.cost)(request);
        let now = self.now();
        if self.is_over(|| now) {
            // Of two that begin anew at once one may be lost: it is a hint
            // until the next report.
            let good_until = now.plus(self.load.counts.inner.good_for);
            self.good_until.store(good_until.bits(), Ordering::Release);
            self.since.store(self.reports(), Ordering::Release);
            self.sent.store(cost, Ordering::Release);
        } else {
            let add = |sent: u64| Some(sent.saturating_add(cost));
            let _ = self
                .sent
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        }
    }
}

impl<C> fmt::Debug for WithSent<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithSent")
            .field("known", &self.load.known())
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tower_overload_loom)))]
mod tests {
    use super::*;

    fn counts(good_for: Option<Duration>) -> (WorkerCounts, Clock) {
        let clock = Clock::starting(Instant::now());
        (WorkerCounts::new(clock, good_for), clock)
    }

    #[tokio::test(start_paused = true)]
    async fn counts_say_nothing_once_their_report_is_stale() {
        let good_for = Some(Duration::from_secs(30));
        let (counts, clock) = counts(good_for);
        counts.report(5, 7, clock.moment(Instant::now()).plus(good_for));
        assert_eq!((counts.prefill_tokens(), counts.decode_blocks()), (5, 7));
        tokio::time::advance(Duration::from_millis(29_999)).await;
        assert_eq!(counts.decode_blocks(), 7);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!((counts.prefill_tokens(), counts.decode_blocks()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_counts_until_the_next_report_or_until_it_is_old() {
        let good_for = Some(Duration::from_secs(30));
        let (counts, clock) = counts(good_for);
        let good_until = || clock.moment(Instant::now()).plus(good_for);
        let load = counts
            .by(WorkerCounts::prefill_tokens)
            .and_sent(|cost: &u64| *cost);
        let known = || WorkerLoad::<u64>::load(&load);
        load.sent(&3);
        load.sent(&4);
        assert_eq!(known(), 7);
        counts.report(100, 0, good_until());
        assert_eq!(known(), 100, "the report says it");
        load.sent(&5);
        assert_eq!(known(), 105);
        load.sent(&u64::MAX);
        assert_eq!(known(), u64::MAX);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(
            known(),
            0,
            "a worker that never reports is not passed over for ever"
        );
        load.sent(&6);
        assert_eq!(known(), 6);
    }
}
