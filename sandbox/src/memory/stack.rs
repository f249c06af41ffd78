//! Native stacks on which guests run.
//!
//! wasmtime keeps a guest's stack between two requests, although it holds nothing then: what deep calls touched would
//! stay resident for as long as the REPL lives. So the stacks are this module's: [`Stack::trim`] gives the pages of
//! an idle one back, and those of dropped guests are used again, warm.

#![expect(unsafe_code, reason = "mapping memory and handing it to wasmtime is what this module is for")]

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use wasmtime::{Error, StackCreator, StackMemory};

use super::PAGE;

/// Unused stacks that are kept.
const MAX_FREE: usize = 64;
/// Bytes at the top that stay resident in an idle guest: a short request touches little more.
const KEPT: usize = 8 * PAGE;

/// One stack: a guard page and the stack above it.
struct Region {
    base: NonNull<u8>,
    /// Bytes, the guard page included.
    length: usize,
}

// SAFETY: the address range is owned by this value alone and not bound to a thread.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives addresses only, and `trim`, whose callers hold the guest exclusively.
unsafe impl Sync for Region {}

impl Region {
    fn new(size: usize) -> io::Result<Self> {
        let length = size.next_multiple_of(PAGE) + PAGE;
        // SAFETY: a fresh range chosen by the kernel.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the kernel mapped address 0"))?;
        let region = Self { base, length };
        // SAFETY: the first page of the range above, which nobody uses yet.
        if unsafe { libc::mprotect(region.base.as_ptr().cast(), PAGE, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(region)
    }

    /// Gives back every page but the topmost `kept` bytes. No guest may be suspended on this stack.
    fn trim(&self, kept: usize) {
        let length = self.length.saturating_sub(PAGE + kept.next_multiple_of(PAGE));
        // SAFETY: the range lies within this value's own mapping, above the guard page; its contents are not needed,
        // since no fiber runs or is suspended on it (the caller's promise).
        let result = unsafe { libc::madvise(self.base.as_ptr().add(PAGE).cast(), length, libc::MADV_DONTNEED) };
        debug_assert_eq!(result, 0, "giving back owned pages cannot fail");
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and belongs to this value alone.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert_eq!(result, 0, "unmapping an owned range cannot fail");
    }
}

/// Makes stacks, and keeps some of those that are not used any more.
#[derive(Default)]
pub(crate) struct Stacks {
    free: Arc<Mutex<Vec<Region>>>,
}

thread_local! {
    /// The stack that was made last on this thread and not yet asked for.
    static MADE: RefCell<Option<Stack>> = const { RefCell::new(None) };
}

/// A guest's stack, beside wasmtime's own handle to it.
#[derive(Clone)]
pub(crate) struct Stack(Arc<Region>);

impl Stack {
    /// The stack that was made on this thread since the last call.
    pub(crate) fn made() -> Option<Self> {
        MADE.take()
    }

    /// Gives back what deep calls touched. The guest must not be in the middle of a request.
    pub(crate) fn trim(&self) {
        self.0.trim(KEPT);
    }
}

/// wasmtime's handle to a stack.
struct Handle {
    region: Option<Arc<Region>>,
    bottom: *mut u8,
    length: usize,
    free: Arc<Mutex<Vec<Region>>>,
}

// SAFETY: the pointer is an address within the region, which is not bound to a thread.
unsafe impl Send for Handle {}
// SAFETY: as above; `&Handle` gives addresses only.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // The guest is gone, and with it the other handle, unless it is just being dropped.
        let Some(region) = self.region.take().and_then(Arc::into_inner) else { return };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MAX_FREE {
            region.trim(KEPT);
            free.push(region);
        }
    }
}

// SAFETY: a stack made here is page-aligned, exclusively owned, as large as asked for, and has an inaccessible page
// below. A used one is not zeroed; no guest can read its native stack.
unsafe impl StackCreator for Stacks {
    fn new_stack(&self, size: usize, _zeroed: bool) -> Result<Box<dyn StackMemory>, Error> {
        let found = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.pop().filter(|region| region.length >= size + PAGE)
        };
        let region = match found {
            Some(region) => region,
            None => Region::new(size).map_err(Error::new)?,
        };
        let (bottom, length) = (region.base.as_ptr().wrapping_add(PAGE), region.length - PAGE);
        let region = Arc::new(region);
        MADE.set(Some(Stack(Arc::clone(&region))));
        Ok(Box::new(Handle { region: Some(region), bottom, length, free: Arc::clone(&self.free) }))
    }
}

// SAFETY: `range` is the mapped, accessible part, `top` its end, and `guard_range` the inaccessible page below; all
// stay valid as long as the region, which this handle keeps.
unsafe impl StackMemory for Handle {
    fn top(&self) -> *mut u8 {
        self.bottom.wrapping_add(self.length)
    }

    fn range(&self) -> Range<usize> {
        let bottom = self.bottom as usize;
        bottom..bottom + self.length
    }

    fn guard_range(&self) -> Range<*mut u8> {
        self.bottom.wrapping_sub(PAGE)..self.bottom
    }
}
