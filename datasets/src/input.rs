//! A file's bytes, uncompressed: `.gz` and `.zst` behind another extension (`rows.jsonl.gz`) are undone on the way.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::DataError;

/// Bytes asked of a file at a time.
const BUFFER: usize = 1 << 16;

/// What a file's name says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) records: Records,
    pub(crate) packed: Packed,
}

/// How records stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Records {
    Lines,
    Json,
    Csv,
    Parquet,
}

/// How a file is compressed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packed {
    Plain,
    Gzip,
    Zstd,
}

/// What a file's name says of it; `None` where that is nothing that is read here.
pub(crate) fn kind(path: &Path) -> Option<Kind> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let (name, packed) = match name.rsplit_once('.') {
        Some((name, "gz")) => (name, Packed::Gzip),
        Some((name, "zst")) => (name, Packed::Zstd),
        _ => (name.as_str(), Packed::Plain),
    };
    let records = match name.rsplit_once('.')?.1 {
        "jsonl" | "ndjson" => Records::Lines,
        "json" => Records::Json,
        "csv" => Records::Csv,
        "parquet" if packed == Packed::Plain => Records::Parquet,
        _ => return None,
    };
    Some(Kind { records, packed })
}

/// Opens a file for reading from its start.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead + Send>, DataError> {
    let failed = |error: io::Error| DataError::file(path, error);
    let file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let file = BufReader::with_capacity(BUFFER, file);
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Counted { input: file, taken: Arc::clone(&taken) };
    Ok(match kind(path).map_or(Packed::Plain, |kind| kind.packed) {
        Packed::Plain => Box::new(counted.input),
        Packed::Gzip => unpacked("gzip", flate2::bufread::MultiGzDecoder::new(counted), taken, size),
        Packed::Zstd => unpacked("zstd", zstd::Decoder::with_buffer(counted).map_err(failed)?, taken, size),
    })
}

fn unpacked(
    packed: &'static str,
    decoder: impl Read + Send + 'static,
    taken: Arc<AtomicU64>,
    size: u64,
) -> Box<dyn BufRead + Send> {
    Box::new(BufReader::with_capacity(BUFFER, Unpacked { decoder, packed, taken, size, given: 0 }))
}

/// Counts what a decoder takes of its file.
struct Counted<R> {
    input: R,
    taken: Arc<AtomicU64>,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.taken.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.taken.fetch_add(count as u64, Ordering::Relaxed);
        self.input.consume(count);
    }
}

/// What a decoder gives; its errors say how far it came.
struct Unpacked<D> {
    decoder: D,
    packed: &'static str,
    taken: Arc<AtomicU64>,
    /// Bytes of the file.
    size: u64,
    /// Bytes that came out so far.
    given: u64,
}

impl<D: Read> Read for Unpacked<D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.decoder.read(buffer) {
            Ok(count) => {
                self.given += count as u64;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let Self { packed, size, given, .. } = self;
                let taken = self.taken.load(Ordering::Relaxed);
                let said = format!(
                    "is broken {packed} ({error}): {given} bytes came out of the first {taken} of its {size} bytes; \
                     fetch or pack the file again"
                );
                Err(io::Error::new(error.kind(), said))
            }
        }
    }
}
