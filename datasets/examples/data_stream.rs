//! How much memory reading a large Parquet file takes: `data_stream write FILE MEGABYTES`, then `data_stream read FILE`.
//! `benches/data_stream.sh` runs both.

#![expect(clippy::print_stdout, reason = "a program that prints what it measured")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use espalier_datasets::{NoBuiltins, Source};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

/// Characters of a row's context.
const CONTEXT: usize = 16 << 10;
/// Rows of a row group: half a gigabyte each, far more than a reader may hold.
const GROUP: usize = 32 << 10;
/// Rows written at a time.
const BATCH: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", file, megabytes] => write(Path::new(file), megabytes.parse()?),
        ["read", file] => read(Path::new(file)),
        _ => Err("expected `write FILE MEGABYTES` or `read FILE`".into()),
    }
}

/// Text that does not compress: a linear congruential generator (Knuth's MMIX constants) as letters.
fn text(state: &mut u64, length: usize) -> String {
    (0..length)
        .map(|_| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'a' + (*state >> 58) as u8 % 26)
        })
        .collect()
}

fn write(path: &Path, megabytes: u64) -> Result<(), Box<dyn Error>> {
    let rows = megabytes * 1_000_000 / CONTEXT as u64 + 1;
    let mut state = 1;
    let mut writer = None;
    let mut row = 0;
    while row < rows {
        let count = (rows - row).min(BATCH as u64);
        let numbers = row..row + count;
        let column =
            |of: &dyn Fn(u64) -> String| Arc::new(StringArray::from_iter_values(numbers.clone().map(of))) as ArrayRef;
        let contexts = Arc::new(StringArray::from_iter_values((0..count).map(|_| text(&mut state, CONTEXT))));
        let batch = RecordBatch::try_from_iter([
            ("uid", column(&|row| format!("row-{row}"))),
            ("prompt", column(&|row| format!("Question {row}?"))),
            ("context", contexts as ArrayRef),
        ])?;
        if writer.is_none() {
            let properties = WriterProperties::builder()
                .set_dictionary_enabled(false)
                .set_max_row_group_row_count(Some(GROUP))
                .build();
            writer = Some(ArrowWriter::try_new(std::fs::File::create(path)?, batch.schema(), Some(properties))?);
        }
        if let Some(writer) = &mut writer {
            writer.write(&batch)?;
        }
        row += count;
    }
    if let Some(writer) = writer {
        writer.close()?;
    }
    println!("wrote {rows} rows, {} bytes", std::fs::metadata(path)?.len());
    Ok(())
}

fn read(path: &Path) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let (mut rows, mut characters) = (0_u64, 0_u64);
    for row in Source::file(path).rows(&NoBuiltins)? {
        let row = row?;
        rows += 1;
        characters += row.columns["context"].as_str().map_or(0, |text| text.len() as u64);
    }
    let seconds = started.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: unknown");
    let bytes = std::fs::metadata(path)?.len();
    println!("file   {bytes} bytes, {rows} rows, {characters} characters of context");
    println!("time   {seconds:.1} s, {:.0} MB/s", bytes as f64 / 1e6 / seconds);
    println!("peak   {}", peak.split_whitespace().collect::<Vec<_>>().join(" "));
    Ok(())
}
