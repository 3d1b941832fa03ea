//! Who is chosen by the choices that come with the crate.

use crate::support::{Builder, Fleet, Id, OK, Script, TestBody, Worker, by};
use http::{HeaderName, Request, Response};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};
use tower::Service;
use tower_overload::{
    busy::{BusyMark, Completion, JudgeBody},
    completion::TrackedBody,
    load::WorkerLoad,
    pool::pick::{Affinity, LeastLoaded},
};

pub const IDS: [Id; 4] = ["a", "b", "c", "d"];

/// Workers whose responses run until they are dropped.
pub fn streaming(configure: impl FnOnce(Builder) -> Builder) -> Fleet {
    Fleet::with(IDS.map(|id| Worker::doing(id, Script::Stream)), configure)
}

pub type Running = Response<TrackedBody<TestBody, Completion, JudgeBody>>;

/// Sends so many requests, of which all run in the end; how many each worker
/// has got.
pub async fn running(fleet: &Fleet, n: usize, request: impl Fn() -> Request<()>) -> Shares {
    let mut shares = Shares::default();
    for _ in 0..n {
        let response = fleet.pool.clone().call(request()).await.unwrap();
        *shares.of.entry(by(&response).to_owned()).or_default() += 1;
        shares.responses.push(response);
    }
    shares
}

#[derive(Default)]
pub struct Shares {
    pub of: BTreeMap<String, usize>,
    responses: Vec<Running>,
}

impl Shares {
    pub fn of(&self, id: &str) -> usize {
        self.of.get(id).copied().unwrap_or(0)
    }
}

pub fn plain() -> Request<()> {
    Request::new(())
}

#[tokio::test(start_paused = true)]
async fn by_default_load_is_even_and_nobody_is_left_out() {
    let shares = running(&streaming(|pool| pool), 400, plain).await;
    for id in IDS {
        assert!((95..=105).contains(&shares.of(id)), "{:?}", shares.of);
    }
}

