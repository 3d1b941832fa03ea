use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// What the running requests of an engine share: its throughput, which does
/// not grow any more once there are as many as fit into one batch.
///
/// With continuous batching (Yu et al., *Orca*, OSDI 2022) an engine works in
/// steps, and each step serves every running request. While the batch is small
/// a step takes the same time however many there are, since it is the weights
/// that have to be read; once the arithmetic is what takes the time, a step
/// grows with the batch (Agrawal et al., *Sarathi-Serve*, OSDI 2024, on
/// prefill and decode alike). As a formula:
///
/// ```text
/// step(running) = step(1) × max(1, running / batch)
/// ```
///
/// So every request runs at its full speed up to `batch` of them, and at
/// `batch / running` of it beyond. The memory for the KV cache is not part of
/// the model: an engine that had to evict and recompute would be slower still.
#[derive(Debug)]
pub struct Batch {
    ranks: Box<[Mutex<Clock>]>,
}

impl Batch {
    /// Each of the `ranks` serves `size` requests at full speed; without a
    /// rank there is one.
    pub fn new(ranks: u32, size: NonZeroUsize) -> Self {
        let now = Instant::now();
        let clock = || Mutex::new(Clock::new(size, now));
        Self {
            ranks: (0..ranks.max(1)).map(|_| clock()).collect(),
        }
    }

    /// One more request runs on `rank`, until the [`Share`] is dropped.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    pub fn enter(self: &Arc<Self>, rank: usize) -> Share {
        let entered = self.clock(rank).enter(Instant::now());
        Share {
            batch: Arc::clone(self),
            rank,
            entered,
        }
    }

    /// A panic cannot leave a clock half changed.
    fn clock(&self, rank: usize) -> MutexGuard<'_, Clock> {
        let clock = &self.ranks[rank];
        clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One running request's share of a [`Batch`].
#[derive(Debug)]
pub struct Share {
    batch: Arc<Batch>,
    rank: usize,
    /// By the clock of the rank.
    entered: Duration,
}

impl Share {
    /// How long to wait before asking again whether work is done that an
    /// engine of its own would have done `after` the request entered; `None`
    /// if it is done.
    pub fn wait(&self, after: Duration) -> Option<Duration> {
        let mut clock = self.batch.clock(self.rank);
        clock.wait(self.entered.saturating_add(after), Instant::now())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.batch.clock(self.rank).leave(Instant::now());
    }
}

/// A clock that goes as fast as each of the running requests is served.
#[derive(Debug)]
struct Clock {
    size: NonZeroUsize,
    running: usize,
    shown: Duration,
    at: Instant,
}

/// Timers are no finer.
const TICK: Duration = Duration::from_millis(1);

impl Clock {
    fn new(size: NonZeroUsize, now: Instant) -> Self {
        Self {
            size,
            running: 0,
            shown: Duration::ZERO,
            at: now,
        }
    }

    fn speed(&self) -> f64 {
        if self.running > self.size.get() {
            self.size.get() as f64 / self.running as f64
        } else {
            1.0
        }
    }

    fn read(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at);
        // Exact where nothing is shared.
        self.shown += if self.running > self.size.get() {
            passed.mul_f64(self.speed())
        } else {
            passed
        };
        self.at = self.at.max(now);
        self.shown
    }

    fn enter(&mut self, now: Instant) -> Duration {
        let entered = self.read(now);
        self.running += 1;
        entered
    }

    fn leave(&mut self, now: Instant) {
        self.read(now);
        self.running = self.running.saturating_sub(1);
    }

    /// At full speed the wait is the whole of it: the clock cannot become
    /// faster. Below that, requests that leave make it faster, so only half of
    /// the wait is named at a time, and who asks again is not late unless the
    /// speed has more than doubled meanwhile.
    fn wait(&mut self, until: Duration, now: Instant) -> Option<Duration> {
        let left = until.checked_sub(self.read(now))?;
        if left.is_zero() {
            return None;
        }
        let speed = self.speed();
        if speed == 1.0 {
            return Some(left);
        }
        let half = Duration::try_from_secs_f64(left.as_secs_f64() / speed / 2.0);
        Some(half.unwrap_or(left).max(left).max(TICK))
    }
}
