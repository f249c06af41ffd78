//! Safe wrappers over the C++ shim: with [`fused`](crate::fused) the only place of this crate with `unsafe`.
//!
//! | item | what it is |
//! |---|---|
//! | [`HalfLinear`] | a linear layer whose weights lie packed at 16 bits; activations stay 32-bit |
//! | [`LoraLinear`] | one adapter's low-rank update of the layers that read the same input |
//! | [`KvPool`] | the memory behind the KV cache, in blocks of [`BLOCK`] tokens |
//! | [`rms_norm`], [`silu_mul`], [`attention`], [`row_stats`], [`lora`] | fused steps over contiguous float tensors |
//!
//! Invariant: the C++ side checks kinds, sizes and block numbers and turns every exception into an error, so that no
//! argument from safe code reaches memory outside its tensors.
#![expect(unsafe_code, reason = "the boundary to the C++ shim")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use tch::Tensor;
use torch_sys::C_tensor;

/// Tokens in one block of the KV cache (`kBlock` in `kernels.h`).
pub const BLOCK: usize = 32;

#[repr(C)]
struct RawSegment {
    first_row: i64,
    rows: i64,
    first_position: i64,
    blocks: *const i64,
    block_count: i64,
}

#[repr(C)]
struct RawLoraLayer {
    a: *const C_tensor,
    b: *const C_tensor,
    scale: f64,
    first_output: i64,
}

#[repr(C)]
struct RawLoraRows {
    lora: *const c_void,
    first_row: i64,
    rows: i64,
}

unsafe extern "C" {
    fn espalier_last_error(out: *mut c_char, size: usize) -> usize;
    fn espalier_half_pack(weight: *const C_tensor, out: *mut *mut c_void) -> c_int;
    fn espalier_half_free(half: *mut c_void);
    fn espalier_half_unpack(half: *mut c_void, out: *const C_tensor) -> c_int;
    fn espalier_lora_pack(
        layers: *const RawLoraLayer,
        count: i64,
        inputs: i64,
        outputs: i64,
        half: c_int,
        out: *mut *mut c_void,
    ) -> c_int;
    fn espalier_lora_free(lora: *mut c_void);
    fn espalier_lora_apply(x: *const C_tensor, y: *const C_tensor, groups: *const RawLoraRows, count: i64) -> c_int;
    fn espalier_half_apply(half: *mut c_void, x: *const C_tensor, out: *const C_tensor) -> c_int;
    fn espalier_kv_new(layers: i64, heads: i64, dim: i64) -> *mut c_void;
    fn espalier_kv_free(pool: *mut c_void);
    fn espalier_kv_allocate(pool: *mut c_void, block: i64) -> c_int;
    fn espalier_kv_copy(pool: *mut c_void, from: i64, to: i64) -> c_int;
    fn espalier_rms_norm(
        x: *const C_tensor,
        add: *const C_tensor,
        weight: *const C_tensor,
        out: *const C_tensor,
        eps: f64,
    ) -> c_int;
    fn espalier_silu_mul(gate_up: *const C_tensor, out: *const C_tensor) -> c_int;
    fn espalier_attention(
        qkv: *const C_tensor,
        cos: *const C_tensor,
        sin: *const C_tensor,
        q_norm: *const C_tensor,
        k_norm: *const C_tensor,
        eps: f64,
        out: *const C_tensor,
        pool: *mut c_void,
        layer: i64,
        query_heads: i64,
        segments: *const RawSegment,
        segment_count: i64,
    ) -> c_int;
    fn espalier_row_stats(
        logits: *const C_tensor,
        scales: *const f32,
        probs: *const C_tensor,
        largest: *mut f32,
        index: *mut i64,
        lse: *mut f32,
    ) -> c_int;
}

/// What libtorch or the shim said.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ShimError(pub String);

impl From<tch::TchError> for ShimError {
    fn from(error: tch::TchError) -> Self {
        let text = error.to_string();
        // Behind the reason stands a trace of addresses that tells nobody anything.
        Self(text.split("\nException raised from").next().unwrap_or_default().trim_end().to_owned())
    }
}

