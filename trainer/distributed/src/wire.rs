//! What one rank asks of the others, and how it is done.
//!
//! Every collective begins with an exchange of [`Call`]s: 32 bytes a rank, which say what each is about to do. Gloo
//! itself aborts the process when sizes differ between ranks; the exchange makes that an error on every rank, before any
//! data moves. It is also the barrier, and carries the lengths of ragged bytes.

use std::time::{Duration, Instant};

use tch::{Device, Kind, TchError, Tensor};

use crate::Reduction;
use crate::error::{DistributedError, Operation};
use crate::ffi::{GlooGroup, ShimError};

/// The kinds of tensors that collectives take.
pub(crate) const KINDS: [Kind; 5] = [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half, Kind::Int64];

/// Longest bytes that one rank may send at once.
pub(crate) const MAX_BYTES: usize = 1 << 30;

/// Raised when ranks of different builds could no longer work together.
const PROTOCOL: i64 = 1;

/// When a timeout that begins now is over. Ages count as a year.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(Duration::from_hours(365 * 24))
}

/// A collective with its arguments, all contiguous and checked on this rank.
#[derive(Debug)]
pub(crate) enum Collective {
    Join,
    AllGather { input: Tensor, output: Tensor },
    ReduceScatter { input: Tensor, output: Tensor },
    AllReduce { tensor: Tensor, reduction: Reduction },
    Broadcast { tensor: Tensor, root: usize },
    Barrier,
    AllGatherBytes(Vec<u8>),
    BroadcastBytes { bytes: Vec<u8>, root: usize },
}

/// What a rank is about to do, as the others see it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Call {
    operation: i64,
    kind: i64,
    /// Elements or bytes of this rank's part.
    size: i64,
    /// The root, the reduction, or the protocol's version.
    detail: i64,
}

impl Call {
    const WORDS: i64 = 4;

    fn of(collective: &Collective, rank: usize) -> Self {
        let kind = |t: &Tensor| KINDS.iter().position(|k| *k == t.kind()).map_or(-1, |i| i as i64);
        let tensor = |t: &Tensor, detail| (kind(t), t.numel() as i64, detail);
        let (kind, size, detail) = match collective {
            Collective::Join => (0, 0, PROTOCOL),
            Collective::Barrier => (0, 0, 0),
            Collective::AllGather { input, .. } | Collective::ReduceScatter { input, .. } => tensor(input, 0),
            Collective::AllReduce { tensor: t, reduction } => tensor(t, *reduction as i64),
            Collective::Broadcast { tensor: t, root } => tensor(t, *root as i64),
            Collective::AllGatherBytes(bytes) => (0, bytes.len() as i64, 0),
            Collective::BroadcastBytes { bytes, root } => {
                (0, if *root == rank { bytes.len() as i64 } else { 0 }, *root as i64)
            }
        };
        let operation = collective.operation();
        let operation = Operation::ALL.iter().position(|o| *o == operation).map_or(-1, |i| i as i64);
        Self { operation, kind, size, detail }
    }

    fn operation(self) -> Option<Operation> {
        Operation::ALL.get(usize::try_from(self.operation).ok()?).copied()
    }

    /// Whether two ranks that call this can go on together. Bytes may differ in length.
    fn fits(self, other: Self) -> bool {
        let ragged = matches!(self.operation(), Some(Operation::AllGatherBytes | Operation::BroadcastBytes));
        let size = if ragged { self.size } else { other.size };
        let bounded = !ragged || (0..=MAX_BYTES as i64).contains(&other.size);
        bounded && self == Self { size, ..other }
    }

    fn describe(self) -> String {
        let Some(operation) = self.operation() else {
            return "something that this version does not know".to_owned();
        };
        let kind = usize::try_from(self.kind).ok().and_then(|i| KINDS.get(i));
        let tensor = kind.map_or(String::new(), |kind| format!(" of {} elements of {kind:?}", self.size));
        match operation {
            Operation::Join => format!("`{operation}` of protocol {}", self.detail),
            Operation::Barrier | Operation::AllGatherBytes => format!("`{operation}`"),
            Operation::AllGather | Operation::ReduceScatter => format!("`{operation}`{tensor}"),
            Operation::AllReduce => {
                let by = Reduction::ALL.iter().find(|r| **r as i64 == self.detail);
                format!("`{operation}` ({by:?}){tensor}", by = by.copied().unwrap_or(Reduction::Sum))
            }
            Operation::Broadcast => format!("`{operation}` from rank {}{tensor}", self.detail),
            Operation::BroadcastBytes => format!("`{operation}` from rank {}", self.detail),
        }
    }
}

