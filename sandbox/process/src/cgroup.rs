//! Memory and processes of a job, counted together: one cgroup per place, of either version.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::ProcessLimits;

/// What a controller is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Memory,
    Pids,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }
}

/// A folder in which groups can be made.
#[derive(Clone, Debug)]
struct Base {
    folder: PathBuf,
    /// Version 2: both controllers in one tree.
    unified: bool,
}

impl Base {
    fn limit_file(&self, controller: Controller) -> &'static str {
        match (controller, self.unified) {
            (Controller::Memory, true) => "memory.max",
            (Controller::Memory, false) => "memory.limit_in_bytes",
            (Controller::Pids, _) => "pids.max",
        }
    }
}

/// Where this process may make groups; for each controller a folder, or why there is none.
#[derive(Debug)]
pub(crate) struct Groups {
    memory: Result<Base, String>,
    pids: Result<Base, String>,
    /// Names this sandbox's groups apart from those of others.
    name: String,
    /// How many groups may have been made.
    count: usize,
}

/// The groups of one place.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    memory: Option<(PathBuf, bool)>,
    pids: Option<PathBuf>,
}

static SERIAL: AtomicU64 = AtomicU64::new(0);
const PREFIX: &str = "espalier-";

impl Groups {
    /// Looks for folders in which groups can be made, and tries.
    pub(crate) fn discover(given: Option<&Path>, count: usize) -> Self {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{serial}", std::process::id());
        let find = |controller| {
            let base = match given {
                Some(folder) => base_of(folder, controller)?,
                None => own_base(controller)?,
            };
            remove_stale(&base.folder);
            let probe = base.folder.join(format!("{name}-probe"));
            let tried = try_base(&base, controller, &probe);
            let _ = fs::remove_dir(&probe);
            tried.map(|()| base)
        };
        Self { memory: find(Controller::Memory), pids: find(Controller::Pids), name, count }
    }

    /// Why there is no limit of memory.
    pub(crate) fn memory_missing(&self) -> Option<&str> {
        self.memory.as_ref().err().map(String::as_str)
    }

    /// Why there is no limit of processes.
    pub(crate) fn pids_missing(&self) -> Option<&str> {
        self.pids.as_ref().err().map(String::as_str)
    }

    /// The groups of a place under a job's limits.
    pub(crate) fn prepare(&self, slot: usize, limits: &ProcessLimits) -> io::Result<Group> {
        let mut group = Group { memory: None, pids: None };
        if let Ok(base) = &self.memory {
            let folder = base.folder.join(format!("{}-{slot}", self.name));
            make(&folder)?;
            // What is written to the folder in memory counts as memory too.
            let most = limits.memory_bytes.saturating_add(limits.disk_bytes);
            fs::write(folder.join(base.limit_file(Controller::Memory)), most.to_string())?;
            if base.unified {
                let _ = fs::write(folder.join("memory.swap.max"), "0");
            }
            group.memory = Some((folder, base.unified));
        }
        if let Ok(base) = &self.pids {
            let folder = base.folder.join(format!("{}-{slot}", self.name));
            make(&folder)?;
            // The first process of a job is not its own. The kernel takes no number from its own limit on.
            let most = limits.processes.saturating_add(1).min(4_000_000);
            fs::write(folder.join(base.limit_file(Controller::Pids)), most.to_string())?;
            group.pids = Some(folder);
        }
        Ok(group)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for base in [&self.memory, &self.pids].into_iter().flatten() {
            for slot in 0..self.count {
                let _ = fs::remove_dir(base.folder.join(format!("{}-{slot}", self.name)));
            }
        }
    }
}

impl Group {
    /// The files that a process writes to in order to join.
    pub(crate) fn joins(&self) -> Vec<PathBuf> {
        let memory = self.memory.as_ref().map(|(folder, _)| folder);
        let mut files: Vec<PathBuf> = memory.into_iter().map(|folder| folder.join("cgroup.procs")).collect();
        if let Some(pids) = &self.pids
            && memory != Some(pids)
        {
            files.push(pids.join("cgroup.procs"));
        }
        files
    }

    /// How many processes the kernel has killed here because memory was used up.
    pub(crate) fn kills(&self) -> u64 {
        let Some((folder, unified)) = &self.memory else { return 0 };
        let file = if *unified { "memory.events" } else { "memory.oom_control" };
        let Ok(text) = fs::read_to_string(folder.join(file)) else { return 0 };
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

fn make(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn try_base(base: &Base, controller: Controller, probe: &Path) -> Result<(), String> {
    let at = base.folder.display();
    make(probe).map_err(|error| format!("no group can be made in `{at}`: {error}"))?;
    let limit = probe.join(base.limit_file(controller));
    if !limit.exists() {
        return Err(format!("`{at}` does not give the controller `{}` to groups in it", controller.name()));
    }
    // Any that is allowed; for processes there is a most.
    let value = if controller == Controller::Memory { "1073741824" } else { "64" };
    fs::write(&limit, value).map_err(|error| format!("`{}` cannot be written: {error}", limit.display()))?;
    let procs = probe.join("cgroup.procs");
    fs::OpenOptions::new()
        .write(true)
        .open(&procs)
        .map(drop)
        .map_err(|error| format!("`{}` cannot be written: {error}", procs.display()))
}

/// The base that a configuration gives.
fn base_of(folder: &Path, controller: Controller) -> Result<Base, String> {
    let unified = folder.join("cgroup.controllers").exists();
    if unified {
        // Fails where a process is in the folder; the try that follows says so.
        let _ = fs::write(folder.join("cgroup.subtree_control"), "+memory +pids");
    } else if !folder.join("cgroup.procs").exists() {
        return Err(format!("`{}` is no cgroup folder", folder.display()));
    } else if controller == Controller::Memory && !folder.join("memory.usage_in_bytes").exists() {
        return Err(format!("`{}` is no folder of the memory controller", folder.display()));
    }
    Ok(Base { folder: folder.to_owned(), unified })
}

/// The group that this process is in.
fn own_base(controller: Controller) -> Result<Base, String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("`{path}` cannot be read: {error}"));
    let mounts = read("/proc/self/mountinfo")?;
    let groups = read("/proc/self/cgroup")?;
    let mut unified = None;
    for mount in mounts.lines() {
        let Some((before, after)) = mount.split_once(" - ") else { continue };
        let fields: Vec<&str> = before.split(' ').collect();
        let kind: Vec<&str> = after.split(' ').collect();
        let (Some(root), Some(at), Some(kind_name)) = (fields.get(3), fields.get(4), kind.first()) else { continue };
        let options = kind.get(2).copied().unwrap_or_default();
        let own = |wanted: &str| {
            let path = groups.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let (controllers, path) = (parts.next()?, parts.next()?);
                let hit = if wanted.is_empty() {
                    controllers.is_empty()
                } else {
                    controllers.split(',').any(|c| c == wanted)
                };
                hit.then_some(path)
            })?;
            let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            Some(Path::new(at).join(below))
        };
        match *kind_name {
            "cgroup" if options.split(',').any(|option| option == controller.name()) => {
                if let Some(folder) = own(controller.name()) {
                    return Ok(Base { folder, unified: false });
                }
            }
            "cgroup2" => unified = own("").map(|folder| Base { folder, unified: true }),
            _ => {}
        }
    }
    unified.ok_or_else(|| "no cgroup file system is mounted".to_owned())
}

/// Removes groups of processes that are gone: a process that was killed could not.
fn remove_stale(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if let Some(pid) = pid
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
