//! Random histories of a pool in lockstep with a [plain](crate::plain) one, one
//! millisecond at a time: every verdict, wake, deadline and count.

use crate::{
    lockstep::{Client, IDS, Real, Reply},
    plain::{Heard, MAX_WAIT, PROBE_TIMEOUT, Phase, Plain},
    support::{AT_CAPACITY, Got, error_got, ms},
};
use http::Request;
use proptest::{collection::vec, option, prelude::*, sample::subsequence};
use std::{collections::BTreeSet, io, task::Poll, task::Waker};
use tokio::time::advance;
use tokio_test::task::spawn;
use tower::Service;
use tower_overload::{Limit, LimitPassed, OverloadReason, ServiceOverloaded, busy::Trail};

#[derive(Clone, Debug)]
enum Step {
    /// Asked before, and since when it waits.
    Call(Vec<u8>, u64),
    /// The n-th of the requests that run leaves.
    Cancel(usize),
    /// The n-th of those that were sent has an outcome.
    Outcome(usize, Heard),
    /// The n-th response is over.
    Complete(usize),
    Busy(u8, Option<Option<u64>>),
    Drain(u8, bool),
    Insert(u8, bool),
    Remove(u8),
    Ready(u8, bool),
    Break(u8),
    Advance(u64),
}

/// The more `failing`, the more requests fail at their workers.
fn steps(failing: u32) -> impl Strategy<Value = Vec<Step>> {
    let id = || 0..IDS;
    let n = || 0..8_usize;
    let asked = subsequence((0..IDS).collect::<Vec<_>>(), 0..=IDS as usize);
    let since = prop_oneof![3 => Just(0), 1 => 0..MAX_WAIT + 5];
    let heard = prop_oneof![
        4 => Just(Heard::Answered),
        2 => option::of(1..60_u64).prop_map(Heard::Refused),
        3 => Just(Heard::Unreachable),
        2 => Just(Heard::Lost),
        4 + 4 * failing => Just(Heard::Failed),
        2 + 4 * failing => Just(Heard::AnsweredBadly),
        1 => Just(Heard::Other),
    ];
    let busy = option::weighted(0.6, option::weighted(0.7, 1..25_u64));
    let step = prop_oneof![
        14 => (asked, since).prop_map(|(asked, since)| Step::Call(asked, since)),
        3 => n().prop_map(Step::Cancel),
        10 => (n(), heard).prop_map(|(n, heard)| Step::Outcome(n, heard)),
        4 => n().prop_map(Step::Complete),
        6 => (id(), busy).prop_map(|(id, busy)| Step::Busy(id, busy)),
        2 => (id(), any::<bool>()).prop_map(|(id, on)| Step::Drain(id, on)),
        5 => (id(), prop::bool::weighted(0.8)).prop_map(|(id, on)| Step::Insert(id, on)),
        2 => id().prop_map(Step::Remove),
        4 => (id(), prop::bool::weighted(0.7)).prop_map(|(id, on)| Step::Ready(id, on)),
        1 => id().prop_map(Step::Break),
        6 => prop_oneof![Just(1), Just(PROBE_TIMEOUT), 1..35_u64].prop_map(Step::Advance),
    ];
    vec(step, 1..120)
}

/// The n-th of those that are in such a phase.
fn nth(plain: &Plain, n: usize, is: fn(Phase) -> bool) -> Option<usize> {
    let phases = plain.requests.iter().map(|asking| asking.phase);
    let those: Vec<_> = phases.enumerate().filter(|(_, phase)| is(*phase)).collect();
    let n = n.checked_rem(those.len())?;
    Some(those[n].0)
}

