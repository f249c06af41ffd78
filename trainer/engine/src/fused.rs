//! Steps of a decoder that trains, each one node of torch's autograd: see `shim/train.cpp` for what each keeps for its
//! gradient. Where gradients are off nothing is kept. Elements are 32-bit floats, doubles or bfloat16; everything that is
//! summed, and results that are called wide, are doubles for doubles and 32-bit floats for the rest.
//!
//! Invariant: as in [`shim`](crate::shim), the C++ side checks types and sizes and turns every exception into an error.
#![expect(unsafe_code, reason = "the boundary to the C++ shim")]

use std::ffi::{c_double, c_int};
use std::ptr;

use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use crate::shim::{ShimError, check, optional};

#[repr(C)]
struct RawLinear {
    x: *const C_tensor,
    norm: *const C_tensor,
    weight: *const C_tensor,
    bias: *const C_tensor,
    a: *const C_tensor,
    b: [*const C_tensor; 3],
    first: [i64; 3],
    rank: i64,
    before: i64,
    eps: c_double,
    scaling: c_double,
    dropout: c_double,
}

#[repr(C)]
struct RawRun {
    start: i64,
    count: i64,
    length: i64,
}

#[repr(C)]
struct RawAdamW {
    beta1: c_double,
    beta2: c_double,
    clip: c_double,
    decay: c_double,
    rate: c_double,
    correction: c_double,
    eps: c_double,
}

unsafe extern "C" {
    fn espalier_train_linear(linear: *const RawLinear, out: *mut C_tensor) -> c_int;
    fn espalier_train_attention(
        qkv: *const C_tensor,
        cos: *const C_tensor,
        sin: *const C_tensor,
        heads: i64,
        kv_heads: i64,
        dim: i64,
        runs: *const RawRun,
        count: i64,
        out: *mut C_tensor,
    ) -> c_int;
    fn espalier_train_softmax(
        logits: *const C_tensor,
        targets: *const C_tensor,
        scale: c_double,
        logprob: *const C_tensor,
        lse: *const C_tensor,
        mean: *const C_tensor,
        gradient: c_int,
        by: *const C_tensor,
    ) -> c_int;
    fn espalier_train_adamw(
        parameters: *const C_tensor,
        first: *const C_tensor,
        second: *const C_tensor,
        gradient: *const C_tensor,
        narrow: *const C_tensor,
        step: *const RawAdamW,
    ) -> c_int;
    fn espalier_slow_products() -> c_int;
    fn espalier_keep_memory();
}

/// Lets this process keep memory that tensors free, and take large tensors in large pages: a training step asks for the
/// same memory again and again. To be called before the first tensor is made.
pub fn keep_memory() {
    // SAFETY: sets options of the allocator and a variable of the environment through libc; called at start-up.
    unsafe { espalier_keep_memory() }
}

/// The type in which matrices of this kind are best multiplied here: without AVX-512 torch multiplies bfloat16 number by
/// number, many times slower than floats.
pub fn product_kind(kind: Kind) -> Kind {
    // SAFETY: looks at the processor's features.
    if kind == Kind::BFloat16 && unsafe { espalier_slow_products() } != 0 { Kind::Float } else { kind }
}

/// The type of sums: 64 bits stay, anything smaller becomes 32.
fn wide(kind: Kind) -> Kind {
    if kind == Kind::Double { Kind::Double } else { Kind::Float }
}

/// What stands in front of a linear layer.
#[derive(Clone, Copy, Debug)]
pub enum Before<'a> {
    /// Nothing.
    Nothing,
    /// An RMS norm: its weight and epsilon.
    Norm(&'a Tensor, f64),
    /// `silu(gate) * up`, where a row holds both one after the other.
    Swiglu,
}

/// A low-rank adapter of a linear layer, whose outputs may be several parts side by side.
#[derive(Clone, Copy, Debug)]
pub struct LowRank<'a> {
    /// (sum of the parts' ranks, inputs).
    pub a: &'a Tensor,
    /// For each adapted part (three at most) its first output and its (outputs, rank).
    pub b: &'a [(i64, &'a Tensor)],
    /// Rank of each part.
    pub rank: i64,
    /// What the product is multiplied with.
    pub scaling: f64,
    /// Share of the inputs that is dropped, drawn from torch's generator.
    pub dropout: f64,
}

/// `x` of shape (rows, inputs), or (rows, 2 inputs) in front of a SwiGLU, to (rows, outputs):
/// `W before(x) + bias + scaling * B (A before(x))`.
pub fn linear(
    x: &Tensor,
    before: Before<'_>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    adapter: Option<LowRank<'_>>,
) -> Result<Tensor, ShimError> {
    let mut raw = RawLinear {
        x: x.as_ptr(),
        norm: ptr::null(),
        weight: weight.as_ptr(),
        bias: optional(bias),
        a: ptr::null(),
        b: [ptr::null(); 3],
        first: [0; 3],
        rank: 0,
        before: 0,
        eps: 0.0,
        scaling: 0.0,
        dropout: 0.0,
    };
    match before {
        Before::Nothing => {}
        Before::Norm(weight, eps) => (raw.before, raw.norm, raw.eps) = (1, weight.as_ptr(), eps),
        Before::Swiglu => raw.before = 2,
    }
    if let Some(adapter) = adapter {
        if adapter.b.len() > raw.b.len() {
            return Err(ShimError(format!("an adapter of {} parts, expected at most 3", adapter.b.len())));
        }
        (raw.a, raw.rank) = (adapter.a.as_ptr(), adapter.rank);
        (raw.scaling, raw.dropout) = (adapter.scaling, adapter.dropout);
        for (i, (first, b)) in adapter.b.iter().enumerate() {
            (raw.first[i], raw.b[i]) = (*first, b.as_ptr());
        }
    }
    let mut out = Tensor::new();
    // SAFETY: all tensors outlive the call; the shim checks types and sizes, and writes `out` only when it succeeds.
    check(unsafe { espalier_train_linear(&raw const raw, out.as_mut_ptr()) })?;
    Ok(out)
}

