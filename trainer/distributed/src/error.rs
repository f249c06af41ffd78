//! What can go wrong in a process group, and the names of its operations.

use std::fmt;
use std::time::Duration;

/// A call on a [`Group`](crate::Group).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The exchange that opens a group.
    Join,
    /// [`Group::all_gather_into`](crate::Group::all_gather_into).
    AllGather,
    /// [`Group::reduce_scatter_into`](crate::Group::reduce_scatter_into).
    ReduceScatter,
    /// [`Group::all_reduce`](crate::Group::all_reduce).
    AllReduce,
    /// [`Group::broadcast`](crate::Group::broadcast).
    Broadcast,
    /// [`Group::barrier`](crate::Group::barrier).
    Barrier,
    /// [`Group::all_gather_bytes`](crate::Group::all_gather_bytes).
    AllGatherBytes,
    /// [`Group::broadcast_bytes`](crate::Group::broadcast_bytes).
    BroadcastBytes,
}

impl Operation {
    pub(crate) const ALL: [Self; 8] = [
        Self::Join,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllReduce,
        Self::Broadcast,
        Self::Barrier,
        Self::AllGatherBytes,
        Self::BroadcastBytes,
    ];
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Join => "join",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::AllGatherBytes => "all_gather_bytes",
            Self::BroadcastBytes => "broadcast_bytes",
        })
    }
}

/// An environment variable that is missing or does not say what it must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableError {
    /// The variable's name.
    pub name: &'static str,
    /// What was expected.
    pub expected: String,
    /// What came; `None` where the variable is not set.
    pub found: Option<String>,
}

impl fmt::Display for VariableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: expected {}, found ", self.name, self.expected)?;
        match &self.found {
            Some(found) => write!(f, "`{found}`"),
            None => f.write_str("nothing"),
        }
    }
}

fn lines(errors: &[VariableError]) -> String {
    errors.iter().map(|e| format!("\n  {e}")).collect()
}

/// Why a group could not be made, or a collective not be done.
#[derive(Debug, thiserror::Error)]
pub enum DistributedError {
    /// The launcher's variables are missing or wrong; all of them are named.
    #[error(
        "the environment does not describe a process group; start the ranks with `torchrun`, `srun` or \
         `spawn_local`, or set the variables:{}",
        lines(.0)
    )]
    Environment(Vec<VariableError>),

    /// The store that ranks meet at could not be opened on this machine.
    #[error("could not open the rendezvous store at {address}: {cause}; choose a free MASTER_PORT")]
    Store {
        /// The address that was tried.
        address: String,
        /// What the system said.
        cause: String,
    },

    /// Not all ranks came together in time.
    #[error(
        "rank {rank} of {world}: could not join the process group at {address} within {timeout:?}: {cause}; check that \
         all {world} ranks were started, that each reaches MASTER_ADDR, and on several machines that GLOO_SOCKET_IFNAME \
         names the network between them"
    )]
    Rendezvous {
        /// The rank that reports.
        rank: usize,
        /// The group's size.
        world: usize,
        /// Where the ranks were to meet.
        address: String,
        /// The group's timeout.
        timeout: Duration,
        /// What c10d said.
        cause: String,
    },

    /// An argument that no group of this size can work with. Nothing was sent; the group goes on.
    #[error("rank {rank}: {operation}: `{argument}`: expected {expected}, found {found}")]
    Argument {
        /// The rank that reports.
        rank: usize,
        /// What was called.
        operation: Operation,
        /// The argument's name.
        argument: &'static str,
        /// What was expected.
        expected: String,
        /// What came.
        found: String,
    },

    /// A tensor that lies where the backend does not reach. Nothing was sent; the group goes on.
    #[error(
        "rank {rank}: {operation}: `{argument}`: expected a tensor on the CPU, which is what Gloo moves, found one on \
         {device:?}; copy it to the CPU first (NCCL is not built)"
    )]
    Device {
        /// The rank that reports.
        rank: usize,
        /// What was called.
        operation: Operation,
        /// The argument's name.
        argument: &'static str,
        /// Where it lies.
        device: tch::Device,
    },

    /// The ranks did not call the same. Every rank gets this error, no data was sent; the group goes on.
    #[error(
        "rank {rank}: {operation}: expected every rank to call the same, rank 0 called {expected}, found rank {peer} \
         calling {found}; ranks must make the same calls in the same order"
    )]
    Disagreement {
        /// The rank that reports.
        rank: usize,
        /// What it called.
        operation: Operation,
        /// The first rank whose call differs from that of rank 0.
        peer: usize,
        /// What rank 0 called.
        expected: String,
        /// What the other rank called.
        found: String,
    },

    /// A rank did not take part in time. The group is broken.
    #[error(
        "rank {rank}: {operation}: not all ranks took part within the group's timeout of {timeout:?}: {cause}; a rank is \
         stuck or was stopped: look at the other ranks' logs, end the job and start it from its last checkpoint, with \
         a longer timeout where a rank only needed more time"
    )]
    TimedOut {
        /// The rank that reports.
        rank: usize,
        /// What was called.
        operation: Operation,
        /// The group's timeout.
        timeout: Duration,
        /// What c10d said.
        cause: String,
    },

    /// A connection to another rank broke. The group is broken.
    #[error(
        "rank {rank}: {operation}: a connection to another rank broke before the group's timeout of {timeout:?}: \
         {cause}; a rank died, or left after an error of its own: look at the other ranks' exit statuses and logs (out \
         of memory?), and start the job from its last checkpoint"
    )]
    PeerLost {
        /// The rank that reports.
        rank: usize,
        /// What was called.
        operation: Operation,
        /// The group's timeout.
        timeout: Duration,
        /// What c10d said.
        cause: String,
    },

    /// The group broke earlier; nothing was tried.
    #[error(
        "rank {rank}: {operation}: refused, because the process group broke earlier ({first}); start the job from its \
         last checkpoint"
    )]
    Broken {
        /// The rank that reports.
        rank: usize,
        /// What was called.
        operation: Operation,
        /// The error that broke the group.
        first: String,
    },

    /// libtorch failed on this rank in the middle of a collective. Where others wait for it, the group is broken.
    #[error("rank {rank}: {operation}: libtorch failed: {cause}")]
    Libtorch {
        /// The rank that reports.
        rank: usize,
        /// What was called.
        operation: Operation,
        /// What libtorch said.
        cause: String,
    },

    /// A value that does not become JSON, or JSON from a peer that does not become a value.
    #[error("rank {rank}: {operation}: the value of rank {peer} is not what the caller expects as JSON: {source}")]
    Json {
        /// The rank that reports.
        rank: usize,
        /// What was called.
        operation: Operation,
        /// Whose value it is.
        peer: usize,
        /// What serde said.
        source: serde_json::Error,
    },
}
