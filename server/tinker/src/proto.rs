//! The protobuf messages of the wire (package `tinker_public`), written by hand so that no build needs `protoc`.
//!
//! Maps are ordered: a message that is written again has one form, whatever order its entries came in. Fields named
//! `bytes` of numbers are packed little-endian, 32-bit tokens and floats, 64-bit offsets.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};

/// Body of `forward_backward`.
#[derive(Clone, PartialEq, Message)]
pub struct ForwardBackwardRequest {
    /// Which model.
    #[prost(string, tag = "1")]
    pub model_id: String,
    /// Its place in the model's order; 0 where absent.
    #[prost(int32, tag = "2")]
    pub seq_id: i32,
    /// The batch.
    #[prost(message, repeated, tag = "3")]
    pub data: Vec<Datum>,
    /// Name of the loss.
    #[prost(string, tag = "4")]
    pub loss_fn: String,
    /// Numbers of the loss, as older clients write them.
    #[prost(btree_map = "string, double", tag = "5")]
    pub loss_fn_config: BTreeMap<String, f64>,
    /// No gradients are wanted.
    #[prost(bool, tag = "6")]
    pub forward_only: bool,
    /// Numbers and texts of the loss; counts where it is not empty.
    #[prost(btree_map = "string, message", tag = "7")]
    pub loss_fn_config_v2: BTreeMap<String, LossConfigValue>,
}

/// The first two fields of a [`ForwardBackwardRequest`]: what can be read of one that is wrong further on.
#[derive(Clone, PartialEq, Message)]
pub struct ForwardBackwardHead {
    /// Which model.
    #[prost(string, tag = "1")]
    pub model_id: String,
    /// Its place in the model's order.
    #[prost(int32, tag = "2")]
    pub seq_id: i32,
}

/// A value of a loss's configuration.
#[derive(Clone, PartialEq, Message)]
pub struct LossConfigValue {
    /// The value.
    #[prost(oneof = "ConfigValue", tags = "1, 2")]
    pub value: Option<ConfigValue>,
}

/// A number or a text.
#[derive(Clone, PartialEq, Oneof)]
pub enum ConfigValue {
    /// A number.
    #[prost(double, tag = "1")]
    Number(f64),
    /// A text.
    #[prost(string, tag = "2")]
    Text(String),
}

/// One example.
#[derive(Clone, PartialEq, Message)]
pub struct Datum {
    /// What the model reads.
    #[prost(message, repeated, tag = "1")]
    pub model_input: Vec<Chunk>,
    /// What the loss reads, by name.
    #[prost(btree_map = "string, message", tag = "2")]
    pub loss_fn_inputs: BTreeMap<String, Tensor>,
    /// Where the input's tokens come from.
    #[prost(message, repeated, tag = "3")]
    pub model_input_spans: Vec<ProvenanceSpan>,
    /// Where the targets come from.
    #[prost(message, repeated, tag = "4")]
    pub loss_fn_input_spans: Vec<ProvenanceSpan>,
}

/// A piece of a prompt.
#[derive(Clone, PartialEq, Message)]
pub struct Chunk {
    /// What kind of piece.
    #[prost(oneof = "ChunkKind", tags = "1, 2, 3")]
    pub kind: Option<ChunkKind>,
}

/// Tokens, an image, or audio.
#[derive(Clone, PartialEq, Oneof)]
pub enum ChunkKind {
    /// Tokens.
    #[prost(message, tag = "1")]
    EncodedText(EncodedTextChunk),
    /// An image.
    #[prost(message, tag = "2")]
    Image(ImageChunk),
    /// Audio.
    #[prost(message, tag = "3")]
    Dmel(DmelChunk),
}

/// Tokens.
#[derive(Clone, PartialEq, Message)]
pub struct EncodedTextChunk {
    /// 32-bit tokens.
    #[prost(bytes = "vec", tag = "1")]
    pub tokens: Vec<u8>,
}