pub(crate) fn check(code: c_int) -> Result<(), ShimError> {
    if code == 0 {
        return Ok(());
    }
    let mut buffer = vec![0u8; 4096];
    // SAFETY: the buffer is writable for the size that is passed; the shim writes at most that much.
    let n = unsafe { espalier_last_error(buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer.truncate(n);
    Err(ShimError(String::from_utf8_lossy(&buffer).trim().to_owned()))
}

pub(crate) fn optional(tensor: Option<&Tensor>) -> *const C_tensor {
    tensor.map_or(ptr::null(), Tensor::as_ptr)
}

/// A linear layer without bias. Weights are kept at 16 bits (IEEE half), packed for the CPU; input and output are
/// 32-bit floats, and so are products and sums.
#[derive(Debug)]
pub struct HalfLinear {
    raw: *mut c_void,
    outputs: i64,
    inputs: i64,
}

// SAFETY: the packed weights are immutable after packing and reference-counted atomically by libtorch.
unsafe impl Send for HalfLinear {}

impl HalfLinear {
    /// Packs a float weight of shape (outputs, inputs).
    pub fn pack(weight: &Tensor) -> Result<Self, ShimError> {
        let (outputs, inputs) = weight.size2()?;
        let weight = weight.f_to_kind(tch::Kind::Float)?.f_contiguous()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the tensor outlives the call; `raw` is written only when the call succeeds.
        check(unsafe { espalier_half_pack(weight.as_ptr(), &raw mut raw) })?;
        Ok(Self { raw, outputs, inputs })
    }

    /// The weight, (outputs, inputs), as 32-bit floats: exactly what the 16 bits hold.
    pub fn unpack(&self) -> Result<Tensor, ShimError> {
        let out = Tensor::f_empty([self.outputs, self.inputs], (tch::Kind::Float, tch::Device::Cpu))?;
        // SAFETY: `raw` came from `espalier_half_pack` and lives until drop; the tensor outlives the call.
        check(unsafe { espalier_half_unpack(self.raw, out.as_ptr()) })?;
        Ok(out)
    }

    /// `x` of shape (rows, inputs) to (rows, outputs).
    pub fn apply(&self, x: &Tensor) -> Result<Tensor, ShimError> {
        let out = Tensor::f_empty([x.size2()?.0, self.outputs], (tch::Kind::Float, tch::Device::Cpu))?;
        // SAFETY: `raw` came from `espalier_half_pack` and lives until drop; both tensors outlive the call.
        check(unsafe { espalier_half_apply(self.raw, x.as_ptr(), out.as_ptr()) })?;
        Ok(out)
    }
}

impl Drop for HalfLinear {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `espalier_half_pack` and is freed once.
        unsafe { espalier_half_free(self.raw) }
    }
}

/// One layer's part of a [`LoraLinear`]: `y[first_output..] += scale * b (a x)`.
#[derive(Clone, Copy, Debug)]
pub struct LoraLayer<'a> {
    /// (rank, inputs), contiguous floats.
    pub a: &'a Tensor,
    /// (outputs of this layer, rank), contiguous floats.
    pub b: &'a Tensor,
    /// What the product is multiplied with.
    pub scale: f64,
    /// Where the layer's outputs begin in the packed output.
    pub first_output: i64,
}

/// An adapter's low-rank update of one packed linear layer: queries, keys and values, say, which read the same input and
/// write to one matrix. Activations and sums are 32-bit floats; weights are too, or 16-bit (IEEE half, each matrix scaled
/// by a power of two so that its largest magnitude is about 1024: a value 16 million times smaller is still a normal half).
#[derive(Debug)]
pub struct LoraLinear {
    raw: *mut c_void,
}

// SAFETY: the packed weights are immutable after packing, and owned by this handle alone.
unsafe impl Send for LoraLinear {}

