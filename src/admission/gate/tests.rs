use super::*;
use proptest::prelude::*;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::Wake,
};

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Wakes {
    fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

fn gate(slots: u32, queue: u32) -> Arc<Gate> {
    Arc::new(Gate::new(slots, queue))
}

fn admitted(gate: &Arc<Gate>) -> Permit {
    match Gate::arrive(gate, true) {
        Decision::Admitted(permit) => permit,
        other => panic!("not admitted: {other:?}"),
    }
}

fn queued(gate: &Arc<Gate>) -> Waiter {
    match Gate::arrive(gate, true) {
        Decision::Waits(waiter) => waiter,
        other => panic!("does not wait: {other:?}"),
    }
}

fn poll(waiter: &mut Waiter, wakes: &Arc<Wakes>) -> Poll<Result<Permit, Closed>> {
    waiter.poll_slot(&mut Context::from_waker(&wakes.clone().into()))
}

#[test]
fn polling_again_with_the_same_waker_or_another_wakes_nobody_early() {
    let gate = gate(1, 1);
    let permit = admitted(&gate);
    let mut waiter = queued(&gate);
    let (first, second) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
    for wakes in [&first, &first, &second, &second] {
        assert!(poll(&mut waiter, wakes).is_pending());
    }
    drop(permit);
    assert_eq!((first.count(), second.count()), (0, 1));
    assert!(poll(&mut waiter, &second).is_ready());
    assert_eq!(second.count(), 1);
}

#[test]
fn a_waker_may_use_the_gate_while_it_is_woken_cloned_or_dropped() {
    struct Reenter(Arc<Gate>);

    impl Wake for Reenter {
        fn wake(self: Arc<Self>) {
            self.0.snapshot();
            self.0.set_queue_limit(8);
        }
    }

    impl Drop for Reenter {
        fn drop(&mut self) {
            self.0.set_queue_limit(9);
        }
    }

    let gate = gate(1, 4);
    let permit = admitted(&gate);
    let mut woken = queued(&gate);
    let mut cancelled = queued(&gate);
    let mut replaced = queued(&gate);
    for waiter in [&mut woken, &mut cancelled, &mut replaced] {
        let waker = Arc::new(Reenter(gate.clone())).into();
        assert!(
            waiter
                .poll_slot(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    assert!(poll(&mut replaced, &Arc::default()).is_pending());
    assert_eq!(gate.snapshot().queue_limit, 9);
    drop(cancelled);
    drop(permit);
    assert_eq!(gate.snapshot().in_engine, 1);
}

/// Does something once when it is woken.
struct Does(std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for Does {
    fn wake(self: Arc<Self>) {
        let woken = self.0.lock().unwrap().take();
        if let Some(does) = woken {
            does();
        }
    }
}

/// Waits with a waker that does `does`.
fn queued_with(gate: &Arc<Gate>, does: impl FnOnce() + Send + 'static) -> Waiter {
    let mut waiter = queued(gate);
    let does: Box<dyn FnOnce() + Send> = Box::new(does);
    let waker = Arc::new(Does(std::sync::Mutex::new(Some(does)))).into();
    let waits = waiter.poll_slot(&mut Context::from_waker(&waker));
    assert!(waits.is_pending());
    waiter
}

fn queued_with_panic(gate: &Arc<Gate>) -> Waiter {
    queued_with(gate, || panic!("from the waker"))
}

#[test]
fn a_waker_that_panics_costs_nobody_else_a_wake() {
    let gate = gate(1, 4);
    let permit = admitted(&gate);
    let panicking = [queued_with_panic(&gate), queued_with_panic(&gate)];
    let mut waiting = [queued(&gate), queued(&gate)];
    let wakes = [(); 2].map(|()| Arc::new(Wakes::default()));
    for (waiter, wakes) in waiting.iter_mut().zip(&wakes) {
        assert!(poll(waiter, wakes).is_pending());
    }
    assert!(catch_unwind(AssertUnwindSafe(|| gate.set_slots(5))).is_err());
    assert_eq!(gate.snapshot().in_engine, 5);
    assert_eq!(wakes.each_ref().map(|wakes| wakes.count()), [1, 1]);
    drop((permit, panicking, waiting));
    assert_eq!((gate.snapshot().in_engine, gate.snapshot().queued), (0, 0));
}

#[test]
fn one_that_leaves_gives_its_slot_back_though_a_waker_panics_meanwhile() {
    for by_drop in [true, false] {
        let gate = gate(1, 3);
        let permit = admitted(&gate);
        let leaves = Arc::new(std::sync::Mutex::new(None::<Waiter>));
        let leaving = leaves.clone();
        let first = queued_with(&gate, move || {
            let waiter = leaving.lock().unwrap().take();
            match by_drop {
                true => drop(waiter),
                false => drop(waiter.map(|mut waiter| waiter.give_up())),
            }
        });
        *leaves.lock().unwrap() = Some(queued(&gate));
        let third = queued_with_panic(&gate);
        assert!(catch_unwind(AssertUnwindSafe(|| gate.set_slots(4))).is_err());
        assert!(leaves.lock().unwrap().is_none(), "it has left");
        assert_eq!(gate.snapshot().in_engine, 3);
        drop((permit, first, third));
        assert_eq!(gate.snapshot().in_engine, 0);
    }
}

#[test]
fn a_waker_that_panics_does_not_abort_one_that_unwinds_already() {
    let gate = gate(1, 1);
    let permit = admitted(&gate);
    let waiter = queued_with_panic(&gate);
    let engine = AssertUnwindSafe(move || {
        let _permit = permit;
        panic!("from the engine");
    });
    let panic = catch_unwind(engine).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"from the engine"));
    assert_eq!(gate.snapshot().in_engine, 1, "the next one has it");
    drop(waiter);
    assert_eq!(gate.snapshot().in_engine, 0);
}

#[test]
fn a_panicking_waker_leaves_the_gate_consistent() {
    let gate = gate(1, 2);
    let permit = admitted(&gate);
    let first = queued_with_panic(&gate);
    let mut second = queued(&gate);
    let wakes = Arc::new(Wakes::default());
    assert!(poll(&mut second, &wakes).is_pending());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(permit))).is_err());
    drop(first);
    assert_eq!(wakes.count(), 1);
    assert!(poll(&mut second, &wakes).is_ready());
    assert_eq!((gate.snapshot().in_engine, gate.snapshot().queued), (0, 0));
}

