//! Builds the sandbox's guest and compares it with what is committed.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::sources::{self, files, hex, read, root, run};

/// What decides about the artifact, from the root.
const SOURCES: &[&str] = &[
    "sandbox/guest/Cargo.lock",
    "sandbox/guest/Cargo.toml",
    "sandbox/guest/patches",
    "sandbox/guest/python",
    "sandbox/guest/src",
    "sandbox/protocol/src",
    "xtask/preinit/Cargo.lock",
    "xtask/preinit/Cargo.toml",
    "xtask/preinit/src",
    "xtask/src",
];
const ARTIFACT: &str = "sandbox/artifact/guest.wasm.zst";
const TARGET: &str = "wasm32-unknown-unknown";

/// Shadow stack of the guest, bytes.
const STACK: u32 = 8 << 20;

fn artifact() -> PathBuf {
    root().join(ARTIFACT)
}

/// The hash of everything that the artifact is built from.
fn source_hash() -> Result<String, String> {
    let root = root();
    let mut hash = Sha256::new();
    for source in SOURCES {
        let mut found = Vec::new();
        files(&root, &root.join(source), &mut found)?;
        for (name, path) in found {
            let bytes = read(&path)?;
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        }
    }
    Ok(hex(&hash.finalize()))
}

/// The hash that an artifact carries in its custom section `espalier.source`.
fn recorded_hash(compressed: &[u8]) -> Result<String, String> {
    let broken = || format!("`{ARTIFACT}` is not a guest; `cargo xtask guest` builds it");
    let module = zstd::decode_all(compressed).map_err(|_| broken())?;
    let mut rest = module.get(8..).ok_or_else(broken)?;
    while let Some((id, after)) = rest.split_first() {
        let (length, body) = leb(after).ok_or_else(broken)?;
        let section = body.get(..length).ok_or_else(broken)?;
        rest = &body[length..];
        if *id == 0 {
            let (name_length, name) = leb(section).ok_or_else(broken)?;
            if name.get(..name_length) == Some(b"espalier.source".as_slice()) {
                return Ok(String::from_utf8_lossy(&name[name_length..]).into_owned());
            }
        }
    }
    Err(broken())
}

