//! [`Group`]: the ranks of a job and their collectives.
//!
//! Each group has one communication thread, which does its collectives one by one in the order of the calls: that order
//! is what ranks must agree on, so it may not depend on scheduling. A blocking call waits for its turn and its answer; a
//! started one ([`Work`]) waits later.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tch::{Device, Kind, TchError, Tensor};

use crate::Rendezvous;
use crate::error::{DistributedError, Operation};
use crate::ffi::{Devices, GlooGroup, ShimError, Store};
use crate::wire::{Collective, KINDS, Wire};

/// What moves the data. Gloo is for tensors on the CPU; NCCL, for those on GPUs, is not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `ProcessGroupGloo` over TCP.
    Gloo,
}

/// How the values of all ranks become one. Gloo has no mean: divide the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum. 16-bit floats are rounded at each of Gloo's steps; [`Group::reduce_scatter_into`] rounds once.
    Sum = 0,
    /// The largest. Whether a NaN wins is not defined.
    Max = 1,
    /// The smallest. Whether a NaN wins is not defined.
    Min = 2,
}

impl Reduction {
    pub(crate) const ALL: [Self; 3] = [Self::Sum, Self::Max, Self::Min];
}

/// How long a collective between threads may take: a test that hangs should end.
const THREADS_TIMEOUT: Duration = Duration::from_mins(1);

type Answer = Result<Vec<Vec<u8>>, DistributedError>;

struct Request {
    collective: Collective,
    answer: SyncSender<Answer>,
}

/// The communication thread, seen from outside.
struct Link {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    /// The error that broke the group.
    broken: Arc<OnceLock<String>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        // What was started is done first: the other ranks wait for it.
        self.requests.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One rank's membership of a process group.
///
/// All ranks must make the same calls in the same order. Tensors are on the CPU, of kind f32, f64, bf16, f16 or i64, of
/// any strides; what is written is written without autograd. Arguments that cannot work are refused before anything is
/// sent, calls that differ between ranks are refused on all of them, and the group goes on. A rank that dies or does not
/// come breaks the group: every other rank gets an error within the timeout, and later calls are refused at once.
pub struct Group {
    rank: usize,
    world_size: usize,
    local_rank: usize,
    timeout: Duration,
    /// `None` in a group of one.
    link: Option<Link>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, world_size, local_rank, timeout, .. } = self;
        write!(f, "Group {{ rank: {rank}/{world_size}, local_rank: {local_rank}, timeout: {timeout:?} }}")
    }
}

impl Group {
    /// Joins the group that the environment describes; see [`Rendezvous::from_env`].
    pub fn from_env() -> Result<Self, DistributedError> {
        Self::join(Rendezvous::from_env()?)
    }

    /// Joins a group: returns when all ranks are connected. A group of one needs no network.
    pub fn join(rendezvous: Rendezvous) -> Result<Self, DistributedError> {
        let Rendezvous { rank, world_size, local_rank, timeout, .. } = rendezvous;
        if world_size == 1 {
            return Ok(Self { local_rank, timeout, ..Self::single() });
        }
        let prefix = rendezvous.prefix();
        let ranks = (rank, world_size, local_rank);
        let (group, joined) = Self::start(ranks, timeout, move || rendezvous.connect(&prefix))?;
        joined.wait()?;
        Ok(group)
    }

    /// A group of one: every collective is the identity.
    pub fn single() -> Self {
        Self { rank: 0, world_size: 1, local_rank: 0, timeout: crate::DEFAULT_TIMEOUT, link: None }
    }

    /// All ranks of a group inside this process, for tests: give each to a thread of its own.
    pub fn threads(world_size: usize) -> Result<Vec<Self>, DistributedError> {
        Self::threads_within(world_size, THREADS_TIMEOUT)
    }

