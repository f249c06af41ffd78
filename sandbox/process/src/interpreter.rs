//! Where Python lives: asked of Python itself, once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::error::ProcessError;

/// An interpreter and the folders that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// The executable to start; in a virtual environment the environment's own.
    pub executable: PathBuf,
    /// Its installation, and the virtual environment's folder if it is one's.
    pub folders: Vec<PathBuf>,
    /// Its version, as `3.11.7`.
    pub version: String,
}

const QUESTION: &str = "import os, sys
print(sys.executable)
print('%d.%d.%d' % sys.version_info[:3])
for path in (sys.base_prefix, sys.base_exec_prefix, sys.prefix, os.path.dirname(os.path.realpath(sys.executable))):
    print(path)
";

static KNOWN: Mutex<BTreeMap<PathBuf, Interpreter>> = Mutex::new(BTreeMap::new());

/// Finds an interpreter: a path, or a name in `PATH` (which may be a script that starts the real one). Runs it once
/// per process.
pub fn find(program: &Path) -> Result<Interpreter, ProcessError> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(interpreter) = known.get(program) {
        return Ok(interpreter.clone());
    }
    let interpreter = ask(program)?;
    known.insert(program.to_owned(), interpreter.clone());
    Ok(interpreter)
}

fn ask(program: &Path) -> Result<Interpreter, ProcessError> {
    let failed = |reason: String| ProcessError::Interpreter { program: program.display().to_string(), reason };
    let output = Command::new(program)
        .args(["-I", "-c", QUESTION])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(format!("could not be started: {error}; install Python 3 or give its path")))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().last().unwrap_or_default();
        return Err(failed(format!("could not say where it lies: {}: {last}", output.status)));
    }
    let answer = String::from_utf8(output.stdout).map_err(|_| failed("lies at a path that is no UTF-8".to_owned()))?;
    let mut lines = answer.lines();
    let (Some(executable), Some(version)) = (lines.next(), lines.next()) else {
        return Err(failed(format!("gave no usable answer: `{}`", answer.escape_default())));
    };
    if executable.is_empty() {
        return Err(failed("does not know its own path; give it".to_owned()));
    }
    let folders: BTreeSet<PathBuf> = lines.map(PathBuf::from).filter(|path| path.is_absolute()).collect();
    if let Some(folder) = folders.iter().find(|folder| folder.parent().is_none()) {
        return Err(failed(format!("is installed at `{}`: jobs would see the whole host", folder.display())));
    }
    let mut folders: Vec<PathBuf> = folders.into_iter().collect();
    if folders.iter().any(|folder| folder.starts_with("/nix/store")) {
        // There, a program's libraries lie beside it.
        folders.push(PathBuf::from("/nix/store"));
    }
    Ok(Interpreter { executable: PathBuf::from(executable), folders, version: version.to_owned() })
}
