//! Compiled code, kept on disk.
//!
//! Compiling the interpreter takes many seconds; loading what was compiled before takes none. Compiled code is
//! machine code that this process will run, so it is taken only from a folder and files that belong to this user and
//! that nobody else can write, and only if its checksum is right. One process compiles at a time; the others wait for
//! what it leaves.

#![expect(unsafe_code, reason = "wasmtime trusts compiled code, so loading it is unsafe")]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use wasmtime::{Engine, Module};

/// How a module came to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleOrigin {
    /// From the cache.
    Cached,
    /// Compiled, because the cache held nothing for it.
    Compiled,
    /// Compiled, because what the cache held was not usable: the text says why.
    Rebuilt(String),
    /// Compiled and not kept, because the cache was not usable: the text says why.
    Uncached(String),
}

/// The per-user folder: `$ESPALIER_CACHE`, or `espalier` below `$XDG_CACHE_HOME` or `~/.cache`.
pub(crate) fn default_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("ESPALIER_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("espalier")))
        .or_else(|| variable("HOME").map(|folder| folder.join(".cache/espalier")))
}

/// Loads `wasm`, from the cache in `folder` where possible.
pub(crate) fn load(engine: &Engine, wasm: &[u8], folder: Option<&Path>) -> wasmtime::Result<(Module, ModuleOrigin)> {
    let uncached = |reason: String| {
        tracing::warn!(%reason, "compiled code is not kept");
        Ok((Module::new(engine, wasm)?, ModuleOrigin::Uncached(reason)))
    };
    let Some(folder) = folder else {
        return uncached("no cache folder: set ESPALIER_CACHE or HOME".to_owned());
    };
    let folder = folder.join("guest");
    match Cache::open(&folder, key(engine, wasm)) {
        Ok(cache) => cache.load(engine, wasm),
        Err(error) => uncached(format!("cache folder `{}`: {error}", folder.display())),
    }
}

/// Content, wasmtime's version, engine settings and processor features.
fn key(engine: &Engine, wasm: &[u8]) -> String {
    struct Sha(Sha256);
    impl Hasher for Sha {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut sha = Sha(Sha256::new());
    sha.write(&Sha256::digest(wasm));
    engine.precompile_compatibility_hash().hash(&mut sha);
    hex(&sha.0.finalize()[..16])
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

struct Cache {
    code: PathBuf,
    sum: PathBuf,
    /// Locked as long as this lives.
    _lock: File,
}

impl Cache {
    /// Opens the folder and waits for the lock of this key.
    fn open(folder: &Path, key: String) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        owned(&fs::symlink_metadata(folder)?, "the folder")?;
        let path = folder.join(format!("{key}.lock"));
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        lock.lock()?;
        Ok(Self { code: folder.join(format!("{key}.cwasm")), sum: folder.join(format!("{key}.sha256")), _lock: lock })
    }

    fn load(&self, engine: &Engine, wasm: &[u8]) -> wasmtime::Result<(Module, ModuleOrigin)> {
        let origin = match self.read(engine) {
            Ok(Some(module)) => return Ok((module, ModuleOrigin::Cached)),
            Ok(None) => ModuleOrigin::Compiled,
            Err(error) => {
                let reason = format!("`{}` is not usable: {error}", self.code.display());
                tracing::warn!(%reason, "compiling the interpreter again");
                ModuleOrigin::Rebuilt(reason)
            }
        };
        tracing::info!("compiling the interpreter, once per machine");
        let module = Module::new(engine, wasm)?;
        let kept = module.serialize().map_err(io::Error::other).and_then(|code| self.write(&code));
        match kept {
            Ok(()) => Ok((module, origin)),
            Err(error) => {
                let reason = format!("writing `{}`: {error}", self.code.display());
                tracing::warn!(%reason, "compiled code is not kept");
                Ok((module, ModuleOrigin::Uncached(reason)))
            }
        }
    }

    /// What is cached; `None` where nothing is.
    fn read(&self, engine: &Engine) -> io::Result<Option<Module>> {
        let mut code = match open_own(&self.code) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut expected = String::new();
        open_own(&self.sum)?.take(65).read_to_string(&mut expected)?;
        let mut sum = Sha256::new();
        io::copy(&mut code, &mut sum)?;
        if hex(&sum.finalize()) != expected.trim_end() {
            return Err(io::Error::other("its checksum is wrong"));
        }
        // SAFETY: the file belongs to this user, nobody else may write it or its folder (checked when it was
        // opened), and its checksum is the one that was stored beside it when wasmtime's serializer had written it,
        // under a key that stands for this wasmtime, these settings and this processor. It is replaced by renaming
        // only, so the opened file does not change while it is mapped.
        let module = unsafe { Module::deserialize_open_file(engine, code) };
        module.map(Some).map_err(io::Error::other)
    }

    fn write(&self, code: &[u8]) -> io::Result<()> {
        // The sum goes first: a sum without its code is ignored, code without its sum is not.
        replace(&self.sum, hex(&Sha256::digest(code)).as_bytes())?;
        replace(&self.code, code)
    }
}

/// Refuses what others could have written.
fn owned(metadata: &fs::Metadata, what: &str) -> io::Result<()> {
    // SAFETY: this call has no preconditions and cannot fail.
    let user = unsafe { libc::geteuid() };
    if metadata.uid() != user {
        return Err(io::Error::other(format!("{what} belongs to user {}", metadata.uid())));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!("{what} can be written by others: mode {:o}", metadata.mode() & 0o777)));
    }
    Ok(())
}

fn open_own(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    owned(&file.metadata()?, "it")?;
    Ok(file)
}

/// Writes a file whole or not at all.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let _ = fs::remove_file(&temporary);
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