/// How projections divide into heads, and rows into sequences.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// Query heads.
    pub heads: i64,
    /// Heads of keys and of values.
    pub kv_heads: i64,
    /// Size of a head.
    pub dim: i64,
    /// Cosines of the rotation, (rows, dim / 2).
    pub cos: &'a Tensor,
    /// Sines of the rotation.
    pub sin: &'a Tensor,
}

/// Causal attention of sequences that lie one behind the other: `qkv` of (rows, (heads + 2 kv_heads) * dim), not yet
/// rotated, to (rows, heads * dim). `runs`: first row, number of sequences and their length, for each run of equally long
/// ones.
pub fn attention(
    qkv: &Tensor,
    heads: Heads<'_>,
    runs: impl Iterator<Item = (i64, i64, i64)>,
) -> Result<Tensor, ShimError> {
    let runs: Vec<RawRun> = runs.map(|(start, count, length)| RawRun { start, count, length }).collect();
    let mut out = Tensor::new();
    // SAFETY: tensors and runs outlive the call; the shim checks types, sizes and runs, and writes `out` only when it
    // succeeds.
    check(unsafe {
        espalier_train_attention(
            qkv.as_ptr(),
            heads.cos.as_ptr(),
            heads.sin.as_ptr(),
            heads.heads,
            heads.kv_heads,
            heads.dim,
            runs.as_ptr(),
            runs.len() as i64,
            out.as_mut_ptr(),
        )
    })?;
    Ok(out)
}

/// What a softmax over rows of logits says of each row's target; wide, one number a row.
#[derive(Debug)]
pub struct Targets {
    /// Log-probability of the target.
    pub logprob: Tensor,
    /// Log of the sum of exponentials of the scaled logits.
    pub lse: Tensor,
    /// Mean of the scaled logits under the softmax, where it was asked for.
    pub mean: Option<Tensor>,
}

/// What becomes of the logits.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// They stay.
    Keep,
    /// Each row becomes the gradient of its target's log-probability.
    Gradient,
    /// The same, each row multiplied with its number (wide).
    GradientBy(&'a Tensor),
}

/// Softmax of `logits * scale`, (rows, vocab), at `targets` (int64).
pub fn softmax(
    logits: &mut Tensor,
    targets: &Tensor,
    scale: f64,
    mean: bool,
    then: Logits<'_>,
) -> Result<Targets, ShimError> {
    let rows = || Tensor::f_empty([targets.numel() as i64], (wide(logits.kind()), logits.device()));
    let out = Targets { logprob: rows()?, lse: rows()?, mean: if mean { Some(rows()?) } else { None } };
    let (gradient, by) = match then {
        Logits::Keep => (false, None),
        Logits::Gradient => (true, None),
        Logits::GradientBy(by) => (true, Some(by)),
    };
    // SAFETY: all tensors outlive the call and are ours to write; the shim checks types, sizes and targets.
    check(unsafe {
        espalier_train_softmax(
            logits.as_ptr(),
            targets.as_ptr(),
            scale,
            out.logprob.as_ptr(),
            out.lse.as_ptr(),
            optional(out.mean.as_ref()),
            c_int::from(gradient),
            optional(by),
        )
    })?;
    Ok(out)
}

/// The numbers of one step of AdamW.
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    /// Decay of the two moments.
    pub betas: [f64; 2],
    /// What gradients are multiplied with.
    pub clip: f64,
    /// What parameters are multiplied with before the step.
    pub decay: f64,
    /// `lr / (1 - b1^t)`.
    pub rate: f64,
    /// `sqrt(1 - b2^t)`.
    pub correction: f64,
    /// Added to the denominator.
    pub eps: f64,
}

/// One step over equally long stretches of 32- or 64-bit floats, in place; `narrow` gets the parameters as bfloat16.
pub fn adamw(
    parameters: &mut Tensor,
    moments: (&mut Tensor, &mut Tensor),
    gradient: &Tensor,
    narrow: Option<&mut Tensor>,
    step: AdamWStep,
) -> Result<(), ShimError> {
    let raw = RawAdamW {
        beta1: step.betas[0],
        beta2: step.betas[1],
        clip: step.clip,
        decay: step.decay,
        rate: step.rate,
        correction: step.correction,
        eps: step.eps,
    };
    // SAFETY: all tensors outlive the call, those that are written are borrowed mutably; the shim checks types and sizes.
    check(unsafe {
        espalier_train_adamw(
            parameters.as_ptr(),
            moments.0.as_ptr(),
            moments.1.as_ptr(),
            gradient.as_ptr(),
            optional(narrow.as_deref()),
            &raw const raw,
        )
    })
}