#[tokio::test(start_paused = true)]
async fn weights_share_the_load_by_default_and_among_all() {
    for of_all in [false, true] {
        let fleet = streaming(|pool| {
            let pool = pool.weight(|id| match *id {
                "a" => 2,
                "b" => 0,
                _ => 1,
            });
            match of_all {
                true => pool.pick(LeastLoaded::of_all()),
                false => pool,
            }
        });
        let shares = running(&fleet, 600, plain).await;
        assert!((225..=255).contains(&shares.of("a")), "{:?}", shares.of);
        for id in ["b", "c", "d"] {
            assert!(
                (110..=130).contains(&shares.of(id)),
                "0 is 1: {:?}",
                shares.of
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_least_loaded_of_all_is_always_the_least() {
    let fleet = streaming(|pool| pool.pick(LeastLoaded::of_all()));
    let mut shares = running(&fleet, 40, plain).await;
    assert!(IDS.iter().all(|id| shares.of(id) == 10), "{:?}", shares.of);
    // One of them has room: it gets all until it has as many as the others.
    shares.responses.retain(|response| by(response) != "c");
    let more = running(&fleet, 10, plain).await;
    assert_eq!(more.of("c"), 10);
}

#[tokio::test(start_paused = true)]
async fn equals_are_chosen_evenly() {
    for of in [1, 2, 3, 4, 1_000] {
        let fleet = Fleet::with(IDS.map(Worker::new), |pool| pool.pick(LeastLoaded::of(of)));
        for _ in 0..2_000 {
            assert_eq!(fleet.send().await, OK);
        }
        for id in IDS {
            // 500 are expected of each, with a standard deviation of 19.
            let calls = fleet.worker(id).calls();
            assert!((380..620).contains(&calls), "of {of}: {calls}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_none_is_of_one() {
    let fleet = streaming(|pool| pool.pick(LeastLoaded::of(0)));
    let shares = running(&fleet, 400, plain).await;
    assert!(IDS.iter().all(|id| shares.of(id) > 50), "{:?}", shares.of);
}

/// Tokens that were sent and nobody has reported yet.
#[derive(Default)]
struct Tokens(AtomicU64);

impl WorkerLoad<Request<()>> for Tokens {
    fn load(&self) -> u64 {
        self.0.load(SeqCst)
    }

    fn sent(&self, request: &Request<()>) {
        let tokens = request.headers().get("tokens");
        let tokens = tokens.map_or(1, |tokens| tokens.to_str().unwrap().parse().unwrap());
        self.0.fetch_add(tokens, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn by_load_the_one_with_the_fewest_tokens_is_chosen_whatever_it_has_in_flight() {
    let asked = Arc::new(AtomicUsize::new(0));
    let joins = asked.clone();
    let fleet = streaming(move |pool| {
        pool.pick(LeastLoaded::of_all().by_load()).load(move |_| {
            joins.fetch_add(1, SeqCst);
            Tokens::default()
        })
    });
    let of = |tokens: u64| {
        let request = Request::builder().header("tokens", tokens);
        request.body(()).unwrap()
    };
    let large = running(&fleet, 3, || of(100)).await;
    assert_eq!(large.of.len(), 3, "each to another one");
    let small = running(&fleet, 100, || of(1)).await;
    assert_eq!(
        small.of.len(),
        1,
        "the fourth one gets a hundred small ones"
    );
    assert!(small.of.keys().all(|id| large.of(id) == 0));
    assert_eq!(asked.load(SeqCst), 4, "asked for once a worker");
}

#[tokio::test(start_paused = true)]
async fn whatever_the_choice_marked_workers_get_nothing() {
    let session = HeaderName::from_static("session");
    for choice in 0..4 {
        let fleet = Fleet::with(IDS.map(Worker::new), |pool| match choice {
            0 => pool,
            1 => pool.pick(LeastLoaded::of_all()),
            2 => pool.pick(LeastLoaded::of(3).by_load()),
            _ => pool.pick(Affinity::header(session.clone())),
        });
        let mut marks = ["a", "c"].map(|id| fleet.set.busy_mark(id));
        marks.iter_mut().for_each(|mark| mark.set(None));
        for n in 0..100 {
            let request = Request::builder().header("session", n).body(()).unwrap();
            let response = fleet.pool.clone().call(request).await.unwrap();
            assert!(["b", "d"].contains(&by(&response)));
        }
    }
}

fn of_session(session: usize) -> Request<()> {
    let request = Request::builder().header("session", session);
    request.body(()).unwrap()
}

fn by_session(floor: u64) -> impl FnOnce(Builder) -> Builder {
    let session = HeaderName::from_static("session");
    move |pool| pool.pick(Affinity::header(session).floor(floor))
}

#[tokio::test(start_paused = true)]
async fn a_session_stays_with_its_worker_and_a_mark_moves_only_that_workers_sessions() {
    let fleet = Fleet::with(IDS.map(Worker::new), by_session(2));
    let owners = async || {
        let mut owners = Vec::new();
        for session in 0..200 {
            let response = fleet.pool.clone().call(of_session(session)).await.unwrap();
            owners.push(by(&response).to_owned());
        }
        owners
    };
    let before = owners().await;
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 4);
    assert_eq!(owners().await, before);
    let mut mark = fleet.set.busy_mark("b");
    mark.set(None);
    for (was, is) in before.iter().zip(owners().await) {
        assert!(*was == is || was == "b", "{was} to {is}");
        assert_ne!(is, "b");
    }
    mark.clear();
    assert_eq!(owners().await, before, "and they come back");
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_spreads_within_the_bound_and_others_keep_their_worker() {
    let fleet = streaming(by_session(2));
    let two = running(&fleet, 2, || of_session(1)).await;
    assert_eq!(two.of.len(), 1, "below the floor it stays");
    drop(two);
    for n in [10, 40, 400] {
        let shares = running(&fleet, n, || of_session(1)).await;
        let bound = (1.25 * n as f64 / 4.0).ceil().max(2.0) as usize;
        for id in IDS {
            assert!(shares.of(id) <= bound, "{bound}: {:?}", shares.of);
        }
        // Not evenly: the first ones of its order are as full as they may be.
        let most = shares.of.values().max().copied();
        assert_eq!(most, Some(bound), "{:?}", shares.of);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_open_worker_takes_all_of_a_key() {
    let fleet = streaming(by_session(1));
    let mut marks: Vec<BusyMark> = IDS.iter().map(|id| fleet.set.busy_mark(id)).collect();
    marks[1..].iter_mut().for_each(|mark| mark.set(None));
    let shares = running(&fleet, 100, || of_session(1)).await;
    assert_eq!(shares.of("a"), 100);
}

#[tokio::test(start_paused = true)]
async fn without_a_key_the_load_is_even() {
    let shares = running(&streaming(by_session(2)), 400, plain).await;
    for id in IDS {
        assert!((95..=105).contains(&shares.of(id)), "{:?}", shares.of);
    }
}