#[test]
fn the_most_that_any_limit_may_be_does_not_overflow() {
    let gate = gate(
        crate::admission::MAX_LIMIT as u32,
        crate::admission::MAX_LIMIT as u32,
    );
    let permits: Vec<_> = (0..3).map(|_| admitted(&gate)).collect();
    gate.set_slots(1);
    gate.set_queue_limit(0);
    let now = gate.snapshot();
    assert_eq!((now.in_engine, now.queued), (3, 0));
    assert!(matches!(Gate::arrive(&gate, true), Decision::Full));
    drop(permits);
    gate.set_slots(crate::admission::MAX_LIMIT as u32);
    assert_eq!(gate.snapshot().in_engine, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Arrive { may_queue: bool },
    Reserve,
    Release(usize),
    FirstToken(usize),
    Cancel(usize),
    GiveUp(usize),
    Poll(usize),
    SetSlots(u32),
    SetQueue(u32),
    SetFirstToken(Option<u32>),
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => any::<bool>().prop_map(|may_queue| Step::Arrive { may_queue }),
        6 => Just(Step::Reserve),
        10 => any::<usize>().prop_map(Step::Release),
        5 => any::<usize>().prop_map(Step::FirstToken),
        4 => any::<usize>().prop_map(Step::Cancel),
        2 => any::<usize>().prop_map(Step::GiveUp),
        10 => any::<usize>().prop_map(Step::Poll),
        2 => (1..6u32).prop_map(Step::SetSlots),
        2 => (0..6u32).prop_map(Step::SetQueue),
        2 => prop::option::of(1..4u32).prop_map(Step::SetFirstToken),
    ];
    // A closed gate is dull: at most at the end.
    let open = prop::collection::vec(step.clone(), 0..150);
    let closed = prop::option::of(prop::collection::vec(step, 0..20));
    (open, closed).prop_map(|(mut steps, closed)| {
        if let Some(more) = closed {
            steps.push(Step::Close);
            steps.extend(more);
        }
        steps
    })
}

