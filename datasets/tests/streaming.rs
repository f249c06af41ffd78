//! Files are read as far as rows are asked for, and no further: what was read is counted, not what it weighs in memory.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use espalier_datasets::{NoBuiltins, Source};
use parquet::file::properties::WriterProperties;

const ROWS: usize = 4000;
/// Characters of a row.
const LENGTH: usize = 8000;

/// Text that hardly compresses.
fn text(row: usize) -> String {
    let mut state = row as u64 + 1;
    let letter = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + (state >> 58) as u8 % 26)
    };
    (0..LENGTH).map(letter).collect()
}

/// One row group: a reader that took a group at a time would take it all.
fn parquet(path: &Path) {
    let column = |of: &dyn Fn(usize) -> String| Arc::new(StringArray::from_iter_values((0..ROWS).map(of))) as ArrayRef;
    let batch =
        RecordBatch::try_from_iter([("prompt", column(&|row| format!("{row}?"))), ("context", column(&text))]).unwrap();
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn lines(mut out: impl std::io::Write, list: bool) {
    if list {
        out.write_all(b"[").unwrap();
    }
    for row in 0..ROWS {
        let comma = if list && row > 0 { "," } else { "" };
        writeln!(out, "{comma}{{\"prompt\": \"{row}?\", \"context\": \"{}\"}}", text(row)).unwrap();
    }
    if list {
        out.write_all(b"]").unwrap();
    }
    out.flush().unwrap();
}

fn table(mut out: impl std::io::Write) {
    out.write_all(b"prompt,context\n").unwrap();
    for row in 0..ROWS {
        writeln!(out, "{row}?,{}", text(row)).unwrap();
    }
    out.flush().unwrap();
}

/// Bytes that this thread has read from files so far.
fn read_so_far() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = counters.lines().find(|line| line.starts_with("rchar:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_file_is_read_as_far_as_rows_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    let create = |name: &str| std::io::BufWriter::new(std::fs::File::create(path(name)).unwrap());
    parquet(&path("a.parquet"));
    lines(create("a.jsonl"), false);
    lines(create("a.json"), true);
    table(create("a.csv"));
    lines(flate2::write::GzEncoder::new(create("b.jsonl.gz"), flate2::Compression::fast()), false);
    let mut packed = zstd::Encoder::new(create("c.jsonl.zst"), 1).unwrap();
    lines(&mut packed, false);
    packed.finish().unwrap().flush().unwrap();

    for name in ["a.parquet", "a.jsonl", "a.json", "a.csv", "b.jsonl.gz", "c.jsonl.zst"] {
        let size = std::fs::metadata(path(name)).unwrap().len();
        assert!(size > 15_000_000, "{name}: {size}");
        let before = read_so_far();
        let mut rows = Source::file(path(name)).rows(&NoBuiltins).unwrap();
        assert_eq!(rows.by_ref().take(40).map(Result::unwrap).count(), 40);
        let read = read_so_far() - before;
        assert!(read < size / 5, "{name}: {read} of {size} bytes for 1 % of the rows");
        assert_eq!(rows.map(Result::unwrap).count(), ROWS - 40, "{name}");
    }
}

#[test]
fn a_compressed_file_that_is_cut_off_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let whole = {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writeln!(out, "{{\"prompt\": \"{}\"}}", text(1)).unwrap();
        writeln!(out, "{{\"prompt\": \"{}\"}}", text(2)).unwrap();
        out.finish().unwrap()
    };
    let path = dir.path().join("a.jsonl.gz");
    for (bytes, wrong) in [(&whole[..], false), (&whole[..whole.len() - 12], true), (b"{\"prompt\": \"x\"}", true)] {
        std::fs::write(&path, bytes).unwrap();
        let rows = Source::file(&path).rows(&NoBuiltins).unwrap();
        assert_eq!(rows.filter_map(Result::err).count(), usize::from(wrong), "{} bytes", bytes.len());
    }
}
