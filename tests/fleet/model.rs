//! A fleet does what a plain model of one does, whatever is said of its
//! workers and in whatever order, with requests under way.

use crate::support::*;
use http::Uri;
use proptest::prelude::*;
use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::{Instant, sleep};
use tower_overload::{
    busy::Mark,
    fleet::{Origin, Registration, Removed, WorkerUpdate},
    load::{Change, LoadEvent, ThresholdUpdate},
};

const IDS: [&str; 3] = ["a", "b", "c"];
const MODELS: [&str; 2] = ["tiny", "large"];
const LORA: &str = "sql";
/// A worker is busy with more than three requests.
const THRESHOLD: u64 = 3 * TOKENS;

#[derive(Clone, Debug)]
enum Op {
    Register(usize, Facts, Who),
    Put(usize, Part),
    Patch(usize, Part),
    Drain(usize, bool),
    Remove(usize),
    Leave(usize, Who),
    Report(usize),
    Advance(u64),
    Request(usize),
    /// One of those that run has its answer.
    Finish(usize),
}

#[derive(Clone, Copy, Debug)]
enum Who {
    Configuration,
    Itself(u64),
    Discovery(usize),
}

impl Who {
    fn origin(self) -> Origin {
        match self {
            Self::Configuration => Origin::Static,
            Self::Itself(ttl) => Origin::Reported(Duration::from_secs(ttl)),
            Self::Discovery(which) => Origin::source(["nats", "dns"][which]),
        }
    }
}

/// What there is to know of a worker, as the model has it.
#[derive(Clone, Debug, PartialEq)]
struct Facts {
    port: u16,
    models: BTreeSet<usize>,
    lora: bool,
    draining: bool,
    blocks: Option<u64>,
}

impl Facts {
    fn url(port: u16) -> String {
        format!("http://worker:{port}/")
    }

    fn registration(&self) -> Registration {
        let names = self.models.iter().map(|model| MODELS[*model]);
        let registration = Registration::at(Self::url(self.port))
            .models(names)
            .kv_total_blocks(self.blocks)
            .draining(self.draining);
        match self.models.first().filter(|_| self.lora) {
            Some(base) => registration.lora(LORA, MODELS[*base]),
            None => registration,
        }
    }

    fn names(&self) -> BTreeSet<&'static str> {
        let names = self.models.iter().map(|model| MODELS[*model]);
        names.chain(self.lora.then_some(LORA)).collect()
    }
}

#[derive(Clone, Debug)]
struct Part {
    port: Option<u16>,
    draining: Option<bool>,
    blocks: Option<Option<u64>>,
    ttl: Option<u64>,
}

impl Part {
    fn update(&self) -> WorkerUpdate {
        let mut update = WorkerUpdate::new();
        if let Some(port) = self.port {
            update = update.url(Facts::url(port));
        }
        if let Some(draining) = self.draining {
            update = update.draining(draining);
        }
        if let Some(blocks) = self.blocks {
            update = update.kv_total_blocks(blocks.map_or(Change::Clear, Change::Set));
        }
        if let Some(ttl) = self.ttl {
            update = update.ttl(Duration::from_secs(ttl));
        }
        update
    }
}

struct Worker {
    facts: Facts,
    origin: Origin,
    operator_drains: bool,
    heard: Instant,
    /// Another one with each URL, also if it has left in between.
    incarnation: usize,
}

impl Worker {
    fn is_draining(&self) -> bool {
        self.operator_drains || self.facts.draining
    }
}

#[derive(Default)]
struct Model {
    workers: BTreeMap<&'static str, Worker>,
    removed: BTreeSet<&'static str>,
    /// Where each worker was last, and which one that was.
    last: BTreeMap<&'static str, (u16, usize)>,
    running: Vec<(usize, Box<dyn Any>)>,
}

/// Whether the fleet has to refuse what is said.
type Refuses = bool;

impl Model {
    fn whole(&mut self, id: &'static str, facts: &Facts, origin: Origin) -> Refuses {
        if self.removed.contains(id) && origin != Origin::Static {
            return true;
        }
        self.put(id, facts.clone(), origin, None);
        false
    }

