//! Where checkpoints lie, and adapters that wait.
//!
//! `checkpoints/MODEL/KIND/NAME/` and `parked/MODEL/`. Names of models and checkpoints hold no `/` and are never `.` or `..`,
//! so no path leads out of the folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use espalier_tinker::ids::ModelId;
use espalier_tinker::path::TinkerPath;

/// A folder of adapters.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    checkpoints: PathBuf,
    parked: PathBuf,
}

impl Shelf {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { checkpoints: folder.join("checkpoints"), parked: folder.join("parked") }
    }

    /// Where a checkpoint lies, whether it is there or not.
    pub(crate) fn checkpoint(&self, path: &TinkerPath) -> PathBuf {
        let model = path.model.to_string();
        self.checkpoints.join(model).join(path.kind.segment()).join(path.name.as_str())
    }

    /// Where one is written that will lie there. No checkpoint's name begins with a dot.
    pub(crate) fn draft(&self, path: &TinkerPath) -> PathBuf {
        self.checkpoint(path).with_file_name(format!(".draft-{}", path.name.as_str()))
    }

    /// Removes a checkpoint, and folders that are empty then. That there is none is no error.
    pub(crate) fn remove(&self, path: &TinkerPath) -> io::Result<()> {
        let folder = self.checkpoint(path);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        for above in folder.ancestors().skip(1).take(2) {
            if fs::remove_dir(above).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Where adapters wait.
    pub(crate) fn parked(&self) -> &Path {
        &self.parked
    }

    /// Where one adapter waits.
    pub(crate) fn parked_model(&self, model: &ModelId) -> PathBuf {
        self.parked.join(model.to_string())
    }

    /// It does not wait any more.
    pub(crate) fn unpark(&self, model: &ModelId) {
        let _ = fs::remove_dir_all(self.parked_model(model));
    }

    /// What waited for an earlier process waits for nobody.
    pub(crate) fn clear_parked(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.parked) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
