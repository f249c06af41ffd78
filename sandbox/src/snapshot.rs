//! A REPL's state as bytes.
//!
//! `mark (8) | format u32 | interpreter's hash (32) | length u64 | body, zstd | SHA-256 of all before (32)`,
//! little-endian; the body is the host's state, then the pages that differ from the booted interpreter's (number u32,
//! bytes). The checksum finds damage, not forgery: whoever forges a snapshot controls what the guest's memory
//! holds, as whoever writes Python in it does, and gains nothing, since the guest has no powers, limits are the
//! stricter of the snapshot's and the options', and spent budgets the larger.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::Limits;
use crate::error::SnapshotError;
use crate::instance::Core;
use crate::journal::HostState;
use crate::memory::{Checkpoint, PAGE};
use crate::module_cache::hex;

const MARK: &[u8; 8] = b"ESPSNAP\n";
const FORMAT: u32 = 1;
const HEADER: usize = 8 + 4 + 32 + 8;
const SUM: usize = 32;
/// Bytes of a body beside its pages, at most.
const MAX_HEAD: u64 = 1 << 20;

/// What a snapshot holds beside the guest's memory.
pub(crate) struct Saved {
    pub(crate) host: HostState,
    pub(crate) limits: Limits,
    /// Blocks run.
    pub(crate) block: u64,
    /// Host calls spent.
    pub(crate) spent: u64,
    /// Bytes of the guest's heap at which it raises `MemoryError`.
    pub(crate) soft_memory: u64,
}

/// The state as bytes.
pub(crate) fn write(core: &Core, checkpoint: &Checkpoint, saved: &Saved) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(1024);
    put(&mut head, &checkpoint.stack_pointer.unwrap_or(-1).to_le_bytes());
    put(&mut head, &u8::from(checkpoint.stack_pointer.is_some()).to_le_bytes());
    put(&mut head, &(checkpoint.size() as u64).to_le_bytes());
    put(&mut head, &saved.host.random.get_seed());
    put(&mut head, &saved.host.random.get_stream().to_le_bytes());
    put(&mut head, &saved.host.random.get_word_pos().to_le_bytes());
    put(&mut head, &saved.host.clock.to_le_bytes());
    put(&mut head, &saved.host.processor_time.to_le_bytes());
    put(&mut head, &saved.block.to_le_bytes());
    put(&mut head, &saved.spent.to_le_bytes());
    put(&mut head, &saved.soft_memory.to_le_bytes());
    let limits = serde_json::to_vec(&saved.limits)?;
    put(&mut head, &(limits.len() as u32).to_le_bytes());
    put(&mut head, &limits);
    let mut bytes = Vec::new();
    put(&mut bytes, MARK);
    put(&mut bytes, &FORMAT.to_le_bytes());
    put(&mut bytes, &core.hash);
    put(&mut bytes, &[0; 8]);
    let mut body = zstd::stream::write::Encoder::new(bytes, 1)?;
    body.write_all(&head)?;
    checkpoint.pages(|number, page| {
        body.write_all(&number.to_le_bytes())?;
        body.write_all(page)
    })?;
    let mut bytes = body.finish()?;
    let length = (bytes.len() - HEADER) as u64;
    bytes[HEADER - 8..HEADER].copy_from_slice(&length.to_le_bytes());
    let sum = Sha256::digest(&bytes);
    put(&mut bytes, &sum);
    Ok(bytes)
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
}

