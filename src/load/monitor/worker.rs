//! What is known of one worker, and how its models judge it.

use super::super::{
    WorkerConfig, WorkerCounts,
    few::Few,
    gauges::RankGauges,
    rank::{Capacity, Moment, RankLoad, Signals, worker_busy_until},
};
use super::{
    models::{Model, ModelId, Models},
    transition::{To, Transition},
};
use std::mem;

pub(super) struct Worker {
    /// Those who read its counts from outside.
    pub(super) counts: Option<WorkerCounts>,
    pub(super) capacity: Capacity,
    /// Boxed, because no event reads it.
    pub(super) config: Box<WorkerConfig>,
    /// By `dp_rank`, ascending.
    pub(super) ranks: Few<Rank>,
    pub(super) seats: Few<Seat>,
    pub(super) signals: Signals,
    /// Counts the reports in which a count was another one than before.
    pub(super) news: u64,
}

pub(super) struct Rank {
    pub(super) dp_rank: u32,
    pub(super) load: RankLoad,
    pub(super) gauges: RankGauges,
}

/// The verdict of one model on one worker.
pub(super) struct Seat {
    pub(super) model: ModelId,
    pub(super) busy_until: Moment,
    pub(super) missing: [bool; 3],
}

impl Worker {
    pub(super) fn is_busy(&self) -> bool {
        let mut seats = self.seats.iter();
        seats.any(|seat| seat.busy_until != Moment::NEVER)
    }

    /// Lets every model of the worker judge it. Returns whether a mark has
    /// to change.
    pub(super) fn judge<K: Clone>(
        &mut self,
        key: &K,
        models: &mut Models<K>,
        now: Moment,
        transitions: &mut Vec<Transition<K>>,
    ) -> bool {
        let mut changed = false;
        for seat in &mut *self.seats {
            let Some(model) = models.get_mut(seat.model) else {
                continue;
            };
            model.recount(
                &mut seat.missing,
                self.signals.missing(&model.thresholds, &self.capacity),
            );
            let loads = self.ranks.iter().map(|rank| &rank.load);
            let until = worker_busy_until(loads, &model.thresholds, &self.capacity, now);
            let was = mem::replace(&mut seat.busy_until, until);
            if was == until {
                continue;
            }
            changed = true;
            let was_busy = was != Moment::NEVER;
            let is_busy = until != Moment::NEVER;
            let steps = match (was_busy, is_busy) {
                (true, _) if was.is_over(now) => [Some(To::Stale), is_busy.then_some(To::Busy)],
                (true, false) => [Some(To::Free), None],
                (false, true) => [Some(To::Busy), None],
                // Still busy, until another time.
                _ => [None, None],
            };
            for to in steps.into_iter().flatten() {
                // Nobody listens: spare the clones. The level is a static,
                // so no subscriber runs under the lock.
                if tracing::level_filters::LevelFilter::current() < tracing::Level::INFO {
                    break;
                }
                if let Some(rank) = cause(&self.ranks, model, &self.capacity, to, now) {
                    transitions.push(Transition {
                        worker: key.clone(),
                        model: model.name.clone(),
                        to,
                        ranks: self.ranks.len(),
                        dp_rank: rank.dp_rank,
                        counts: rank.load.fresh(now),
                        capacity: self.capacity,
                        thresholds: model.thresholds,
                    });
                }
            }
        }
        changed
    }

    /// Has those who read the counts see what was last reported.
    pub(super) fn publish_counts(&self, good_until: Moment) {
        if let Some(counts) = &self.counts {
            let (mut tokens, mut blocks) = (0_u64, 0_u64);
            for rank in &*self.ranks {
                let [active, used, prefill] = rank.load.last_reported();
                tokens = tokens.saturating_add(prefill);
                blocks = blocks.saturating_add(active.max(used));
            }
            counts.report(tokens, blocks, good_until);
        }
    }

    /// The worker is gone: its gauges show 0, and no model counts it.
    pub(super) fn retire<K>(&mut self, models: &mut Models<K>) {
        if let Some(counts) = &self.counts {
            counts.report(0, 0, Moment::NEVER);
        }
        for rank in &*self.ranks {
            rank.gauges.retire();
        }
        for seat in &mut *self.seats {
            if let Some(model) = models.get_mut(seat.model) {
                model.recount(&mut seat.missing, [false; 3]);
            }
        }
    }
}

/// The rank to name as the cause: of *busy* the one with the latest evidence,
/// which is the one that tipped the worker; of *free* the first that is free.
pub(super) fn cause<'a, K>(
    ranks: &'a [Rank],
    model: &Model<K>,
    capacity: &Capacity,
    to: To,
    now: Moment,
) -> Option<&'a Rank> {
    let until = |rank: &&Rank| rank.load.busy_until(&model.thresholds, capacity, now);
    match to {
        To::Busy => ranks.iter().max_by_key(until),
        To::Free | To::Stale => ranks.iter().min_by_key(until),
    }
}

impl Worker {
    /// Becomes `new`, keeping what is known of the ranks and models that stay.
    pub(super) fn reconfigure<K>(&mut self, new: Self, models: &mut Models<K>) {
        let mut old = mem::replace(self, new);
        self.signals = old.signals;
        let same_labels = self.config.label() == old.config.label();
        let mut kept = old.ranks.into_vec().into_iter().peekable();
        for rank in &mut *self.ranks {
            while let Some(gone) = kept.next_if(|old| old.dp_rank < rank.dp_rank) {
                gone.gauges.retire();
            }
            if let Some(old) = kept.next_if(|old| old.dp_rank == rank.dp_rank) {
                rank.load = old.load;
                if same_labels {
                    rank.gauges = old.gauges;
                } else {
                    old.gauges.retire();
                    rank.gauges.restore(&old.load);
                }
            }
        }
        kept.for_each(|gone| gone.gauges.retire());
        for seat in &mut *old.seats {
            match self.seats.iter_mut().find(|new| new.model == seat.model) {
                Some(new) => {
                    new.busy_until = seat.busy_until;
                    new.missing = seat.missing;
                }
                None => {
                    if let Some(model) = models.get_mut(seat.model) {
                        model.recount(&mut seat.missing, [false; 3]);
                    }
                }
            }
        }
    }
}
