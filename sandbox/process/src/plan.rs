//! What happens between a job's first process and its program, as a list of system calls.
//!
//! The order matters. As root: namespaces come with the first process; mounts are made while it may still mount;
//! then the user is changed for good; then everything else is done as a user without rights. As an ordinary user the
//! namespaces come with a user namespace, in which mounts may be made, and the rights in it are given up afterwards.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use landlock::{ABI, AccessFs};
use libc::c_long;
use seccompiler::BpfProgram;

use crate::config::ProcessLimits;
use crate::init::REPORT;
use crate::program::{Image, Program};
use crate::walls::{Wall, Walls};

/// Where jobs write, and where they start without a workspace.
pub(crate) const SCRATCH: &str = "/tmp";
/// Where they start.
pub(crate) const WORK: &str = "/tmp/work";
/// Where a workspace is.
pub(crate) const WORKSPACE: &str = "/work";

/// The user that a job seems to be, where it has a user namespace.
const NOBODY: u32 = 65534;

/// What there is to know of the host before any job.
#[derive(Debug)]
pub(crate) struct Host {
    /// This process is root.
    pub(crate) root: bool,
    /// Its user and group.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// A folder that exists, to build the root view over.
    pub(crate) base: PathBuf,
    /// What jobs see, from the host.
    pub(crate) view: Vec<View>,
    pub(crate) filters: Vec<BpfProgram>,
    /// The kernel's version of landlock; 0 where it has none.
    pub(crate) landlock: i32,
    pub(crate) proc: bool,
}

/// A part of the root view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// A folder of the host, read-only.
    Folder { from: PathBuf, to: PathBuf },
    /// A file of the host, read-only.
    File { from: PathBuf, to: PathBuf },
    /// A link.
    Link { target: PathBuf, at: PathBuf },
    /// A device of the host.
    Device(&'static str),
}

/// What is executed.
pub(crate) enum Payload<'a> {
    /// Nothing: only the walls are tried.
    Nothing,
    /// A program.
    Exec { path: &'a str, args: Vec<&'a str>, env: Vec<String>, files: &'a [(String, Vec<u8>)] },
}

/// Everything that a job's list depends on.
pub(crate) struct Plan<'a> {
    pub(crate) host: &'a Host,
    pub(crate) walls: &'a Walls,
    /// The user that it runs as, where this process is root.
    pub(crate) uid: u32,
    /// The files to write to in order to join its cgroups.
    pub(crate) joins: Vec<PathBuf>,
    /// A folder of the host as the work folder, by its real path.
    pub(crate) workspace: Option<&'a Path>,
    pub(crate) limits: &'a ProcessLimits,
    pub(crate) payload: Payload<'a>,
}

/// The flags of the first process's `clone`.
pub(crate) fn namespaces(walls: &Walls, root: bool) -> i32 {
    let mut flags = 0;
    let mut add = |wall, flag| {
        if walls.is_up(wall) {
            flags |= flag;
        }
    };
    add(Wall::Pids, libc::CLONE_NEWPID);
    add(Wall::Network, libc::CLONE_NEWNET);
    add(Wall::Filesystem, libc::CLONE_NEWNS);
    add(Wall::Ipc, libc::CLONE_NEWIPC);
    add(Wall::Hostname, libc::CLONE_NEWUTS);
    if !root {
        add(Wall::User, libc::CLONE_NEWUSER);
    }
    flags
}

