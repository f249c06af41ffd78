//! The interpreter, loaded once per process.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use espalier_sandbox_protocol::{Decode, Encode, ExecuteRequest, Reply, Request, abi};
use futures::FutureExt as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sha2::{Digest, Sha256};
use wasmtime::{Config, Engine, ExternType, Linker, Module};

use crate::artifact::Artifact;
use crate::instance::{Core, Live};
use crate::journal::HostState;
use crate::memory::{Checkpoint, Creator, Image, PAGE, Stacks, WASM_PAGE, page_size};
use crate::module_cache::{self, ModuleOrigin};
use crate::pool::Pool;
use crate::run::Run;
use crate::template::Templates;
use crate::ticker::Ticker;
use crate::{Repl, ReplOptions, SandboxError, imports};

/// Native stack that the interpreter may use, bytes: a thousand Python frames and the C-like recursion of its parser,
/// `repr` and comparison.
const WASM_STACK: usize = 16 << 20;
/// Native stack of a guest: the above and what the imports need.
const STACK: usize = WASM_STACK + (2 << 20);

/// How the interpreter is loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Another interpreter than the embedded one: a compressed module.
    pub artifact: Option<Vec<u8>>,
    /// Where compiled code is kept. Default: `$ESPALIER_CACHE`, or `espalier` below `$XDG_CACHE_HOME` or `~/.cache`.
    pub cache: Option<PathBuf>,
    /// Threads that run guests. Default: one for each core.
    pub threads: Option<usize>,
}

/// How loading went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadReport {
    /// Where the compiled code came from.
    pub origin: ModuleOrigin,
    /// How long it took.
    pub took: Duration,
    /// Memory of the booted interpreter, bytes, shared by all REPLs.
    pub image_bytes: u64,
}

/// The interpreter, loaded once per process; cheap to clone.
#[derive(Clone)]
pub struct Sandbox {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) pool: Pool,
    pub(crate) templates: Templates,
    report: LoadReport,
}

impl Sandbox {
    /// Loads the interpreter (compiled code comes from the per-user cache), once per process. The first time on a
    /// machine this takes some seconds: it blocks its thread.
    pub fn shared() -> Result<Self, SandboxError> {
        static SHARED: OnceLock<Result<Sandbox, String>> = OnceLock::new();
        let load = || {
            Self::load(LoadOptions::default()).map_err(|error| match error {
                SandboxError::Load(reason) => reason,
                error => error.to_string(),
            })
        };
        SHARED.get_or_init(load).clone().map_err(SandboxError::Load)
    }

    /// Loads an interpreter of its own, with threads of its own. Blocks its thread.
    pub fn load(options: LoadOptions) -> Result<Self, SandboxError> {
        let started = Instant::now();
        imports::start_clock();
        let compressed = match &options.artifact {
            Some(bytes) => bytes.as_slice(),
            None => EMBEDDED.ok_or_else(|| {
                let reason = "this build carries no interpreter: run `cargo xtask guest` and build again";
                SandboxError::Load(reason.to_owned())
            })?,
        };
        if page_size() != PAGE {
            return Err(SandboxError::Load(format!("expected memory pages of {PAGE} bytes")));
        }
        allow_many_files();
        let failed = |error: wasmtime::Error| SandboxError::Load(format!("{error:#}"));
        let artifact = Artifact::open(compressed).map_err(|error| SandboxError::Load(error.to_string()))?;
        let engine = engine().map_err(failed)?;
        let folder = options.cache.or_else(module_cache::default_folder);
        let (module, origin) = module_cache::load(&engine, artifact.wasm(), folder.as_deref()).map_err(failed)?;
        let image = artifact.image(minimum(&module)?).map_err(|error| SandboxError::Load(error.to_string()))?;
        drop(artifact);
        let core = core(&engine, &module, image, Sha256::digest(compressed).into()).map_err(failed)?;
        let threads =
            options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
        let pool = Ticker::new(&engine)
            .and_then(|ticker| Pool::new(threads, ticker))
            .map_err(|error| SandboxError::Load(format!("starting threads: {error}")))?;
        let image_bytes = core.image.length() as u64;
        let report = LoadReport { origin, took: started.elapsed(), image_bytes };
        Ok(Self { inner: Arc::new(Inner { core: Arc::new(core), pool, templates: Templates::default(), report }) })
    }

    /// How loading went.
    pub fn report(&self) -> &LoadReport {
        &self.inner.report
    }

    /// A fresh REPL.
    pub async fn repl(&self, options: ReplOptions) -> Result<Repl, SandboxError> {
        Repl::open(self.clone(), options).await
    }

