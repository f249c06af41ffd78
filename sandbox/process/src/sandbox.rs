//! The sandbox: probed once, then one run per job.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::cgroup::Groups;
use crate::config::{MOST_AT_ONCE, ProcessConfig, ProcessLimits};
use crate::error::ProcessError;
use crate::filter;
use crate::interpreter::{self, Interpreter};
use crate::job::{Job, Outcome, Program};
use crate::plan::{self, Host, Payload, Plan, View};
use crate::session::{Running, Session, failed_step};
use crate::slots::{Slot, Slots};
use crate::spawn::{self, Held, Input};
use crate::walls::{Wall, Walls};
use crate::workspace;

/// Runs programs behind walls. Cheap to clone; clones share the places for jobs.
#[derive(Clone, Debug)]
pub struct ProcessSandbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ProcessConfig,
    walls: Walls,
    host: Host,
    interpreter: Interpreter,
    first_uid: u32,
    groups: Groups,
    slots: Slots,
}

/// Users that belong to nobody on a host that follows the usual assignments: above what containers take.
const FIRST_UID: u32 = 1_879_048_192;
/// Users per process: one per place, and one for workspaces.
const UIDS: u32 = MOST_AT_ONCE as u32 + 1;
/// How long a probe may take.
const PROBE_TIME: Duration = Duration::from_secs(30);

impl ProcessSandbox {
    /// Asks Python where it lies and tries every wall. Blocks for some tens of milliseconds: processes are run.
    pub fn new(config: ProcessConfig) -> Result<Self, ProcessError> {
        config.check()?;
        let interpreter = interpreter::find(&config.python)?;
        let mut walls = Walls::all_up();
        let filters = filter::programs().unwrap_or_else(|reason| {
            walls.take_down(Wall::Seccomp, reason);
            Vec::new()
        });
        let (uid, gid) = spawn::user();
        let host = Host {
            root: uid == 0,
            uid,
            gid,
            base: base().ok_or_else(|| ProcessError::Config {
                key: "filesystem",
                reason: "needs one of the folders `/tmp`, `/var/tmp`, `/mnt`, `/run` to exist".to_owned(),
            })?,
            view: view(&interpreter, &config.read_only)?,
            filters,
            landlock: landlock_version(),
            proc: config.proc,
        };
        if host.landlock < 1 {
            walls.take_down(Wall::Landlock, "the kernel has it not, or not in use");
        }
        let groups = Groups::discover(config.cgroup.as_deref(), config.concurrency);
        if let Some(reason) = groups.memory_missing() {
            walls.take_down(Wall::CgroupMemory, reason);
        }
        if let Some(reason) = groups.pids_missing() {
            walls.take_down(Wall::CgroupPids, reason);
        }
        let first_uid = config.first_uid.unwrap_or_else(|| first_uid(config.concurrency));
        let slots = Slots::new(config.concurrency);
        let mut inner = Inner { config, walls, host, interpreter, first_uid, groups, slots };
        inner.probe()?;
        for wall in &inner.config.require {
            if let Some(reason) = inner.walls.reason(*wall) {
                return Err(ProcessError::Wall { wall: *wall, reason: reason.to_owned() });
            }
        }
        inner.try_interpreter()?;
        tracing::debug!(walls = %inner.walls, "process sandbox");
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Which walls are up.
    pub fn walls(&self) -> &Walls {
        &self.inner.walls
    }

    /// The interpreter of [`Program::Python`].
    pub fn interpreter(&self) -> &Interpreter {
        &self.inner.interpreter
    }

    /// How it was set up.
    pub fn config(&self) -> &ProcessConfig {
        &self.inner.config
    }

    /// Runs a job to its end. It waits for a place first; its time starts with the job. Dropping the future kills the
    /// job.
    pub async fn run(&self, job: Job) -> Result<Outcome, ProcessError> {
        self.start(job, false).await?.finish().await
    }

    /// Starts a job to talk to. [`Job::stdin`] is not used.
    pub async fn session(&self, job: Job) -> Result<Session, ProcessError> {
        Session::new(self.start(job, true).await?)
    }

    async fn start(&self, mut job: Job, talk: bool) -> Result<Running, ProcessError> {
        job.check()?;
        let slot = self.inner.slots.take().await;
        let slot = slot.ok_or_else(|| ProcessError::Lost { reason: "there is no place for it".to_owned() })?;
        let input = if talk { Input::Pipe } else { Input::Bytes(std::mem::take(&mut job.stdin)) };
        let limits = job.limits.clone();
        let prepared = self.inner.prepare(job, slot)?;
        let started = spawn::start(prepared.image, prepared.flags, input, prepared.held).await?;
        Running::new(started, Some(prepared.group), prepared.kills, limits.wall, limits.output_bytes)
    }
}

/// The walls that are namespaces and need nothing else.
const NAMESPACES: [Wall; 5] = [Wall::Pids, Wall::Network, Wall::Filesystem, Wall::Ipc, Wall::Hostname];

/// A job ready to be started.
struct Prepared {
    image: crate::program::Image,
    flags: i32,
    held: Held,
    group: crate::cgroup::Group,
    kills: u64,
}

impl Inner {
    fn prepare(&self, job: Job, slot: Slot) -> Result<Prepared, ProcessError> {
        let group = self
            .groups
            .prepare(slot.index(), &job.limits)
            .map_err(|source| ProcessError::Spawn { what: "set its cgroup", source })?;
        let kills = group.kills();
        let mut uid = self.first_uid + slot.index() as u32;
        let mut folder = None;
        let workspace = match &job.workspace {
            Some(path) => {
                // One user for all workspaces, so that files stay one user's.
                let (real, owner) =
                    workspace::prepare(path, self.host.root, self.first_uid + self.config.concurrency as u32)?;
                uid = owner;
                Some(real)
            }
            None if !self.walls.is_up(Wall::Filesystem) => {
                let made = tempfile::Builder::new().prefix("espalier-job-").tempdir();
                let made = made.map_err(ProcessError::spawn("make its folder"))?;
                let (real, _) = workspace::prepare(made.path(), self.host.root, uid)?;
                folder = Some(made);
                Some(real)
            }
            None => None,
        };
        let (path, args) = self.command(&job.program)?;
        let payload = Payload::Exec {
            path: &path,
            args: args.iter().map(String::as_str).collect(),
            env: self.environment(&job.env),
            files: &job.files,
        };
        let plan = Plan {
            host: &self.host,
            walls: &self.walls,
            uid,
            joins: group.joins(),
            workspace: workspace.as_deref(),
            limits: &job.limits,
            payload,
        };
        let flags = plan::namespaces(&self.walls, self.host.root);
        Ok(Prepared { image: plan.image(), flags, held: Held::new(slot, folder), group, kills })
    }