impl Plan<'_> {
    pub(crate) fn image(&self) -> Image {
        let mut program = Program::new();
        let p = &mut program;
        self.begin(p);
        if self.walls.is_up(Wall::Filesystem) {
            self.root_view(p);
        }
        self.give_up_rights(p);
        self.files(p);
        let fork = p.fork();
        self.limits(p);
        if self.walls.is_up(Wall::Landlock) {
            self.landlock(p);
        }
        if self.walls.is_up(Wall::Seccomp) {
            for filter in &self.host.filters {
                let code: Vec<u8> = filter.iter().flat_map(instruction).collect();
                let code = p.bytes(&code);
                let header = p.words(&[filter.len() as u64, code]);
                p.call(Some(Wall::Seccomp), "install the filter of system calls", libc::SYS_seccomp, &[1, 0, header]);
            }
        }
        match &self.payload {
            Payload::Nothing => p.call(None, "end", libc::SYS_exit_group, &[0]),
            Payload::Exec { path, args, env, .. } => {
                let name = p.text(path);
                let argv = p.texts(std::iter::once(path).chain(args));
                let env = p.texts(env);
                p.exec(path, &[name, argv, env]);
            }
        }
        p.parent_waits(&fork);
        program.image()
    }

    /// Descriptors, signals, cgroups, the user namespace's maps.
    fn begin(&self, p: &mut Program) {
        p.call(None, "close descriptors", libc::SYS_close_range, &[REPORT as u64 + 1, u64::from(u32::MAX), 0]);
        p.call(None, "hide the report", libc::SYS_fcntl, &[REPORT as u64, 2, 1]);
        p.attempt("begin a session", libc::SYS_setsid, &[]);
        // Handlers are gone since the first process was executed; what its parent ignored is not.
        let default = p.words(&[0; 4]);
        let ignorable = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE, libc::SIGTERM, libc::SIGCHLD];
        for signal in ignorable {
            p.call(None, "reset a signal", libc::SYS_rt_sigaction, &[signal as u64, default, 0, 8]);
        }
        let none = p.words(&[0]);
        p.call(None, "unblock signals", libc::SYS_rt_sigprocmask, &[libc::SIG_SETMASK as u64, none, 0, 8]);
        p.attempt("set the file mode mask", libc::SYS_umask, &[0o022]);
        for file in &self.joins {
            write(p, None, file, b"0");
        }
        if self.walls.is_up(Wall::User) && !self.host.root {
            let wall = Some(Wall::User);
            write(p, wall, Path::new("/proc/self/setgroups"), b"deny");
            let map = |id: u32| format!("{NOBODY} {id} 1");
            write(p, wall, Path::new("/proc/self/uid_map"), map(self.host.uid).as_bytes());
            write(p, wall, Path::new("/proc/self/gid_map"), map(self.host.gid).as_bytes());
        }
        if self.walls.is_up(Wall::Hostname) {
            let name = p.text("sandbox");
            p.call(Some(Wall::Hostname), "name the host", libc::SYS_sethostname, &[name, 7]);
        }
    }

    /// A root of its own: a folder in memory with parts of the host in it, and nothing else.
    fn root_view(&self, p: &mut Program) {
        let wall = Some(Wall::Filesystem);
        let empty = p.text("");
        let root = p.text("/");
        let tmpfs = p.text("tmpfs");
        let base = p.text(self.host.base.as_os_str().as_bytes());
        let old = p.text(self.host.base.join("old").as_os_str().as_bytes());
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        p.call(wall, "make mounts private", libc::SYS_mount, &[empty, root, 0, flags, 0]);
        let options = p.text("size=16m,nr_inodes=4096,mode=755");
        let flags = libc::MS_NOSUID | libc::MS_NODEV;
        p.call(wall, "mount the root view", libc::SYS_mount, &[tmpfs, base, tmpfs, flags, options]);
        p.call(wall, "make a folder for the old root", libc::SYS_mkdir, &[old, 0o700]);
        p.call(wall, "enter the root view", libc::SYS_pivot_root, &[base, old]);
        p.call(wall, "enter the root view", libc::SYS_chdir, &[root]);

        for folder in ["/dev", "/etc", SCRATCH] {
            make_folders(p, Path::new(folder));
        }
        for view in &self.host.view {
            match view {
                View::Folder { from, to } => {
                    make_folders(p, to);
                    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
                    bind(p, from, to, attributes);
                }
                View::File { from, to } => {
                    if let Some(parent) = to.parent() {
                        make_folders(p, parent);
                    }
                    make_file(p, to, b"");
                    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
                    bind(p, from, to, attributes);
                }
                View::Link { target, at } => {
                    let target = p.text(target.as_os_str().as_bytes());
                    let at = p.text(at.as_os_str().as_bytes());
                    p.call(wall, "make a link", libc::SYS_symlink, &[target, at]);
                }
                View::Device(name) => {
                    let path = Path::new("/dev").join(name);
                    make_file(p, &path, b"");
                    bind(p, &path, &path, libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC);
                }
            }
        }
        let name = format!("sandbox:x:{NOBODY}:{NOBODY}::{SCRATCH}:/bin/sh\n");
        let name = if self.host.root && !self.walls.is_up(Wall::User) {
            name.replace(&NOBODY.to_string(), &self.uid.to_string())
        } else {
            name
        };
        make_file(p, Path::new("/etc/passwd"), name.as_bytes());
        make_file(p, Path::new("/etc/group"), format!("sandbox:x:{NOBODY}:\n").as_bytes());
        let shm = p.text("/dev/shm");
        let scratch = p.text(SCRATCH);
        p.call(wall, "make a link", libc::SYS_symlink, &[scratch, shm]);

        if self.host.proc && self.walls.is_up(Wall::Pids) {
            make_folders(p, Path::new("/proc"));
            let proc = p.text("proc");
            let at = p.text("/proc");
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            // Not to be had where the host's own is covered in part.
            p.attempt("mount `/proc`", libc::SYS_mount, &[proc, at, proc, flags, 0]);
        }
        if let Some(workspace) = self.workspace {
            make_folders(p, Path::new(WORKSPACE));
            bind(p, workspace, Path::new(WORKSPACE), libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV);
        }

        let old = p.text("/old");
        p.call(wall, "leave the old root", libc::SYS_umount2, &[old, libc::MNT_DETACH as u64]);
        p.call(wall, "leave the old root", libc::SYS_rmdir, &[old]);
        let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
        attribute(p, root, attributes, 0);
        let owner = if self.host.root { format!(",uid={0},gid={0}", self.uid) } else { String::new() };
        // An entry costs the kernel about a kilobyte, whatever its content.
        let entries = (self.limits.disk_bytes / 4096).clamp(64, 65536);
        let options = format!("size={},nr_inodes={entries},mode=700{owner}", self.limits.disk_bytes);
        let options = p.text(options);
        let flags = libc::MS_NOSUID | libc::MS_NODEV;
        p.call(wall, "mount the scratch folder", libc::SYS_mount, &[tmpfs, scratch, tmpfs, flags, options]);
    }

    fn give_up_rights(&self, p: &mut Program) {
        if self.host.root && self.walls.is_up(Wall::Uid) {
            let wall = Some(Wall::Uid);
            let id = u64::from(self.uid);
            p.call(wall, "leave all groups", libc::SYS_setgroups, &[0, 0]);
            p.call(wall, "change the group", libc::SYS_setresgid, &[id, id, id]);
            p.call(wall, "change the user", libc::SYS_setresuid, &[id, id, id]);
            if self.walls.is_up(Wall::User) {
                let flag = u64::from(libc::CLONE_NEWUSER.cast_unsigned());
                p.call(Some(Wall::User), "enter a user namespace", libc::SYS_unshare, &[flag]);
            }
        }
        // Version 3 of the interface, this process; no capability in any set.
        let header = p.words(&[0x2008_0522]);
        let none = p.words(&[0; 3]);
        p.call(None, "give up capabilities", libc::SYS_capset, &[header, none]);
        p.call(None, "forbid new rights", libc::SYS_prctl, &[libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0]);
        // After the change of user, which clears it.
        let kill = libc::SIGKILL as u64;
        p.call(None, "die with the host", libc::SYS_prctl, &[libc::PR_SET_PDEATHSIG as u64, kill, 0, 0, 0]);
        p.call(None, "keep its own memory", libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, 0, 0, 0, 0]);
    }

    /// Where the program starts, and what lies there.
    fn start_folder(&self) -> &Path {
        match self.workspace {
            Some(folder) if !self.walls.is_up(Wall::Filesystem) => folder,
            Some(_) => Path::new(WORKSPACE),
            None => Path::new(WORK),
        }
    }

    fn files(&self, p: &mut Program) {
        let start = self.start_folder();
        if self.workspace.is_none() && self.walls.is_up(Wall::Filesystem) {
            let work = p.text(WORK);
            p.call(None, "make the work folder", libc::SYS_mkdir, &[work, 0o700]);
        }
        if self.workspace.is_some() || self.walls.is_up(Wall::Filesystem) {
            let start = p.text(start.as_os_str().as_bytes());
            p.call(None, "enter the work folder", libc::SYS_chdir, &[start]);
        }
        let Payload::Exec { files, .. } = &self.payload else { return };
        for (path, content) in *files {
            if let Some((folders, _)) = path.rsplit_once('/') {
                make_folders(p, Path::new(folders));
            }
            make_file(p, Path::new(path), content);
        }
    }

    fn limits(&self, p: &mut Program) {
        let limits = self.limits;
        let cpu = limits.cpu.as_secs() + u64::from(limits.cpu.subsec_nanos() > 0);
        // Memory that is reserved but cannot be written counts only in the address space: libraries, mostly.
        let space = limits.memory_bytes.saturating_add(1 << 30);
        let list = [
            (libc::RLIMIT_CPU, cpu.max(1), cpu.max(1) + 1),
            (libc::RLIMIT_DATA, limits.memory_bytes, limits.memory_bytes),
            (libc::RLIMIT_AS, space, space),
            (libc::RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
            (libc::RLIMIT_NOFILE, limits.open_files, limits.open_files),
            (libc::RLIMIT_STACK, 8 << 20, 8 << 20),
            (libc::RLIMIT_CORE, 0, 0),
            (libc::RLIMIT_MEMLOCK, 0, 0),
            (libc::RLIMIT_MSGQUEUE, 0, 0),
            // The first process counts.
            (libc::RLIMIT_NPROC, limits.processes.saturating_add(1), limits.processes.saturating_add(1)),
        ];
        for (resource, soft, hard) in list {
            let most = hard_limit(resource);
            let pair = p.words(&[soft.min(most), hard.min(most)]);
            p.call(Some(Wall::Rlimits), "set a limit", libc::SYS_prlimit64, &[0, u64::from(resource), pair, 0]);
        }
        let kill = libc::SIGKILL as u64;
        p.call(None, "die with the first process", libc::SYS_prctl, &[libc::PR_SET_PDEATHSIG as u64, kill, 0, 0, 0]);
    }

    /// Writes only below the scratch folder, the workspace and the devices.
    fn landlock(&self, p: &mut Program) {
        let wall = Some(Wall::Landlock);
        let abi = ABI::from(self.host.landlock);
        let writes = AccessFs::from_write(abi).bits();
        // Handled accesses to files, to the network (bind and connect of TCP, from version 4), and scopes (abstract
        // sockets and signals, from version 6).
        let net = if self.host.landlock >= 4 { 3 } else { 0 };
        let scoped = u64::from(self.host.landlock >= 6);
        let size = match self.host.landlock {
            ..4 => 8,
            4..6 => 16,
            _ => 24,
        };
        let attributes = p.words(&[writes, net, scoped]);
        // Descriptors are handed out in order: the first free one is the one after the report's.
        let set = REPORT as u64 + 1;
        let folder = set + 1;
        p.call(wall, "make a rule set", libc::SYS_landlock_create_ruleset, &[attributes, size, 0]);
        let scratch = if self.walls.is_up(Wall::Filesystem) { Path::new(SCRATCH) } else { self.start_folder() };
        let workspace = self.workspace.map(|_| self.start_folder());
        for path in [Some(scratch), Some(Path::new("/dev")), workspace].into_iter().flatten() {
            let path = p.text(path.as_os_str().as_bytes());
            p.call(wall, "open a folder", libc::SYS_open, &[path, (libc::O_PATH | libc::O_CLOEXEC) as u64, 0]);
            // `struct landlock_path_beneath_attr` is packed: the accesses, then the descriptor.
            let mut rule = writes.to_le_bytes().to_vec();
            rule.extend_from_slice(&(folder as u32).to_le_bytes());
            let rule = p.bytes(&rule);
            p.call(wall, "add a rule", libc::SYS_landlock_add_rule, &[set, 1, rule, 0]);
            p.call(wall, "close a folder", libc::SYS_close, &[folder]);
        }
        p.call(wall, "restrict itself", libc::SYS_landlock_restrict_self, &[set, 0]);
        p.call(wall, "close the rule set", libc::SYS_close, &[set]);
    }
}

