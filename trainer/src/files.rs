//! Safetensors, one tensor at a time, and atomic files and folders.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::Metadata;
use safetensors::{Dtype, tensor::TensorInfo};
use sha2::{Digest, Sha256};
use tch::{Kind, Tensor};

use crate::error::TrainError;

/// Largest header, in bytes; the format's own bound.
const MAX_HEADER: u64 = 100_000_000;

/// Writes tensors whose names and shapes are known beforehand, in any order of the values.
pub struct SafetensorsWriter {
    path: PathBuf,
    out: File,
    data: u64,
    metadata: Metadata,
    written: u64,
}

fn dtype(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::Double => Dtype::F64,
        Kind::Float => Dtype::F32,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Half => Dtype::F16,
        Kind::Int64 => Dtype::I64,
        _ => return None,
    })
}

fn kind(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::F64 => Kind::Double,
        Dtype::F32 => Kind::Float,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F16 => Kind::Half,
        Dtype::I64 => Kind::Int64,
        _ => return None,
    })
}

impl SafetensorsWriter {
    /// Makes the file with its header.
    pub fn create(
        path: &Path,
        tensors: &[(String, Vec<i64>)],
        of: Kind,
        extra: Option<BTreeMap<String, String>>,
    ) -> Result<Self, TrainError> {
        let bad = |reason: String| TrainError::File { path: path.to_owned(), reason };
        let stored = dtype(of).ok_or_else(|| bad(format!("{of:?} tensors cannot be stored")))?;
        let mut at = 0;
        let infos: Vec<(String, TensorInfo)> = tensors
            .iter()
            .map(|(name, shape)| {
                let shape: Vec<usize> = shape.iter().map(|d| *d as usize).collect();
                let size = shape.iter().product::<usize>() * of.elt_size_in_bytes();
                let info = TensorInfo { dtype: stored, shape, data_offsets: (at, at + size) };
                at += size;
                (name.clone(), info)
            })
            .collect();
        let mut extra: std::collections::HashMap<String, String> = extra.unwrap_or_default().into_iter().collect();
        extra.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
        let metadata = Metadata::new(Some(extra), infos).map_err(|e| bad(e.to_string()))?;
        let mut header = serde_json::to_vec(&metadata).map_err(|e| bad(e.to_string()))?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut out = File::create(path).map_err(TrainError::io("create", path))?;
        let mut start = (header.len() as u64).to_le_bytes().to_vec();
        start.extend(header);
        out.write_all(&start).map_err(TrainError::io("write", path))?;
        Ok(Self { path: path.to_owned(), out, data: start.len() as u64, metadata, written: 0 })
    }

    /// Writes one tensor, converted to the file's type.
    pub fn put(&mut self, name: &str, value: &Tensor) -> Result<(), TrainError> {
        let wrong = |expected: String, found: String| TrainError::Tensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
            expected,
            found,
        };
        let info = self
            .metadata
            .info(name)
            .ok_or_else(|| wrong("a tensor of the header".to_owned(), "another name".to_owned()))?;
        let shape: Vec<usize> = value.size().iter().map(|d| *d as usize).collect();
        if info.shape != shape {
            return Err(wrong(format!("shape {:?}", info.shape), format!("{shape:?}")));
        }
        let of = kind(info.dtype).unwrap_or(Kind::Float);
        let value = value.f_detach()?.f_to_kind(of)?.f_contiguous()?;
        let (from, to) = info.data_offsets;
        let mut bytes = vec![0; to - from];
        value.f_copy_data_u8(&mut bytes, value.numel())?;
        self.out.write_all_at(&bytes, self.data + from as u64).map_err(TrainError::io("write", &self.path))?;
        self.written += (to - from) as u64;
        Ok(())
    }

    /// Checks that every tensor was written and puts the file on the disk.
    pub fn finish(self) -> Result<(), TrainError> {
        let expected = self.metadata.data_len() as u64;
        if self.written != expected {
            let reason = format!("{expected} bytes of tensors were announced, {} written", self.written);
            return Err(TrainError::File { path: self.path, reason });
        }
        self.out.sync_all().map_err(TrainError::io("sync", &self.path))
    }
}

/// Reads tensors of a safetensors file by name.
pub struct SafetensorsReader {
    path: PathBuf,
    file: File,
    data: u64,
    metadata: Metadata,
}