    fn command(&self, program: &Program) -> Result<(String, Vec<String>), ProcessError> {
        let text = |path: &Path| {
            path.to_str().filter(|path| !path.contains('\0')).map(str::to_owned).ok_or_else(|| ProcessError::Job {
                part: "argv",
                reason: format!("begins with a path that is no text: `{}`", path.display()),
            })
        };
        match program {
            Program::Python(args) => {
                // No folder of the user's, no cache beside the sources.
                let mut all = vec!["-s".to_owned(), "-B".to_owned()];
                if !self.config.site_packages {
                    all.push("-S".to_owned());
                }
                all.extend(args.iter().cloned());
                Ok((text(&self.interpreter.executable)?, all))
            }
            Program::Command { path, args } => Ok((text(path)?, args.clone())),
        }
    }

    fn environment(&self, further: &[(String, String)]) -> Vec<String> {
        let bin = self.interpreter.executable.parent().map_or_else(String::new, |bin| format!("{}:", bin.display()));
        let mut all = vec![
            format!("PATH={bin}/usr/bin:/bin"),
            format!("HOME={}", plan::SCRATCH),
            format!("TMPDIR={}", plan::SCRATCH),
            "LANG=C.UTF-8".to_owned(),
            // The order of sets of texts is the same in every run.
            "PYTHONHASHSEED=0".to_owned(),
            // One thread per library: threads count as processes.
            "OMP_NUM_THREADS=1".to_owned(),
            "OPENBLAS_NUM_THREADS=1".to_owned(),
        ];
        all.extend(further.iter().map(|(name, value)| format!("{name}={value}")));
        all
    }

