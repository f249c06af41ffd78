//! Data sets of the Hugging Face hub into its cache.

use std::io::IsTerminal as _;
use std::time::Duration;

use espalier_datasets::hub::{self, Cache, HubError, HubOptions, Progress, Repo, Revision, Wanted};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{counted, size};
use crate::failure::Failure;
use crate::output::{outln, say};

pub(super) async fn run(repo: &str, files: Vec<String>, split: Option<String>, json: bool) -> Result<(), Failure> {
    let (name, revision) = match repo.split_once('@') {
        Some((name, revision)) => (name, Revision::parse(revision).map_err(failure)?),
        None => (repo, Revision::default()),
    };
    let wanted = Wanted { repo: Repo::parse(name).map_err(failure)?, revision, files, split };
    let options = HubOptions::from_env();
    let cache = Cache::from_env().map_err(failure)?;
    let terminal = std::io::stderr().is_terminal();
    let mut bar = ProgressBar::hidden();
    let mut before = 0;
    let mut arrived = (String::new(), 0);
    let mut progress = |step: Progress<'_>| match step {
        Progress::Chosen { files, bytes } => {
            if terminal {
                bar = ProgressBar::new(bytes);
                let style = "{msg:40} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
                bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
                bar.enable_steady_tick(Duration::from_millis(200));
            } else {
                say!("{}, {}", counted(files as u64, "file"), size(bytes));
            }
        }
        Progress::Bytes { file, arrived: here, .. } => {
            if arrived.0 != file {
                before += arrived.1;
                arrived = (file.to_owned(), here);
                bar.set_message(file.to_owned());
            }
            arrived.1 = here;
            bar.set_position(before + here);
        }
    };
    let fetched = tokio::select! {
        fetched = hub::fetch(&options, &cache, &wanted, &mut progress) => fetched.map_err(failure)?,
        _ = tokio::signal::ctrl_c() => {
            return Err(Failure::Interrupted("what arrived is kept; the same command goes on".to_owned()));
        }
    };
    bar.finish_and_clear();
    for file in &fetched {
        let path = file.path.display();
        if json {
            outln!("{}", json!({"file": file.name, "path": path.to_string(), "bytes": file.bytes, "kept": file.kept}))?;
        } else {
            outln!("{path}")?;
        }
    }
    let kept = fetched.iter().filter(|file| file.kept).count() as u64;
    let revision = if wanted.revision == Revision::default() { "" } else { &format!("@{}", wanted.revision.as_str()) };
    let of = if kept > 0 { format!(", {kept} there before") } else { String::new() };
    say!("{}{of}; sources name them as `hf://{}/FILE{revision}`", counted(fetched.len() as u64, "file"), wanted.repo);
    Ok(())
}

/// The exit code of what went wrong with the hub.
fn failure(error: HubError) -> Failure {
    let said = error.to_string();
    match error {
        HubError::Name { .. } => Failure::Configuration(said),
        HubError::Missing(_)
        | HubError::Answer { .. }
        | HubError::Checksum { .. }
        | HubError::Io { writing: false, .. } => Failure::Data(said),
        HubError::Away { .. } => Failure::Engine(said),
        HubError::Io { writing: true, .. } => Failure::Output(said),
    }
}
