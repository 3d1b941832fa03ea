//! The least loaded worker, of some or of all.

use super::{Candidate, OpenWorkers, Pick, open::per_weight};
use crate::random::two_below;

/// The least loaded of `d` workers at random, or of all of them.
///
/// Two are enough to keep the longest queue short (Mitzenmacher, "The power of
/// two choices in randomized load balancing", 2001); all of them are better
/// where the load says nearly all about the time to the first token, as prompt
/// tokens do, and cost a look at each.
///
/// Loads are compared with one more request, per
/// [weight](super::Candidate::weight). Of equals, the one that was looked at
/// first is chosen, from a random one on. Of `n` workers, one is among two at
/// random with a chance of 2 in `n`, so that is the largest share that a weight
/// can bring it; of all, there is no such bound.
#[derive(Clone, Copy, Debug)]
pub struct LeastLoaded {
    of: u32,
    by_load: bool,
}

impl LeastLoaded {
    /// Looks at all open workers.
    ///
    /// Costs a lock of each worker when it goes [by load](Self::by_load), and
    /// two loads of atomics otherwise.
    pub const fn of_all() -> Self {
        Self::of(u32::MAX)
    }

    /// Looks at `d` open workers, at one if `d` is 0. From three on they are
    /// drawn one by one, so that one may be drawn twice.
    pub const fn of(d: u32) -> Self {
        Self {
            of: if d == 0 { 1 } else { d },
            by_load: false,
        }
    }

    /// Compares the [load](crate::load::WorkerLoad) that is kept beside each worker
    /// (default: the requests in flight). What a worker is taken to have beside
    /// that, its [handicap](super::Candidate::handicap), counts as much as
    /// requests do on average among those that are compared.
    #[must_use]
    pub const fn by_load(mut self) -> Self {
        self.by_load = true;
        self
    }

    fn loaded<Req>(self, workers: &OpenWorkers<'_, Req>, at: u32) -> Option<Loaded> {
        if self.by_load {
            let candidate = workers.get(at)?;
            Some(Loaded {
                at,
                load: candidate.load(),
                in_flight: candidate.in_flight(),
                handicap: candidate.handicap(),
                weight: candidate.weight(),
            })
        } else {
            let (load, weight, _) = workers.facts(at)?;
            Some(Loaded {
                at,
                load,
                in_flight: 0,
                handicap: 0,
                weight,
            })
        }
    }

    fn least<Req>(
        self,
        workers: &OpenWorkers<'_, Req>,
        positions: impl Iterator<Item = u32>,
    ) -> Option<u32> {
        let mut seen = Seen::default();
        let mut least: Option<Loaded> = None;
        for loaded in positions.filter_map(|at| self.loaded(workers, at)) {
            seen.add(&loaded);
            let is_less = |least: &Loaded| seen.load_of(&loaded) < seen.load_of(least);
            if least.as_ref().is_none_or(is_less) {
                least = Some(loaded);
            }
        }
        Some(least?.at)
    }
}

/// A worker that is compared.
struct Loaded {
    at: u32,
    load: u64,
    in_flight: u64,
    handicap: u64,
    weight: u64,
}

/// What the workers that were looked at have in all.
#[derive(Default)]
struct Seen {
    load: u64,
    requests: u64,
}

impl Seen {
    fn add(&mut self, loaded: &Loaded) {
        self.load = self.load.saturating_add(loaded.load);
        self.requests = self.requests.saturating_add(loaded.in_flight);
    }

    /// The load of a worker with one more request, per weight.
    fn load_of(&self, loaded: &Loaded) -> f64 {
        let of_request = (self.load / self.requests.max(1)).max(1);
        let handicap = loaded.handicap.saturating_mul(of_request);
        let load = loaded.load.saturating_add(handicap).saturating_add(1);
        per_weight(load, loaded.weight)
    }
}

impl<Req> Pick<Req> for LeastLoaded {
    fn pick(&self, _: &Req, workers: &OpenWorkers<'_, Req>) -> Option<Candidate<Req>> {
        let len = workers.len();
        let chosen = if self.of >= len {
            let start = workers.random();
            self.least(workers, (0..len).map(|n| (start + n) % len))
        } else if self.of == 2 {
            let (one, other) = two_below(len);
            self.least(workers, [one, other].into_iter())
        } else {
            self.least(workers, (0..self.of).map(|_| workers.random()))
        };
        workers.get(chosen?)
    }
}

/// The row of the lesser loaded of two positions at random among `len`, which
/// is not 0. `facts` are the row at a position, its load and its weight.
#[inline]
pub(in crate::pool) fn two_of(
    len: u32,
    facts: impl Fn(u32) -> Option<(u32, u64, u64)>,
) -> Option<u32> {
    let (one, other) = if len == 1 { (0, 0) } else { two_below(len) };
    match (facts(one), facts(other)) {
        (Some((one, load, weight)), Some((other, others_load, others_weight))) => {
            let is_other = is_less((others_load, others_weight), (load, weight));
            Some(if is_other { other } else { one })
        }
        (one, other) => one.or(other).map(|(row, ..)| row),
    }
}

/// Whether `(load, weight)` is less per weight than the other one, with the
/// request that is to be added.
#[inline]
fn is_less(one: (u64, u64), other: (u64, u64)) -> bool {
    if one.1 == other.1 {
        return one.0 < other.0;
    }
    let product = |load: u64, weight: u64| u128::from(load + 1) * u128::from(weight);
    product(one.0, other.1) < product(other.0, one.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_compared_per_weight() {
        assert!(is_less((0, 1), (1, 1)));
        assert!(!is_less((1, 1), (1, 1)));
        assert!(is_less((3, 4), (1, 1)), "four times the worker");
        assert!(!is_less((8, 4), (1, 1)));
        assert!(is_less((0, u64::MAX), (u64::MAX - 1, 1)));
    }

    #[test]
    fn of_two_the_lesser_loaded_is_chosen() {
        for _ in 0..100 {
            let idle_last = |at| Some((10 + at, u64::from(1 - at), 1));
            assert_eq!(two_of(2, idle_last), Some(11));
            assert_eq!(two_of(1, |at| Some((10 + at, 0, 1))), Some(10));
            assert_eq!(two_of(2, |at| (at == 1).then_some((11, 9, 1))), Some(11));
            assert_eq!(two_of(2, |_| None), None);
        }
    }
}
