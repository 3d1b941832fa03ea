use super::{Id, Refused};
use crate::{
    busy::{BusySet, Members, Roster},
    load::{ThresholdsHandle, WorkerMonitor},
    status::{KnownModels, Model},
    sync::{Mutex, lock},
};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

/// A model that the fleet knows, and what stands in front of its workers.
///
/// It lives on with those who hold it, also when the fleet has forgotten it.
pub struct ServedModel<M> {
    name: Arc<str>,
    since: SystemTime,
    label: Model,
    set: BusySet<Id>,
    members: Members,
    service: M,
}

impl<M> ServedModel<M> {
    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// When the fleet first heard of it.
    pub fn since(&self) -> SystemTime {
        self.since
    }

    /// Its name for the [status layer](crate::status), to put into requests.
    pub fn label(&self) -> &Model {
        &self.label
    }

    /// The marks of its workers.
    pub fn set(&self) -> &BusySet<Id> {
        &self.set
    }

    /// How many workers it has.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// What the application has [made](super::FleetBuilder::build) for it.
    pub fn service(&self) -> &M {
        &self.service
    }
}

impl<M> fmt::Debug for ServedModel<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedModel")
            .field("name", &self.name)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

/// A model in the table of models. A worker that serves it holds it, and so
/// does an adapter of it: it is forgotten only when nobody does.
pub(super) struct Served<S, M> {
    pub(super) model: Arc<ServedModel<M>>,
    pub(super) roster: Roster<Id, S>,
    thresholds: ThresholdsHandle,
    /// What it adapts, and whose thresholds are its own.
    base: Option<Arc<Served<S, M>>>,
    is_pinned: AtomicBool,
}

impl<S, M> Served<S, M> {
    pub(super) fn set(&self) -> &BusySet<Id> {
        &self.model.set
    }

    pub(super) fn name(&self) -> &str {
        &self.model.name
    }

    /// It is never forgotten.
    pub(super) fn pin(&self) {
        self.is_pinned.store(true, Ordering::Relaxed);
    }

    /// The model is judged and counted from here on, if it was not.
    pub(super) fn join(&self, monitor: &WorkerMonitor<Id>, known: Option<&KnownModels>) {
        monitor.put_model(self.name(), self.set(), &self.thresholds);
        if let Some(known) = known {
            if let Err(error) = known.add(self.name()) {
                tracing::warn!(%error, "the model is counted as unknown");
            }
        }
    }
}

/// A model that was composed and may enter the table.
pub(super) struct Fresh<S, M> {
    pub(super) name: Arc<str>,
    pub(super) label: Model,
    pub(super) set: BusySet<Id>,
    pub(super) members: Members,
    pub(super) service: M,
    pub(super) roster: Roster<Id, S>,
    pub(super) base: Option<Arc<Served<S, M>>>,
}

/// The models by name, no more than there may be.
pub(super) struct Models<S, M> {
    most: usize,
    table: Mutex<Table<S, M>>,
}

struct Table<S, M> {
    next: u64,
    by_name: HashMap<Arc<str>, Claimed<S, M>>,
}

/// A model, and its place in the order in which they were last claimed.
type Claimed<S, M> = (Arc<Served<S, M>>, u64);

/// A model that is in the table, and one that had to make room for it.
pub(super) struct Entered<S, M> {
    pub(super) served: Arc<Served<S, M>>,
    pub(super) forgotten: Option<Arc<Served<S, M>>>,
}

impl<S, M> Models<S, M> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            table: Mutex::new(Table {
                next: 0,
                by_name: HashMap::new(),
            }),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<ServedModel<M>>> {
        let table = lock(&self.table);
        let (served, _) = table.by_name.get(name)?;
        Some(served.model.clone())
    }

    pub(super) fn all(&self) -> Vec<Arc<ServedModel<M>>> {
        let table = lock(&self.table);
        let models = table.by_name.values();
        let mut models: Vec<_> = models.map(|(served, _)| served.model.clone()).collect();
        drop(table);
        models.sort_by(|one, other| one.name.cmp(&other.name));
        models
    }

    /// The model of this name, for one who serves it.
    pub(super) fn claim(&self, name: &str) -> Option<Arc<Served<S, M>>> {
        lock(&self.table).claim(name)
    }

    /// Whether all of `names` can be models now. Those that are known have been
    /// claimed: one that gives way to another of them is one too few.
    pub(super) fn check_room<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<(), Refused> {
        let table = lock(&self.table);
        let known = names.filter(|name| !table.by_name.contains_key(*name));
        let new = known.count();
        let free = self.most.saturating_sub(table.by_name.len());
        if new > free && new > free + table.unneeded().count() {
            return Err(self.no_room());
        }
        Ok(())
    }

    /// Takes a model in, unless one of its name is there by now: that is the
    /// one then. If there are as many as there may be, the one goes that
    /// nobody serves and that was longest not asked for.
    pub(super) fn enter(
        &self,
        fresh: Fresh<S, M>,
        monitor: &WorkerMonitor<Id>,
    ) -> Result<Entered<S, M>, Refused> {
        let thresholds = match &fresh.base {
            Some(base) => base.thresholds.clone(),
            None => monitor.new_thresholds(),
        };
        let served = Arc::new(Served {
            model: Arc::new(ServedModel {
                name: fresh.name,
                since: SystemTime::now(),
                label: fresh.label,
                set: fresh.set,
                members: fresh.members,
                service: fresh.service,
            }),
            roster: fresh.roster,
            thresholds,
            base: fresh.base,
            is_pinned: AtomicBool::new(false),
        });
        let mut table = lock(&self.table);
        if let Some(there) = table.claim(served.name()) {
            // Dropped after the lock is: what it is made of is foreign.
            drop(table);
            return Ok(Entered {
                served: there,
                forgotten: None,
            });
        }
        let mut forgotten = None;
        if table.by_name.len() >= self.most {
            let oldest = table.unneeded().min_by_key(|(_, claimed)| *claimed);
            let Some(name) = oldest.map(|(served, _)| served.model.name.clone()) else {
                drop(table);
                return Err(self.no_room());
            };
            forgotten = table.by_name.remove(&name).map(|(served, _)| served);
        }
        let place = table.place();
        let name = served.model.name.clone();
        table.by_name.insert(name, (served.clone(), place));
        Ok(Entered { served, forgotten })
    }

    fn no_room(&self) -> Refused {
        Refused::full(format!(
            "models has a new one: no more than {} can be known",
            self.most
        ))
    }
}

impl<S, M> Table<S, M> {
    fn place(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn claim(&mut self, name: &str) -> Option<Arc<Served<S, M>>> {
        let place = self.place();
        let (served, claimed) = self.by_name.get_mut(name)?;
        *claimed = place;
        Some(served.clone())
    }

    /// Those that nobody serves, that no operator has given thresholds and
    /// that are not to stay. The thresholds of an adapter are kept by the model
    /// that it adapts, so they are no reason to keep the adapter. Nobody comes to hold one without the lock.
    fn unneeded(&self) -> impl Iterator<Item = &Claimed<S, M>> {
        self.by_name.values().filter(|(served, _)| {
            let is_set_up =
                || served.base.is_none() && served.thresholds.get() != Default::default();
            !served.is_pinned.load(Ordering::Relaxed)
                && Arc::strong_count(served) == 1
                && !is_set_up()
        })
    }
}