impl LoraLinear {
    /// Packs layers that follow each other in an output of `outputs` columns.
    pub fn pack(layers: &[LoraLayer<'_>], inputs: i64, outputs: i64, half: bool) -> Result<Self, ShimError> {
        let raw_layers: Vec<RawLoraLayer> = layers
            .iter()
            .map(|l| RawLoraLayer { a: l.a.as_ptr(), b: l.b.as_ptr(), scale: l.scale, first_output: l.first_output })
            .collect();
        let mut raw = ptr::null_mut();
        // SAFETY: the tensors outlive the call, which checks them and copies; `raw` is written only when it succeeds.
        check(unsafe {
            espalier_lora_pack(
                raw_layers.as_ptr(),
                raw_layers.len() as i64,
                inputs,
                outputs,
                c_int::from(half),
                &raw mut raw,
            )
        })?;
        Ok(Self { raw })
    }
}

impl Drop for LoraLinear {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `espalier_lora_pack` and is freed once.
        unsafe { espalier_lora_free(self.raw) }
    }
}

/// Consecutive rows that one adapter changes.
#[derive(Clone, Copy, Debug)]
pub struct LoraRows<'a> {
    /// The update.
    pub lora: &'a LoraLinear,
    /// The first row in the batch.
    pub first_row: usize,
    /// How many rows.
    pub rows: usize,
}

/// Adds each group's update of `x`, (rows, inputs), to `y`, (rows, outputs). Groups are in the order of their rows and do
/// not overlap; rows of no group stay.
pub fn lora(x: &Tensor, y: &mut Tensor, groups: &[LoraRows<'_>]) -> Result<(), ShimError> {
    let raw: Vec<RawLoraRows> = groups
        .iter()
        .map(|g| RawLoraRows { lora: g.lora.raw, first_row: g.first_row as i64, rows: g.rows as i64 })
        .collect();
    // SAFETY: both tensors and every adapter outlive the call; the shim checks kinds, sizes and rows, and that no two
    // groups share a row.
    check(unsafe { espalier_lora_apply(x.as_ptr(), y.as_ptr(), raw.as_ptr(), raw.len() as i64) })
}

/// The memory behind the KV cache. Blocks are allocated one by one, each for all layers, and kept until drop.
#[derive(Debug)]
pub struct KvPool {
    raw: *mut c_void,
}

// SAFETY: the pool is plain memory; all access goes through `&mut self`, or through `attention`, which takes `&mut`.
unsafe impl Send for KvPool {}

impl KvPool {
    /// A pool without blocks.
    pub fn new(layers: i64, heads: i64, dim: i64) -> Result<Self, ShimError> {
        // SAFETY: takes numbers only; returns null when memory is short.
        let raw = unsafe { espalier_kv_new(layers, heads, dim) };
        if raw.is_null() { Err(ShimError("out of memory for the KV cache".to_owned())) } else { Ok(Self { raw }) }
    }

    /// Makes sure that a block's memory exists. New blocks come in order: the first is 0.
    pub fn allocate(&mut self, block: i64) -> Result<(), ShimError> {
        // SAFETY: `raw` lives until drop; the shim checks the number.
        check(unsafe { espalier_kv_allocate(self.raw, block) })
    }

    /// Copies a whole block over another.
    pub fn copy(&mut self, from: i64, to: i64) -> Result<(), ShimError> {
        // SAFETY: `raw` lives until drop; the shim checks both numbers.
        check(unsafe { espalier_kv_copy(self.raw, from, to) })
    }
}

impl Drop for KvPool {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `espalier_kv_new` and is freed once.
        unsafe { espalier_kv_free(self.raw) }
    }
}

/// Consecutive rows of a batch that belong to one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The first row in the batch.
    pub first_row: usize,
    /// How many rows.
    pub rows: usize,
    /// The position of the first row in its sequence.
    pub first_position: usize,
    /// The sequence's cache blocks, at least up to the last row's.
    pub blocks: &'a [i64],
}

/// RMS norm over rows: `x += add` (where given), then `x / sqrt(mean(x^2) + eps) * weight`.
pub fn rms_norm(x: &Tensor, add: Option<&Tensor>, weight: &Tensor, eps: f64) -> Result<Tensor, ShimError> {
    let out = x.f_empty_like()?;
    // SAFETY: all tensors outlive the call; the shim checks kinds and sizes.
    check(unsafe { espalier_rms_norm(x.as_ptr(), optional(add), weight.as_ptr(), out.as_ptr(), eps) })?;
    Ok(out)
}

