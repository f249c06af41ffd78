//! The interpreter as it is shipped: a WebAssembly module without data, and the memory that it booted into.

use crate::memory::{Image, WASM_PAGE};

/// Custom section: the booted memory, as repeated (offset: u32, length: u32, bytes), little-endian.
const IMAGE_SECTION: &str = "espalier.image";
/// Largest decompressed artifact, bytes.
const MAX_BYTES: usize = 512 << 20;

/// A decompressed artifact.
pub(crate) struct Artifact {
    wasm: Vec<u8>,
}

/// Why bytes are no artifact.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArtifactError {
    #[error("it does not decompress: {0}")]
    Compression(std::io::Error),
    #[error("it is larger than {MAX_BYTES} bytes")]
    Size,
    #[error("it is not a WebAssembly module: {0}")]
    Module(&'static str),
    #[error("its section `{IMAGE_SECTION}` is cut short")]
    Image,
    #[error("its memory could not be laid out: {0}")]
    Memory(#[from] std::io::Error),
}

impl Artifact {
    /// Decompresses `bytes`.
    pub(crate) fn open(bytes: &[u8]) -> Result<Self, ArtifactError> {
        use std::io::Read as _;
        let decoder = zstd::stream::read::Decoder::new(bytes).map_err(ArtifactError::Compression)?;
        let mut wasm = Vec::new();
        decoder.take(MAX_BYTES as u64 + 1).read_to_end(&mut wasm).map_err(ArtifactError::Compression)?;
        if wasm.len() > MAX_BYTES {
            return Err(ArtifactError::Size);
        }
        Ok(Self { wasm })
    }

    /// The module.
    pub(crate) fn wasm(&self) -> &[u8] {
        &self.wasm
    }

    /// The booted memory, of at least `minimum` bytes.
    pub(crate) fn image(&self, minimum: usize) -> Result<Image, ArtifactError> {
        let mut segments = Vec::new();
        for section in sections(&self.wasm)? {
            if let (IMAGE_SECTION, mut body) = section {
                while !body.is_empty() {
                    let (offset, rest) = split_u32(body).ok_or(ArtifactError::Image)?;
                    let (length, rest) = split_u32(rest).ok_or(ArtifactError::Image)?;
                    let (bytes, rest) = rest.split_at_checked(length as usize).ok_or(ArtifactError::Image)?;
                    segments.push((offset as usize, bytes));
                    body = rest;
                }
            }
        }
        let end = segments.iter().map(|(offset, bytes)| offset + bytes.len()).max().unwrap_or(0);
        let length = end.max(minimum).next_multiple_of(WASM_PAGE);
        Ok(Image::new(length, segments.into_iter())?)
    }
}

fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), rest))
}

/// The custom sections of a module: names and contents.
fn sections(wasm: &[u8]) -> Result<Vec<(&str, &[u8])>, ArtifactError> {
    let mut rest = wasm.strip_prefix(b"\0asm\x01\0\0\0").ok_or(ArtifactError::Module("wrong magic number"))?;
    let mut found = Vec::new();
    while let Some((id, after)) = rest.split_first() {
        let (length, after) = leb(after).ok_or(ArtifactError::Module("a section's length is broken"))?;
        let (body, after) = after.split_at_checked(length).ok_or(ArtifactError::Module("a section is cut short"))?;
        rest = after;
        if *id == 0 {
            let named = leb(body).and_then(|(length, body)| body.split_at_checked(length));
            let (name, body) = named.ok_or(ArtifactError::Module("a custom section has no name"))?;
            let name = std::str::from_utf8(name).map_err(|_| ArtifactError::Module("a name is not UTF-8"))?;
            found.push((name, body));
        }
    }
    Ok(found)
}

/// A LEB128 number below 2^32.
fn leb(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(value).ok()? as usize, &bytes[index + 1..]));
        }
    }
    None
}
