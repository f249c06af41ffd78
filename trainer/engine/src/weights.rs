//! Reads HF weight folders: one `model.safetensors`, or shards named by `model.safetensors.index.json`.
//!
//! Invariants: headers are checked against the files' real lengths when the folder is opened, so a truncated or
//! tampered file is refused before any weight is used; every value that is handed out is finite and one that the
//! precision can hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use safetensors::Dtype as StoredType;
use safetensors::tensor::Metadata;
use serde::Deserialize;
use tch::{Kind, Tensor};

use crate::error::ModelError;
use crate::models::decoder::Precision;

/// Largest header, in bytes; the format's own bound.
const MAX_HEADER: u64 = 100_000_000;

struct Shard {
    path: PathBuf,
    file: File,
    /// Where tensor data begins.
    data: u64,
    metadata: Metadata,
}

/// An opened weight folder.
pub struct Weights {
    /// The folder, or the file where it is one; for messages.
    folder: PathBuf,
    precision: Precision,
    shards: Vec<Shard>,
    /// Tensor name to shard.
    place: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Opens the folder's weight files and checks their headers.
    pub fn open(folder: &Path, precision: Precision) -> Result<Self, ModelError> {
        let single = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        let mut weights = Self { folder: folder.to_owned(), precision, shards: Vec::new(), place: BTreeMap::new() };
        if single.exists() || !index.exists() {
            weights.add(&single)?;
            return Ok(weights);
        }
        let text =
            std::fs::read(&index).map_err(|source| ModelError::Io { action: "read", path: index.clone(), source })?;
        let parsed: Index =
            serde_json::from_slice(&text).map_err(|source| ModelError::Json { path: index.clone(), source })?;
        for file in parsed.weight_map.values().collect::<BTreeSet<_>>() {
            let mut parts = Path::new(file).components();
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                return Err(ModelError::Config {
                    path: index,
                    key: "weight_map".to_owned(),
                    expected: "file names in the same folder".to_owned(),
                    found: format!("`{file}`"),
                });
            }
            weights.add(&folder.join(file))?;
        }
        if let Some(tensor) = parsed.weight_map.keys().find(|t| !weights.place.contains_key(*t)) {
            return Err(ModelError::MissingTensor { path: folder.to_owned(), tensor: tensor.clone() });
        }
        Ok(weights)
    }

    /// What tells a model from others: every tensor's name, type and shape and the first 256 bytes of its values. Reads next to
    /// nothing, and does not depend on how tensors are shared out over files.
    pub fn outline(&self) -> Result<Vec<u8>, ModelError> {
        let mut outline = Vec::new();
        for (name, shard) in &self.place {
            let shard = &self.shards[*shard];
            let Some(info) = shard.metadata.info(name) else { continue };
            outline.extend(format!("{name} {:?} {:?}\n", info.dtype, info.shape).into_bytes());
            let (from, to) = info.data_offsets;
            let mut start = vec![0; (to - from).min(256)];
            let read = shard.file.read_exact_at(&mut start, shard.data + from as u64);
            read.map_err(|source| ModelError::Io { action: "read", path: shard.path.clone(), source })?;
            outline.extend(start);
        }
        Ok(outline)
    }

    /// Opens one file.
    pub fn open_file(path: &Path, precision: Precision) -> Result<Self, ModelError> {
        let folder = path.to_owned();
        let mut weights = Self { folder, precision, shards: Vec::new(), place: BTreeMap::new() };
        weights.add(path)?;
        Ok(weights)
    }

    fn add(&mut self, path: &Path) -> Result<(), ModelError> {
        let io = |source| ModelError::Io { action: "read", path: path.to_owned(), source };
        let corrupt = |reason: String| ModelError::Corrupt { path: path.to_owned(), reason };
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        if len < 8 {
            return Err(corrupt(format!("expected at least 8 bytes, found {len}")));
        }
        let mut size = [0; 8];
        file.read_exact_at(&mut size, 0).map_err(io)?;
        let header = u64::from_le_bytes(size);
        if header > MAX_HEADER.min(len - 8) {
            return Err(corrupt(format!("the header claims {header} bytes, the file has {len}")));
        }
        let mut text = vec![0; header as usize];
        file.read_exact_at(&mut text, 8).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&text).map_err(|e| corrupt(format!("header: {e}")))?;
        let (data, expected) = (8 + header, 8 + header + metadata.data_len() as u64);
        if expected != len {
            return Err(corrupt(format!("the header describes {expected} bytes, the file has {len}")));
        }
        for (name, info) in metadata.tensors() {
            let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |n, d| n.checked_mul(*d));
            let (from, to) = info.data_offsets;
            if to < from || to as u64 > len - data || bits.is_none_or(|b| b.div_ceil(8) != to - from) {
                return Err(corrupt(format!(
                    "tensor `{name}`: shape {:?} of {:?} does not fit bytes {from} to {to}",
                    info.shape, info.dtype
                )));
            }
            if self.place.insert(name.clone(), self.shards.len()).is_some() {
                return Err(corrupt(format!("tensor `{name}` is also in another file")));
            }
        }
        self.shards.push(Shard { path: path.to_owned(), file, data, metadata });
        Ok(())
    }

    /// Whether a tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.place.contains_key(name)
    }

    /// A tensor's shape.
    pub fn shape(&self, name: &str) -> Result<Vec<i64>, ModelError> {
        let info = self.place.get(name).and_then(|shard| self.shards[*shard].metadata.info(name));
        let missing = || ModelError::MissingTensor { path: self.folder.clone(), tensor: name.to_owned() };
        Ok(info.ok_or_else(missing)?.shape.iter().map(|d| *d as i64).collect())
    }

    /// All tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.place.keys().map(String::as_str)
    }

    /// Reads a tensor of the expected shape, in the type in which it is stored. A value that is not finite, or beyond what
    /// the precision holds, is refused.
    pub fn get(&self, name: &str, shape: &[i64]) -> Result<Tensor, ModelError> {
        let missing = || ModelError::MissingTensor { path: self.folder.clone(), tensor: name.to_owned() };
        let shard = &self.shards[*self.place.get(name).ok_or_else(missing)?];
        let info = shard.metadata.info(name).ok_or_else(missing)?;
        let found: Vec<i64> = info.shape.iter().map(|d| *d as i64).collect();
        if found != shape {
            return Err(ModelError::Shape { tensor: name.to_owned(), expected: shape.to_vec(), found });
        }
        let kind = match info.dtype {
            StoredType::F32 => Kind::Float,
            StoredType::F16 => Kind::Half,
            StoredType::BF16 => Kind::BFloat16,
            other => return Err(ModelError::Dtype { tensor: name.to_owned(), found: format!("{other:?}") }),
        };
        let (from, to) = info.data_offsets;
        let mut bytes = vec![0; to - from];
        shard.file.read_exact_at(&mut bytes, shard.data + from as u64).map_err(|source| ModelError::Io {
            action: "read",
            path: shard.path.clone(),
            source,
        })?;
        let tensor = Tensor::f_from_data_size(&bytes, shape, kind)?;
        // Only matrices are kept at 16 bits.
        let largest = if shape.len() == 2 { self.precision.largest() } else { f64::from(f32::MAX) };
        let found = if tensor.numel() == 0 { 0.0 } else { tensor.f_abs()?.f_max()?.f_double_value(&[])? };
        // A NaN anywhere is the maximum.
        if found.is_nan() || found > largest {
            return Err(ModelError::Value { path: shard.path.clone(), tensor: name.to_owned(), largest, found });
        }
        Ok(tensor)
    }

    /// Reads a tensor as 32-bit floats.
    pub fn float(&self, name: &str, shape: &[i64]) -> Result<Tensor, ModelError> {
        Ok(self.get(name, shape)?.f_to_kind(Kind::Float)?)
    }
}