/// `silu(gate) * up`, where a row of `gate_up` holds both one after the other.
pub fn silu_mul(gate_up: &Tensor) -> Result<Tensor, ShimError> {
    let (rows, width) = gate_up.size2()?;
    let out = Tensor::f_empty([rows, width / 2], (tch::Kind::Float, tch::Device::Cpu))?;
    // SAFETY: both tensors outlive the call; the shim checks kinds and sizes.
    check(unsafe { espalier_silu_mul(gate_up.as_ptr(), out.as_ptr()) })?;
    Ok(out)
}

/// What attention needs besides the rows.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape<'a> {
    /// Cosines of the rotation, (positions, dim / 2).
    pub cos: &'a Tensor,
    /// Sines of the rotation, (positions, dim / 2).
    pub sin: &'a Tensor,
    /// RMS norm of each query head, where the family has one.
    pub q_norm: Option<&'a Tensor>,
    /// RMS norm of each key head, where the family has one.
    pub k_norm: Option<&'a Tensor>,
    /// The norms' epsilon.
    pub eps: f64,
    /// The layer, from 0.
    pub layer: i64,
    /// The number of query heads.
    pub query_heads: i64,
}

/// Rotates queries and keys in place, writes keys and values of each row into the cache, and lets each row attend to
/// its own sequence up to itself. `qkv` is (rows, (query heads + 2 key heads) * dim); the result is
/// (rows, query heads * dim).
pub fn attention(
    qkv: &Tensor,
    shape: AttentionShape<'_>,
    pool: &mut KvPool,
    segments: &[Segment<'_>],
    width: i64,
) -> Result<Tensor, ShimError> {
    let out = Tensor::f_empty([qkv.size2()?.0, width], (tch::Kind::Float, tch::Device::Cpu))?;
    let raw: Vec<RawSegment> = segments
        .iter()
        .map(|s| RawSegment {
            first_row: s.first_row as i64,
            rows: s.rows as i64,
            first_position: s.first_position as i64,
            blocks: s.blocks.as_ptr(),
            block_count: s.blocks.len() as i64,
        })
        .collect();
    // SAFETY: tensors, segments and their block lists outlive the call; the pool is borrowed mutably, so nobody else
    // touches its memory; the shim checks rows, positions and block numbers.
    check(unsafe {
        espalier_attention(
            qkv.as_ptr(),
            shape.cos.as_ptr(),
            shape.sin.as_ptr(),
            optional(shape.q_norm),
            optional(shape.k_norm),
            shape.eps,
            out.as_ptr(),
            pool.raw,
            shape.layer,
            shape.query_heads,
            raw.as_ptr(),
            raw.len() as i64,
        )
    })?;
    Ok(out)
}

/// Softmax statistics of one row of scaled logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowStats {
    /// The largest scaled logit.
    pub largest: f32,
    /// The first token that has it.
    pub argmax: usize,
    /// The log of the sum of exponentials.
    pub log_sum_exp: f32,
}

/// Statistics of every row of `logits * scale`. Where `probs` is given (same shape), `exp(scaled - largest)` is
/// written there.
pub fn row_stats(logits: &Tensor, scales: &[f32], probs: Option<&Tensor>) -> Result<Vec<RowStats>, ShimError> {
    let rows = logits.size2()?.0 as usize;
    if scales.len() != rows {
        return Err(ShimError(format!("row_stats: expected {rows} scales, got {}", scales.len())));
    }
    let (mut largest, mut index, mut lse) = (vec![0f32; rows], vec![0i64; rows], vec![0f32; rows]);
    // SAFETY: the three outputs and `scales` have one element a row; the shim checks the tensors.
    check(unsafe {
        espalier_row_stats(
            logits.as_ptr(),
            scales.as_ptr(),
            optional(probs),
            largest.as_mut_ptr(),
            index.as_mut_ptr(),
            lse.as_mut_ptr(),
        )
    })?;
    Ok((0..rows).map(|i| RowStats { largest: largest[i], argmax: index[i] as usize, log_sum_exp: lse[i] }).collect())
}