/// An image.
#[derive(Clone, PartialEq, Message)]
pub struct ImageChunk {
    /// The file.
    #[prost(bytes = "vec", tag = "1")]
    pub data: Vec<u8>,
    /// `png` or `jpeg`.
    #[prost(string, tag = "2")]
    pub format: String,
    /// How many tokens the client expects it to be.
    #[prost(int32, optional, tag = "3")]
    pub expected_tokens: Option<i32>,
    /// The size that it should have.
    #[prost(message, optional, tag = "4")]
    pub override_dimensions: Option<ImageDimensions>,
}

/// Pixels.
#[derive(Clone, PartialEq, Message)]
pub struct ImageDimensions {
    /// Across.
    #[prost(uint32, tag = "1")]
    pub width: u32,
    /// Down.
    #[prost(uint32, tag = "2")]
    pub height: u32,
}

/// Audio.
#[derive(Clone, PartialEq, Message)]
pub struct DmelChunk {
    /// Its encoding.
    #[prost(bytes = "vec", tag = "1")]
    pub dmel: Vec<u8>,
}

/// Numbers with a shape.
#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    /// All numbers, or those that are not 0.
    #[prost(oneof = "TensorData", tags = "1, 2")]
    pub data: Option<TensorData>,
    /// What they are.
    #[prost(enumeration = "DType", tag = "3")]
    pub dtype: i32,
    /// How many in each dimension.
    #[prost(int64, repeated, tag = "4")]
    pub shape: Vec<i64>,
}

/// Dense or sparse.
#[derive(Clone, PartialEq, Oneof)]
pub enum TensorData {
    /// All numbers, last dimension fastest.
    #[prost(bytes, tag = "1")]
    Dense(Vec<u8>),
    /// Compressed sparse rows.
    #[prost(message, tag = "2")]
    SparseCsr(SparseCsr),
}

/// Compressed sparse rows.
#[derive(Clone, PartialEq, Message)]
pub struct SparseCsr {
    /// Numbers, in the tensor's type.
    #[prost(bytes = "vec", tag = "1")]
    pub values: Vec<u8>,
    /// Where each row begins, 64-bit; one more than there are rows.
    #[prost(bytes = "vec", tag = "2")]
    pub crow_indices: Vec<u8>,
    /// The column of each number, 64-bit.
    #[prost(bytes = "vec", tag = "3")]
    pub col_indices: Vec<u8>,
}

/// What the numbers of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum DType {
    /// Not said.
    Unspecified = 0,
    /// 32-bit floats.
    Float32 = 1,
    /// 64-bit integers.
    Int64 = 2,
    /// 32-bit integers.
    Int32 = 3,
    /// The upper halves of 32-bit floats.
    Bfloat16 = 4,
}

/// Where tokens come from.
#[derive(Clone, PartialEq, Message)]
pub struct ProvenanceSpan {
    /// Which tokens of a sampled sequence.
    #[prost(oneof = "Provenance", tags = "1, 2")]
    pub source: Option<Provenance>,
}

/// A sampled sequence's prompt, or what was sampled.
#[derive(Clone, PartialEq, Oneof)]
pub enum Provenance {
    /// Of the prompt.
    #[prost(message, tag = "1")]
    PromptTokens(SequenceSpan),
    /// Of what was sampled.
    #[prost(message, tag = "2")]
    SampledTokens(SequenceSpan),
}

/// A run of tokens.
#[derive(Clone, PartialEq, Message)]
pub struct SequenceSpan {
    /// Which sequence.
    #[prost(string, tag = "1")]
    pub sequence_id: String,
    /// Its first token.
    #[prost(int64, tag = "2")]
    pub offset: i64,
    /// How many.
    #[prost(int64, tag = "3")]
    pub length: i64,
}

/// Result of `forward_backward`.
#[derive(Clone, PartialEq, Message)]
pub struct ForwardBackwardOutput {
    /// What kind of outputs these are, for people.
    #[prost(string, tag = "1")]
    pub loss_fn_output_type: String,
    /// Outputs of all examples, in order.
    #[prost(message, repeated, tag = "2")]
    pub loss_fn_outputs: Vec<ArrayRecord>,
    /// By `name:reduction`.
    #[prost(btree_map = "string, double", tag = "3")]
    pub metrics: BTreeMap<String, f64>,
}

