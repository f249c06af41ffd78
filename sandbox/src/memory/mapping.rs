//! One guest's address range.

#![expect(unsafe_code, reason = "mapping memory and handing it to wasmtime is what this module is for")]

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

use super::image::memory_file;
use super::pagemap::Pagemap;
use super::region::{Region, Spare};
use super::{Image, Layer, PAGE};

/// A heap beyond this size gets a file of its own, so that freezing it copies nothing.
const OWN_FILE_FROM: usize = 2 << 20;

/// Bytes that are put back in a range for its next guest; beyond, a new range costs less and holds less.
const MAX_REVERTED: usize = 256 * PAGE;

/// Bytes of a page on this machine.
pub(crate) fn page_size() -> usize {
    // SAFETY: this call has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(0)
}

/// What a new memory starts from.
#[derive(Clone)]
pub(crate) struct Seed {
    pub(crate) image: Arc<Image>,
    pub(crate) layer: Option<Arc<Layer>>,
    /// Size of the memory, bytes: at least the image's and the layer's together.
    pub(crate) size: usize,
}

/// What lies behind the heap.
enum Heap {
    /// Anonymous pages.
    Anonymous,
    /// A file of this mapping's own, mapped shared: what the guest writes is in the file.
    Own(File),
    /// A frozen layer, mapped privately; anonymous pages beyond it.
    Frozen(Arc<Layer>),
}

/// A layer, and the runs of pages that differ from image and layer.
pub(super) type Frozen = (Option<Arc<Layer>>, Vec<Range<usize>>);

/// One guest's address range: `[image | heap | nothing]`.
pub(crate) struct Mapping {
    /// Present until this value is dropped.
    region: Option<Region>,
    base: NonNull<u8>,
    capacity: usize,
    size: AtomicUsize,
    image: Arc<Image>,
    heap: Mutex<Heap>,
    /// Pages that are this mapping's own already, because the range had a guest before, bytes.
    warm: usize,
    usage: Mutex<Usage>,
}

/// Whether a guest uses a mapping.
struct Usage {
    busy: bool,
    /// When it last began or stopped.
    since: Instant,
    /// It waits to be looked at.
    parked: bool,
}

