//! The walls between a job and the host.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing that stands between a job and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    /// The job runs as a user that is not root and owns nothing.
    Uid,
    /// It has processes of its own: it sees no other, and all of them die with the first.
    Pids,
    /// It has a network of its own, without a single device.
    Network,
    /// It has a root view of its own: read-only system folders, and a small folder in memory to write to.
    Filesystem,
    /// Its memory, files, processes and CPU time are limited, each process by itself.
    Rlimits,
    /// It has a user namespace of its own, in which it has no rights either.
    User,
    /// It has System V objects and message queues of its own.
    Ipc,
    /// It has a host name of its own.
    Hostname,
    /// System calls that no program of its kind needs are refused.
    Seccomp,
    /// The kernel's own list of where it may write.
    Landlock,
    /// The memory of all its processes together is limited.
    CgroupMemory,
    /// The number of its processes is limited, whatever users they run as.
    CgroupPids,
}

impl Wall {
    /// Every wall.
    pub const ALL: [Self; 12] = [
        Self::Uid,
        Self::Pids,
        Self::Network,
        Self::Filesystem,
        Self::Rlimits,
        Self::User,
        Self::Ipc,
        Self::Hostname,
        Self::Seccomp,
        Self::Landlock,
        Self::CgroupMemory,
        Self::CgroupPids,
    ];

    /// The walls that untrusted code is not run without, unless a configuration says otherwise.
    pub const REQUIRED: [Self; 6] =
        [Self::Uid, Self::Pids, Self::Network, Self::Filesystem, Self::Rlimits, Self::Seccomp];

    /// Its name, as configurations write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uid => "uid",
            Self::Pids => "pids",
            Self::Network => "network",
            Self::Filesystem => "filesystem",
            Self::Rlimits => "rlimits",
            Self::User => "user",
            Self::Ipc => "ipc",
            Self::Hostname => "hostname",
            Self::Seccomp => "seccomp",
            Self::Landlock => "landlock",
            Self::CgroupMemory => "cgroup_memory",
            Self::CgroupPids => "cgroup_pids",
        }
    }

    /// How a host gets it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Uid => {
                "run as a user that is not root with user namespaces allowed, or as root with `CAP_SETUID` and \
                 `CAP_SETGID`"
            }
            Self::Pids | Self::Network | Self::Filesystem | Self::User | Self::Ipc | Self::Hostname => {
                "allow user namespaces (`sysctl user.max_user_namespaces`, and `kernel.unprivileged_userns_clone` or \
                 `kernel.apparmor_restrict_unprivileged_userns` where they exist), or in a container give \
                 `CAP_SYS_ADMIN` or a seccomp profile that lets `clone` and `mount` pass"
            }
            Self::Rlimits => "raise the hard limits of this process (`ulimit -H`) to those of the configuration",
            Self::Seccomp => "use a kernel with `CONFIG_SECCOMP_FILTER`",
            Self::Landlock => "use a kernel of 5.13 or later that lists `landlock` among its `lsm=`",
            Self::CgroupMemory | Self::CgroupPids => {
                "give a cgroup folder that this user may write, with the `memory` and `pids` controllers (`cgroup` of \
                 the configuration; `systemd-run --user --scope -p Delegate=yes` makes one)"
            }
        }
    }
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a wall is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "reason")]
pub enum WallState {
    /// It stands.
    Up,
    /// It does not, and why.
    Down(String),
}

/// Every wall and whether it is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Walls {
    states: BTreeMap<Wall, WallState>,
}

impl Walls {
    /// All of them up.
    pub(crate) fn all_up() -> Self {
        Self { states: Wall::ALL.into_iter().map(|wall| (wall, WallState::Up)).collect() }
    }

    pub(crate) fn take_down(&mut self, wall: Wall, reason: impl Into<String>) {
        self.states.insert(wall, WallState::Down(reason.into()));
    }

    /// Whether a wall is up.
    pub fn is_up(&self, wall: Wall) -> bool {
        matches!(self.states.get(&wall), Some(WallState::Up))
    }

    /// Why a wall is down, if it is.
    pub fn reason(&self, wall: Wall) -> Option<&str> {
        match self.states.get(&wall) {
            Some(WallState::Down(reason)) => Some(reason),
            _ => None,
        }
    }

    /// The walls that are up.
    pub fn up(&self) -> impl Iterator<Item = Wall> {
        self.states.iter().filter(|(_, state)| **state == WallState::Up).map(|(wall, _)| *wall)
    }

    /// The walls that are down, and why.
    pub fn down(&self) -> impl Iterator<Item = (Wall, &str)> {
        Wall::ALL.into_iter().filter_map(|wall| Some((wall, self.reason(wall)?)))
    }
}

impl fmt::Display for Walls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up: Vec<&str> = self.up().map(Wall::name).collect();
        write!(f, "up: {}", if up.is_empty() { "none".to_owned() } else { up.join(", ") })?;
        for (wall, reason) in self.down() {
            write!(f, "; down: {wall} ({reason})")?;
        }
        Ok(())
    }
}