    /// Tries the walls until a job with those that are up can be set up.
    fn probe(&mut self) -> Result<(), ProcessError> {
        self.probe_namespaces();
        // Each round takes one wall down.
        for _ in Wall::ALL {
            let Err(error) = self.try_walls(&self.walls) else { return Ok(()) };
            match error {
                ProcessError::Setup { wall: Some(wall), step, source } => {
                    let reason = format!("could not {step}: {source}");
                    if wall == Wall::User && !self.host.root {
                        self.without_namespaces(&reason);
                    }
                    self.walls.take_down(wall, reason);
                }
                other => return Err(other),
            }
        }
        Err(ProcessError::Lost { reason: "no set of walls can be set up".to_owned() })
    }

    /// Takes down the namespaces that cannot be created.
    fn probe_namespaces(&mut self) {
        let flags = plan::namespaces(&self.walls, self.host.root);
        if try_clone(flags).is_ok() {
            return;
        }
        let user = if self.host.root { 0 } else { libc::CLONE_NEWUSER };
        if let Err(error) = try_clone(user) {
            let reason = format!("no user namespace can be created: {}", source(&error));
            self.without_namespaces(&reason);
            return;
        }
        for wall in NAMESPACES {
            let mut only = Walls::all_up();
            for other in NAMESPACES.into_iter().filter(|other| *other != wall) {
                only.take_down(other, "");
            }
            if let Err(error) = try_clone(plan::namespaces(&only, self.host.root)) {
                self.walls.take_down(wall, format!("its namespace cannot be created: {}", source(&error)));
            }
        }
    }

    /// An ordinary user gets namespaces only together with a user namespace, and is itself without one.
    fn without_namespaces(&mut self, reason: &str) {
        for wall in NAMESPACES.into_iter().chain([Wall::User, Wall::Uid]) {
            self.walls.take_down(wall, reason);
        }
    }

    fn try_walls(&self, walls: &Walls) -> Result<(), ProcessError> {
        let limits = ProcessLimits::default();
        let joins = self.groups.prepare(0, &limits).map_or_else(|_| Vec::new(), |group| group.joins());
        let plan = Plan {
            host: &self.host,
            walls,
            uid: self.first_uid,
            joins,
            workspace: None,
            limits: &limits,
            payload: Payload::Nothing,
        };
        run_blocking(plan.image(), plan::namespaces(walls, self.host.root)).map(drop)
    }

    /// Runs Python once, so that an interpreter that cannot start in the root view is not taken for a job's fault.
    fn try_interpreter(&self) -> Result<(), ProcessError> {
        let slot = self.slots.take_now();
        let slot = slot.ok_or_else(|| ProcessError::Lost { reason: "there is no place for it".to_owned() })?;
        let job = Job::python("import sys; sys.stdout.write('%d' % (6 * 7))");
        let prepared = self.prepare(job, slot)?;
        let (stdout, stderr) = run_blocking(prepared.image, prepared.flags)?;
        if stdout == b"42" {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&stderr);
        Err(ProcessError::Interpreter {
            program: self.interpreter.executable.display().to_string(),
            reason: format!(
                "does not run in the sandbox: {}; `read_only` takes further folders that it needs",
                stderr.lines().last().unwrap_or("it wrote nothing")
            ),
        })
    }
}

fn source(error: &ProcessError) -> String {
    match error {
        ProcessError::Setup { source, .. } | ProcessError::Spawn { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}

/// Creates a process in namespaces that does nothing.
fn try_clone(flags: i32) -> Result<(), ProcessError> {
    let mut program = crate::program::Program::new();
    program.call(None, "end", libc::SYS_exit_group, &[0]);
    run_blocking(program.image(), flags).map(drop)
}

/// Runs an image to its end without a runtime; its outputs, of which little is expected.
fn run_blocking(image: crate::program::Image, flags: i32) -> Result<(Vec<u8>, Vec<u8>), ProcessError> {
    use io::Read as _;
    spawn::start_and_wait(image, flags, |started| {
        let mut started = started?;
        let watch = started.kill_after(PROBE_TIME);
        let read = |fd: Option<std::os::fd::OwnedFd>| -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            if let Some(fd) = fd {
                std::fs::File::from(fd).take(1 << 16).read_to_end(&mut bytes)?;
            }
            Ok(bytes)
        };
        let report = read(started.report.take()).map_err(ProcessError::spawn("read a report"))?;
        if report.first() == Some(&1) {
            return Err(failed_step(&started, &report));
        }
        let stdout = read(started.stdout.take()).map_err(ProcessError::spawn("read an output"))?;
        let stderr = read(started.stderr.take()).map_err(ProcessError::spawn("read an output"))?;
        drop(watch);
        started.collect();
        Ok((stdout, stderr))
    })?
}

/// A folder to build the root view over.
fn base() -> Option<PathBuf> {
    ["/tmp", "/var/tmp", "/mnt", "/run"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()))
}

/// The first user of this process's jobs.
fn first_uid(concurrency: usize) -> u32 {
    let wanted = concurrency as u32 + 1;
    let own = FIRST_UID + (std::process::id() % 250_000) * UIDS;
    // In a container not every user exists.
    let maps = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let most = maps
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().map(|field| field.parse::<u64>().ok());
            Some((fields.next()??, fields.nth(1)??))
        })
        .max_by_key(|(_, count)| *count);
    match most {
        Some((first, count)) if u64::from(own + wanted) >= first + count => {
            // The upper end, below `nobody` where it is within.
            let end = (first + count).min(65534);
            u32::try_from(end.saturating_sub(u64::from(wanted)).max(first + 1)).unwrap_or(65000)
        }
        _ => own,
    }
}