/// What the gate promises, in the plainest words there are.
#[derive(Default)]
struct Model {
    slots: usize,
    queue_limit: usize,
    first_token: Option<usize>,
    closed: bool,
    engine: usize,
    awaiting: usize,
    /// By arrival.
    waiters: Vec<Waits>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Parked,
    Queued,
    Granted { counted: bool },
    Closed,
}

struct Waits {
    stage: Stage,
    listens: bool,
    wakes: usize,
    /// When it joined the queue.
    ticket: usize,
    real: (Waiter, Arc<Wakes>),
}

impl Model {
    fn queued(&self) -> usize {
        self.waiters
            .iter()
            .filter(|w| w.stage == Stage::Queued)
            .count()
    }

    fn oldest(&self, stage: Stage) -> Option<usize> {
        let waiters = self.waiters.iter().enumerate();
        let waiters = waiters.filter(|(_, w)| w.stage == stage);
        Some(waiters.min_by_key(|(_, w)| w.ticket)?.0)
    }

    fn room(&self) -> bool {
        self.engine < self.slots && self.first_token.is_none_or(|limit| self.awaiting < limit)
    }

    fn enter(&mut self) -> bool {
        self.engine += 1;
        let counted = self.first_token.is_some();
        self.awaiting += usize::from(counted);
        counted
    }

    fn advance(&mut self, at: usize, stage: Stage) {
        let waiter = &mut self.waiters[at];
        waiter.stage = stage;
        waiter.wakes += usize::from(std::mem::take(&mut waiter.listens));
    }

    fn settle(&mut self) {
        loop {
            let parked = self.oldest(Stage::Parked);
            if self.room() {
                let Some(at) = self.oldest(Stage::Queued).or(parked) else {
                    return;
                };
                let counted = self.enter();
                self.advance(at, Stage::Granted { counted });
            } else if self.queued() < self.queue_limit {
                let Some(at) = parked else { return };
                let last = self.waiters.iter().filter(|w| w.stage == Stage::Queued);
                self.waiters[at].ticket = last.map(|w| w.ticket + 1).max().unwrap_or(0);
                self.advance(at, Stage::Queued);
            } else {
                return;
            }
        }
    }