fn run(plain: &mut Plain, real: &mut Real, step: Step) {
    match step {
        Step::Call(asked, ago) => {
            let mut trail = Trail::new();
            let since = plain.now.saturating_sub(ago);
            if since != plain.now {
                trail = trail.since(real.instant(since));
            }
            asked.iter().for_each(|id| trail.add(&id.to_string()));
            let mut call = Request::new(());
            call.extensions_mut().insert(trail);
            real.asking.push(Some(spawn(real.pool.call(call))));
            real.outcomes.push(None);
            real.responses.push(None);
            let request = plain.came(BTreeSet::from_iter(asked), since);
            real.poll(plain, request);
            real.assert_counts(plain);
        }
        Step::Cancel(n) => {
            let is_asking =
                |phase| matches!(phase, Phase::Parked | Phase::Chosen(_) | Phase::Sent(_));
            if let Some(request) = nth(plain, n, is_asking) {
                real.asking[request] = None;
                plain.leave(request, Phase::Over);
            }
        }
        Step::Outcome(n, heard) => {
            if let Some(request) = nth(plain, n, |phase| matches!(phase, Phase::Sent(_))) {
                plain.heard(request, heard);
                outcome(real, request, heard);
            }
        }
        Step::Complete(n) => {
            if let Some(request) = nth(plain, n, |phase| matches!(phase, Phase::Answered(_))) {
                plain.heard(request, Heard::Completed);
                real.responses[request] = None;
            }
        }
        Step::Busy(id, busy) => {
            let busy = busy.map(|until| until.map(|ms| plain.now + ms));
            plain.set_busy(id, busy);
            let until = busy.map(|until| until.map(|until| real.instant(until)));
            match until {
                Some(until) => real.busy[id as usize].set(until),
                None => real.busy[id as usize].clear(),
            }
        }
        Step::Drain(id, on) => {
            let drains = &mut real.drains[id as usize];
            if on {
                drains.push(real.set.drain(id));
            } else {
                drains.pop();
            }
            *plain.drains(id) = drains.len();
        }
        Step::Insert(id, ready) => {
            let current = &mut real.current[id as usize];
            *current = (current.0 + 1, Default::default());
            let (number, state) = current;
            state.lock().unwrap().unready = !ready;
            let connection = (id, *number);
            plain.set_ready(connection, ready);
            plain.unapplied.insert(id, Some(*number));
            let (state, log) = (state.clone(), real.log.clone());
            let client = Client {
                connection,
                state,
                log,
            };
            real.roster.insert(id, client);
        }
        Step::Remove(id) => {
            plain.unapplied.insert(id, None);
            real.roster.remove(&id);
        }
        Step::Ready(id, ready) => {
            let (number, state) = &real.current[id as usize];
            plain.set_ready((id, *number), ready);
            let mut state = state.lock().unwrap();
            state.unready = !ready;
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
        Step::Break(id) => {
            let (number, state) = &real.current[id as usize];
            plain.break_service((id, *number));
            let mut state = state.lock().unwrap();
            state.broken = true;
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
        Step::Advance(_) => {}
    }
}

/// The worker of a request ends it.
fn outcome(real: &mut Real, request: usize, heard: Heard) {
    let outcome = real.outcomes[request].take().unwrap();
    let sent = outcome.send(match heard {
        Heard::Answered => Ok(Reply::Answer),
        Heard::AnsweredBadly => Ok(Reply::Failure),
        Heard::Refused(named) => Ok(Reply::Refusal(named)),
        Heard::Unreachable => Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
        Heard::Lost => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        Heard::Failed => Err(LimitPassed::new(Limit::Head, ms(1)).into()),
        Heard::Other | Heard::Completed => Err("something else".into()),
    });
    assert!(sent.is_ok());
    let mut asking = real.asking[request].take().unwrap();
    assert!(asking.is_woken());
    let Poll::Ready(answer) = asking.poll() else {
        panic!("{request} has no answer");
    };
    match (heard, answer) {
        (Heard::Answered | Heard::AnsweredBadly, Ok(response)) => {
            real.responses[request] = Some(response)
        }
        (Heard::Refused(_), Err(error)) => {
            let refused = ServiceOverloaded::find_in(&*error).unwrap();
            assert_eq!(refused.reason(), OverloadReason::WorkerAtCapacity);
            assert_eq!(error_got(&*error), AT_CAPACITY);
        }
        (Heard::Unreachable | Heard::Lost, Err(error)) => {
            assert_eq!(error_got(&*error), Got::Unreachable);
        }
        (Heard::Failed | Heard::Other, Err(error)) => assert_eq!(error_got(&*error), Got::Other),
        (heard, _) => panic!("{heard:?} was told otherwise"),
    }
    // It is kept until here: what is over takes no place, whoever holds it.
    drop(asking);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_verdict_wake_and_count_is_that_of_the_plain_pool(
        steps in (0..10_u32).prop_flat_map(steps),
        limit in option::of(1..3_u64),
        of_all: bool,
        has_driver: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut plain = Plain::new(limit.map(|limit| limit as usize), of_all);
            let mut real = Real::new(limit, of_all, has_driver);
            for step in steps {
                let wait = match step {
                    Step::Advance(ms) => ms,
                    _ => 0,
                };
                run(&mut plain, &mut real, step);
                real.settle(&mut plain).await;
                for _ in 0..wait {
                    advance(ms(1)).await;
                    plain.now += 1;
                    real.settle(&mut plain).await;
                }
            }
            real.asking.clear();
            real.responses.clear();
            assert_eq!((real.pool.in_flight(), real.pool.waiting()), (0, 0));
        });
    }
}