    /// A REPL from [`Repl::snapshot`]'s bytes. `options` gives what a snapshot cannot carry: the host, the contexts
    /// that the REPL had (their sizes bound its memory, and `reset` binds them anew), and limits, of which the
    /// stricter of both hold.
    pub async fn restore(&self, snapshot: &[u8], options: ReplOptions) -> Result<Repl, SandboxError> {
        Repl::restore(self.clone(), snapshot, options).await
    }
}

/// The interpreter that this build carries.
#[cfg(embedded_guest)]
const EMBEDDED: Option<&[u8]> = Some(include_bytes!("../artifact/guest.wasm.zst"));
#[cfg(not(embedded_guest))]
const EMBEDDED: Option<&[u8]> = None;

fn engine() -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .with_host_memory(Arc::new(Creator))
        .with_host_stack(Arc::new(Stacks::default()))
        .memory_init_cow(false)
        .memory_may_move(false)
        .memory_reservation(4 << 30)
        .memory_guard_size(32 << 20)
        .max_wasm_stack(WASM_STACK)
        .async_stack_size(STACK)
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false);
    Engine::new(&config)
}

/// The memory that the module declares, bytes; refuses a module that imports anything but the sandbox's functions.
fn minimum(module: &Module) -> Result<usize, SandboxError> {
    for import in module.imports() {
        if import.module() != abi::IMPORT_MODULE || !matches!(import.ty(), ExternType::Func(_)) {
            return Err(SandboxError::Load(format!(
                "the interpreter imports `{}.{}`, expected functions of `{}` only",
                import.module(),
                import.name(),
                abi::IMPORT_MODULE
            )));
        }
    }
    match module.get_export(abi::EXPORT_MEMORY) {
        Some(ExternType::Memory(memory)) => Ok(memory.minimum() as usize * WASM_PAGE),
        _ => Err(SandboxError::Load(format!("the interpreter does not export `{}`", abi::EXPORT_MEMORY))),
    }
}

fn core(engine: &Engine, module: &Module, image: Image, hash: [u8; 32]) -> wasmtime::Result<Core> {
    let mut linker = Linker::new(engine);
    imports::define(&mut linker)?;
    let pre = linker.instantiate_pre(module)?;
    let image = Arc::new(image);
    let booted = Arc::new(Checkpoint::booted(Arc::clone(&image), None));
    let heap = image.length() as u64;
    let mut core = Core { engine: engine.clone(), pre, image, booted, word: 0, heap, hash };
    let mut probe = Live::open(&core, &core.booted, HostState::new(0), 0)?;
    // No epoch advances before the ticker runs, so neither of these waits.
    let waited = || wasmtime::Error::msg("the interpreter waited where it must not");
    let version = probe.number(abi::EXPORT_ABI).now_or_never().ok_or_else(waited)??;
    if version.cast_unsigned() != abi::ABI_VERSION {
        let expected = abi::ABI_VERSION;
        return Err(wasmtime::Error::msg(format!("the interpreter speaks version {version}, expected {expected}")));
    }
    let word = probe.number(abi::EXPORT_INTERRUPT_WORD).now_or_never().ok_or_else(waited)??;
    core.word = word.cast_unsigned() as usize;
    if core.word + 4 > core.image.length() || !core.word.is_multiple_of(4) {
        return Err(wasmtime::Error::msg(format!("the interrupt word at {word} is not within the booted memory")));
    }
    let mut probe = Live::open(&core, &core.booted, HostState::new(0), core.image.length() * 2)?;
    let block = ExecuteRequest { code: "x = 1".to_owned(), block: 0, echo: false, max_host_calls: 0 };
    for request in [Request::Configure(ReplOptions::default().config(0)), Request::Execute(block)] {
        let reply = probe.serve(&request.to_bytes(), Run::idle()).now_or_never().ok_or_else(waited)??;
        match Reply::from_bytes(&reply) {
            Ok(Reply::Done) => {}
            Ok(Reply::Executed(reply)) => core.heap = reply.heap_bytes.min(core.heap),
            other => return Err(wasmtime::Error::msg(format!("the interpreter does not start: {other:?}"))),
        }
    }
    let mut booted = Checkpoint::booted(Arc::clone(&core.image), None);
    probe.teach(&mut booted).map_err(wasmtime::Error::new)?;
    core.booted = Arc::new(booted);
    Ok(core)
}

/// A REPL with a large heap holds a file; a thousand of them must be possible where the administrator allows.
fn allow_many_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::debug!(%error, "the limit of open files stays at {soft}");
    }
}
