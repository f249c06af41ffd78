//! What several tests use.

use std::path::{Path, PathBuf};

use espalier_trackers::protobuf::{Field, Fields};
use espalier_trackers::tensorboard::tfrecord::masked_crc;
use espalier_trackers::wandb::log::LogReader;
use espalier_trackers::{Loggers, Numbers, RunSpec};

/// Numbers from pairs.
pub(crate) fn numbers(pairs: &[(&str, f64)]) -> Numbers {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// A run in a directory with these backends.
pub(crate) fn spec(directory: &Path, loggers: &[&str]) -> RunSpec {
    RunSpec {
        logger: Loggers::new(loggers).unwrap(),
        project_name: "trees".to_owned(),
        run_name: "first".to_owned(),
        directory: directory.to_owned(),
        ..RunSpec::default()
    }
}

/// The paths in a folder whose name contains a text, sorted.
pub(crate) fn find(folder: &Path, part: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.file_name().unwrap().to_str().unwrap().contains(part)).collect();
    found.sort();
    found
}

/// The file of records of the only offline run, or of the one at an index.
pub(crate) fn offline(directory: &Path, index: usize) -> PathBuf {
    let runs = find(&directory.join("wandb"), "offline-run-");
    find(&runs[index], ".wandb").remove(0)
}

/// The records of a `.wandb` file, to the last that is whole.
pub(crate) fn records(path: &Path) -> Vec<Vec<u8>> {
    let mut log = LogReader::open(std::fs::File::open(path).unwrap()).unwrap().expect("the header");
    std::iter::from_fn(|| log.entry().unwrap().map(|entry| entry.record)).collect()
}

/// The rows of a `.wandb` file: steps, and names with JSON.
pub(crate) fn rows(path: &Path) -> Vec<(i64, Vec<(String, String)>)> {
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap();
    let of_record = |record: &Vec<u8>| {
        let history = Fields::bytes(record, 2)?;
        let step = Fields::int(Fields::bytes(history, 2)?, 1).unwrap_or_default();
        let items = Fields::new(history).filter_map(|(field, value)| match value {
            Field::Bytes(item) if field == 1 => Some((text(Fields::bytes(item, 2)), text(Fields::bytes(item, 16)))),
            _ => None,
        });
        Some((step, items.collect()))
    };
    records(path).iter().filter_map(of_record).collect()
}

/// The steps of the rows of a `.wandb` file.
pub(crate) fn steps(path: &Path) -> Vec<i64> {
    rows(path).into_iter().map(|(step, _)| step).collect()
}

/// The records of an event file, to the last that is whole.
pub(crate) fn events(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = bytes;
    let mut found = Vec::new();
    while rest.len() >= 12 {
        let (length, after) = rest.split_at(8);
        assert_eq!(after[..4], masked_crc(length).to_le_bytes());
        let size = u64::from_le_bytes(length.try_into().unwrap()) as usize;
        if after.len() < size + 8 {
            break;
        }
        let data = &after[4..4 + size];
        assert_eq!(after[4 + size..8 + size], masked_crc(data).to_le_bytes());
        found.push(data.to_vec());
        rest = &after[size + 8..];
    }
    found
}
