//! Earlier offline runs of a run that goes on.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use super::log::LogReader;
use super::{PREFIX, record};
use crate::TrackerError;

/// The id of the newest offline run of a project and name.
pub fn newest(root: &Path, project: &str, name: &str) -> Result<Option<String>, TrackerError> {
    for run in earlier(root)?.into_iter().rev() {
        let found = describes(&run.path, project, name).map_err(TrackerError::io(&run.path, "read it"))?;
        if found {
            return Ok(Some(run.id));
        }
    }
    Ok(None)
}

/// Takes back what the offline runs of an id logged after `step`: the run will log it again, and two rows of a step
/// would both be drawn. A record that was cut off goes too. What was synced already, or begun to be, stays.
pub fn take_back(root: &Path, id: &str, step: u64) -> Result<(), TrackerError> {
    for run in earlier(root)?.into_iter().filter(|run| run.id == id) {
        let synced = ["wandb.synced", "wandb.syncstate"].iter().any(|mark| run.path.with_extension(mark).exists());
        if !synced {
            cut(&run.path, step).map_err(TrackerError::io(&run.path, "cut off its later steps"))?;
        }
    }
    Ok(())
}

/// An earlier offline run.
struct Earlier {
    id: String,
    /// Its records.
    path: PathBuf,
}

/// The offline runs in a folder, oldest first.
fn earlier(root: &Path) -> Result<Vec<Earlier>, TrackerError> {
    let entries = std::fs::read_dir(root).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut names: Vec<String> = entries
        .map_err(TrackerError::io(root, "list it"))?
        .into_iter()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(PREFIX))
        .collect();
    // Names begin with the time of the start.
    names.sort();
    let run = |name: &String| {
        let (_, id) = name.strip_prefix(PREFIX)?.split_once('-')?;
        let path = root.join(name).join(format!("run-{id}.wandb"));
        path.is_file().then(|| Earlier { id: id.to_owned(), path })
    };
    Ok(names.iter().filter_map(run).collect())
}

fn open(file: File) -> io::Result<Option<LogReader<BufReader<File>>>> {
    LogReader::open(BufReader::new(file))
}

fn describes(path: &Path, project: &str, name: &str) -> io::Result<bool> {
    let Some(mut log) = open(File::open(path)?)? else { return Ok(false) };
    while let Some(entry) = log.entry()? {
        if let Some(found) = record::project_and_name(&entry.record) {
            return Ok(found == (project, name));
        }
    }
    Ok(false)
}

/// Cuts a file off before the first row after `step`, counted from the last row that is not after it; or before a
/// record that is cut off already, at which the official client would stop with an error.
fn cut(path: &Path, step: u64) -> io::Result<()> {
    let Some(mut log) = open(File::open(path)?)? else { return Ok(()) };
    let (mut first_after, mut end) = (None, 0);
    while let Some(entry) = log.entry()? {
        match record::step_of_row(&entry.record) {
            Some(of_row) if of_row <= step => first_after = None,
            Some(_) => first_after = first_after.or(Some(entry.start)),
            None => {}
        }
        end = entry.end;
    }
    match first_after.or((log.is_cut_off() && end > 0).then_some(end)) {
        Some(end) => OpenOptions::new().write(true).open(path)?.set_len(end),
        None => Ok(()),
    }
}
