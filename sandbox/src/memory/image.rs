//! The booted interpreter's memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{PAGE, WASM_PAGE};

/// The booted interpreter's memory, in a file in memory that nobody can write any more.
pub(crate) struct Image {
    file: File,
    length: usize,
}

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
        let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self { file, length })
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
