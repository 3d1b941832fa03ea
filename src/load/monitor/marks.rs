//! The marks of one worker id.

use super::super::rank::{Clock, Moment};
use super::{
    models::{ModelId, Models},
    worker::Worker,
};
use crate::{WorkerId, busy::BusyMark, unwind::FirstPanic};
use std::mem;

/// What is known under one worker id. It outlives the worker until the
/// worker's marks are dropped, so that a successor's are made after that and
/// not before.
pub(super) struct Entry {
    pub(super) worker: Option<Worker>,
    pub(super) marks: Marks,
}

/// The marks of one worker id. They are changed without the monitor's lock,
/// because a change wakes others: one thread at a time takes them out, and
/// looks again before it puts them back.
pub(super) enum Marks {
    Here(Vec<Held>),
    Out,
}

pub(super) struct Held {
    pub(super) model: ModelId,
    pub(super) mark: BusyMark,
    /// What the mark was last set to.
    pub(super) is: Moment,
    /// What it is to be set to; `None` if it is to be dropped.
    pub(super) wanted: Option<Moment>,
    /// The news of the worker that it was last set by, and is to be set by.
    pub(super) news: u64,
    pub(super) wanted_news: u64,
}

impl Entry {
    /// Plans how the marks, which the caller has taken out, get to what they
    /// should be. `false` if they are.
    pub(super) fn plan<K: WorkerId>(
        &self,
        key: &K,
        models: &Models<K>,
        marks: &mut Vec<Held>,
    ) -> bool {
        let worker = self.worker.as_ref();
        let seats = worker.map_or(&[][..], |worker| &*worker.seats);
        let news = worker.map_or(0, |worker| worker.news);
        let mut change = false;
        let mut gone = false;
        for held in &mut *marks {
            let seat = seats.iter().find(|seat| seat.model == held.model);
            held.wanted = seat.map(|seat| seat.busy_until);
            held.wanted_news = news;
            gone |= seat.is_none();
            change |= held.wanted != Some(held.is);
            change |= held.is != Moment::NEVER && held.news != news;
        }
        if gone {
            // Those first, before another one is made for the same worker.
            return true;
        }
        for seat in seats {
            let held = marks.iter().any(|held| held.model == seat.model);
            if held || seat.busy_until == Moment::NEVER {
                continue;
            }
            if let Some(model) = models.get(seat.model) {
                change = true;
                marks.push(Held {
                    model: seat.model,
                    mark: model.set.busy_mark(key.clone()),
                    is: Moment::NEVER,
                    wanted: Some(seat.busy_until),
                    news: news.wrapping_sub(1),
                    wanted_news: news,
                });
            }
        }
        change
    }
}

/// Does to each mark what is wanted. What can panic is a waker, and then the
/// mark is changed already.
pub(super) fn apply(marks: &mut Vec<Held>, clock: &Clock, panic: &mut FirstPanic) {
    let mut at = 0;
    while let Some(held) = marks.get_mut(at) {
        let Some(wanted) = held.wanted else {
            let gone = marks.swap_remove(at);
            panic.catch(|| drop(gone));
            continue;
        };
        at += 1;
        let was = mem::replace(&mut held.is, wanted);
        let is_news = mem::replace(&mut held.news, held.wanted_news) != held.wanted_news;
        panic.catch(|| match wanted {
            Moment::NEVER if was != wanted => held.mark.clear(),
            Moment::NEVER => {}
            // A mark that has fallen by its time is another one.
            busy_until if is_news || was == Moment::NEVER => {
                held.mark.set(clock.instant(busy_until));
            }
            busy_until if was != wanted => held.mark.keep(clock.instant(busy_until)),
            _ => {}
        });
    }
}
