//! Where and how the ranks of a job meet, read from the variables that launchers set.
//!
//! | who starts the ranks | what they set |
//! |---|---|
//! | `torchrun`, [`spawn_local`](crate::spawn_local) | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`, and that the store is already open there |
//! | `srun` | `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID`; the job script exports `MASTER_ADDR` and `MASTER_PORT` |
//! | by hand | the first five |

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, ToSocketAddrs, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{DistributedError, VariableError};
use crate::ffi::{Devices, GlooGroup, ShimError, Store};
use crate::wire::deadline_after;

/// How long a collective may take where nobody says otherwise: 30 minutes, as in torch.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(30);

/// Where and how the ranks of a job meet.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendezvous {
    /// This process's number in the job, below `world_size`.
    pub rank: usize,
    /// How many processes the job has.
    pub world_size: usize,
    /// This process's number on its machine: what picks its accelerator.
    pub local_rank: usize,
    /// Host name or address of the store. Empty where `world_size` is 1 and nobody set it.
    pub master_addr: String,
    /// Port of the store.
    pub master_port: u16,
    /// Whether the launcher has opened the store. If not, rank 0 does.
    pub hosted: bool,
    /// How often the launcher has restarted the job: keys of an earlier attempt may still be in the store.
    pub attempt: u64,
    /// Network interfaces to use (`GLOO_SOCKET_IFNAME`, separated by commas). Where none is named, the one that the
    /// store is reached through.
    pub interfaces: Vec<String>,
    /// How long the meeting, and later each collective, may take.
    pub timeout: Duration,
}

/// The names of one launcher's variables.
struct Names {
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
}

const TORCH: Names = Names { rank: "RANK", world_size: "WORLD_SIZE", local_rank: "LOCAL_RANK" };
const SLURM: Names = Names { rank: "SLURM_PROCID", world_size: "SLURM_NTASKS", local_rank: "SLURM_LOCALID" };

/// Reads variables and collects what is wrong with them.
struct Reader<F> {
    lookup: F,
    errors: Vec<VariableError>,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn fail(&mut self, name: &'static str, expected: &str) {
        let found = (self.lookup)(name);
        self.errors.push(VariableError { name, expected: expected.to_owned(), found });
    }

    fn number<T: FromStr>(&mut self, name: &'static str, expected: &str, valid: impl Fn(&T) -> bool) -> Option<T> {
        let value = (self.lookup)(name).and_then(|v| v.trim().parse().ok()).filter(valid);
        if value.is_none() {
            self.fail(name, expected);
        }
        value
    }
}