impl Collective {
    pub(crate) fn operation(&self) -> Operation {
        match self {
            Self::Join => Operation::Join,
            Self::AllGather { .. } => Operation::AllGather,
            Self::ReduceScatter { .. } => Operation::ReduceScatter,
            Self::AllReduce { .. } => Operation::AllReduce,
            Self::Broadcast { .. } => Operation::Broadcast,
            Self::Barrier => Operation::Barrier,
            Self::AllGatherBytes(_) => Operation::AllGatherBytes,
            Self::BroadcastBytes { .. } => Operation::BroadcastBytes,
        }
    }

    /// The collective in a group of one: what comes out is what went in. Returns the bytes of each rank, if any.
    pub(crate) fn alone(self) -> Result<Vec<Vec<u8>>, TchError> {
        match self {
            Self::AllGather { input, output } | Self::ReduceScatter { input, output } => {
                output.f_view([-1])?.f_copy_(&input.f_view([-1])?)?;
                Ok(Vec::new())
            }
            Self::AllGatherBytes(bytes) | Self::BroadcastBytes { bytes, .. } => Ok(vec![bytes]),
            Self::Join | Self::AllReduce { .. } | Self::Broadcast { .. } | Self::Barrier => Ok(Vec::new()),
        }
    }
}

/// A step that did not work.
#[derive(Debug)]
enum Failure {
    Network(ShimError),
    Local(TchError),
    Disagreement { peer: usize, expected: Call, found: Call },
}

impl From<ShimError> for Failure {
    fn from(error: ShimError) -> Self {
        Self::Network(error)
    }
}

impl From<TchError> for Failure {
    fn from(error: TchError) -> Self {
        Self::Local(error)
    }
}

/// One rank's end of the wires.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) gloo: GlooGroup,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) timeout: Duration,
}

impl Wire {
    /// Does a collective together with all other ranks, or fails within the timeout. Returns the bytes of each rank that
    /// sent some.
    pub(crate) fn run(&self, collective: Collective) -> Result<Vec<Vec<u8>>, DistributedError> {
        let (rank, operation, timeout) = (self.rank, collective.operation(), self.timeout);
        let deadline = deadline_after(timeout);
        self.exchange(collective, deadline).map_err(|failure| match failure {
            Failure::Network(ShimError(cause)) if Instant::now() >= deadline => {
                DistributedError::TimedOut { rank, operation, timeout, cause }
            }
            Failure::Network(ShimError(cause)) => DistributedError::PeerLost { rank, operation, timeout, cause },
            Failure::Local(error) => DistributedError::Libtorch { rank, operation, cause: error.to_string() },
            Failure::Disagreement { peer, expected, found } => DistributedError::Disagreement {
                rank,
                operation,
                peer,
                expected: expected.describe(),
                found: found.describe(),
            },
        })
    }