/// Outputs of consecutive examples.
#[derive(Clone, PartialEq, Message)]
pub struct ArrayRecord {
    /// `ArrayRecord`.
    #[prost(string, tag = "1")]
    pub type_tag: String,
    /// By name.
    #[prost(btree_map = "string, message", tag = "2")]
    pub fields: BTreeMap<String, BatchedTensor>,
    /// How many examples.
    #[prost(int64, tag = "3")]
    pub num_datums: i64,
}

/// One tensor for each example, end to end.
#[derive(Clone, PartialEq, Message)]
pub struct BatchedTensor {
    /// All numbers.
    #[prost(bytes = "vec", tag = "1")]
    pub data: Vec<u8>,
    /// Where each example's bytes begin, 64-bit; one more than there are examples.
    #[prost(bytes = "vec", tag = "2")]
    pub offsets: Vec<u8>,
    /// What the numbers are.
    #[prost(enumeration = "DType", tag = "3")]
    pub dtype: i32,
    /// Dimensions after the first.
    #[prost(int64, repeated, tag = "4")]
    pub trailing_shape: Vec<i64>,
}

/// Result of `asample`.
#[derive(Clone, PartialEq, Message)]
pub struct SampleResponse {
    /// One for each sample.
    #[prost(message, repeated, tag = "1")]
    pub sequences: Vec<SampledSequence>,
    /// 32-bit floats, NaN where there is none.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub prompt_logprobs: Option<Vec<u8>>,
    /// Most probable tokens of the prompt's positions.
    #[prost(message, optional, tag = "3")]
    pub topk_prompt_logprobs: Option<TopkLogprobs>,
    /// Tokens of the prompt that came from a cache.
    #[prost(int32, tag = "4")]
    pub prompt_cache_hit_tokens: i32,
    /// Of tokens that the client named.
    #[prost(message, optional, tag = "5")]
    pub target_prompt_logprobs: Option<Tensor>,
    /// Alternatives in the prompt.
    #[prost(message, optional, tag = "6")]
    pub prompt_alt_tokens: Option<PromptAltTokens>,
}

/// Alternatives in the prompt.
#[derive(Clone, PartialEq, Message)]
pub struct PromptAltTokens {
    /// Which.
    #[prost(message, optional, tag = "1")]
    pub tokens: Option<Tensor>,
    /// How probable.
    #[prost(message, optional, tag = "2")]
    pub logprobs: Option<Tensor>,
}

/// Why sampling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum StopReason {
    /// A stop token or text, or the end of the turn.
    Stop = 0,
    /// The most tokens, or the end of the context.
    Length = 1,
}

/// One sample.
#[derive(Clone, PartialEq, Message)]
pub struct SampledSequence {
    /// Why it ended.
    #[prost(enumeration = "StopReason", tag = "1")]
    pub stop_reason: i32,
    /// 32-bit tokens, the one that ended it included.
    #[prost(bytes = "vec", tag = "2")]
    pub tokens: Vec<u8>,
    /// 32-bit floats, as many.
    #[prost(bytes = "vec", optional, tag = "3")]
    pub logprobs: Option<Vec<u8>>,
    /// Most probable tokens of each position.
    #[prost(message, optional, tag = "4")]
    pub topk_sampled_logprobs: Option<TopkLogprobs>,
}

/// Most probable tokens of each position.
#[derive(Clone, PartialEq, Message)]
pub struct TopkLogprobs {
    /// 32-bit tokens, `length` rows of `k`; 0 where there is none.
    #[prost(bytes = "vec", tag = "1")]
    pub token_ids: Vec<u8>,
    /// 32-bit floats; -99999 where there is none.
    #[prost(bytes = "vec", tag = "2")]
    pub logprobs: Vec<u8>,
    /// Columns.
    #[prost(uint32, tag = "3")]
    pub k: u32,
    /// Rows.
    #[prost(uint32, tag = "4")]
    pub length: u32,
}
