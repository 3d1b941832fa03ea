//! The models that judge workers, by place.

use super::super::{Thresholds, ThresholdsHandle};
use crate::busy::BusySet;
use ::metrics::Gauge;
use std::{mem, sync::Arc as Shared};

/// A place in [`Models`]. The stamp tells a model from a later one that has
/// taken its place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ModelId {
    pub(super) place: u32,
    pub(super) stamp: u32,
}

pub(super) struct Models<K> {
    pub(super) places: Vec<Option<Model<K>>>,
    pub(super) next_stamp: u32,
}

pub(super) struct Model<K> {
    pub(super) id: ModelId,
    pub(super) name: Shared<str>,
    pub(super) set: BusySet<K>,
    pub(super) handle: ThresholdsHandle,
    /// The thresholds that are in effect.
    pub(super) thresholds: Thresholds,
    /// For each threshold, the workers that never gave a signal for it.
    pub(super) missing: [u64; 3],
    pub(super) missing_gauges: [Gauge; 3],
}

impl<K> Default for Models<K> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            next_stamp: 0,
        }
    }
}

impl<K> Models<K> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Model<K>> {
        self.places.iter().flatten()
    }

    pub(super) fn id(&self, name: &str) -> Option<ModelId> {
        let model = self.iter().find(|model| &*model.name == name)?;
        Some(model.id)
    }

    pub(super) fn get(&self, id: ModelId) -> Option<&Model<K>> {
        self.places.get(id.place as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: ModelId) -> Option<&mut Model<K>> {
        self.places.get_mut(id.place as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, id: ModelId) -> Option<Model<K>> {
        self.places.get_mut(id.place as usize)?.take()
    }

    pub(super) fn insert(
        &mut self,
        name: &str,
        set: BusySet<K>,
        handle: ThresholdsHandle,
        missing_gauges: [Gauge; 3],
    ) {
        let vacant = self.places.iter().position(Option::is_none);
        let place = vacant.unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(None);
        }
        let id = ModelId {
            place: place as u32,
            stamp: self.next_stamp,
        };
        self.next_stamp = self.next_stamp.wrapping_add(1);
        self.places[place] = Some(Model {
            id,
            name: name.into(),
            set,
            thresholds: handle.get(),
            handle,
            missing: [0; 3],
            missing_gauges,
        });
    }
}

impl<K> Model<K> {
    /// Moves a worker from one row of the count to another.
    pub(super) fn recount(&mut self, from: &mut [bool; 3], to: [bool; 3]) {
        for (i, to) in to.into_iter().enumerate() {
            let from = mem::replace(&mut from[i], to);
            if from == to {
                continue;
            }
            self.missing[i] = if to {
                self.missing[i] + 1
            } else {
                self.missing[i].saturating_sub(1)
            };
            self.missing_gauges[i].set(self.missing[i] as f64);
        }
    }
}