/// Reads a snapshot whose memory may have `allowed` bytes.
pub(crate) fn read(core: &Core, bytes: &[u8], allowed: u64) -> Result<(Checkpoint, Saved), SnapshotError> {
    let mut header = Reader(bytes);
    if header.take(8).is_none_or(|mark| mark != MARK) {
        return Err(SnapshotError::NoSnapshot);
    }
    let short = SnapshotError::Damaged("it ends too early");
    let format = header.number(u32::from_le_bytes).ok_or(short.clone())?;
    if format != FORMAT {
        return Err(SnapshotError::Format { found: format, expected: FORMAT });
    }
    let hash = header.take(32).ok_or(short.clone())?;
    if hash != core.hash {
        let (found, expected) = (hex(&hash[..6]), hex(&core.hash[..6]));
        return Err(SnapshotError::Interpreter { found, expected });
    }
    let length = header.number(u64::from_le_bytes).ok_or(short.clone())?;
    let body = usize::try_from(length).ok().and_then(|length| header.take(length)).ok_or(short.clone())?;
    let sum = header.take(SUM).ok_or(short)?;
    if !header.0.is_empty() {
        return Err(SnapshotError::Damaged("bytes follow its end"));
    }
    if Sha256::digest(&bytes[..bytes.len() - SUM]).as_slice() != sum {
        return Err(SnapshotError::Damaged("its checksum is wrong"));
    }
    let bound = allowed.saturating_add(allowed / 512).saturating_add(MAX_HEAD);
    let mut plain = Vec::new();
    let broken = |_| SnapshotError::Damaged("it does not decompress");
    let decoder = zstd::stream::read::Decoder::new(body).map_err(broken)?;
    decoder.take(bound.saturating_add(1)).read_to_end(&mut plain).map_err(broken)?;
    if plain.len() as u64 > bound {
        return Err(SnapshotError::Memory { needed: plain.len() as u64, allowed });
    }
    parse(core, &plain, allowed)
}

fn parse(core: &Core, plain: &[u8], allowed: u64) -> Result<(Checkpoint, Saved), SnapshotError> {
    let damaged = || SnapshotError::Damaged("its body is cut short");
    let mut body = Reader(plain);
    let pointer = body.number(i32::from_le_bytes).ok_or_else(damaged)?;
    let has_pointer = body.number(u8::from_le_bytes).ok_or_else(damaged)? == 1;
    let size = body.number(u64::from_le_bytes).ok_or_else(damaged)?;
    if size > allowed {
        return Err(SnapshotError::Memory { needed: size, allowed });
    }
    let seed = body.number(|seed: [u8; 32]| seed).ok_or_else(damaged)?;
    let mut random = ChaCha8Rng::from_seed(seed);
    random.set_stream(body.number(u64::from_le_bytes).ok_or_else(damaged)?);
    random.set_word_pos(body.number(u128::from_le_bytes).ok_or_else(damaged)?);
    let clock = body.number(u64::from_le_bytes).ok_or_else(damaged)?;
    let processor_time = body.number(u64::from_le_bytes).ok_or_else(damaged)?;
    let block = body.number(u64::from_le_bytes).ok_or_else(damaged)?;
    let spent = body.number(u64::from_le_bytes).ok_or_else(damaged)?;
    let soft_memory = body.number(u64::from_le_bytes).ok_or_else(damaged)?;
    let length = body.number(u32::from_le_bytes).ok_or_else(damaged)?;
    let limits = body.take(length as usize).ok_or_else(damaged)?;
    let limits = serde_json::from_slice(limits).map_err(|_| SnapshotError::Damaged("its limits do not parse"))?;
    if !body.0.len().is_multiple_of(PAGE + 4) {
        return Err(damaged());
    }
    let pages = body.0.chunks_exact(PAGE + 4).filter_map(|page| {
        let (number, bytes) = page.split_first_chunk()?;
        Some((u32::from_le_bytes(*number), bytes))
    });
    let pointer = has_pointer.then_some(pointer);
    let checkpoint = Checkpoint::from_pages(Arc::clone(&core.image), size as usize, pointer, pages)
        .map_err(|_| SnapshotError::Damaged("its pages do not fit its memory"))?;
    let host = HostState { random, clock, processor_time };
    Ok((checkpoint, Saved { host, limits, block, spent, soft_memory }))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number<const N: usize, T>(&mut self, read: impl FnOnce([u8; N]) -> T) -> Option<T> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(read(*bytes))
    }
}