impl Rendezvous {
    /// Reads this process's environment.
    pub fn from_env() -> Result<Self, DistributedError> {
        Self::from_lookup(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// Reads variables from wherever `lookup` finds them. An error names every variable that is missing or wrong.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, DistributedError> {
        // One launcher's variables together, never a mix: a job inside another launcher's must not take its rank.
        let absent = [TORCH.rank, TORCH.world_size, TORCH.local_rank].iter().all(|n| lookup(n).is_none());
        let slurm = absent && [SLURM.rank, SLURM.world_size, SLURM.local_rank].iter().any(|n| lookup(n).is_some());
        let names = if slurm { SLURM } else { TORCH };
        let mut reader = Reader { lookup, errors: Vec::new() };

        let positive = "the number of processes, at least 1";
        let world_size = reader.number(names.world_size, positive, |n: &usize| *n > 0);
        let most = world_size.unwrap_or(usize::MAX);
        let below = world_size.map_or("WORLD_SIZE".to_owned(), |n| format!("{} = {n}", names.world_size));
        let rank = reader.number(names.rank, &format!("a number from 0, below {below}"), |n| *n < most);
        let local_rank =
            reader.number(names.local_rank, &format!("a number from 0 on this machine, below {below}"), |n| *n < most);

        let alone = world_size == Some(1);
        let master_addr = (reader.lookup)("MASTER_ADDR").map(|a| a.trim().to_owned()).filter(|a| !a.is_empty());
        if master_addr.is_none() && !alone {
            let expected = if slurm {
                "the host of rank 0 (export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1))"
            } else {
                "the host of rank 0"
            };
            reader.fail("MASTER_ADDR", expected);
        }
        let master_port = if alone && (reader.lookup)("MASTER_PORT").is_none() {
            Some(0)
        } else {
            reader.number("MASTER_PORT", "a port of that host, 1 to 65535, free on every start", |n: &u16| *n > 0)
        };

        let hosted = (reader.lookup)("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|v| v == "True");
        let attempt = if (reader.lookup)("TORCHELASTIC_RESTART_COUNT").is_none() {
            Some(0)
        } else {
            reader.number("TORCHELASTIC_RESTART_COUNT", "a number from 0", |_| true)
        };
        let interfaces = (reader.lookup)("GLOO_SOCKET_IFNAME").unwrap_or_default();
        let interfaces =
            interfaces.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();

        match (rank, world_size, local_rank, master_port, attempt) {
            (Some(rank), Some(world_size), Some(local_rank), Some(master_port), Some(attempt))
                if reader.errors.is_empty() =>
            {
                let master_addr = master_addr.unwrap_or_default();
                let timeout = DEFAULT_TIMEOUT;
                Ok(Self {
                    rank,
                    world_size,
                    local_rank,
                    master_addr,
                    master_port,
                    hosted,
                    attempt,
                    interfaces,
                    timeout,
                })
            }
            _ => Err(DistributedError::Environment(reader.errors)),
        }
    }

    /// `host:port` of the store.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.master_addr, self.master_port)
    }

    /// Opens or finds the store, and connects to all other ranks.
    pub(crate) fn connect(&self, group: &str) -> Result<GlooGroup, DistributedError> {
        let deadline = deadline_after(self.timeout);
        let left = || deadline.saturating_duration_since(Instant::now());
        let failed = |ShimError(cause)| DistributedError::Rendezvous {
            rank: self.rank,
            world: self.world_size,
            address: self.address(),
            timeout: self.timeout,
            cause,
        };
        let master = self.resolve().map_err(failed)?;
        let listener = if self.rank == 0 && !self.hosted { Some(self.listen(master)?) } else { None };
        let store = Store::tcp(&self.master_addr, self.master_port, listener, left()).map_err(failed)?;
        let devices = if self.interfaces.is_empty() {
            Devices::Address(self.local_address(master).map_err(failed)?.to_string())
        } else {
            Devices::Interfaces(self.interfaces.clone())
        };
        GlooGroup::connect(&store, group, self.rank, self.world_size, &devices, left()).map_err(failed)
    }

    /// What the keys of this process's next group begin with. Ranks make their groups in the same order.
    pub(crate) fn prefix(&self) -> String {
        static GROUPS: AtomicU64 = AtomicU64::new(0);
        let group = GROUPS.fetch_add(1, Ordering::Relaxed);
        format!("espalier/attempt_{}/group_{group}", self.attempt)
    }

    fn resolve(&self) -> Result<IpAddr, ShimError> {
        let host = self.master_addr.as_str();
        let found = (host, self.master_port).to_socket_addrs();
        let found = found.map_err(|e| ShimError(format!("`MASTER_ADDR`: cannot resolve `{host}`: {e}")))?;
        // IPv4 first: what `localhost` means to most.
        let mut addresses: Vec<IpAddr> = found.map(|a| a.ip()).collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses.first().copied().ok_or_else(|| ShimError(format!("`MASTER_ADDR`: `{host}` has no address")))
    }

    /// Whether the job cannot leave this machine. A name does not tell: that of the machine itself may be an alias of the
    /// loopback here (Debian's 127.0.1.1), and an address of the network elsewhere.
    fn stays_here(&self) -> bool {
        self.master_addr == "localhost" || self.master_addr.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }

    /// The store's socket: reachable from this machine only where the job is.
    fn listen(&self, master: IpAddr) -> Result<TcpListener, DistributedError> {
        let host = if self.stays_here() { master } else { any_like(master) };
        TcpListener::bind((host, self.master_port))
            .map_err(|e| DistributedError::Store { address: self.address(), cause: e.to_string() })
    }

    /// The address of this machine that others reach it at: the one that packets to the store leave from.
    fn local_address(&self, master: IpAddr) -> Result<IpAddr, ShimError> {
        if self.stays_here() {
            return Ok(master);
        }
        if master.is_loopback() {
            // The store is on this machine, the others may not be: the address of the default route.
            return Ok(source_towards(ELSEWHERE).unwrap_or(master));
        }
        source_towards(master).map_err(|e| ShimError(format!("no route to `MASTER_ADDR` {master}: {e}")))
    }
}

/// An address of no machine (TEST-NET-1, RFC 5737).
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fn any_like(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Where packets to `target` leave from. Connecting a UDP socket asks the routing table and sends nothing.
fn source_towards(target: IpAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind((any_like(target), 0))?;
    socket.connect((target, 9))?; // any port will do
    Ok(socket.local_addr()?.ip())
}