// SAFETY: the address range is owned by this value alone until it is dropped, and is not bound to a thread. All state
// beside it is behind atomics and a lock.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives no access to the bytes but through functions whose callers hold the guest's
// store exclusively (the module's invariant).
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(seed: Seed, capacity: usize, guard: usize) -> io::Result<Self> {
        let reserved = capacity.checked_add(guard).ok_or_else(|| io::Error::other("reservation overflows"))?;
        let image_length = seed.image.length();
        let layer_length = seed.layer.as_ref().map_or(0, |layer| layer.length());
        let filled = image_length + layer_length;
        if seed.size < filled || seed.size > capacity || !seed.size.is_multiple_of(PAGE) {
            return Err(io::Error::other(format!("a memory of {} bytes cannot hold {filled}", seed.size)));
        }
        let spare = if seed.layer.is_none() { seed.image.spares().take(reserved) } else { None };
        let (region, written) = match spare {
            Some(spare) => (spare.region, Some(spare.written)),
            None => (Region::new(reserved)?, None),
        };
        let base = NonNull::new(region.base()).ok_or_else(|| io::Error::other("the kernel mapped address 0"))?;
        let mapping = Self {
            region: Some(region),
            base,
            capacity,
            size: AtomicUsize::new(seed.size),
            image: Arc::clone(&seed.image),
            heap: Mutex::new(seed.layer.clone().map_or(Heap::Anonymous, Heap::Frozen)),
            warm: written.iter().flatten().map(Range::len).sum(),
            usage: Mutex::new(Usage { busy: false, since: Instant::now(), parked: false }),
        };
        match written {
            Some(written) => mapping.revert(&written)?,
            None => mapping.map_file(seed.image.file(), 0..image_length, 0, libc::MAP_PRIVATE)?,
        }
        if let Some(layer) = &seed.layer {
            mapping.map_file(layer.file(), image_length..filled, 0, libc::MAP_PRIVATE)?;
        }
        mapping.open(filled..seed.size)?;
        Ok(mapping)
    }

    /// Puts the image's bytes back in the pages of `runs`.
    fn revert(&self, runs: &[Range<usize>]) -> io::Result<()> {
        for run in runs {
            assert!(run.start <= run.end && run.end <= self.image.length(), "reverted outside the image");
            // SAFETY: the range lies within the image's part of this value's own mapping, which is writable; no guest
            // uses it yet, so no other reference exists.
            let bytes = unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(run.start), run.len()) };
            self.image.file().read_exact_at(bytes, run.start as u64)?;
        }
        Ok(())
    }

    /// Makes the range one for a next guest: the pages of the image's part that were written. `None` where starting
    /// anew is better.
    fn retire(&self) -> Option<Vec<Range<usize>>> {
        if !matches!(*self.heap(), Heap::Anonymous) || !self.image.spares().wants() {
            return None;
        }
        let base = self.base.as_ptr() as usize;
        let written = Pagemap::shared().and_then(|map| map.written(base..base + self.image.length())).ok()?;
        if written.iter().map(Range::len).sum::<usize>() > MAX_REVERTED {
            return None;
        }
        let heap = self.image.length()..self.size();
        if !heap.is_empty() {
            // SAFETY: the range lies within this value's own mapping and nobody uses it any more: the guest is gone.
            let closed = unsafe {
                let start = self.base.as_ptr().add(heap.start).cast();
                libc::madvise(start, heap.len(), libc::MADV_DONTNEED) == 0
                    && libc::mprotect(start, heap.len(), libc::PROT_NONE) == 0
            };
            closed.then_some(())?;
        }
        Some(written.into_iter().map(|run| run.start - base..run.end - base).collect())
    }

    /// Bytes of pages that are its own although no guest has run in it yet.
    pub(super) fn warm(&self) -> usize {
        self.warm
    }

    fn used(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A guest begins to run or to be written to; waits for [`Self::rest`] to end.
    pub(crate) fn begin(&self) {
        let mut used = self.used();
        used.busy = true;
    }

    /// It stopped. Answers whether it is to be parked: looked at again with [`Self::rest`].
    pub(crate) fn end(&self) -> bool {
        let mut used = self.used();
        used.busy = false;
        used.since = Instant::now();
        !std::mem::replace(&mut used.parked, true)
    }

    /// If nobody used it for `pause`: gives back the pages that hold what the image holds (a block changes and changes
    /// back much, such as counts of references). Otherwise answers when to look again.
    pub(crate) fn rest(&self, pause: Duration) -> Option<Instant> {
        let mut used = self.used();
        if used.busy {
            return Some(Instant::now() + pause);
        }
        let due = used.since + pause;
        if due > Instant::now() {
            return Some(due);
        }
        used.parked = false;
        // The lock keeps guests from running meanwhile.
        if let Err(error) = self.give_back() {
            tracing::debug!(%error, "an idle guest keeps its pages");
        }
        drop(used);
        None
    }

    fn give_back(&self) -> io::Result<()> {
        let base = self.base.as_ptr() as usize;
        let mut original = Vec::new();
        for run in Pagemap::shared()?.written(base..base + self.image.length())? {
            let run = run.start - base..run.end - base;
            original.resize(run.len(), 0);
            self.image.file().read_exact_at(&mut original, run.start as u64)?;
            let mut same: Option<Range<usize>> = None;
            for (page, original) in run.step_by(PAGE).zip(original.chunks_exact(PAGE)) {
                if self.bytes(page..page + PAGE) == original {
                    same = Some(same.map_or(page, |same| same.start)..page + PAGE);
                } else if let Some(same) = same.take() {
                    self.discard(same)?;
                }
            }
            same.map_or(Ok(()), |same| self.discard(same))?;
        }
        Ok(())
    }

    /// Makes `range` of the image's part what the image holds there.
    fn discard(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.image.length(), "discarded outside the image");
        // SAFETY: the range lies within this value's own private mapping of the image; the caller sees that no guest
        // runs, and readers see the same bytes before and after.
        let result =
            unsafe { libc::madvise(self.base.as_ptr().add(range.start).cast(), range.len(), libc::MADV_DONTNEED) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Size of the memory, bytes.
    pub(crate) fn size(&self) -> usize {
        self.size.load(Ordering::Acquire)
    }

    /// The image it started from.
    pub(crate) fn image(&self) -> &Arc<Image> {
        &self.image
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps `file` from `offset` over `range` of this memory, readable and writable.
    fn map_file(&self, file: &File, range: Range<usize>, offset: usize, kind: libc::c_int) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        assert!(range.end <= self.capacity, "mapped outside the reservation");
        // SAFETY: `range` lies within this value's own reservation, so MAP_FIXED replaces nothing of anybody else.
        // No Rust reference to these bytes exists: callers hold the guest's store exclusively and references made
        // from it end before.
        let mapped = unsafe {
            libc::mmap(
                self.base.as_ptr().add(range.start).cast(),
                range.len(),
                libc::PROT_READ | libc::PROT_WRITE,
                kind | libc::MAP_FIXED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes `range` of the reservation readable and writable.
    fn open(&self, range: Range<usize>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        assert!(range.end <= self.capacity, "opened outside the reservation");
        // SAFETY: `range` lies within this value's own reservation and was inaccessible before.
        let result = unsafe {
            libc::mprotect(self.base.as_ptr().add(range.start).cast(), range.len(), libc::PROT_READ | libc::PROT_WRITE)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn grow(&self, size: usize) -> io::Result<()> {
        let old = self.size();
        if size <= old {
            return Ok(());
        }
        if size > self.capacity || !size.is_multiple_of(PAGE) {
            return Err(io::Error::other(format!("a memory of {size} bytes exceeds {} bytes", self.capacity)));
        }
        let start = self.image.length();
        let mut heap = self.heap();
        match &*heap {
            Heap::Anonymous if size - start > OWN_FILE_FROM => {
                let file = memory_file("espalier-heap")?;
                file.set_len((size - start) as u64)?;
                self.write_to(&file, start..old, 0)?;
                self.map_file(&file, start..size, 0, libc::MAP_SHARED)?;
                *heap = Heap::Own(file);
            }
            Heap::Anonymous | Heap::Frozen(_) => self.open(old..size)?,
            Heap::Own(file) => {
                file.set_len((size - start) as u64)?;
                self.map_file(file, old..size, old - start, libc::MAP_SHARED)?;
            }
        }
        self.size.store(size, Ordering::Release);
        Ok(())
    }

    /// The bytes of `range`. The guest must not run while the slice lives.
    fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.size(), "read outside the memory");
        // SAFETY: the range is mapped readable; the guest does not run (the module's invariant), so nobody writes.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len()) }
    }

    fn write_to(&self, file: &File, range: Range<usize>, offset: usize) -> io::Result<()> {
        file.write_all_at(self.bytes(range), offset as u64)
    }

    /// Copies `pages` to `range`, which the guest does not use yet.
    pub(super) fn fill(&self, start: usize, bytes: &[u8]) {
        assert!(start.checked_add(bytes.len()).is_some_and(|end| end <= self.size()), "wrote outside the memory");
        // SAFETY: the destination is mapped writable and owned by this value; the guest does not run, so no other
        // reference exists; the source is another allocation.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(start), bytes.len()) }
    }

    /// Makes the pages of `run` this mapping's own before the guest writes them, for less than a fault each. A kernel
    /// that cannot (before 5.14) leaves it to the faults.
    pub(super) fn own(&self, run: Range<usize>) {
        assert!(run.start <= run.end && run.end <= self.size(), "touched outside the memory");
        // SAFETY: the range lies within this value's own mapping; its contents do not change.
        unsafe { libc::madvise(self.base.as_ptr().add(run.start).cast(), run.len(), libc::MADV_POPULATE_WRITE) };
    }

    /// Pages of `range` that differ from what was mapped there, as ranges of this memory.
    pub(super) fn written(&self, range: Range<usize>) -> io::Result<Vec<Range<usize>>> {
        let base = self.base.as_ptr() as usize;
        match Pagemap::shared().and_then(|map| map.written(base + range.start..base + range.end)) {
            Ok(runs) => Ok(runs.into_iter().map(|run| run.start - base..run.end - base).collect()),
            Err(_) => self.compared(range),
        }
    }

    /// The same, by comparing contents: where `/proc` is not mounted.
    fn compared(&self, range: Range<usize>) -> io::Result<Vec<Range<usize>>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut original = [0; PAGE];
        let heap = self.heap();
        for start in range.step_by(PAGE) {
            let heap_offset = start.checked_sub(self.image.length());
            match (&*heap, heap_offset) {
                (_, None) => self.image.file().read_exact_at(&mut original, start as u64)?,
                (Heap::Frozen(layer), Some(offset)) if offset < layer.length() => {
                    layer.file().read_exact_at(&mut original, offset as u64)?;
                }
                _ => original.fill(0),
            }
            if self.bytes(start..start + PAGE) != original {
                match found.last_mut() {
                    Some(last) if last.end == start => last.end += PAGE,
                    _ => found.push(start..start + PAGE),
                }
            }
        }
        Ok(found)
    }

    /// Makes the state of this memory something that others can start from: a layer (nothing where the heap is
    /// small) and the pages that differ from image and layer. `alone` says that nobody but the last checkpoint of
    /// this very guest, which is about to be replaced, shares the layer; it may then be written in place.
    pub(super) fn freeze(&self, alone: bool) -> io::Result<Frozen> {
        let (start, size) = (self.image.length(), self.size());
        let mut runs = self.written(0..start)?;
        let frozen = match &*self.heap() {
            Heap::Anonymous => None,
            Heap::Own(file) => Some(Arc::new(Layer::new(file.try_clone()?, size - start))),
            Heap::Frozen(layer) => Some(Arc::clone(layer)),
        };
        let Some(mut layer) = frozen else {
            runs.extend(self.written(start..size)?);
            return Ok((None, runs));
        };
        let own = matches!(&*self.heap(), Heap::Own(_));
        if own {
            self.map_file(layer.file(), start..size, 0, libc::MAP_PRIVATE)?;
        } else {
            let heap_runs = self.written(start..size)?;
            let written: usize = heap_runs.iter().map(Range::len).sum();
            if written <= (256 * PAGE).max(layer.length() / 8) {
                runs.extend(heap_runs);
                return Ok((Some(layer), runs));
            }
            if alone {
                let file = layer.file().try_clone()?;
                file.set_len((size - start) as u64)?;
                for run in heap_runs {
                    self.write_to(&file, run.clone(), run.start - start)?;
                }
                layer = Arc::new(Layer::new(file, size - start));
            } else {
                let file = memory_file("espalier-layer")?;
                file.set_len((size - start) as u64)?;
                self.write_to(&file, start..size, 0)?;
                layer = Arc::new(Layer::new(file, size - start));
            }
            self.map_file(layer.file(), start..size, 0, libc::MAP_PRIVATE)?;
        }
        *self.heap() = Heap::Frozen(Arc::clone(&layer));
        Ok((Some(layer), runs))
    }

    /// An image of this memory, which started from the booted interpreter's.
    pub(super) fn to_image(&self) -> io::Result<Image> {
        let size = self.size();
        let changed = self.written(0..size)?;
        self.image.with_changes(size, changed, |run| self.bytes(run))
    }

    /// Copies the bytes of `runs` out, one after the other.
    pub(super) fn copy_out(&self, runs: &[Range<usize>]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(runs.iter().map(Range::len).sum());
        for run in runs {
            bytes.extend_from_slice(self.bytes(run.clone()));
        }
        bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // wasmtime's handle holds a reference to this value, so no guest can reach the range any more.
        if let Some(region) = self.region.take()
            && let Some(written) = self.retire()
        {
            self.image.spares().give(Spare { region, written });
        }
    }
}

/// wasmtime's handle to a [`Mapping`].
struct Handle(Arc<Mapping>);

// SAFETY: the memory is page-aligned, never moves within its capacity, is followed by inaccessible pages up to the
// end of the reservation (guard included), grows in place, and lives as long as this handle.
unsafe impl LinearMemory for Handle {
    fn byte_size(&self) -> usize {
        self.0.size()
    }

    fn byte_capacity(&self) -> usize {
        self.0.capacity
    }

    fn grow_to(&mut self, new_size: usize) -> wasmtime::Result<()> {
        self.0.grow(new_size).map_err(wasmtime::Error::new)
    }

    fn as_ptr(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }
}

thread_local! {
    /// What the instance that this thread is about to make starts from, and the memory that was made for it.
    static NEXT: RefCell<(Option<Seed>, Option<Arc<Mapping>>)> = const { RefCell::new((None, None)) };
}

/// Makes memories from the [`Seed`] that [`Creator::with`] announced.
pub(crate) struct Creator;

impl Creator {
    /// Runs `instantiate`, whose memory starts from `seed`, and gives that memory back beside its result.
    pub(crate) fn with<R>(seed: Seed, instantiate: impl FnOnce() -> R) -> (R, Option<Arc<Mapping>>) {
        NEXT.set((Some(seed), None));
        let result = instantiate();
        let (_, mapping) = NEXT.take();
        (result, mapping)
    }
}

// SAFETY: a memory made here has the reserved size and guard that wasmtime asks for, is at least as large as the
// minimum, and has the contents that the module's own data would have given it (the image). It is not zeroed where
// the image is not: that is the purpose, and only this crate's modules are instantiated with it.
unsafe impl MemoryCreator for Creator {
    fn new_memory(
        &self,
        _ty: MemoryType,
        minimum: usize,
        _maximum: Option<usize>,
        reserved_size_in_bytes: Option<usize>,
        guard_size_in_bytes: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let seed = NEXT.with_borrow_mut(|next| next.0.take()).ok_or("no image was announced for this instance")?;
        if seed.size < minimum {
            return Err(format!("the image has {} bytes, the module wants {minimum}", seed.size));
        }
        let capacity = reserved_size_in_bytes.unwrap_or(4 << 30);
        let mapping = Mapping::new(seed, capacity, guard_size_in_bytes)
            .map_err(|error| format!("mapping a guest's memory failed: {error}"))?;
        let mapping = Arc::new(mapping);
        NEXT.with_borrow_mut(|next| next.1 = Some(Arc::clone(&mapping)));
        Ok(Box::new(Handle(mapping)))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;
    use std::time::Duration;

    use super::{Mapping, Seed};
    use crate::memory::{Checkpoint, Image, PAGE, WASM_PAGE};

    fn mapping(checkpoint: &Checkpoint) -> Mapping {
        let mapping = Mapping::new(checkpoint.seed(), 1 << 30, WASM_PAGE).unwrap();
        checkpoint.fill(&mapping);
        mapping
    }

    fn booted() -> Checkpoint {
        Checkpoint::booted(booted_image(), None)
    }

    fn booted_image() -> Arc<Image> {
        let text = b"booted";
        let image = Image::new(4 * WASM_PAGE, [(5 * PAGE, text.as_slice())].into_iter()).unwrap();
        Arc::new(image)
    }

    #[test]
    fn written_pages_are_found_by_the_kernel_and_by_comparing() {
        let mapping = mapping(&booted());
        mapping.grow(8 * WASM_PAGE).unwrap();
        for page in [5, 6, 30, 70, 127] {
            mapping.fill(page * PAGE + 17, b"dirty");
        }
        let expected = [5 * PAGE..7 * PAGE, 30 * PAGE..31 * PAGE, 70 * PAGE..71 * PAGE, 127 * PAGE..128 * PAGE];
        assert_eq!(mapping.written(0..8 * WASM_PAGE).unwrap(), expected);
        assert_eq!(mapping.compared(0..8 * WASM_PAGE).unwrap(), expected);
    }

    #[test]
    fn a_checkpoint_gives_the_same_bytes_whatever_the_heap_grew_to() {
        for pages in [0, 20, 64, 1024] {
            let booted = booted();
            let first = mapping(&booted);
            first.grow((4 + pages) * WASM_PAGE).unwrap();
            for offset in (PAGE..first.size()).step_by(3 * PAGE) {
                first.fill(offset, &(offset as u64).to_le_bytes());
            }
            let mut previous = booted;
            // The second is taken from a frozen heap, the third after many writes to it.
            for round in 0..3u8 {
                if round == 2 {
                    first.grow(first.size() + WASM_PAGE).unwrap();
                    for offset in (0..first.size()).step_by(PAGE) {
                        first.fill(offset + 99, &[round]);
                    }
                }
                let checkpoint = Checkpoint::take(&first, &previous, Some(7), true).unwrap();
                let second = mapping(&checkpoint);
                assert!(first.bytes(0..first.size()) == second.bytes(0..second.size()), "{pages} {round}");
                let mut saved = Vec::new();
                checkpoint
                    .pages(|number, bytes| {
                        saved.push((number, bytes.to_vec()));
                        Ok(())
                    })
                    .unwrap();
                let saved = saved.iter().map(|(number, bytes)| (*number, bytes.as_slice()));
                let image = Arc::clone(first.image());
                let third = mapping(&Checkpoint::from_pages(image, first.size(), Some(7), saved).unwrap());
                assert!(first.bytes(0..first.size()) == third.bytes(0..third.size()), "{pages} {round}");
                previous = checkpoint;
            }
        }
    }

    #[test]
    fn what_starts_from_a_template_has_its_bytes_and_saves_them_all() {
        for grown in [0, 3] {
            let first = mapping(&booted());
            first.grow((4 + grown) * WASM_PAGE).unwrap();
            for page in [2, 5, 6, 40, 63 + 16 * grown] {
                first.fill(page * PAGE + 3, b"set up");
            }
            // A page that the booted memory has bytes in, and a template zeros.
            first.fill(5 * PAGE, &[0; 9]);
            let template = Checkpoint::template(&first, Some(7)).unwrap();
            let second = mapping(&template);
            assert!(first.bytes(0..first.size()) == second.bytes(0..second.size()));
            assert_eq!(second.written(0..second.size()).unwrap(), []);
            second.grow(second.size() + WASM_PAGE).unwrap();
            for page in [0, 6, 7, second.size() / PAGE - 1] {
                second.fill(page * PAGE + 99, b"later");
            }
            let checkpoint = Checkpoint::take(&second, &template, Some(7), true).unwrap();
            let mut saved = Vec::new();
            checkpoint
                .pages(|number, bytes| {
                    saved.push((number, bytes.to_vec()));
                    Ok(())
                })
                .unwrap();
            assert!(saved.is_sorted_by_key(|(number, _)| *number));
            let saved = saved.iter().map(|(number, bytes)| (*number, bytes.as_slice()));
            let restored = Checkpoint::from_pages(booted_image(), second.size(), Some(7), saved).unwrap();
            let restored = mapping(&restored);
            assert!(second.bytes(0..second.size()) == restored.bytes(0..restored.size()));
        }
    }

    #[test]
    fn a_range_that_had_a_guest_before_shows_nothing_of_it() {
        let template = booted();
        for round in 0..4 {
            let first = mapping(&template);
            assert_eq!(first.warm() > 0, round > 0);
            let fresh = Image::new(4 * WASM_PAGE, [(5 * PAGE, b"booted".as_slice())].into_iter()).unwrap();
            let fresh = mapping(&Checkpoint::booted(Arc::new(fresh), None));
            assert!(first.bytes(0..first.size()) == fresh.bytes(0..fresh.size()));
            first.grow((4 + 2 * round) * WASM_PAGE).unwrap();
            assert!(first.bytes(4 * WASM_PAGE..first.size()).iter().all(|byte| *byte == 0));
            for page in [0, 5, 9 + round, first.size() / PAGE - 1] {
                first.fill(page * PAGE + 1, b"secret");
            }
        }
        // A guest that grew a file of its own leaves no range.
        let large = mapping(&template);
        large.grow(400 * WASM_PAGE).unwrap();
        drop(large);
        assert_eq!(mapping(&template).warm(), 0);
    }

    #[test]
    fn a_guest_that_rests_keeps_only_what_it_changed() {
        let resting = mapping(&booted());
        resting.begin();
        resting.fill(3 * PAGE, &[0; 4]);
        resting.fill(5 * PAGE, b"booted");
        resting.fill(6 * PAGE, b"changed");
        resting.fill(7 * PAGE, &[0; 4]);
        resting.fill(8 * PAGE + 5, b"changed");
        let before = resting.bytes(0..resting.size()).to_vec();
        assert!(resting.rest(Duration::ZERO).is_some(), "it is in use");
        assert!(resting.end());
        assert!(!resting.end(), "it is parked already");
        assert!(resting.rest(Duration::from_hours(1)).is_some(), "it was used just now");
        assert_eq!(resting.rest(Duration::ZERO), None);
        assert_eq!(resting.written(0..resting.size()).unwrap(), [6 * PAGE..7 * PAGE, 8 * PAGE..9 * PAGE]);
        assert!(resting.bytes(0..resting.size()) == before);
        assert!(resting.end(), "it can be parked again");
    }

    #[test]
    fn a_fork_does_not_see_what_its_parent_writes_later() {
        let booted = booted();
        let parent = mapping(&booted);
        parent.grow(400 * WASM_PAGE).unwrap();
        for offset in (0..parent.size()).step_by(PAGE) {
            parent.fill(offset, b"before");
        }
        let checkpoint = Checkpoint::take(&parent, &booted, None, true).unwrap();
        let fork = mapping(&checkpoint);
        for offset in (0..parent.size()).step_by(PAGE) {
            parent.fill(offset, b"after!");
        }
        // The layer is shared with the fork, so it must not be written in place.
        let later = Checkpoint::take(&parent, &checkpoint, None, true).unwrap();
        drop(checkpoint);
        for offset in (0..fork.size()).step_by(PAGE) {
            assert_eq!(fork.bytes(offset..offset + 6), b"before");
        }
        let later = mapping(&later);
        assert_eq!(later.bytes(300 * WASM_PAGE..300 * WASM_PAGE + 6), b"after!");
    }

    #[test]
    fn a_memory_does_not_grow_beyond_its_reservation() {
        let seed = Seed { size: 4 * WASM_PAGE, ..booted().seed() };
        let mapping = Mapping::new(seed, 8 * WASM_PAGE, 0).unwrap();
        assert!(mapping.grow(8 * WASM_PAGE).is_ok());
        assert!(mapping.grow(9 * WASM_PAGE).is_err());
    }
}
