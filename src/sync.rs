//! The synchronisation types of the crate: the standard library's, or loom's
//! when the models are run (`--cfg tower_overload_loom`).
//!
//! A poisoned lock is taken all the same: every critical section leaves its
//! data consistent before it can run foreign code.

#[cfg(not(tower_overload_loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

#[cfg(tower_overload_loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// Takes the lock, whether or not a panic has poisoned it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Explores all interleavings with at most this many preemptions.
#[cfg(all(test, tower_overload_loom))]
pub(crate) fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}
