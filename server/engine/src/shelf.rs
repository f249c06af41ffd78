//! Where checkpoints lie, and adapters that wait.
//!
//! `checkpoints/MODEL/KIND/NAME/`, `parked/MODEL/` for those that memory has no room for, and `kept/MODEL/PLACE/` for those that
//! have to survive the process, as they were after a place of their order. Names of models and checkpoints hold no `/` and are never `.` or `..`,
//! so no path leads out of the folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use espalier_tinker::ids::{ModelId, SessionId};
use espalier_tinker::path::TinkerPath;

/// A folder of adapters.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    checkpoints: PathBuf,
    parked: PathBuf,
    kept: PathBuf,
}

impl Shelf {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { checkpoints: folder.join("checkpoints"), parked: folder.join("parked"), kept: folder.join("kept") }
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

    /// Where a model is kept as it was after a place.
    pub(crate) fn kept_at(&self, model: &ModelId, place: i64) -> PathBuf {
        self.kept.join(model.to_string()).join(place.to_string())
    }

    /// The last place after which a model is kept.
    pub(crate) fn kept(&self, model: &ModelId) -> Option<i64> {
        self.places(model).into_iter().max()
    }

    fn places(&self, model: &ModelId) -> Vec<i64> {
        let Ok(entries) = fs::read_dir(self.kept.join(model.to_string())) else { return Vec::new() };
        // What is half-written is not called by a number alone.
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Older ones are not needed any more.
    pub(crate) fn drop_kept_before(&self, model: &ModelId, place: i64) {
        for older in self.places(model).into_iter().filter(|older| *older < place) {
            let _ = fs::remove_dir_all(self.kept_at(model, older));
        }
    }

    /// Nothing of a session's models is needed any more.
    pub(crate) fn drop_kept(&self, session: &SessionId) {
        let Ok(entries) = fs::read_dir(&self.kept) else { return };
        for entry in entries.flatten() {
            let model: Option<ModelId> = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if model.is_some_and(|model| model.session == *session) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// What waited for an earlier process waits for nobody.
    pub(crate) fn clear_parked(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.parked) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
