//! What the files that a suite names hold, as hashes: a run is not resumed over other data, scripts or tokenizers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::SuiteError;
use super::config::SuiteConfig;

/// Files of an engine's `tokenizer` folder that decide how a conversation becomes tokens.
const VOCABULARY: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];

/// SHA-256 of every file, by its path as the suite writes it.
pub(super) type Contents = BTreeMap<String, String>;

/// Reads the files of a suite; `None` where a cancellation came first. Models are known by name alone: their weights
/// are large, and those behind an endpoint are out of reach.
pub(super) fn contents(config: &SuiteConfig, cancel: &CancellationToken) -> Result<Option<Contents>, SuiteError> {
    let mut contents = Contents::new();
    for path in files(config) {
        if let Entry::Vacant(place) = contents.entry(path.display().to_string()) {
            let Some(hash) = hash(&path, cancel)? else { return Ok(None) };
            place.insert(hash);
        }
    }
    Ok(Some(contents))
}

fn files(config: &SuiteConfig) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for task in &config.tasks {
        // What `hf://` names lies in a cache; what is not there is an error of its own, where rows are read.
        files.extend(task.data.files().unwrap_or_default().into_iter().map(|file| file.path));
        files.extend(task.data.tables.clone());
        if let Some(folder) = &task.data.tokenizer {
            files.extend(vocabulary(folder));
        }
        files.extend(espalier_envs::python_env::file_of(&task.env).map(Path::to_owned));
    }
    for engine in &config.engines {
        let option = |name: &str| engine.options.get(name).and_then(|value| value.as_str()).map(PathBuf::from);
        if engine.kind == "scripted" {
            files.extend(option("script"));
        }
        if let Some(folder) = option("tokenizer") {
            files.extend(vocabulary(&folder));
        }
    }
    files
}

fn vocabulary(folder: &Path) -> impl Iterator<Item = PathBuf> {
    VOCABULARY.map(|file| folder.join(file)).into_iter().filter(|path| path.is_file())
}

fn hash(path: &Path, cancel: &CancellationToken) -> Result<Option<String>, SuiteError> {
    let failed = |source| SuiteError::Io { path: path.to_owned(), action: "read it", source };
    let mut file = File::open(path).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        if cancel.is_cancelled() {
            return Ok(None);
        }
        match file.read(&mut buffer).map_err(failed)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    let mut text = String::from("sha256:");
    for byte in hash.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(Some(text))
}
