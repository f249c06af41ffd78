//! The interpreter's sources with our patches.
//!
//! `sandbox/guest/vendor/` (not committed) holds copies of a few crates from the registry with
//! `sandbox/guest/patches/<crate>.patch` applied; the guest's `[patch.crates-io]` points there. The copies are made
//! again whenever a patch changed.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// Crates that are patched, `rustpython-` before each name, and their versions.
const PATCHED: &[(&str, &str)] = &[
    ("common", "0.6.0"),
    ("ruff_python_parser", "0.16.5"),
    ("sre_engine", "0.6.0"),
    ("stdlib", "0.6.0"),
    ("vm", "0.6.0"),
];

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Runs a tool; the error says which one failed or is missing and what to do.
pub(crate) fn run(command: &mut Command, hint: &str) -> Result<Vec<u8>, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run `{program}`: {error}; {hint}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<&str> = stderr.lines().rev().take(30).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    Err(format!("`{program}` failed ({}); {hint}\n{}", output.status, tail.join("\n")))
}

fn io<T>(what: &str, path: &Path, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("cannot {what} `{}`: {error}", path.display()))
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    io("read", path, fs::read(path))
}

/// Writes a file and the folders it lies in.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if let Some(folder) = path.parent() {
        io("make", folder, fs::create_dir_all(folder))?;
    }
    io("write", path, fs::write(path, bytes))
}

/// All files under `path`, sorted, by their path from `base`.
pub(crate) fn files(base: &Path, path: &Path, found: &mut Vec<(String, PathBuf)>) -> Result<(), String> {
    if path.is_file() {
        let name = path.strip_prefix(base).unwrap_or(path).to_string_lossy().replace('\\', "/");
        found.push((name, path.to_owned()));
        return Ok(());
    }
    let mut entries = Vec::new();
    for entry in io("list", path, fs::read_dir(path))? {
        entries.push(io("list", path, entry)?.path());
    }
    entries.sort();
    for entry in entries {
        files(base, &entry, found)?;
    }
    Ok(())
}

fn package(name: &str) -> String {
    format!("rustpython-{name}")
}

fn guest() -> PathBuf {
    root().join("sandbox/guest")
}

/// Where cargo keeps the sources of `rustpython-<name>`; they are fetched if they are not there.
fn registry_copy(name: &str, version: &str) -> Result<PathBuf, String> {
    if let Some(found) = find_registry_copy(name, version)? {
        return Ok(found);
    }
    // A throwaway package that depends on the crates makes cargo fetch and verify them.
    let fetch = root().join("target/xtask/fetch");
    let mut manifest =
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n".to_owned();
    for (name, version) in PATCHED {
        let _ = writeln!(manifest, "{} = {{ version = \"={version}\", default-features = false }}", package(name));
    }
    manifest.push_str("\n[workspace]\n");
    write(&fetch.join("Cargo.toml"), manifest.as_bytes())?;
    write(&fetch.join("src/lib.rs"), b"")?;
    run(Command::new("cargo").arg("fetch").current_dir(&fetch), "the interpreter's sources come from crates.io")?;
    find_registry_copy(name, version)?
        .ok_or_else(|| format!("cargo fetched `{}` and it is not in the registry", package(name)))
}

/// The folders where cargo unpacks the sources of crates, one a registry, sorted.
pub(crate) fn registries() -> Result<Vec<PathBuf>, String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let Some(home) = home else { return Err("neither `CARGO_HOME` nor `HOME` is set".to_owned()) };
    let sources = home.join("registry/src");
    let mut found = Vec::new();
    if sources.is_dir() {
        for registry in io("list", &sources, fs::read_dir(&sources))? {
            found.push(io("list", &sources, registry)?.path());
        }
    }
    found.sort();
    Ok(found)
}

fn find_registry_copy(name: &str, version: &str) -> Result<Option<PathBuf>, String> {
    for registry in registries()? {
        let candidate = registry.join(format!("{}-{version}", package(name)));
        if candidate.join("Cargo.toml").is_file() {
            return Ok(Some(candidate));
        }
    }
    Ok(None)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let mut found = Vec::new();
    files(from, from, &mut found)?;
    for (name, path) in found {
        if name == ".cargo-ok" || name == "Cargo.lock" || name == "Cargo.toml.orig" {
            continue;
        }
        write(&to.join(name), &read(&path)?)?;
    }
    Ok(())
}

fn pristine(name: &str, version: &str, to: &Path) -> Result<(), String> {
    copy(&registry_copy(name, version)?, to)
}

/// Lays out the patched sources, unless they stand already.
pub(crate) fn vendor() -> Result<(), String> {
    let vendor = guest().join("vendor");
    let patches = guest().join("patches");
    for (name, version) in PATCHED {
        let patch = patches.join(format!("{}.patch", package(name)));
        let patch_bytes = read(&patch)?;
        let stamp = hex(&Sha256::digest(&patch_bytes));
        let folder = vendor.join(package(name));
        let stamp_file = vendor.join(format!("{}.stamp", package(name)));
        if fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) && folder.is_dir() {
            continue;
        }
        if folder.exists() {
            io("remove", &folder, fs::remove_dir_all(&folder))?;
        }
        pristine(name, version, &folder)?;
        if !patch_bytes.is_empty() {
            // `git apply` inside a repository would look at the index: tell it that it is outside.
            run(
                Command::new("git")
                    .args(["apply", "--whitespace=nowarn"])
                    .arg(&patch)
                    .current_dir(&folder)
                    .env("GIT_CEILING_DIRECTORIES", &vendor),
                &format!("`{}` must apply to version {version}; git is needed", patch.display()),
            )?;
        }
        write(&stamp_file, stamp.as_bytes())?;
    }
    Ok(())
}

/// Writes the patches from the changed copies: for work on the interpreter.
pub(crate) fn save_patches() -> Result<String, String> {
    let scratch = root().join("target/xtask/patches");
    let mut report = String::new();
    for (name, version) in PATCHED {
        let (old, new) = (scratch.join("a"), scratch.join("b"));
        for side in [&old, &new] {
            if side.exists() {
                io("remove", side, fs::remove_dir_all(side))?;
            }
        }
        pristine(name, version, &old)?;
        copy(&guest().join("vendor").join(package(name)), &new)?;
        let output = Command::new("git")
            .args(["diff", "--no-index", "--no-color", "--no-ext-diff", "--src-prefix=", "--dst-prefix=", "a", "b"])
            .current_dir(&scratch)
            .env("GIT_CEILING_DIRECTORIES", root().join("target"))
            .output()
            .map_err(|error| format!("cannot run `git`: {error}"))?;
        if output.status.code().is_none_or(|code| code > 1) {
            return Err(format!("`git diff` failed: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let patch = guest().join("patches").join(format!("{}.patch", package(name)));
        write(&patch, &output.stdout)?;
        let _ = writeln!(report, "{}: {} bytes", patch.display(), output.stdout.len());
    }
    Ok(report)
}

/// Bytes as lower-case digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