#[expect(unsafe_code, reason = "asking for the version has no safe interface")]
fn landlock_version() -> i32 {
    // SAFETY: with a null pointer, size 0 and this flag (1) the call only returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, 1_u32) };
    i32::try_from(version).unwrap_or(0)
}

/// What jobs see of the host.
fn view(interpreter: &Interpreter, read_only: &[PathBuf]) -> Result<Vec<View>, ProcessError> {
    let mut view = Vec::new();
    let mut shown: Vec<PathBuf> = vec![PathBuf::from("/usr")];
    view.push(View::Folder { from: PathBuf::from("/usr"), to: PathBuf::from("/usr") });
    for name in ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"] {
        let path = PathBuf::from(name);
        match std::fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => {
                if let Ok(target) = std::fs::read_link(&path) {
                    view.push(View::Link { target, at: path });
                }
            }
            Ok(metadata) if metadata.is_dir() => {
                shown.push(path.clone());
                view.push(View::Folder { from: path.clone(), to: path });
            }
            _ => {}
        }
    }
    for name in ["/etc/ld.so.cache", "/etc/localtime"] {
        if let Ok(from) = std::fs::canonicalize(name)
            && from.is_file()
        {
            view.push(View::File { from, to: PathBuf::from(name) });
        }
    }
    if let Ok(from) = std::fs::canonicalize("/etc/alternatives") {
        view.push(View::Folder { from, to: PathBuf::from("/etc/alternatives") });
    }
    // Shorter paths first: what lies below a folder is shown with it.
    let mut folders: Vec<&PathBuf> = interpreter.folders.iter().chain(read_only).collect();
    folders.sort_by_key(|folder| folder.as_os_str().len());
    for folder in folders {
        let from = std::fs::canonicalize(folder).map_err(|error| ProcessError::Config {
            key: "read_only",
            reason: format!("has a folder `{}` that cannot be shown: {error}", folder.display()),
        })?;
        if !folder.is_absolute() || from.parent().is_none() {
            let reason = format!("must be absolute paths below the root, got `{}`", folder.display());
            return Err(ProcessError::Config { key: "read_only", reason });
        }
        for to in [from.clone(), folder.clone()] {
            if !shown.iter().any(|above| to.starts_with(above)) {
                shown.push(to.clone());
                view.push(View::Folder { from: from.clone(), to });
            }
        }
    }
    for device in ["null", "zero", "full", "random", "urandom"] {
        if Path::new("/dev").join(device).exists() {
            view.push(View::Device(device));
        }
    }
    Ok(view)
}