/// An unsigned LEB128 number and what follows it.
fn leb(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0usize;
    for (index, byte) in bytes.iter().enumerate().take(5) {
        value |= usize::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

/// Says whether the committed artifact was built from these sources.
pub(crate) fn check() -> Result<String, String> {
    let (expected, found) = (source_hash()?, recorded_hash(&read(&artifact())?)?);
    if expected == found {
        Ok(format!("`{ARTIFACT}` was built from these sources ({expected})"))
    } else {
        Err(format!(
            "`{ARTIFACT}` was built from other sources: expected {expected}, found {found}; run `cargo xtask guest`"
        ))
    }
}

/// Builds again and compares byte for byte.
pub(crate) fn rebuild_check() -> Result<String, String> {
    check()?;
    let committed = read(&artifact())?;
    let built = build_to(root().join("target/xtask/guest.wasm.zst"))?;
    if read(&built)? == committed {
        return Ok(format!("`{ARTIFACT}` is what these sources and this toolchain build"));
    }
    Err(format!(
        "`{ARTIFACT}` differs from `{}`, built from the same sources: another compiler or linker builds other bytes",
        built.display()
    ))
}

/// Builds the artifact.
pub(crate) fn build() -> Result<String, String> {
    let built = build_to(artifact())?;
    let size = read(&built)?.len();
    Ok(format!("{}: {} kB", built.display(), size / 1024))
}

/// How the wasm module is compiled here: by rustup's target where it is installed, else by building `std` from source.
struct Toolchain {
    cargo: String,
    rustc: Option<String>,
    /// The sources that `std` is built from, if it is, by all their names.
    library: Vec<PathBuf>,
}

const NO_TARGET: &str = "no compiler for wasm32-unknown-unknown was found; install one with \
     `rustup target add wasm32-unknown-unknown` (rustc 1.96 or newer), or on Debian with `apt install rustc-web cargo-web \
     rust-web-src lld-19`";

fn toolchain() -> Result<Toolchain, String> {
    let installed = |rustc: &str, what: &str| {
        let sysroot = run(Command::new(rustc).args(["--print", "sysroot"]), "rustc is needed").ok()?;
        let found = PathBuf::from(String::from_utf8_lossy(&sysroot).trim()).join("lib/rustlib").join(what);
        found.exists().then_some(found)
    };
    if installed("rustc", TARGET).is_some() {
        return Ok(Toolchain { cargo: "cargo".to_owned(), rustc: None, library: Vec::new() });
    }
    if installed("/usr/bin/rustc", "src/rust/library").is_some() {
        let named = installed("/usr/bin/rustc", "src/rust");
        let real = named.as_ref().and_then(|link| link.canonicalize().ok());
        let mut library: Vec<PathBuf> = real.into_iter().chain(named).collect();
        library.dedup();
        return Ok(Toolchain { cargo: "/usr/bin/cargo".to_owned(), rustc: Some("/usr/bin/rustc".to_owned()), library });
    }
    Err(NO_TARGET.to_owned())
}

fn build_to(output: PathBuf) -> Result<PathBuf, String> {
    sources::vendor()?;
    let root = root();
    let toolchain = toolchain()?;
    let target = std::env::var_os("ESPALIER_GUEST_TARGET").map_or_else(|| root.join("target/guest"), PathBuf::from);
    let mut flags = vec![
        "--cfg".to_owned(),
        "getrandom_backend=\"custom\"".to_owned(),
        "-Ctarget-feature=+bulk-memory,+mutable-globals,+nontrapping-fptoint,+sign-ext,+simd128".to_owned(),
        format!("-Clink-arg=-zstack-size={STACK}"),
        "-Clink-arg=--export=__stack_pointer".to_owned(),
        "-Clink-arg=--stack-first".to_owned(),
    ];
    // Panic messages name source files: nothing of this machine's folders goes into the artifact.
    let mut remap = |from: &Path, to: &str| flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    for registry in sources::registries()? {
        remap(&registry, "crates");
    }
    for library in &toolchain.library {
        remap(library, "rust");
    }
    remap(&root.join("sandbox"), "sandbox");
    flags.push("-Clink-arg=--strip-debug".to_owned());
    let mut command = Command::new(&toolchain.cargo);
    command
        .args(["build", "--release", "--locked", "--target", TARGET])
        .current_dir(root.join("sandbox/guest"))
        .env("CARGO_TARGET_DIR", &target)
        // The patched interpreter reads the stack pointer with inline assembly, which rustc calls unstable for wasm.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO");
    if let Some(rustc) = &toolchain.rustc {
        command.env("RUSTC", rustc);
    }
    // Debian's compiler calls its linker by a name that may not be there.
    if !toolchain.library.is_empty() {
        command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "wasm-ld-19");
        command.arg("-Zbuild-std=std,panic_abort");
    }
    run(&mut command, "the guest did not compile; it needs rustc 1.96 or newer and wasm-ld")?;
    let wasm = target.join(TARGET).join("release/espalier_guest.wasm");
    let folder = output.parent().map(PathBuf::from).unwrap_or_default();
    std::fs::create_dir_all(&folder).map_err(|error| format!("cannot make `{}`: {error}", folder.display()))?;
    run(
        Command::new("cargo")
            .args(["run", "--release", "--locked", "--quiet", "--manifest-path"])
            .arg(root.join("xtask/preinit/Cargo.toml"))
            .arg("--")
            .args([&wasm, &output])
            .arg(source_hash()?)
            .env("CARGO_TARGET_DIR", target.join("preinit")),
        "the guest was not pre-initialised",
    )?;
    Ok(output)
}
