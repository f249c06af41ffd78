//! Checkpoints that the engine samples from: loaded when one is asked for, and unloaded, least recently used first, when there
//! are more than it may hold. They lie on the disk, so that one that went comes back.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use espalier_engine::{AdapterWeights, LocalEngine};
use espalier_tinker::OperationError;
use espalier_tinker::path::TinkerPath;
use tokio::sync::Mutex;

use crate::shelf::Shelf;

/// The engine's adapters.
pub(crate) struct Samplers {
    engine: Arc<LocalEngine>,
    shelf: Shelf,
    most: usize,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    /// When each was used last.
    used: HashMap<String, u64>,
    clock: u64,
}

impl Samplers {
    pub(crate) fn new(engine: Arc<LocalEngine>, shelf: Shelf, most: usize) -> Self {
        Self { engine, shelf, most: most.max(1), loaded: Mutex::default() }
    }

    /// What the engine calls a checkpoint, which it has then. `again`: it was asked for a moment ago and has gone since.
    pub(crate) async fn name(&self, path: &TinkerPath, again: bool) -> Result<String, OperationError> {
        let folder = self.shelf.checkpoint(path);
        // One that was written over is another.
        let written = fs::metadata(folder.join("manifest.json")).and_then(|data| data.modified());
        let Ok(written) = written else {
            return Err(OperationError::user(format!("`model_path`: there is no checkpoint `{path}`")));
        };
        let age = written.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!("{path}#{age}");
        let mut loaded = self.loaded.lock().await;
        loaded.clock += 1;
        let now = loaded.clock;
        if !again && let Some(used) = loaded.used.get_mut(&name) {
            *used = now;
            return Ok(name);
        }
        while loaded.used.len() >= self.most
            && let Some(oldest) = loaded.used.iter().min_by_key(|(_, used)| **used).map(|(name, _)| name.clone())
        {
            loaded.used.remove(&oldest);
            // Requests that run keep it.
            let _ = self.engine.remove_adapter(&oldest);
        }
        let (engine, known) = (Arc::clone(&self.engine), name.clone());
        let read = tokio::task::spawn_blocking(move || {
            let weights = AdapterWeights::read(&folder, &engine.config().decoder)?;
            engine.load_adapter(&known, &weights)
        });
        let read = read.await.map_err(|error| OperationError::server(format!("a checkpoint was not read: {error}")))?;
        read.map_err(|error| {
            tracing::error!(%error, %path, "a checkpoint cannot be sampled from");
            OperationError::server(format!("`{path}` cannot be sampled from; the server's log says more"))
        })?;
        loaded.used.insert(name.clone(), now);
        Ok(name)
    }

    /// Unloads a checkpoint that is no more.
    pub(crate) async fn forget(&self, path: &TinkerPath) {
        let begin = format!("{path}#");
        let mut loaded = self.loaded.lock().await;
        let gone: Vec<String> = loaded.used.keys().filter(|name| name.starts_with(&begin)).cloned().collect();
        for name in gone {
            loaded.used.remove(&name);
            let _ = self.engine.remove_adapter(&name);
        }
    }
}