    fn part(&mut self, id: &'static str, part: &Part, only_known: bool) -> Refuses {
        let is_removed = self.removed.contains(id);
        let ttl = part.ttl.map(|ttl| Origin::Reported(secs(ttl)));
        let (facts, origin) = match self.workers.get(id) {
            Some(known) => {
                let origin = ttl.unwrap_or(known.origin.clone());
                (known.facts.clone(), origin)
            }
            None if only_known || part.port.is_none() || (is_removed && ttl.is_some()) => {
                return true;
            }
            None => {
                let facts = Facts {
                    port: 0,
                    models: BTreeSet::from([0]),
                    lora: false,
                    draining: false,
                    blocks: None,
                };
                let default = Origin::Reported(secs(10));
                let by_operator = if is_removed { Origin::Static } else { default };
                (facts, ttl.unwrap_or(by_operator))
            }
        };
        let facts = Facts {
            port: part.port.unwrap_or(facts.port),
            blocks: part.blocks.unwrap_or(facts.blocks),
            draining: match (part.ttl, part.draining) {
                (Some(_), Some(draining)) => draining,
                _ => facts.draining,
            },
            ..facts
        };
        let operator = part.draining.filter(|_| part.ttl.is_none());
        self.put(id, facts, origin, operator);
        false
    }

    fn put(&mut self, id: &'static str, facts: Facts, origin: Origin, drains: Option<bool>) {
        self.removed.remove(id);
        let known = self.workers.remove(id);
        let next = self.last.values().map(|(_, which)| which + 1).max();
        let last = self.last.get(id).filter(|(port, _)| *port == facts.port);
        let incarnation = last.map_or(next.unwrap_or_default(), |(_, which)| *which);
        self.last.insert(id, (facts.port, incarnation));
        let worker = Worker {
            origin: match &known {
                Some(known) if known.origin == Origin::Static => Origin::Static,
                _ => origin,
            },
            operator_drains: drains
                .unwrap_or_else(|| known.as_ref().is_some_and(|known| known.operator_drains)),
            heard: Instant::now(),
            incarnation,
            facts,
        };
        self.workers.insert(id, worker);
    }

    fn remove(&mut self, id: &'static str) -> Option<Removed> {
        let gone = self.workers.remove(id)?;
        if gone.origin == Origin::Static {
            self.removed.insert(id);
            return Some(Removed::ForGood);
        }
        Some(Removed::UntilItIsBack)
    }

    fn leave(&mut self, id: &'static str, origin: &Origin) -> bool {
        let is_its = match (self.workers.get(id).map(|it| &it.origin), origin) {
            (Some(Origin::Reported(_)), Origin::Reported(_)) => true,
            (Some(Origin::Source(one)), Origin::Source(other)) => one == other,
            _ => false,
        };
        is_its && self.workers.remove(id).is_some()
    }

    fn expire(&mut self) {
        let now = Instant::now();
        self.workers.retain(|_, worker| match worker.origin {
            Origin::Reported(ttl) => worker.heard + ttl > now,
            _ => true,
        });
    }

    fn runs_on(&self, worker: &Worker) -> u64 {
        let mine = |(of, _): &&(usize, _)| *of == worker.incarnation;
        self.running.iter().filter(mine).count() as u64
    }

    fn is_busy(&self, worker: &Worker) -> bool {
        self.runs_on(worker) * TOKENS > THRESHOLD
    }

    /// Those that have the model, and whether a request may go to them.
    fn serve(&self, model: &str) -> Vec<(&Worker, bool)> {
        let workers = self.workers.values();
        let serve = workers.filter(|worker| worker.facts.names().contains(model));
        serve
            .map(|worker| (worker, !worker.is_draining() && !self.is_busy(worker)))
            .collect()
    }
}

struct Under {
    setup: Setup,
    model: Model,
}