impl SafetensorsReader {
    /// Opens a file and checks its header against its length.
    pub fn open(path: &Path) -> Result<Self, TrainError> {
        let bad = |reason: String| TrainError::File { path: path.to_owned(), reason };
        let file = File::open(path).map_err(TrainError::io("read", path))?;
        let len = file.metadata().map_err(TrainError::io("read", path))?.len();
        let mut size = [0; 8];
        if len < 8 {
            return Err(bad(format!("expected a safetensors file of at least 8 bytes, found {len}")));
        }
        file.read_exact_at(&mut size, 0).map_err(TrainError::io("read", path))?;
        let header = u64::from_le_bytes(size);
        if header > MAX_HEADER.min(len - 8) {
            return Err(bad(format!("the header claims {header} bytes, the file has {len}")));
        }
        let mut text = vec![0; header as usize];
        file.read_exact_at(&mut text, 8).map_err(TrainError::io("read", path))?;
        let metadata: Metadata = serde_json::from_slice(&text).map_err(|e| bad(format!("header: {e}")))?;
        let expected = 8 + header + metadata.data_len() as u64;
        if expected != len {
            return Err(bad(format!("the header describes {expected} bytes, the file has {len}")));
        }
        Ok(Self { path: path.to_owned(), file, data: 8 + header, metadata })
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.metadata.tensors().into_keys().collect();
        names.sort_unstable();
        names
    }

    /// The shape of a tensor, where it is there.
    pub fn shape(&self, name: &str) -> Option<Vec<i64>> {
        Some(self.metadata.info(name)?.shape.iter().map(|size| *size as i64).collect())
    }

    /// Reads a tensor of the expected shape, in the type in which it is stored.
    pub fn get(&self, name: &str, shape: &[i64]) -> Result<Tensor, TrainError> {
        let wrong = |expected: String, found: String| TrainError::Tensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
            expected,
            found,
        };
        let expected = || format!("shape {shape:?}");
        let info = self.metadata.info(name).ok_or_else(|| wrong(expected(), "no such tensor".to_owned()))?;
        if !info.shape.iter().map(|d| *d as i64).eq(shape.iter().copied()) {
            return Err(wrong(expected(), format!("shape {:?}", info.shape)));
        }
        let stored = kind(info.dtype)
            .ok_or_else(|| wrong("F64, F32, F16, BF16 or I64".to_owned(), format!("{:?}", info.dtype)))?;
        let (from, to) = info.data_offsets;
        if to < from || to - from != info.shape.iter().product::<usize>() * stored.elt_size_in_bytes() {
            return Err(wrong(expected(), format!("bytes {from} to {to}")));
        }
        let mut bytes = vec![0; to - from];
        self.file.read_exact_at(&mut bytes, self.data + from as u64).map_err(TrainError::io("read", &self.path))?;
        Ok(Tensor::f_from_data_size(&bytes, shape, stored)?)
    }
}

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Writes a small file and puts it on the disk.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let file = File::create(path).map_err(TrainError::io("create", path))?;
    let mut out = BufWriter::new(file);
    out.write_all(bytes).map_err(TrainError::io("write", path))?;
    let file = out.into_inner().map_err(|e| TrainError::io("write", path)(e.into_error()))?;
    file.sync_all().map_err(TrainError::io("sync", path))
}

/// Writes JSON for people, with a newline at its end.
pub fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), TrainError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| TrainError::File { path: path.to_owned(), reason: e.to_string() })?;
    write(path, format!("{text}\n").as_bytes())
}

/// Reads JSON.
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, TrainError> {
    let text = fs::read(path).map_err(TrainError::io("read", path))?;
    serde_json::from_slice(&text).map_err(|e| TrainError::File { path: path.to_owned(), reason: e.to_string() })
}

/// A folder that appears under its name only when it is whole.
pub struct PendingFolder {
    working: PathBuf,
    target: PathBuf,
    done: bool,
}

impl PendingFolder {
    /// Begins a folder beside `target`, which must not be there yet.
    pub fn begin(target: &Path) -> Result<Self, TrainError> {
        if target.exists() {
            let reason = "it exists already; remove it or choose another place".to_owned();
            return Err(TrainError::Exists { path: target.to_owned(), reason });
        }
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let working = target.with_file_name(name);
        if working.exists() {
            // What a killed process left.
            fs::remove_dir_all(&working).map_err(TrainError::io("remove", &working))?;
        }
        fs::create_dir_all(&working).map_err(TrainError::io("create", &working))?;
        Ok(Self { working, target: target.to_owned(), done: false })
    }

    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.working
    }

    /// Gives the folder its name.
    pub fn finish(mut self) -> Result<(), TrainError> {
        sync_folder(&self.working)?;
        fs::rename(&self.working, &self.target).map_err(TrainError::io("rename", &self.working))?;
        self.done = true;
        sync_folder(self.target.parent().unwrap_or(Path::new(".")))
    }
}

impl Drop for PendingFolder {
    fn drop(&mut self) {
        if !self.done {
            let _ = fs::remove_dir_all(&self.working);
        }
    }
}

/// Puts a folder's entries on the disk.
pub fn sync_folder(path: &Path) -> Result<(), TrainError> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let folder = File::open(path).map_err(TrainError::io("open", path))?;
    folder.sync_all().map_err(TrainError::io("sync", path))
}
