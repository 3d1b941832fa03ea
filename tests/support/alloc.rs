//! An allocator that tells of what it does.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, observed: neither function may allocate.
pub struct Observed {
    /// Called with the bytes of each allocation.
    pub allocated: fn(usize),
    /// Called with the bytes of each that is freed.
    pub freed: fn(usize),
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Observed {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        (self.allocated)(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        (self.freed)(layout.size());
        unsafe { System.dealloc(pointer, layout) }
    }
}