impl Under {
    fn new() -> Self {
        let setup = setup(|builder| builder.default_model(MODELS[0]));
        tokio::spawn(setup.fleet.expiry());
        for model in MODELS {
            setup.fleet.add_model(model).unwrap();
            let thresholds = setup.monitor.thresholds().get(model).unwrap();
            let update = ThresholdUpdate::new().active_prefill_tokens(THRESHOLD);
            thresholds.update(update).unwrap();
        }
        Self {
            setup,
            model: Model::default(),
        }
    }

    async fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let Self { setup, model } = self;
        let fleet = &setup.fleet;
        match op {
            Op::Register(id, facts, who) => {
                let id = IDS[*id];
                let said = fleet.register(id, facts.registration(), who.origin());
                prop_assert_eq!(said.is_err(), model.whole(id, facts, who.origin()));
            }
            Op::Put(id, part) => {
                let said = fleet.put(IDS[*id], part.update());
                prop_assert_eq!(said.is_err(), model.part(IDS[*id], part, false));
            }
            Op::Patch(id, part) => {
                let said = fleet.patch(IDS[*id], part.update());
                prop_assert_eq!(said.is_err(), model.part(IDS[*id], part, true));
            }
            Op::Drain(id, draining) => {
                let part = Part {
                    port: None,
                    draining: Some(*draining),
                    blocks: None,
                    ttl: None,
                };
                let said = fleet.drain(IDS[*id], *draining);
                prop_assert_eq!(said.is_err(), model.part(IDS[*id], &part, true));
            }
            Op::Remove(id) => {
                prop_assert_eq!(fleet.remove(IDS[*id]), model.remove(IDS[*id]));
            }
            Op::Leave(id, who) => {
                let left = fleet.leave(IDS[*id], &who.origin());
                prop_assert_eq!(left, model.leave(IDS[*id], &who.origin()));
            }
            Op::Report(id) => {
                let id = IDS[*id];
                // What is counted here is not taken from it.
                let event = LoadEvent::new(id.into(), 0).active_prefill_tokens(9_999_999);
                fleet.observe(&[event]);
                if let Some(worker) = model.workers.get_mut(id) {
                    worker.heard = Instant::now();
                }
            }
            Op::Advance(by) => {
                // Not at a leap, as if the process had been stopped.
                sleep(secs(*by)).await;
                settled().await;
                model.expire();
            }
            Op::Request(name) => {
                settled().await;
                let name = [MODELS[0], MODELS[1], LORA][*name];
                if fleet.model(name).is_some() {
                    self.request(name).await?;
                }
            }
            Op::Finish(which) => {
                if !model.running.is_empty() {
                    let which = which % model.running.len();
                    drop(model.running.swap_remove(which));
                }
            }
        }
        settled().await;
        self.check()
    }

    async fn request(&mut self, name: &str) -> Result<(), TestCaseError> {
        let answer = request(&self.setup.fleet, name).await;
        let serve = self.model.serve(name);
        let is_one_free = serve.iter().any(|(_, is_free)| *is_free);
        match answer {
            Answer::From(url, running) => {
                // By what is counted, since two workers may have one URL.
                let counts = |id: &str| self.runs_of_tracker(id);
                let workers = self.model.workers.iter();
                let mut more = workers.filter(|(id, it)| counts(id) > self.model.runs_on(it));
                let chosen = more.next().map(|(_, worker)| worker);
                let from = chosen.filter(|chosen| {
                    let is_it = |(it, _): &&(&Worker, bool)| it.incarnation == chosen.incarnation;
                    let is_free = serve.iter().find(is_it).is_some_and(|(_, free)| *free);
                    is_free && Facts::url(chosen.facts.port) == url.to_string()
                });
                prop_assert!(from.is_some(), "{} is not eligible for {}", url, name);
                let incarnation = from.expect("it was just seen").incarnation;
                self.model.running.push((incarnation, running));
            }
            Answer::Overloaded => prop_assert!(!is_one_free && !serve.is_empty(), "529 {}", name),
            Answer::Unavailable => prop_assert!(!is_one_free, "503 {}", name),
        }
        Ok(())
    }

    fn runs_of_tracker(&self, id: &str) -> u64 {
        self.setup.tracker.counts(id.into()).prefill_tokens() / TOKENS
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let Self { setup, model } = self;
        let views = setup.fleet.workers();
        prop_assert_eq!(
            views.iter().map(|view| &*view.id).collect::<Vec<_>>(),
            model.workers.keys().copied().collect::<Vec<_>>()
        );
        for view in &views {
            let worker = &model.workers[&*view.id];
            let url: Uri = Facts::url(worker.facts.port).parse().unwrap();
            prop_assert_eq!(&view.url, &url);
            prop_assert_eq!(&view.origin, &worker.origin);
            prop_assert_eq!(view.kv_total_blocks, worker.facts.blocks);
            let names: BTreeSet<_> = view.models.iter().map(|model| &*model.model).collect();
            prop_assert_eq!(names, worker.facts.names());
            for served in &view.models {
                let marks = served.marks;
                prop_assert_eq!(marks.has(Mark::Draining), worker.is_draining());
                prop_assert_eq!(marks.has(Mark::Busy), model.is_busy(worker), "{:?}", view);
            }
            prop_assert_eq!(self.runs_of_tracker(&view.id), model.runs_on(worker));
        }
        for id in IDS {
            let is_there = model.workers.contains_key(id);
            prop_assert_eq!(setup.monitor.worker(&id.into()).is_some(), is_there);
        }
        for served in setup.fleet.models() {
            let serve = model.serve(served.name());
            let free = serve.iter().filter(|(_, is_free)| *is_free).count();
            prop_assert_eq!(served.members().alive(), serve.len() as u64);
            prop_assert_eq!(served.members().eligible(), free as u64);
            // Nothing is left behind of those that have gone.
            for (id, marks) in served.set().snapshot() {
                let is_there = model.workers.get(&*id);
                let is_there =
                    is_there.is_some_and(|it| it.facts.names().contains(&**served.name()));
                prop_assert!(is_there || !marks.is_excluded(), "{} has {:?}", id, marks);
            }
        }
        Ok(())
    }
}