fn instruction(filter: &seccompiler::sock_filter) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&filter.code.to_le_bytes());
    bytes[2] = filter.jt;
    bytes[3] = filter.jf;
    bytes[4..].copy_from_slice(&filter.k.to_le_bytes());
    bytes
}

fn hard_limit(resource: libc::__rlimit_resource_t) -> u64 {
    use nix::sys::resource::{Resource, getrlimit};
    let resource = match resource {
        libc::RLIMIT_CPU => Resource::RLIMIT_CPU,
        libc::RLIMIT_DATA => Resource::RLIMIT_DATA,
        libc::RLIMIT_AS => Resource::RLIMIT_AS,
        libc::RLIMIT_FSIZE => Resource::RLIMIT_FSIZE,
        libc::RLIMIT_NOFILE => Resource::RLIMIT_NOFILE,
        libc::RLIMIT_STACK => Resource::RLIMIT_STACK,
        libc::RLIMIT_NPROC => Resource::RLIMIT_NPROC,
        // The others are set to nothing.
        _ => return u64::MAX,
    };
    getrlimit(resource).map_or(u64::MAX, |(_, hard)| hard)
}

/// Writes to a file that exists. Only where the first free descriptor is known: before anything else is open.
fn write(p: &mut Program, wall: Option<Wall>, file: &Path, content: &[u8]) {
    let what = format!("write `{}`", file.display());
    let path = p.text(file.as_os_str().as_bytes());
    let bytes = p.bytes(content);
    let fd = REPORT as u64 + 1;
    p.call(wall, what.clone(), libc::SYS_open, &[path, (libc::O_WRONLY | libc::O_CLOEXEC) as u64, 0]);
    p.call(wall, what.clone(), libc::SYS_write, &[fd, bytes, content.len() as u64]);
    p.call(wall, what, libc::SYS_close, &[fd]);
}

