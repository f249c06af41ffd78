//! The snippet of `docs/trajectories.md` runs as it stands there.

use std::path::{Path, PathBuf};
use std::process::Command;

use espalier_generator::output::{OutputOptions, RunWriter};
use espalier_generator::{RolloutStop, Trajectory};

/// The Python of a virtual environment in the per-user cache that has what the snippet imports; made on first use.
fn python() -> Result<PathBuf, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .ok_or("neither `XDG_CACHE_HOME` nor `HOME` is set")?;
    let venv = cache.join("espalier/venv-trajectories");
    let python = venv.join("bin/python");
    let imports = |python: &Path| {
        Command::new(python).args(["-c", "import pyarrow, pandas"]).output().is_ok_and(|output| output.status.success())
    };
    if imports(&python) {
        return Ok(python);
    }
    let run = |command: &mut Command| {
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {said}")) }
    };
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    run(Command::new(&python).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--timeout",
        "20",
        "--retries",
        "1",
        "pyarrow",
        "pandas",
    ]))?;
    if imports(&python) { Ok(python) } else { Err("`import pyarrow, pandas` fails in the new environment".to_owned()) }
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "a test that skips says so")]
async fn the_documented_snippet_reads_both_formats() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("skipped: no Python with pyarrow and pandas here: {reason}");
            return;
        }
    };
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/trajectories.md");
    let text = std::fs::read_to_string(docs).unwrap();
    let snippet = text.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(directory.path(), OutputOptions::default()).unwrap();
    let mut failed = crate::output::tree("2").await;
    failed.root.stop = RolloutStop::EngineError;
    for tree in [crate::output::tree("1").await, failed] {
        writer.write(&tree).unwrap();
    }
    writer.finish().unwrap();
    // A resumed run leaves several parts, and plays again what failed.
    let again = |root: &Trajectory| root.stop.is_failure();
    let (mut writer, _) = RunWriter::resume(directory.path(), OutputOptions::default(), again).unwrap();
    writer.write(&crate::output::tree("2").await).unwrap();
    writer.finish().unwrap();
    assert!(directory.path().join("trajectories-00001.parquet").is_file());
    let output = Command::new(python).arg("-c").arg(snippet).arg(directory.path()).output().unwrap();
    let (told, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{complained}");
    assert!(told.contains("1_0/0 1_0 completed 1.0"), "{told}");
    assert!(told.contains("1_0 None completed 1.5 {'turns_used': 2}"), "{told}");
    assert!(told.contains("trained on 22 of"), "{told}");
    assert!(told.contains("2_0 None completed 1.5") && !told.contains("engine_error"), "{told}");
}
