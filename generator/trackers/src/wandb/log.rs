//! LevelDB's log format, as the `.wandb` files use it.
//!
//! <https://github.com/google/leveldb/blob/main/doc/log_format.md>, with a header in front and another checksum:
//! plain CRC-32 where LevelDB has a masked CRC-32C. All integers are little-endian.
//!
//! ```text
//! file   := header, block*                                     the header is the beginning of the first block
//! header := ":W&B", 0xbee1: u16, version 0: u8
//! block  := chunk*, padding of less than 7 zeros               32,768 bytes
//! chunk  := CRC-32 of type and data: u32, length: u16, type: u8, data: u8[length]
//! ```
//!
//! A record is one chunk of type FULL, or a FIRST, MIDDLEs and a LAST that end at the ends of blocks.

use std::io::{self, Read, Write};

use crc::{CRC_32_ISO_HDLC, Crc};

static CRC_32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// The header of a file.
pub const HEADER: [u8; 7] = *b":W&B\xe1\xbe\x00";
/// The size of a block in bytes.
pub const BLOCK: usize = 32_768;
/// The size of a chunk without its data.
pub const CHUNK_HEADER: usize = 7;
/// The largest record that is read.
pub const LARGEST_RECORD: usize = 64 << 20;

const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

fn checksum(kind: u8, data: &[u8]) -> u32 {
    let mut digest = CRC_32.digest();
    digest.update(&[kind]);
    digest.update(data);
    digest.finalize()
}

/// Writes records, each with one call of `write_all`.
#[derive(Debug)]
pub struct LogWriter<W> {
    out: W,
    /// The position in the block.
    position: usize,
}

impl<W: Write> LogWriter<W> {
    /// Begins a file.
    pub fn create(mut out: W) -> io::Result<Self> {
        out.write_all(&HEADER)?;
        Ok(Self { out, position: HEADER.len() })
    }

    /// Appends a record. After an error the file may end with a part of it, and takes no more.
    pub fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(record.len() + CHUNK_HEADER * (record.len() / BLOCK + 3));
        let mut rest = record;
        let mut first = true;
        loop {
            let mut room = BLOCK - self.position;
            if room < CHUNK_HEADER {
                bytes.resize(bytes.len() + room, 0);
                self.position = 0;
                room = BLOCK;
            }
            let (data, after) = rest.split_at(rest.len().min(room - CHUNK_HEADER));
            let kind = match (first, after.is_empty()) {
                (true, true) => FULL,
                (true, false) => FIRST,
                (false, false) => MIDDLE,
                (false, true) => LAST,
            };
            bytes.extend(checksum(kind, data).to_le_bytes());
            bytes.extend((data.len() as u16).to_le_bytes());
            bytes.push(kind);
            bytes.extend(data);
            self.position = (self.position + CHUNK_HEADER + data.len()) % BLOCK;
            if after.is_empty() {
                return self.out.write_all(&bytes);
            }
            (rest, first) = (after, false);
        }
    }

    /// What it writes to.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// What it wrote to.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// Reads records up to the end, or to the first that is cut off or damaged.
#[derive(Debug)]
pub struct LogReader<R> {
    from: R,
    position: u64,
    cut_off: bool,
}

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where its first chunk begins in the file.
    pub start: u64,
    /// Where its last chunk ends.
    pub end: u64,
    /// Its bytes.
    pub record: Vec<u8>,
}

impl<R: Read> LogReader<R> {
    /// Opens a file; `None` if it does not begin with the header.
    pub fn open(mut from: R) -> io::Result<Option<Self>> {
        let mut header = Vec::with_capacity(HEADER.len());
        from.by_ref().take(HEADER.len() as u64).read_to_end(&mut header)?;
        Ok((header == HEADER).then_some(Self { from, position: HEADER.len() as u64, cut_off: false }))
    }

    /// Whether the file ended within a record: its writer was killed, or the disk was full.
    pub fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    /// The next record; `None` at the end of what is whole.
    pub fn entry(&mut self) -> io::Result<Option<Entry>> {
        let mut record = Vec::new();
        let mut start = None;
        loop {
            let room = BLOCK - (self.position % BLOCK as u64) as usize;
            if room < CHUNK_HEADER {
                let Some(padding) = self.exactly(room)? else { return Ok(None) };
                if padding.iter().any(|byte| *byte != 0) {
                    return Ok(None);
                }
            }
            let chunk = self.position;
            let Some(header) = self.exactly(CHUNK_HEADER)? else {
                self.cut_off |= start.is_some();
                return Ok(None);
            };
            let [c0, c1, c2, c3, l0, l1, kind] = header[..] else { return Ok(None) };
            let length = usize::from(u16::from_le_bytes([l0, l1]));
            if (chunk % BLOCK as u64) as usize + CHUNK_HEADER + length > BLOCK {
                return Ok(None);
            }
            let Some(data) = self.exactly(length)? else {
                self.cut_off = true;
                return Ok(None);
            };
            let fits = if start.is_none() { matches!(kind, FULL | FIRST) } else { matches!(kind, MIDDLE | LAST) };
            let whole = checksum(kind, &data) == u32::from_le_bytes([c0, c1, c2, c3]);
            if !fits || !whole || record.len() + data.len() > LARGEST_RECORD {
                return Ok(None);
            }
            record.extend(data);
            let start = *start.get_or_insert(chunk);
            if matches!(kind, FULL | LAST) {
                return Ok(Some(Entry { start, end: self.position, record }));
            }
        }
    }

    fn exactly(&mut self, length: usize) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::with_capacity(length);
        self.from.by_ref().take(length as u64).read_to_end(&mut bytes)?;
        self.position += bytes.len() as u64;
        self.cut_off |= !bytes.is_empty() && bytes.len() < length;
        Ok((bytes.len() == length).then_some(bytes))
    }
}