fn facts() -> impl Strategy<Value = Facts> {
    let models = prop::collection::btree_set(0..MODELS.len(), 1..=MODELS.len());
    let blocks = prop::option::of(1..4_u64);
    (
        1..4_u16,
        models,
        any::<bool>(),
        prop::bool::weighted(0.2),
        blocks,
    )
        .prop_map(|(port, models, lora, draining, blocks)| Facts {
            port,
            models,
            lora,
            draining,
            blocks,
        })
}

fn part() -> impl Strategy<Value = Part> {
    (
        prop::option::of(1..4_u16),
        prop::option::of(any::<bool>()),
        prop::option::of(prop::option::of(1..4_u64)),
        prop::option::of(1..20_u64),
    )
        .prop_map(|(port, draining, blocks, ttl)| Part {
            port,
            draining,
            blocks,
            ttl,
        })
}

fn who() -> impl Strategy<Value = Who> {
    prop_oneof![
        Just(Who::Configuration),
        (1..20_u64).prop_map(Who::Itself),
        (0..2_usize).prop_map(Who::Discovery),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..IDS.len();
    prop_oneof![
        3 => (id.clone(), facts(), who()).prop_map(|(id, facts, who)| Op::Register(id, facts, who)),
        2 => (id.clone(), part()).prop_map(|(id, part)| Op::Put(id, part)),
        2 => (id.clone(), part()).prop_map(|(id, part)| Op::Patch(id, part)),
        1 => (id.clone(), any::<bool>()).prop_map(|(id, drain)| Op::Drain(id, drain)),
        1 => id.clone().prop_map(Op::Remove),
        1 => (id.clone(), who()).prop_map(|(id, who)| Op::Leave(id, who)),
        1 => id.prop_map(Op::Report),
        1 => (1..8_u64).prop_map(Op::Advance),
        12 => (0..3_usize).prop_map(Op::Request),
        6 => (0..100_usize).prop_map(Op::Finish),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_fleet_does_what_its_model_does(ops in prop::collection::vec(op(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut under = Under::new();
            for op in &ops {
                under.apply(op).await?;
            }
            // All that runs on ends, and takes nothing off that is another's.
            under.model.running.clear();
            settled().await;
            under.check()
        })?;
    }
}