    fn wait(&mut self, stage: Stage, waiter: Waiter, wakes: Arc<Wakes>) {
        let line = self.waiters.iter().filter(|w| w.stage == stage);
        let ticket = line.map(|w| w.ticket + 1).max().unwrap_or(0);
        self.waiters.push(Waits {
            stage,
            listens: stage == Stage::Parked,
            wakes: 0,
            ticket,
            real: (waiter, wakes),
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn does_what_a_plain_model_does(slots in 1..5u32, queue in 0..5u32, steps in steps()) {
        let gate = gate(slots, queue);
        let mut model = Model {
            slots: slots as usize,
            queue_limit: queue as usize,
            ..Model::default()
        };
        // Permits, each with whether it still awaits a counted first token.
        let mut permits: Vec<(Permit, bool)> = Vec::new();

        for step in steps {
            match step {
                Step::Arrive { may_queue } => match Gate::arrive(&gate, may_queue) {
                    Decision::Closed => prop_assert!(model.closed),
                    Decision::Admitted(permit) => {
                        prop_assert!(!model.closed && model.room());
                        permits.push((permit, model.enter()));
                    }
                    Decision::Waits(waiter) => {
                        prop_assert!(!model.closed && !model.room() && may_queue);
                        prop_assert!(model.queued() < model.queue_limit);
                        model.wait(Stage::Queued, waiter, Arc::default());
                    }
                    Decision::Full => {
                        prop_assert!(!model.closed && !model.room());
                        prop_assert!(!may_queue || model.queued() >= model.queue_limit);
                    }
                },
                Step::Reserve => {
                    let wakes = Arc::new(Wakes::default());
                    match Gate::reserve(&gate, &wakes.clone().into()) {
                        Decision::Closed => prop_assert!(model.closed),
                        Decision::Admitted(permit) => {
                            prop_assert!(!model.closed && model.room());
                            permits.push((permit, model.enter()));
                        }
                        Decision::Waits(waiter) => {
                            prop_assert!(!model.closed && !model.room());
                            let stage = match model.queued() < model.queue_limit {
                                true => Stage::Queued,
                                false => Stage::Parked,
                            };
                            model.wait(stage, waiter, wakes);
                        }
                        Decision::Full => prop_assert!(false, "a caller that parks is never refused"),
                    }
                }
                Step::Release(at) if !permits.is_empty() => {
                    let (permit, counted) = permits.swap_remove(at % permits.len());
                    drop(permit);
                    model.awaiting -= usize::from(counted);
                    model.settle();
                    model.engine -= 1;
                    model.settle();
                }
                Step::FirstToken(at) if !permits.is_empty() => {
                    let at = at % permits.len();
                    permits[at].0.first_token();
                    model.awaiting -= usize::from(std::mem::take(&mut permits[at].1));
                    model.settle();
                }
                Step::Cancel(at) if !model.waiters.is_empty() => {
                    let waiter = model.waiters.remove(at % model.waiters.len());
                    if let Stage::Granted { counted } = waiter.stage {
                        model.awaiting -= usize::from(counted);
                        model.settle();
                        model.engine -= 1;
                    }
                    model.settle();
                    drop(waiter.real);
                }
                Step::GiveUp(at) if !model.waiters.is_empty() => {
                    let mut waiter = model.waiters.remove(at % model.waiters.len());
                    model.settle();
                    match waiter.real.0.give_up() {
                        Ended::Granted(permit) => match waiter.stage {
                            Stage::Granted { counted } => permits.push((permit, counted)),
                            other => prop_assert!(false, "granted, not {other:?}"),
                        },
                        Ended::Closed => prop_assert_eq!(waiter.stage, Stage::Closed),
                        Ended::Left => prop_assert!(
                            matches!(waiter.stage, Stage::Queued | Stage::Parked)
                        ),
                    }
                }
                Step::Poll(at) if !model.waiters.is_empty() => {
                    let at = at % model.waiters.len();
                    let waiter = &mut model.waiters[at];
                    let wakes = waiter.real.1.clone();
                    match poll(&mut waiter.real.0, &wakes) {
                        Poll::Pending => {
                            prop_assert!(matches!(waiter.stage, Stage::Queued | Stage::Parked));
                            waiter.listens = true;
                        }
                        Poll::Ready(Err(Closed)) => {
                            prop_assert_eq!(waiter.stage, Stage::Closed);
                            model.waiters.remove(at);
                        }
                        Poll::Ready(Ok(permit)) => match waiter.stage {
                            Stage::Granted { counted } => {
                                permits.push((permit, counted));
                                model.waiters.remove(at);
                            }
                            other => prop_assert!(false, "granted, not {other:?}"),
                        },
                    }
                }
                Step::SetSlots(slots) => {
                    gate.set_slots(slots);
                    model.slots = slots as usize;
                    model.settle();
                }
                Step::SetQueue(queue) => {
                    gate.set_queue_limit(queue);
                    model.queue_limit = queue as usize;
                    model.settle();
                }
                Step::SetFirstToken(limit) => {
                    gate.set_first_token_limit(limit);
                    model.first_token = limit.map(|limit| limit as usize);
                    model.settle();
                }
                Step::Close => {
                    gate.close();
                    model.closed = true;
                    for at in 0..model.waiters.len() {
                        if matches!(model.waiters[at].stage, Stage::Queued | Stage::Parked) {
                            model.advance(at, Stage::Closed);
                        }
                    }
                }
                // Nobody to do it to.
                _ => {}
            }

            prop_assert_eq!(gate.snapshot(), Snapshot {
                slots: model.slots,
                in_engine: model.engine,
                queue_limit: model.queue_limit,
                queued: model.queued(),
                first_token_limit: model.first_token,
                awaiting_first_token: model.awaiting,
                closed: model.closed,
            });
            prop_assert_eq!(gate.load(), model.engine + model.queued());
            for waiter in &model.waiters {
                prop_assert_eq!(waiter.real.1.count(), waiter.wakes, "wakes of a {:?}", waiter.stage);
            }
            let waits = model.waiters.iter();
            let waits = waits.filter(|w| matches!(w.stage, Stage::Queued | Stage::Parked)).count();
            let word = Word::from_bits(gate.word.load(Ordering::Relaxed));
            prop_assert_eq!(word.contended(), waits > 0 || model.first_token.is_some());
        }

        drop((permits, model));
        let rest = gate.snapshot();
        prop_assert_eq!((rest.in_engine, rest.queued, rest.awaiting_first_token), (0, 0, 0));
    }
}
