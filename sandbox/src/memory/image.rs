//! Memory that REPLs start from.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::region::Spares;
use super::{PAGE, WASM_PAGE};

/// The booted interpreter's memory, or that of one that was set up too, in a file in memory that nobody can write any
/// more.
pub(crate) struct Image {
    file: File,
    length: usize,
    /// Pages that differ from the booted interpreter's, ascending.
    changed: Vec<Range<usize>>,
    spares: Spares,
}

/// Bytes that are copied at a time.
const COPIED: usize = 16 * PAGE;

impl Image {
    /// An image of `length` bytes (whole WebAssembly pages) with `segments` at their offsets and zeros elsewhere.
    pub(crate) fn new<'a>(length: usize, segments: impl Iterator<Item = (usize, &'a [u8])>) -> io::Result<Self> {
        if !length.is_multiple_of(WASM_PAGE) || !length.is_multiple_of(PAGE) {
            return Err(io::Error::other(format!("expected whole pages, got {length} bytes")));
        }
        let file = memory_file("espalier-image")?;
        file.set_len(length as u64)?;
        for (offset, bytes) in segments {
            if offset.checked_add(bytes.len()).is_none_or(|end| end > length) {
                return Err(io::Error::other(format!(
                    "a segment of {} bytes at {offset} lies outside a memory of {length} bytes",
                    bytes.len()
                )));
            }
            file.write_all_at(bytes, offset as u64)?;
        }
        Self::sealed(file, length, Vec::new())
    }

    /// The memory that starts as this image, has `length` bytes and differs in the pages `changed`, which `bytes`
    /// gives. This image must be the booted interpreter's own.
    pub(super) fn with_changes<'a>(
        &self,
        length: usize,
        changed: Vec<Range<usize>>,
        bytes: impl Fn(Range<usize>) -> &'a [u8],
    ) -> io::Result<Self> {
        if !self.changed.is_empty() || length < self.length || !length.is_multiple_of(WASM_PAGE) {
            return Err(io::Error::other(format!("expected changes to a booted memory, of {length} bytes")));
        }
        let file = memory_file("espalier-template")?;
        file.set_len(length as u64)?;
        let mut buffer = vec![0; COPIED];
        for offset in (0..self.length).step_by(COPIED) {
            let piece = &mut buffer[..COPIED.min(self.length - offset)];
            self.file.read_exact_at(piece, offset as u64)?;
            if piece.iter().any(|byte| *byte != 0) {
                file.write_all_at(piece, offset as u64)?;
            }
        }
        for run in &changed {
            file.write_all_at(bytes(run.clone()), run.start as u64)?;
        }
        Self::sealed(file, length, changed)
    }

    fn sealed(file: File, length: usize, changed: Vec<Range<usize>>) -> io::Result<Self> {
        let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self { file, length, changed, spares: Spares::default() })
    }

    /// Pages that differ from the booted interpreter's, ascending.
    pub(super) fn changed(&self) -> &[Range<usize>] {
        &self.changed
    }

    /// Address ranges where this image is mapped and that no guest uses.
    pub(super) fn spares(&self) -> &Spares {
        &self.spares
    }

    /// Its size, bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The file, for mapping.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

/// A file that lives in memory only.
pub(super) fn memory_file(name: &str) -> io::Result<File> {
    let descriptor = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    Ok(File::from(descriptor))
}
