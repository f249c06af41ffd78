//! A file's bytes, uncompressed: `.gz` and `.zst` behind another extension (`rows.jsonl.gz`) are undone on the way.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

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
    let file = File::open(path).map_err(|error| DataError::file(path, error))?;
    let file = BufReader::with_capacity(BUFFER, file);
    Ok(match kind(path).map_or(Packed::Plain, |kind| kind.packed) {
        Packed::Plain => Box::new(file),
        Packed::Gzip => Box::new(BufReader::with_capacity(BUFFER, flate2::bufread::MultiGzDecoder::new(file))),
        Packed::Zstd => {
            let decoder = zstd::Decoder::with_buffer(file).map_err(|error| DataError::file(path, error))?;
            Box::new(BufReader::with_capacity(BUFFER, decoder))
        }
    })
}