/// Makes a file, in place of one that exists or of a link.
fn make_file(p: &mut Program, file: &Path, content: &[u8]) {
    let what = format!("write the file `{}`", file.display());
    let path = p.text(file.as_os_str().as_bytes());
    let fd = REPORT as u64 + 1;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    p.attempt("remove a file", libc::SYS_unlink, &[path]);
    p.call(None, what.clone(), libc::SYS_open, &[path, flags as u64, 0o644]);
    if !content.is_empty() {
        let bytes = p.bytes(content);
        p.call(None, what.clone(), libc::SYS_write, &[fd, bytes, content.len() as u64]);
    }
    p.call(None, what, libc::SYS_close, &[fd]);
}

/// Makes a folder and those above it; the ones that exist stay.
fn make_folders(p: &mut Program, folder: &Path) {
    let mut path = PathBuf::new();
    for part in folder.components() {
        path.push(part);
        if matches!(part, Component::Normal(_)) {
            let text = p.text(path.as_os_str().as_bytes());
            p.attempt("make a folder", libc::SYS_mkdir, &[text, 0o755]);
        }
    }
}

/// Shows a part of the old root, with everything mounted below it, under attributes.
fn bind(p: &mut Program, from: &Path, to: &Path, attributes: u64) {
    let wall = Some(Wall::Filesystem);
    let mut source = OsStr::new("/old").to_owned();
    source.push(from.as_os_str());
    let what = format!("show `{}`", from.display());
    let source = p.text(source.as_bytes());
    let target = p.text(to.as_os_str().as_bytes());
    p.call(wall, what, libc::SYS_mount, &[source, target, 0, libc::MS_BIND | libc::MS_REC, 0]);
    attribute(p, target, attributes, libc::AT_RECURSIVE as u64);
}

/// Sets attributes of a mount.
fn attribute(p: &mut Program, target: u64, attributes: u64, flags: u64) {
    let attributes = p.words(&[attributes, 0, 0, 0]);
    let at = i64::from(libc::AT_FDCWD).cast_unsigned();
    let number: c_long = libc::SYS_mount_setattr;
    p.call(Some(Wall::Filesystem), "protect a mount (Linux 5.12)", number, &[at, target, flags, attributes, 32]);
}
