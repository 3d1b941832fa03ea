//! Foreign code that panics, and those who come after it.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread::panicking,
};

/// The first panic of several pieces of foreign code, of which all run
/// whatever the others do.
#[derive(Default)]
pub(crate) struct FirstPanic(Option<Box<dyn Any + Send>>);

impl FirstPanic {
    pub(crate) fn catch(&mut self, foreign: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(foreign)) {
            self.0.get_or_insert(panic);
        }
    }

    /// Lets the panic go on to the caller, when nothing is left undone.
    ///
    /// A caller that is unwinding already is spared it: a second one would
    /// abort the process.
    #[inline]
    pub(crate) fn resume(self) {
        match self.0 {
            Some(panic) if !panicking() => resume_unwind(panic),
            _ => {}
        }
    }
}
