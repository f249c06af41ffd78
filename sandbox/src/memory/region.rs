//! Address ranges, and those that wait for their next guest.
//!
//! Mapping a guest's memory, making its first pages its own and taking it all apart again costs the kernel more than
//! the interpreter needs for a small block. So the ranges of dropped guests that wrote little are kept with their
//! image, and the next guest gets one whose written pages were put back.

#![expect(unsafe_code, reason = "mapping memory is what this module is for")]

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

/// Ranges that one image keeps.
const MAX_SPARES: usize = 64;

/// A range of this process's addresses that belongs to this value alone.
pub(super) struct Region {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the address range is owned by this value alone and is not bound to a thread.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives addresses only.
unsafe impl Sync for Region {}

impl Region {
    /// `length` bytes, inaccessible.
    pub(super) fn new(length: usize) -> io::Result<Self> {
        // SAFETY: a fresh range chosen by the kernel, inaccessible, backed by nothing.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the kernel mapped address 0"))?;
        Ok(Self { base, length })
    }

    /// Its first address.
    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Its size, bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and belongs to this value; whoever dropped it is done with it.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert_eq!(result, 0, "unmapping an owned range cannot fail");
    }
}

/// A region that starts with a private mapping of an image and is inaccessible behind it.
pub(super) struct Spare {
    pub(super) region: Region,
    /// Pages that differ from the image.
    pub(super) written: Vec<Range<usize>>,
}

/// The regions that an image keeps.
#[derive(Default)]
pub(super) struct Spares(Mutex<Vec<Spare>>);

impl Spares {
    /// Whether another one would be kept.
    pub(super) fn wants(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() < MAX_SPARES
    }

    /// Keeps `spare`, or takes it apart where there are enough.
    pub(super) fn give(&self, spare: Spare) {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spares.len() < MAX_SPARES {
            spares.push(spare);
        }
    }

    /// The last one that was kept, if it has `length` bytes.
    pub(super) fn take(&self, length: usize) -> Option<Spare> {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spares.pop_if(|spare| spare.region.length() == length)
    }
}
