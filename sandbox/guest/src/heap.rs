//! The allocator: size classes for small objects over the system allocator, with a count and a bound.
//!
//! Invariants: a request above the largest single allocation never succeeds outside [`exempt`]; once the bytes in use
//! pass the soft limit while a block runs, the interrupt word says so. Small blocks go back to their class, never to
//! the system: an interpreter uses the same sizes again and again.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use espalier_sandbox_protocol::abi;
use rustpython_vm::common::espalier;

use crate::host;

/// Sizes are classed in steps of this many bytes.
const STEP: usize = 16;
/// Largest size that has a class.
const LARGEST: usize = 512;
const CLASSES: usize = LARGEST / STEP;
/// Bytes taken from the system at a time.
const CHUNK: usize = 32 * 1024;

struct Classes {
    /// Free blocks of each class, linked through their first word.
    free: [*mut u8; CLASSES],
    next: *mut u8,
    end: *mut u8,
}

struct Heap;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static SOFT: AtomicUsize = AtomicUsize::new(usize::MAX);
static SINGLE: AtomicUsize = AtomicUsize::new(usize::MAX);
static RUNNING: AtomicBool = AtomicBool::new(false);
static REFUSED: AtomicBool = AtomicBool::new(false);
static mut CLASSES_STATE: Classes =
    Classes { free: [std::ptr::null_mut(); CLASSES], next: std::ptr::null_mut(), end: std::ptr::null_mut() };

#[global_allocator]
static HEAP: Heap = Heap;

/// Bytes in use.
pub fn in_use() -> usize {
    IN_USE.load(Relaxed)
}

/// Sets the limits of this REPL.
pub fn limit(soft: usize, single: usize) {
    SOFT.store(soft, Relaxed);
    SINGLE.store(single, Relaxed);
}

/// Raises the soft limit and the one on single allocations, for a context: what a program makes of it whole (another
/// case, its bytes, its lines) is as large.
pub fn raise_limits(soft: usize, single: usize) {
    SOFT.store(SOFT.load(Relaxed).saturating_add(soft), Relaxed);
    SINGLE.store(SINGLE.load(Relaxed).saturating_add(single), Relaxed);
}

/// Whether the model's code runs: only then the soft limit interrupts.
pub fn set_running(running: bool) {
    RUNNING.store(running, Relaxed);
    if running {
        REFUSED.store(false, Relaxed);
    }
}

/// Whether an allocation was refused since the model's code began to run.
pub fn was_refused() -> bool {
    REFUSED.load(Relaxed)
}

/// Runs `work` without the limit on single allocations.
pub fn exempt<T>(work: impl FnOnce() -> T) -> T {
    let single = SINGLE.swap(usize::MAX, Relaxed);
    let result = work();
    SINGLE.store(single, Relaxed);
    result
}

/// What the standard library calls where an allocation fails that cannot be reported as an error.
pub fn refused(layout: Layout) {
    SINGLE.store(usize::MAX, Relaxed);
    host::abort(abi::ABORT_MEMORY, &format!("an allocation of {} bytes was refused", layout.size()))
}

/// Counts `old` bytes back and answers that there is no memory. Most callers raise `MemoryError`.
#[cold]
fn refuse(old: usize) -> *mut u8 {
    REFUSED.store(true, Relaxed);
    IN_USE.store(IN_USE.load(Relaxed).wrapping_sub(old), Relaxed);
    std::ptr::null_mut()
}

#[cold]
fn over_soft_limit() {
    if RUNNING.load(Relaxed) && espalier::INTERRUPT.load(Relaxed) == abi::INTERRUPT_NONE {
        espalier::INTERRUPT.store(abi::INTERRUPT_MEMORY, Relaxed);
    }
}

#[inline(always)]
fn count(size: usize) {
    let in_use = IN_USE.load(Relaxed).wrapping_add(size);
    IN_USE.store(in_use, Relaxed);
    if in_use > SOFT.load(Relaxed) {
        over_soft_limit();
    }
}