    /// [`Group::threads`] with a timeout.
    pub fn threads_within(world_size: usize, timeout: Duration) -> Result<Vec<Self>, DistributedError> {
        if world_size == 1 {
            return Ok(vec![Self { timeout, ..Self::single() }]);
        }
        let failed = move |rank, ShimError(cause)| DistributedError::Rendezvous {
            rank,
            world: world_size,
            address: "a store in memory".to_owned(),
            timeout,
            cause,
        };
        let store = Arc::new(Store::in_memory().map_err(|e| failed(0, e))?);
        let start = |rank| {
            let store = Arc::clone(&store);
            Self::start((rank, world_size, rank), timeout, move || {
                let devices = Devices::Address("127.0.0.1".to_owned());
                GlooGroup::connect(&store, "threads", rank, world_size, &devices, timeout).map_err(|e| failed(rank, e))
            })
        };
        let started: Vec<_> = (0..world_size).map(start).collect::<Result<_, _>>()?;
        started
            .into_iter()
            .map(|(group, joined)| {
                joined.wait()?;
                Ok(group)
            })
            .collect()
    }

    /// Starts the communication thread, which connects and then says hello to all ranks.
    fn start(
        (rank, world_size, local_rank): (usize, usize, usize),
        timeout: Duration,
        connect: impl FnOnce() -> Result<GlooGroup, DistributedError> + Send + 'static,
    ) -> Result<(Self, Running), DistributedError> {
        let (requests, queue) = channel::<Request>();
        let broken = Arc::new(OnceLock::new());
        let breaks = Arc::clone(&broken);
        let thread = move || match connect() {
            Ok(gloo) => serve(Wire { gloo, rank, world: world_size, timeout }, &queue, &breaks),
            Err(error) => {
                if let Ok(hello) = queue.recv() {
                    let _ = hello.answer.send(Err(error));
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("rank {rank}")).spawn(thread);
        let thread = thread.map_err(|e| DistributedError::Rendezvous {
            rank,
            world: world_size,
            address: "a thread of its own".to_owned(),
            timeout,
            cause: e.to_string(),
        })?;
        let link = Link { requests: Some(requests), thread: Some(thread), broken };
        let group = Self { rank, world_size, local_rank, timeout, link: Some(link) };
        let joined = group.submit(Collective::Join)?;
        Ok((group, joined))
    }

    /// This process's number in the job, below [`Group::world_size`].
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks the group has.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// This process's number on its machine.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// How long a collective may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What moves the data.
    pub fn backend(&self) -> Backend {
        Backend::Gloo
    }

    /// Concatenates the inputs of all ranks in the order of ranks: `output`, of any shape, has `world_size` times as
    /// many elements as `input`, and the same kind.
    pub fn all_gather_into(&self, output: &mut Tensor, input: &Tensor) -> Result<(), DistributedError> {
        self.start_all_gather_into(output.shallow_clone(), input)?.wait().map(drop)
    }

    /// Starts [`Group::all_gather_into`] and returns at once; [`Work::wait`] gives `output` back. Until then neither
    /// tensor may be written, and `output` not be read.
    pub fn start_all_gather_into(&self, output: Tensor, input: &Tensor) -> Result<Work, DistributedError> {
        let operation = Operation::AllGather;
        let kind = self.check(operation, "input", input)?;
        let (elements, world) = (input.numel(), self.world_size);
        if self.check(operation, "output", &output)? != kind || output.numel() != elements * world {
            let expected = format!("{} elements of {kind:?} ({world} ranks times {elements})", elements * world);
            return Err(self.argument(operation, "output", expected, describe(&output)));
        }
        self.start_into(operation, output, input, |input, output| Collective::AllGather { input, output })
    }

    /// Adds the inputs of all ranks and gives each rank its block: `input` has `world_size` times as many elements as
    /// `output`, block `r` goes to rank `r`.
    ///
    /// Terms are added in the order of ranks, so that the same inputs give the same bits. Sums of 16-bit floats are
    /// accumulated in 32 bits. Where `output` is of kind f32 they stay so (FSDP's `reduce_dtype=float32`, at half its
    /// traffic); where it is of the inputs' kind they are rounded once.
    pub fn reduce_scatter_into(&self, output: &mut Tensor, input: &Tensor) -> Result<(), DistributedError> {
        self.start_reduce_scatter_into(output.shallow_clone(), input)?.wait().map(drop)
    }

    /// Starts [`Group::reduce_scatter_into`] and returns at once; [`Work::wait`] gives `output` back. Until then neither
    /// tensor may be written, and `output` not be read.
    pub fn start_reduce_scatter_into(&self, output: Tensor, input: &Tensor) -> Result<Work, DistributedError> {
        let operation = Operation::ReduceScatter;
        let kind = self.check(operation, "input", input)?;
        let found = self.check(operation, "output", &output)?;
        let (elements, world) = (output.numel(), self.world_size);
        if input.numel() != elements * world {
            let expected = format!("{} elements ({world} ranks times {elements})", elements * world);
            return Err(self.argument(operation, "input", expected, describe(input)));
        }
        let widened = found == Kind::Float && matches!(kind, Kind::BFloat16 | Kind::Half);
        if found != kind && !widened {
            let expected = format!("the kind of `input`, {kind:?}, or f32 for sums of 16-bit floats");
            return Err(self.argument(operation, "output", expected, describe(&output)));
        }
        self.start_into(operation, output, input, |input, output| Collective::ReduceScatter { input, output })
    }

    /// Reduces the tensors of all ranks, element by element, in place.
    pub fn all_reduce(&self, tensor: &mut Tensor, reduction: Reduction) -> Result<(), DistributedError> {
        let operation = Operation::AllReduce;
        self.check(operation, "tensor", tensor)?;
        self.in_place(operation, tensor, |tensor| Collective::AllReduce { tensor, reduction })
    }

    /// Gives every rank the values of the root's tensor, in place.
    pub fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<(), DistributedError> {
        let operation = Operation::Broadcast;
        self.check(operation, "tensor", tensor)?;
        self.check_root(operation, root)?;
        self.in_place(operation, tensor, |tensor| Collective::Broadcast { tensor, root })
    }

    /// Returns when every rank has come here.
    pub fn barrier(&self) -> Result<(), DistributedError> {
        self.run(Collective::Barrier).map(drop)
    }

    /// Does a collective and waits for it. Returns the bytes of each rank that sent some.
    pub(crate) fn run(&self, collective: Collective) -> Answer {
        let operation = collective.operation();
        match self.link {
            Some(_) => self.submit(collective)?.wait(),
            None => collective.alone().map_err(|e| self.libtorch(operation, &e)),
        }
    }

    /// Hands a collective to the communication thread.
    fn submit(&self, collective: Collective) -> Result<Running, DistributedError> {
        let operation = collective.operation();
        let (answer, receiver) = sync_channel(1);
        let link = self.link.as_ref();
        let broken = link.map(|l| Arc::clone(&l.broken)).unwrap_or_default();
        let running = Running { rank: self.rank, operation, receiver, broken };
        if running.broken.get().is_some() {
            return Err(running.refused());
        }
        match link.and_then(|l| l.requests.as_ref()).map(|r| r.send(Request { collective, answer })) {
            Some(Ok(())) => Ok(running),
            _ => Err(running.refused()),
        }
    }

    fn start_into(
        &self,
        operation: Operation,
        output: Tensor,
        input: &Tensor,
        collective: impl FnOnce(Tensor, Tensor) -> Collective,
    ) -> Result<Work, DistributedError> {
        let failed = |e: TchError| self.libtorch(operation, &e);
        let input = input.f_detach().and_then(|t| t.f_contiguous()).map_err(failed)?;
        let buffer = if output.is_contiguous() {
            output.f_detach()
        } else {
            Tensor::f_empty(output.size(), (output.kind(), Device::Cpu))
        };
        let buffer = buffer.map_err(failed)?;
        let collective = collective(input, buffer.shallow_clone());
        let running = match self.link {
            Some(_) => Some(self.submit(collective)?),
            None => {
                collective.alone().map_err(failed)?;
                None
            }
        };
        Ok(Work { rank: self.rank, operation, running, buffer, output })
    }

    fn in_place(
        &self,
        operation: Operation,
        tensor: &mut Tensor,
        collective: impl FnOnce(Tensor) -> Collective,
    ) -> Result<(), DistributedError> {
        let failed = |e: TchError| self.libtorch(operation, &e);
        let mut home = tensor.f_detach().map_err(failed)?;
        let buffer = home.f_contiguous().map_err(failed)?;
        self.run(collective(buffer.shallow_clone()))?;
        if home.is_contiguous() { Ok(()) } else { home.f_copy_(&buffer).map_err(failed) }
    }

    /// The kind of a tensor that the backend can move.
    fn check(&self, operation: Operation, argument: &'static str, tensor: &Tensor) -> Result<Kind, DistributedError> {
        if !tensor.defined() || tensor.is_sparse() || tensor.is_mkldnn() {
            let found = if tensor.defined() { "another layout" } else { "an undefined one" };
            return Err(self.argument(operation, argument, "a dense tensor".to_owned(), found.to_owned()));
        }
        if tensor.device() != Device::Cpu {
            let device = tensor.device();
            return Err(DistributedError::Device { rank: self.rank, operation, argument, device });
        }
        let kind = tensor.f_kind().map_err(|e| self.libtorch(operation, &e))?;
        if KINDS.contains(&kind) {
            return Ok(kind);
        }
        Err(self.argument(operation, argument, format!("a tensor of one of {KINDS:?}"), describe(tensor)))
    }

    pub(crate) fn check_root(&self, operation: Operation, root: usize) -> Result<(), DistributedError> {
        if root < self.world_size {
            return Ok(());
        }
        let expected = format!("a rank below {}", self.world_size);
        Err(self.argument(operation, "root", expected, root.to_string()))
    }

    pub(crate) fn argument(
        &self,
        operation: Operation,
        argument: &'static str,
        expected: String,
        found: String,
    ) -> DistributedError {
        DistributedError::Argument { rank: self.rank, operation, argument, expected, found }
    }

    fn libtorch(&self, operation: Operation, error: &TchError) -> DistributedError {
        DistributedError::Libtorch { rank: self.rank, operation, cause: error.to_string() }
    }
}

fn describe(tensor: &Tensor) -> String {
    format!("{} elements of {:?}, shape {:?}", tensor.numel(), tensor.kind(), tensor.size())
}

/// The communication thread: does what is asked, in order, until nobody can ask any more.
fn serve(wire: Wire, queue: &Receiver<Request>, broken: &OnceLock<String>) {
    let rank = wire.rank;
    let mut wire = Some(wire);
    while let Ok(Request { collective, answer }) = queue.recv() {
        let operation = collective.operation();
        let result = match &wire {
            Some(wire) => wire.run(collective),
            None => {
                let first = broken.get().cloned().unwrap_or_default();
                Err(DistributedError::Broken { rank, operation, first })
            }
        };
        let fatal = match &result {
            Err(
                DistributedError::TimedOut { cause, .. }
                | DistributedError::PeerLost { cause, .. }
                | DistributedError::Libtorch { cause, .. },
            ) => broken.set(format!("{operation}: {cause}")).is_ok(),
            _ => false,
        };
        // Nobody listens where a `Work` was dropped: the other ranks needed it done all the same.
        let _ = answer.send(result);
        if fatal {
            // Closes the connections, so that ranks that wait for this one need not wait for the timeout.
            wire = None;
        }
    }
}

/// A collective that the communication thread has been asked for.
struct Running {
    rank: usize,
    operation: Operation,
    receiver: Receiver<Answer>,
    broken: Arc<OnceLock<String>>,
}

impl Running {
    fn wait(&self) -> Answer {
        self.receiver.recv().unwrap_or_else(|_| Err(self.refused()))
    }

    fn refused(&self) -> DistributedError {
        let first = self.broken.get().map_or("its communication thread ended", String::as_str).to_owned();
        DistributedError::Broken { rank: self.rank, operation: self.operation, first }
    }
}

/// A collective that has been started. Dropping it leaves the collective to its end.
#[must_use = "the output is complete only after `wait`"]
pub struct Work {
    rank: usize,
    operation: Operation,
    /// `None` where it is done already.
    running: Option<Running>,
    /// What the collective writes.
    buffer: Tensor,
    /// What the caller gave: the same memory, or one of other strides.
    output: Tensor,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("rank", &self.rank).field("operation", &self.operation).finish_non_exhaustive()
    }
}

impl Work {
    /// Waits for the end, at the latest the group's timeout after its turn came, and returns the output.
    pub fn wait(self) -> Result<Tensor, DistributedError> {
        let Self { rank, operation, running, buffer, output } = self;
        if let Some(running) = running {
            running.wait()?;
        }
        if !output.is_contiguous() {
            output.f_detach().and_then(|mut home| home.f_copy_(&buffer)).map_err(|e| DistributedError::Libtorch {
                rank,
                operation,
                cause: e.to_string(),
            })?;
        }
        Ok(output)
    }
}
