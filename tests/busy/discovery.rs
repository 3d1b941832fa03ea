//! Members are what is alive; discovery can fail, end, pause and go wild.

use crate::support::{
    ALL_BUSY, AT_CAPACITY, Fleet, Got, Id, OK, Script, Worker, buffered, send, stock,
};
use futures::{StreamExt, stream};
use proptest::prelude::*;
use std::{collections::HashMap, convert::Infallible, io, time::Duration};
use tokio::time::{Instant, sleep};
use tower::discover::Change;
use tower_overload::{
    UnavailableReason,
    busy::{BusySet, Mark},
};

const NO_WORKERS: Got = Got::Unavailable(UnavailableReason::NoWorkers);

type Event = Result<Change<Id, Worker>, io::Error>;

#[tokio::test(start_paused = true)]
async fn a_discovery_that_fails_or_ends_leaves_the_members_and_kills_nothing() {
    let insert = || Ok(Change::Insert("a", Worker::new("a")));
    let error = || Err(io::Error::other("lost"));
    let cases: [(Vec<Event>, Got); 5] = [
        (vec![], NO_WORKERS),
        (vec![error()], NO_WORKERS),
        (vec![insert()], OK),
        (vec![insert(), error()], OK),
        (vec![insert(), Ok(Change::Remove("a")), error()], NO_WORKERS),
    ];
    for (events, expected) in cases {
        let stack = stock(stream::iter(events), BusySet::new());
        let mut buffered = tower::buffer::Buffer::new(stack, 8);
        for _ in 0..3 {
            assert_eq!(send(&mut buffered).await, expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn discovery_errors_are_counted_from_0_on_where_the_stack_was_made() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let counted = |errors: u32| {
        let line = format!("dynamo_frontend_discovery_errors_total{{model=\"tiny\"}} {errors}");
        let text = recorder.handle().render();
        assert!(text.lines().any(|its| its == line), "{line}: {text}");
    };
    let events: [Event; 1] = [Err(io::Error::other("lost"))];
    let mut stack = metrics::with_local_recorder(&recorder, || {
        let set = BusySet::<Id>::builder().model("tiny").build().unwrap();
        stock(stream::iter(events), set)
    });
    counted(0);
    assert_eq!(send(&mut stack).await, NO_WORKERS);
    counted(1);
}

#[tokio::test(start_paused = true)]
async fn after_an_idle_hour_a_removed_worker_gets_nothing() {
    let (mut fleet, stack) = Fleet::of(&["a", "b"]);
    let mut stack = buffered(stack);
    for _ in 0..10 {
        assert_eq!(send(&mut stack).await, OK);
    }
    let removed = fleet.worker("a").clone();
    let before = removed.calls();
    fleet.remove("a");
    sleep(Duration::from_secs(3600)).await;
    for _ in 0..20 {
        assert_eq!(send(&mut stack).await, OK);
    }
    assert_eq!(removed.calls(), before);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_worker_gets_nothing_even_while_its_successor_connects() {
    let (mut fleet, mut stack) = Fleet::of(&["a"]);
    assert_eq!(send(&mut stack).await, OK);
    let old = fleet.worker("a").clone();
    let new = Worker::connecting("a");
    fleet.add(new.clone());
    let mut waiting = Box::pin(send(&mut stack));
    tokio::select! {
        got = &mut waiting => panic!("{got:?}"),
        () = sleep(Duration::from_millis(10)) => {}
    }
    new.connect();
    assert_eq!(waiting.await, OK);
    assert_eq!((old.calls(), new.calls()), (1, 1));
    assert_eq!(fleet.members.alive(), 1);
}

/// One step of the random test below.
#[derive(Clone, Debug)]
enum Step {
    Insert(usize),
    Remove(usize),
    Busy(usize, Option<u64>),
    Free(usize),
    Drain(usize),
    Undrain(usize),
    Refuse(usize),
    Break(usize),
    Advance(u64),
    Call,
}

const IDS: [Id; 6] = ["a", "b", "c", "d", "e", "f"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = 0..IDS.len();
    let step = prop_oneof![
        4 => id.clone().prop_map(Step::Insert),
        2 => id.clone().prop_map(Step::Remove),
        3 => (id.clone(), prop::option::of(1..3000u64)).prop_map(|(id, end)| Step::Busy(id, end)),
        2 => id.clone().prop_map(Step::Free),
        1 => id.clone().prop_map(Step::Drain),
        1 => id.clone().prop_map(Step::Undrain),
        1 => id.clone().prop_map(Step::Refuse),
        1 => id.prop_map(Step::Break),
        2 => (1..2000u64).prop_map(Step::Advance),
        8 => Just(Step::Call),
    ];
    prop::collection::vec(step, 1..200)
}

/// The plain model: who is a member, and until when each is marked.
#[derive(Default)]
struct Model {
    members: HashMap<usize, bool>,
    busy: HashMap<usize, Option<Instant>>,
    drained: HashMap<usize, ()>,
    leased: HashMap<usize, Instant>,
}

impl Model {
    fn is_shed(&self, id: usize, now: Instant) -> bool {
        let busy = self
            .busy
            .get(&id)
            .is_some_and(|end| end.is_none_or(|end| end > now));
        busy || self.leased.get(&id).is_some_and(|end| *end > now)
    }

    fn expected(&self, now: Instant) -> Got {
        let members: Vec<_> = self.members.keys().copied().collect();
        let usable: Vec<_> = members
            .iter()
            .filter(|id| !self.drained.contains_key(id))
            .collect();
        if members.is_empty() {
            NO_WORKERS
        } else if usable.is_empty() {
            Got::Unavailable(UnavailableReason::NoneReachable)
        } else if usable.iter().all(|id| self.is_shed(**id, now)) {
            ALL_BUSY
        } else {
            OK
        }
    }
}

async fn run(steps: Vec<Step>) {
    let (mut fleet, stack) = Fleet::unasked(&[]);
    let mut stack = buffered(stack);
    let mut model = Model::default();
    let mut busy_marks = IDS.map(|id| fleet.set.busy_mark(id));
    let mut drains = IDS.map(|_| None);
    for step in steps {
        let now = Instant::now();
        match step {
            Step::Insert(id) => {
                fleet.add(Worker::new(IDS[id]));
                model.members.insert(id, true);
                model.leased.remove(&id);
            }
            Step::Remove(id) => {
                fleet.remove(IDS[id]);
                model.members.remove(&id);
                model.leased.remove(&id);
            }
            Step::Busy(id, end) => {
                let end = end.map(|end| now + Duration::from_millis(end));
                busy_marks[id].set(end);
                model.busy.insert(id, end);
            }
            Step::Free(id) => {
                busy_marks[id].clear();
                model.busy.remove(&id);
            }
            Step::Drain(id) => {
                drains[id] = Some(fleet.set.drain(IDS[id]));
                model.drained.insert(id, ());
            }
            Step::Undrain(id) => {
                drains[id] = None;
                model.drained.remove(&id);
            }
            Step::Refuse(id) => {
                if model.members.contains_key(&id) {
                    fleet.worker(IDS[id]).script(Script::Status(529, None));
                }
            }
            Step::Break(id) => {
                if model.members.contains_key(&id) {
                    // Found out when it is next asked, so ask.
                    fleet.worker(IDS[id]).break_service();
                    fleet.remove(IDS[id]);
                    model.members.remove(&id);
                    model.leased.remove(&id);
                }
            }
            Step::Advance(ms) => {
                // Timers are precise to a millisecond.
                sleep(Duration::from_millis(ms + 2)).await;
            }
            Step::Call => {
                let expected = model.expected(Instant::now());
                let calls = |fleet: &Fleet| {
                    let calls = |id: &Id| fleet.workers.get(id).map_or(0, Worker::calls);
                    IDS.map(|id| calls(&id))
                };
                let before = calls(&fleet);
                let got = send(&mut stack).await;
                let after = calls(&fleet);
                if got == AT_CAPACITY {
                    assert_eq!(expected, OK);
                } else {
                    assert_eq!(got, expected);
                }
                let served = (0..IDS.len()).filter(|id| after[*id] != before[*id]);
                for id in served {
                    assert!(!model.is_shed(id, now), "{} was excluded", IDS[id]);
                    assert!(!model.drained.contains_key(&id));
                    if got == AT_CAPACITY {
                        model.leased.insert(id, now + Duration::from_secs(1));
                    }
                }
                assert_eq!(fleet.members.alive(), model.members.len() as u64);
            }
        }
    }
    // The balancer takes note of what left since it was last asked.
    if send(&mut stack).await == AT_CAPACITY {
        return;
    }
    for (id, worker) in IDS.iter().enumerate() {
        let marks = fleet.set.marks(worker);
        let leased = model
            .leased
            .get(&id)
            .is_some_and(|end| *end > Instant::now());
        assert_eq!(marks.has(Mark::Leased), leased, "{worker}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_comes_and_goes_the_verdict_is_what_the_members_and_marks_say(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(steps));
    }
}

#[tokio::test(start_paused = true)]
async fn an_endless_discovery_of_nothing_is_no_discovery_error() {
    let pending = stream::pending::<Result<Change<Id, Worker>, Infallible>>();
    let mut stack = stock(pending.boxed(), BusySet::new());
    assert_eq!(send(&mut stack).await, NO_WORKERS);
}