#[inline(always)]
fn class_of(layout: Layout) -> Option<usize> {
    if layout.size() <= LARGEST && layout.align() <= STEP && layout.size() != 0 {
        Some((layout.size() - 1) / STEP)
    } else {
        None
    }
}

#[cold]
#[inline(never)]
unsafe fn refill(classes: *mut Classes, size: usize) -> *mut u8 {
    // SAFETY: the guest has one thread, and nothing below allocates through this allocator while it borrows `classes`.
    unsafe {
        let left = (*classes).end as usize - (*classes).next as usize;
        if left >= STEP {
            // What is left of the old chunk is one block of its own size.
            let class = left.min(LARGEST) / STEP - 1;
            let block = (*classes).next;
            block.cast::<*mut u8>().write((*classes).free[class]);
            (*classes).free[class] = block;
        }
        let chunk = System.alloc(Layout::from_size_align_unchecked(CHUNK, STEP));
        if chunk.is_null() {
            (*classes).next = std::ptr::null_mut();
            (*classes).end = std::ptr::null_mut();
            return chunk;
        }
        (*classes).next = chunk.add(size);
        (*classes).end = chunk.add(CHUNK);
        chunk
    }
}

// SAFETY: blocks of a class are disjoint pieces of chunks that are never given back, each at least as large as its
// class and aligned to `STEP`; everything else is the system allocator's. The guest has one thread.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: see above.
        unsafe {
            if let Some(class) = class_of(layout) {
                let classes = &raw mut CLASSES_STATE;
                let block = (*classes).free[class];
                if !block.is_null() {
                    (*classes).free[class] = block.cast::<*mut u8>().read();
                    return block;
                }
                let size = (class + 1) * STEP;
                let next = (*classes).next;
                if (*classes).end as usize - next as usize >= size {
                    (*classes).next = next.add(size);
                    return next;
                }
                return refill(classes, size);
            }
            if layout.size() > SINGLE.load(Relaxed) {
                return refuse(layout.size());
            }
            let block = System.alloc(layout);
            if block.is_null() { refuse(layout.size()) } else { block }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        IN_USE.store(IN_USE.load(Relaxed).wrapping_sub(layout.size()), Relaxed);
        // SAFETY: `block` came from `alloc` with the same layout.
        unsafe {
            if let Some(class) = class_of(layout) {
                let classes = &raw mut CLASSES_STATE;
                block.cast::<*mut u8>().write((*classes).free[class]);
                (*classes).free[class] = block;
            } else {
                System.dealloc(block, layout);
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: see `alloc`.
        unsafe {
            if class_of(layout).is_some() {
                let block = self.alloc(layout);
                if !block.is_null() {
                    block.write_bytes(0, layout.size());
                }
                return block;
            }
            count(layout.size());
            if layout.size() > SINGLE.load(Relaxed) {
                return refuse(layout.size());
            }
            let block = System.alloc_zeroed(layout);
            if block.is_null() { refuse(layout.size()) } else { block }
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: `block` came from `alloc` with `layout`; sizes are checked by the caller of `realloc`.
        unsafe {
            let new = Layout::from_size_align_unchecked(new_size, layout.align());
            match (class_of(layout), class_of(new)) {
                (Some(old), Some(class)) if old == class => {
                    count(new_size.wrapping_sub(layout.size()));
                    block
                }
                (None, None) if layout.size() != 0 => {
                    if new_size > SINGLE.load(Relaxed) && new_size > layout.size() {
                        return refuse(0);
                    }
                    let moved = System.realloc(block, layout, new_size);
                    if moved.is_null() {
                        return refuse(0);
                    }
                    count(new_size.wrapping_sub(layout.size()));
                    moved
                }
                _ => {
                    let moved = self.alloc(new);
                    if !moved.is_null() {
                        moved.copy_from_nonoverlapping(block, layout.size().min(new_size));
                        self.dealloc(block, layout);
                    }
                    moved
                }
            }
        }
    }
}
