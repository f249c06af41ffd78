//! Which pages of a private mapping were written.
//!
//! A private file mapping's page is the file's until it is written and anonymous afterwards, so "present and not the
//! file's" is "dirty". The kernel answers that for a whole range at once (`PAGEMAP_SCAN`, Linux 6.7), or page by page
//! in `/proc/self/pagemap`. No tracking has to be switched on and no fault handler is involved.

#![expect(unsafe_code, reason = "one ioctl that no crate wraps")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use super::PAGE;

/// Asks which pages are anonymous.
pub(crate) struct Pagemap {
    file: File,
    scan: bool,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_length: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;

nix::ioctl_readwrite!(pagemap_scan, b'f', 16, ScanArguments);

impl Pagemap {
    /// This process's page map; an error where `/proc` is not mounted.
    pub(crate) fn shared() -> io::Result<&'static Self> {
        static SHARED: OnceLock<Result<Pagemap, io::ErrorKind>> = OnceLock::new();
        SHARED
            .get_or_init(|| {
                let file = File::open("/proc/self/pagemap").map_err(|error| error.kind())?;
                let mut map = Self { file, scan: true };
                // An empty scan tells whether the kernel knows the call.
                map.scan = map.scan_range(0..0, &mut Vec::new()).is_ok();
                Ok(map)
            })
            .as_ref()
            .map_err(|kind| io::Error::from(*kind))
    }

    /// The pages of `addresses` (whole pages) that are anonymous, as ascending, disjoint address ranges.
    pub(crate) fn written(&self, addresses: Range<usize>) -> io::Result<Vec<Range<usize>>> {
        let mut found = Vec::new();
        if addresses.is_empty() {
            return Ok(found);
        }
        if self.scan { self.scan_range(addresses, &mut found) } else { self.read_range(addresses, &mut found) }?;
        Ok(found)
    }

    fn scan_range(&self, addresses: Range<usize>, found: &mut Vec<Range<usize>>) -> io::Result<()> {
        let mut regions = [Region::default(); 256];
        let mut start = addresses.start as u64;
        loop {
            let mut arguments = ScanArguments {
                size: size_of::<ScanArguments>() as u64,
                start,
                end: addresses.end as u64,
                regions: regions.as_mut_ptr() as u64,
                regions_length: regions.len() as u64,
                category_inverted: PAGE_IS_FILE | PAGE_IS_PFNZERO,
                category_mask: PAGE_IS_FILE | PAGE_IS_PFNZERO,
                category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                return_mask: PAGE_IS_PRESENT,
                ..ScanArguments::default()
            };
            // SAFETY: the descriptor is an open page map; `arguments` has the layout of the kernel's
            // `struct pm_scan_arg` and says its own size; `regions` points to `regions_length` writable regions with
            // the layout of `struct page_region`, which outlive the call. No flag asks the kernel to change pages.
            let count = unsafe { pagemap_scan(self.file.as_raw_fd(), &raw mut arguments) }? as usize;
            for region in &regions[..count.min(regions.len())] {
                push(found, region.start as usize..region.end as usize);
            }
            if arguments.walk_end >= addresses.end as u64 || arguments.walk_end <= start {
                return Ok(());
            }
            start = arguments.walk_end;
        }
    }

    fn read_range(&self, addresses: Range<usize>, found: &mut Vec<Range<usize>>) -> io::Result<()> {
        let mut entries = [0; 8 * 512];
        let mut page = addresses.start / PAGE;
        let end = addresses.end / PAGE;
        while page < end {
            let count = (end - page).min(512);
            let bytes = &mut entries[..8 * count];
            self.file.read_exact_at(bytes, 8 * page as u64)?;
            for (index, entry) in bytes.chunks_exact(8).enumerate() {
                let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
                let present = entry & (1 << 63) != 0 || entry & (1 << 62) != 0;
                let of_file = entry & (1 << 61) != 0;
                if present && !of_file {
                    push(found, (page + index) * PAGE..(page + index + 1) * PAGE);
                }
            }
            page += count;
        }
        Ok(())
    }
}

fn push(found: &mut Vec<Range<usize>>, range: Range<usize>) {
    match found.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => found.push(range),
    }
}
