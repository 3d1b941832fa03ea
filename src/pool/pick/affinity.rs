//! Requests with a key in common go to the same worker, within bounds.

use super::{Candidate, LeastLoaded, OpenWorkers, Pick, open::per_weight};
use crate::random::mix;
use http::{HeaderName, Request};
use std::fmt;

/// Sends requests with the same key to the same worker, so that they find its
/// cache warm, unless that worker is loaded above the others.
///
/// Which worker that is follows from the key and the ids alone (rendezvous
/// hashing: Thaler, Ravishankar, 1998), so gateways that know the same workers
/// agree without talking, and a worker that comes or goes moves only the keys
/// that it has or had. A worker takes a request of its key while its load, with
/// this request, is within a bound: the larger of a floor and 1.25 times the
/// mean over the open workers (bounded loads: Mirrokni, Thorup, Zadimoghaddam,
/// 2018), but of the latter no more than three times the least of them. Then
/// the second one in the key's order is asked, and if that is loaded as well,
/// the request goes to the least loaded of all. So a hot key spreads to as many
/// workers as it needs, and beyond the floor no key waits where others
/// idle.
///
/// Requests without a key go to the lesser loaded of two.
///
/// Looks at all open workers, without a lock unless it goes
/// [by load](Self::by_load): for thousands of workers that is the larger part
/// of a choice.
#[derive(Clone)]
pub struct Affinity<F> {
    key: F,
    floor: u64,
    by_load: bool,
}

/// The hash of a key, the same in every process: for keys of one's own.
///
/// FNV-1a over the bytes, mixed once more.
pub fn hash_key(key: &[u8]) -> u64 {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(hash)
}

const DEFAULT_FLOOR: u64 = 2;

impl<F> Affinity<F> {
    /// Requests for which `key` says the same belong together. [`hash_key`]
    /// makes a key of bytes.
    pub const fn by(key: F) -> Self {
        Self {
            key,
            floor: DEFAULT_FLOOR,
            by_load: false,
        }
    }

    /// A worker below this load takes the requests of its keys whatever the
    /// others have (default: 2 requests).
    #[must_use]
    pub const fn floor(mut self, floor: u64) -> Self {
        self.floor = floor;
        self
    }

    /// Bounds the [load](crate::load::WorkerLoad) that is kept beside each worker
    /// (default: the requests in flight). Set a [floor](Self::floor) in its
    /// unit, such as the prompt tokens of one second: without it, requests leave
    /// the worker of their key as soon as another one idles.
    #[must_use]
    pub const fn by_load(mut self) -> Self {
        self.by_load = true;
        self
    }
}

/// The key of requests that have a header: see [`Affinity::header`].
#[derive(Clone, Debug)]
pub struct OfHeader(HeaderName);

impl Affinity<OfHeader> {
    /// Requests with the same value of this header belong together, such as
    /// those of one session.
    pub const fn header(name: HeaderName) -> Self {
        Self::by(OfHeader(name))
    }
}

/// Says which requests belong together.
pub trait KeyOf<Req> {
    /// The key of the request, if it has one.
    fn key_of(&self, request: &Req) -> Option<u64>;
}

impl<Req, F: Fn(&Req) -> Option<u64>> KeyOf<Req> for F {
    fn key_of(&self, request: &Req) -> Option<u64> {
        self(request)
    }
}

impl<B> KeyOf<Request<B>> for OfHeader {
    fn key_of(&self, request: &Request<B>) -> Option<u64> {
        let value = request.headers().get(&self.0)?;
        Some(hash_key(value.as_bytes()))
    }
}

/// Where a key ranks a worker: the highest comes first.
fn rank(key: u64, worker: u64) -> u64 {
    mix(key ^ mix(worker))
}

/// The most that a worker may have with the request that is to come. `least` is
/// what the least loaded one has without it.
///
/// The mean alone is no measure where a few long prompts are most of the load:
/// it is far above what the idle workers have.
fn bound(floor: u64, sum: f64, least: f64, workers: u32) -> f64 {
    const OF_MEAN: f64 = 1.25;
    const OF_LEAST: f64 = 3.0;
    let mean = (sum + 1.0) / f64::from(workers.max(1));
    let bound = (OF_MEAN * mean).min(OF_LEAST * (least + 1.0));
    bound.ceil().max(floor as f64)
}

/// A worker that a key may go to.
#[derive(Clone, Copy)]
struct Ranked {
    rank: u64,
    load: f64,
    at: u32,
}

impl<Req, F> Pick<Req> for Affinity<F>
where
    F: KeyOf<Req> + Send + Sync,
{
    fn pick(&self, request: &Req, workers: &OpenWorkers<'_, Req>) -> Option<Candidate<Req>> {
        let Some(key) = self.key.key_of(request) else {
            return LeastLoaded::of(2).pick(request, workers);
        };
        let load = |at: u32| -> Option<(f64, u64)> {
            let (in_flight, weight, id) = workers.facts(at)?;
            let load = if self.by_load {
                workers.get(at)?.load()
            } else {
                in_flight
            };
            Some((per_weight(load, weight), id))
        };
        let (mut sum, mut least) = (0.0, f64::INFINITY);
        let mut first: Option<Ranked> = None;
        let mut second: Option<Ranked> = None;
        for at in 0..workers.len() {
            let Some((load, id)) = load(at) else {
                continue;
            };
            sum += load;
            least = load.min(least);
            let rank = rank(key, id);
            let worker = Some(Ranked { rank, load, at });
            let is_above = |other: Option<Ranked>| other.is_none_or(|other| other.rank < rank);
            if is_above(first) {
                second = first;
                first = worker;
            } else if is_above(second) {
                second = worker;
            }
        }
        let bound = bound(self.floor, sum, least, workers.len());
        let mut own = [first, second].into_iter().flatten();
        match own.find(|worker| worker.load + 1.0 <= bound) {
            Some(worker) => workers.get(worker.at),
            None if self.by_load => LeastLoaded::of_all().by_load().pick(request, workers),
            None => LeastLoaded::of_all().pick(request, workers),
        }
    }
}

impl<F> fmt::Debug for Affinity<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Affinity")
            .field("floor", &self.floor)
            .field("by_load", &self.by_load)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_above_the_mean_unless_others_idle_and_no_lower_than_the_floor() {
        for (sum, least, expected) in [
            (0.0, 0.0, 2.0),
            (7.0, 1.0, 3.0),
            (39.0, 9.0, 13.0),
            (39.0, 2.0, 9.0),
            (39.0, 0.0, 3.0),
        ] {
            assert_eq!(bound(2, sum, least, 4), expected, "{sum}, {least}");
        }
        let of_none = bound(0, 9.0, f64::INFINITY, 0);
        assert_eq!(of_none, 13.0, "no worker is no division by 0");
    }

    #[test]
    fn a_worker_that_leaves_moves_only_its_own_keys() {
        let ids: Vec<u64> = (0..10).map(|n: u32| hash_key(&n.to_le_bytes())).collect();
        let owner = |key: u64, ids: &[u64]| *ids.iter().max_by_key(|id| rank(key, **id)).unwrap();
        let mut shares = [0; 10];
        for key in 0..10_000 {
            let before = owner(key, &ids);
            shares[ids.iter().position(|id| *id == before).unwrap()] += 1;
            let after = owner(key, &ids[1..]);
            assert!(before == after || before == ids[0]);
        }
        // 1,000 are expected of each, with a standard deviation of 30.
        assert!(
            shares.iter().all(|n| (800..1_200).contains(n)),
            "{shares:?}"
        );
    }
}