    fn exchange(&self, collective: Collective, deadline: Instant) -> Result<Vec<Vec<u8>>, Failure> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let calls = self.agree(&collective, left())?;
        let world = self.world as i64;
        match collective {
            Collective::Join | Collective::Barrier => {}
            Collective::AllGather { input, output } => {
                if input.numel() > 0 {
                    self.gloo.all_gather(&output, &input, left())?;
                }
            }
            Collective::ReduceScatter { input, output } => {
                if input.numel() > 0 {
                    let received = input.f_empty_like()?.f_view([-1])?;
                    self.gloo.all_to_all(&received, &input.f_view([-1])?, left())?;
                    sum_blocks(&received.f_view([world, -1])?, &output)?;
                }
            }
            Collective::AllReduce { tensor, reduction } => {
                if tensor.numel() > 0 {
                    self.gloo.all_reduce(&tensor, reduction, left())?;
                }
            }
            Collective::Broadcast { tensor, root } => {
                if tensor.numel() > 0 {
                    self.gloo.broadcast(&tensor, root, left())?;
                }
            }
            Collective::AllGatherBytes(mut bytes) => {
                let lengths: Vec<usize> = calls.iter().map(|c| c.size as usize).collect();
                let longest = lengths.iter().copied().max().unwrap_or(0);
                if longest == 0 {
                    return Ok(vec![Vec::new(); self.world]);
                }
                bytes.resize(longest, 0);
                let input = Tensor::f_from_data_size(&bytes, &[longest as i64], Kind::Uint8)?;
                let output = Tensor::f_empty([world * longest as i64], (Kind::Uint8, Device::Cpu))?;
                self.gloo.all_gather(&output, &input, left())?;
                let part = |(rank, length): (usize, &usize)| {
                    bytes_of(&output.f_narrow(0, (rank * longest) as i64, *length as i64)?)
                };
                return Ok(lengths.iter().enumerate().map(part).collect::<Result<_, _>>()?);
            }
            Collective::BroadcastBytes { bytes, root } => {
                let length = calls.get(root).map_or(0, |c| c.size);
                if length == 0 {
                    return Ok(vec![Vec::new()]);
                }
                let tensor = if root == self.rank {
                    Tensor::f_from_data_size(&bytes, &[length], Kind::Uint8)?
                } else {
                    Tensor::f_empty([length], (Kind::Uint8, Device::Cpu))?
                };
                self.gloo.broadcast(&tensor, root, left())?;
                return Ok(vec![bytes_of(&tensor)?]);
            }
        }
        Ok(Vec::new())
    }

    /// Tells all ranks what this one is about to do, and hears the same of them.
    fn agree(&self, collective: &Collective, timeout: Duration) -> Result<Vec<Call>, Failure> {
        let Call { operation, kind, size, detail } = Call::of(collective, self.rank);
        let mine = Tensor::f_from_slice(&[operation, kind, size, detail])?;
        let all = Tensor::f_empty([self.world as i64 * Call::WORDS], (Kind::Int64, Device::Cpu))?;
        self.gloo.all_gather(&all, &mine, timeout)?;
        let words = Vec::<i64>::try_from(&all)?;
        let call = |w: &[i64]| Call { operation: w[0], kind: w[1], size: w[2], detail: w[3] };
        let calls: Vec<Call> = words.chunks_exact(Call::WORDS as usize).map(call).collect();
        match calls.iter().position(|c| !calls[0].fits(*c)) {
            Some(peer) => Err(Failure::Disagreement { peer, expected: calls[0], found: calls[peer] }),
            None => Ok(calls),
        }
    }
}

fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>, TchError> {
    let mut bytes = vec![0u8; tensor.numel()];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
    Ok(bytes)
}

/// How many elements are added at once: their 32-bit sums stay in the cache.
const SUM_STEP: i64 = 1 << 16;

/// Adds the rows of `blocks`, one a rank, in the order of ranks, and writes the sum to `output`. Sums of 16-bit floats
/// are kept in 32 bits and rounded once, where `output` has 16.
fn sum_blocks(blocks: &Tensor, output: &Tensor) -> Result<(), TchError> {
    let kind = match blocks.kind() {
        Kind::BFloat16 | Kind::Half => Kind::Float,
        kind => kind,
    };
    let (world, length) = blocks.size2()?;
    let output = output.f_view([-1])?;
    for start in (0..length).step_by(SUM_STEP as usize) {
        let step = SUM_STEP.min(length - start);
        let part = |rank| blocks.f_get(rank)?.f_narrow(0, start, step);
        // In place where no conversion makes a copy: the blocks are read once.
        let mut sum = part(0)?.f_to_kind(kind)?;
        for rank in 1..world {
            let _ = sum.f_add_(&part(rank)?)?;
        }
        output.f_narrow(0, start, step)?.f_copy_(&sum)?;
    }
    Ok(())
}
