//! What is asked of an engine, and what it answers; the form in which both are stored.

use std::collections::BTreeMap;

use prost::Message as _;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::datum::{self, Datum};
use crate::error::ApiError;
use crate::ids::{IdError, ModelId, SamplerId};
use crate::path::TinkerPath;
use crate::proto::{self, ConfigValue, StopReason};
use crate::tensor::{float_bytes, floats, long_bytes, token_bytes};
use crate::wire::sampling;
use crate::wire::training::{
    CreateModel, LoadWeights, OptimStep, SaveWeights, SaveWeightsExternal, SaveWeightsForSampler, check_seq,
};
use crate::wire::{Checked as _, canonical, read};

/// What is asked of an engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Make a model. Always the first of its model.
    CreateModel(CreateModel),
    /// Losses of a batch, and gradients that add up.
    ForwardBackward(ForwardBackward),
    /// Apply the gradients, and forget them.
    OptimStep(OptimStep),
    /// Write a checkpoint to train on.
    SaveWeights(SaveWeights),
    /// Write a checkpoint to sample from.
    SaveWeightsForSampler(SaveWeightsForSampler),
    /// Write a checkpoint for other programs.
    SaveWeightsExternal(SaveWeightsExternal),
    /// Read a checkpoint, into a model that is there or a new one.
    LoadWeights(LoadWeights),
    /// Continue a prompt.
    Sample(Sample),
}

/// Losses of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardBackward {
    /// Which model.
    pub model_id: ModelId,
    /// Its place in the model's order.
    pub seq_id: i64,
    /// The batch.
    pub data: Vec<Datum>,
    /// Name of the loss.
    pub loss_fn: String,
    /// Its numbers and texts.
    pub config: BTreeMap<String, ConfigValue>,
    /// No gradients are wanted.
    pub forward_only: bool,
}

/// A prompt to continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// What the client sent.
    pub request: sampling::Sample,
    /// Which base model.
    pub base_model: String,
    /// Which weights; the base model's own where absent.
    pub weights: Option<TinkerPath>,
}

/// What an operation is called where it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// [`Operation::CreateModel`].
    CreateModel,
    /// [`Operation::ForwardBackward`].
    ForwardBackward,
    /// [`Operation::OptimStep`].
    OptimStep,
    /// [`Operation::SaveWeights`].
    SaveWeights,
    /// [`Operation::SaveWeightsForSampler`].
    SaveWeightsForSampler,
    /// [`Operation::SaveWeightsExternal`].
    SaveWeightsExternal,
    /// [`Operation::LoadWeights`].
    LoadWeights,
    /// [`Operation::Sample`].
    Sample,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::CreateModel,
        Self::ForwardBackward,
        Self::OptimStep,
        Self::SaveWeights,
        Self::SaveWeightsForSampler,
        Self::SaveWeightsExternal,
        Self::LoadWeights,
        Self::Sample,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::CreateModel => "create_model",
            Self::ForwardBackward => "forward_backward",
            Self::OptimStep => "optim_step",
            Self::SaveWeights => "save_weights",
            Self::SaveWeightsForSampler => "save_weights_for_sampler",
            Self::SaveWeightsExternal => "save_weights_external",
            Self::LoadWeights => "load_weights",
            Self::Sample => "sample",
        }
    }

    /// The kind of that name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether operations of this kind may change their model.
    pub fn changes_model(self) -> bool {
        matches!(self, Self::CreateModel | Self::ForwardBackward | Self::OptimStep | Self::LoadWeights)
    }

    /// Whether it has a place in its model's order. What has none changes nothing, and may be done again.
    pub fn is_ordered(self) -> bool {
        self != Self::Sample
    }
}

impl Operation {
    /// What it is called.
    pub fn kind(&self) -> Kind {
        match self {
            Self::CreateModel(_) => Kind::CreateModel,
            Self::ForwardBackward(_) => Kind::ForwardBackward,
            Self::OptimStep(_) => Kind::OptimStep,
            Self::SaveWeights(_) => Kind::SaveWeights,
            Self::SaveWeightsForSampler(_) => Kind::SaveWeightsForSampler,
            Self::SaveWeightsExternal(_) => Kind::SaveWeightsExternal,
            Self::LoadWeights(_) => Kind::LoadWeights,
            Self::Sample(_) => Kind::Sample,
        }
    }

    /// Whether it changes its model: what does not need not be done again where a model has to be brought back.
    pub fn changes_model(&self) -> bool {
        match self {
            Self::ForwardBackward(request) => !request.forward_only,
            other => other.kind().changes_model(),
        }
    }

    /// Which model's order it has a place in; `None` for samples.
    pub fn model(&self) -> Option<ModelId> {
        match self {
            Self::CreateModel(request) => Some(request.model_id()),
            Self::ForwardBackward(request) => Some(request.model_id.clone()),
            Self::OptimStep(request) => Some(request.model_id.clone()),
            Self::SaveWeights(request) => Some(request.model_id.clone()),
            Self::SaveWeightsForSampler(request) => Some(request.model_id.clone()),
            Self::SaveWeightsExternal(request) => Some(request.model_id.clone()),
            Self::LoadWeights(request) => request.creates().or_else(|| request.model_id.clone()),
            Self::Sample(_) => None,
        }
    }

    /// Its place: in its model's order, or among its sampler's requests.
    pub fn seq(&self) -> i64 {
        match self {
            Self::CreateModel(_) => 0,
            Self::ForwardBackward(request) => request.seq_id,
            Self::OptimStep(request) => request.seq_id,
            Self::SaveWeights(request) => request.seq_id,
            Self::SaveWeightsForSampler(request) => request.seq_id,
            Self::SaveWeightsExternal(request) => request.seq_id,
            Self::LoadWeights(request) => request.seq_id.unwrap_or(0),
            Self::Sample(request) => request.request.seq_id,
        }
    }

    /// Where the checkpoint is that it writes, and whether it replaces one that is there; `None` where it writes none.
    pub fn saves(&self) -> Result<Option<(TinkerPath, bool)>, IdError> {
        Ok(Some(match self {
            Self::SaveWeights(request) => (request.checkpoint()?, request.overwrite),
            Self::SaveWeightsForSampler(request) => (request.checkpoint()?, false),
            Self::SaveWeightsExternal(request) => (request.checkpoint()?, false),
            _ => return Ok(None),
        }))
    }

    /// Reads what [`Payload`] wrote, or the body of a request of that kind.
    pub fn read(kind: Kind, bytes: &[u8]) -> Result<Self, ApiError> {
        Ok(match kind {
            Kind::CreateModel => Self::CreateModel(read(bytes)?),
            Kind::ForwardBackward => Self::ForwardBackward(ForwardBackward::read(bytes)?),
            Kind::OptimStep => Self::OptimStep(read(bytes)?),
            Kind::SaveWeights => Self::SaveWeights(read(bytes)?),
            Kind::SaveWeightsForSampler => Self::SaveWeightsForSampler(read(bytes)?),
            Kind::SaveWeightsExternal => Self::SaveWeightsExternal(read(bytes)?),
            Kind::LoadWeights => Self::LoadWeights(read(bytes)?),
            Kind::Sample => {
                let sample: Sample = serde_json::from_slice(bytes)
                    .map_err(|error| ApiError::internal(format!("a stored request cannot be read: {error}")))?;
                sample.request.check().map_err(ApiError::bad_request)?;
                Self::Sample(sample)
            }
        })
    }
}

/// A request as it is stored: one form, whatever order the client wrote its parts in.
#[derive(Clone, Debug, PartialEq)]
pub struct Payload {
    /// What it asks for.
    pub operation: Operation,
    /// The form.
    pub bytes: Vec<u8>,
}

impl Payload {
    /// Reads the body of a request.
    pub fn read(kind: Kind, body: &[u8]) -> Result<Self, ApiError> {
        let operation = Operation::read(kind, body)?;
        let bytes = match &operation {
            Operation::CreateModel(request) => canonical(request)?,
            Operation::OptimStep(request) => canonical(request)?,
            Operation::SaveWeights(request) => canonical(request)?,
            Operation::SaveWeightsForSampler(request) => canonical(request)?,
            Operation::SaveWeightsExternal(request) => canonical(request)?,
            Operation::LoadWeights(request) => canonical(request)?,
            Operation::Sample(request) => canonical(request)?,
            // The same message may come with its maps in another order.
            Operation::ForwardBackward(_) => message(body)?.encode_to_vec(),
        };
        Ok(Self { operation, bytes })
    }

    /// A prompt for a sampler.
    pub fn of_sample(sample: Sample) -> Result<Self, ApiError> {
        Ok(Self { bytes: canonical(&sample)?, operation: Operation::Sample(sample) })
    }
}

fn message(bytes: &[u8]) -> Result<proto::ForwardBackwardRequest, ApiError> {
    proto::ForwardBackwardRequest::decode(bytes)
        .map_err(|error| ApiError::bad_request(format!("the body is no `ForwardBackwardRequest`: {error}")))
}

impl ForwardBackward {
    /// Reads a request of the wire. Never panics, whatever came.
    pub fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        Self::of(message(bytes)?).map_err(ApiError::bad_request)
    }

    fn of(given: proto::ForwardBackwardRequest) -> Result<Self, String> {
        let model_id = given.model_id.parse().map_err(|error| format!("`model_id`: {error}"))?;
        check_seq(i64::from(given.seq_id))?;
        if given.loss_fn.is_empty() {
            return Err("`loss_fn`: expected the name of a loss, got an empty one".to_owned());
        }
        let mut config = BTreeMap::new();
        // The SDK writes numbers twice, texts only into the second map.
        if given.loss_fn_config_v2.is_empty() {
            config.extend(given.loss_fn_config.into_iter().map(|(name, number)| (name, ConfigValue::Number(number))));
        } else {
            for (name, value) in given.loss_fn_config_v2 {
                let value =
                    value.value.ok_or_else(|| format!("`loss_fn_config.{name}`: expected a value, got none"))?;
                config.insert(name, value);
            }
        }
        let number = |value: &ConfigValue| matches!(value, ConfigValue::Number(number) if !number.is_finite());
        if let Some((name, _)) = config.iter().find(|(_, value)| number(value)) {
            return Err(format!("`loss_fn_config.{name}`: expected a finite number"));
        }
        let data = datum::read(&given.data)?;
        let (seq_id, loss_fn, forward_only) = (i64::from(given.seq_id), given.loss_fn, given.forward_only);
        Ok(Self { model_id, seq_id, data, loss_fn, config, forward_only })
    }
}

/// What an engine answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// To [`Operation::CreateModel`].
    ModelCreated,
    /// To [`Operation::ForwardBackward`].
    ForwardBackward(Losses),
    /// To [`Operation::OptimStep`]: numbers by `name:reduction`.
    OptimStep(BTreeMap<String, f64>),
    /// To operations that write a checkpoint.
    Saved {
        /// Where it is.
        path: TinkerPath,
        /// Bytes, where they are known.
        size: Option<u64>,
    },
    /// To [`Operation::LoadWeights`].
    Loaded,
    /// To [`Operation::Sample`].
    Sampled(Sampled),
}

/// Losses of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// For each example, the log-probabilities of its targets.
    pub logprobs: Vec<TargetLogprobs>,
    /// Numbers by `name:reduction`, one of which is `loss:sum`: the client takes that one apart.
    pub metrics: BTreeMap<String, f64>,
}

/// Log-probabilities of one example's targets.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetLogprobs {
    /// Token by token.
    pub values: Vec<f32>,
    /// How many targets each token has; 0 where targets have one dimension.
    pub targets: u32,
}

/// Samples of a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// In order.
    pub sequences: Vec<Sequence>,
    /// Log-probabilities of the prompt's tokens, `None` for the first; where they were asked for.
    pub prompt_logprobs: Option<Vec<Option<f32>>>,
    /// Tokens of the prompt that came from a cache.
    pub cached_tokens: u32,
}

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Tokens, the one that ended it included.
    pub tokens: Vec<u32>,
    /// As many log-probabilities, of the distribution that the temperature makes.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub stop: StopReason,
}

fn metadata(given: Option<&serde_json::Map<String, serde_json::Value>>) -> Option<String> {
    given.map(|metadata| serde_json::Value::Object(metadata.clone()).to_string())
}

/// What kind of bytes a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// JSON.
    Json,
    /// [`proto::SampleResponse`].
    Sample,
    /// [`proto::ForwardBackwardOutput`].
    ForwardBackward,
}

impl ReplyKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Sample => "sample",
            Self::ForwardBackward => "forward_backward",
        }
    }

    pub(crate) fn of(name: &str) -> Option<Self> {
        [Self::Json, Self::Sample, Self::ForwardBackward].into_iter().find(|kind| kind.name() == name)
    }
}

/// A result as it is stored and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What kind of bytes.
    pub kind: ReplyKind,
    /// The result.
    pub bytes: Vec<u8>,
    /// A sampling session that came with it, and the weights that it samples from.
    pub sampler: Option<(SamplerId, TinkerPath)>,
    /// A checkpoint that was written.
    pub saved: Option<Saved>,
}

/// A checkpoint that was written, for the one who writes it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Where it is.
    pub path: TinkerPath,
    /// Bytes, where they are known.
    pub size: Option<u64>,
    /// How long it is kept; for good where absent.
    pub ttl_seconds: Option<u64>,
    /// For people: a JSON object.
    pub user_metadata: Option<String>,
    /// Nobody named it: it goes with its session.
    pub ephemeral: bool,
}

impl Reply {
    fn json(value: &serde_json::Value) -> Self {
        Self { kind: ReplyKind::Json, bytes: value.to_string().into_bytes(), sampler: None, saved: None }
    }

    /// The result of an operation; `None` where the outcome is not of its kind.
    pub fn of(operation: &Operation, outcome: Outcome) -> Option<Self> {
        let kind = operation.kind();
        Some(match (operation, outcome) {
            (Operation::CreateModel(request), Outcome::ModelCreated) => {
                Self::json(&json!({"type": kind.name(), "model_id": request.model_id()}))
            }
            (Operation::ForwardBackward(_), Outcome::ForwardBackward(losses)) => {
                let bytes = losses.message().encode_to_vec();
                Self { kind: ReplyKind::ForwardBackward, bytes, sampler: None, saved: None }
            }
            (Operation::OptimStep(_), Outcome::OptimStep(metrics)) => Self::json(&json!({"metrics": metrics})),
            (Operation::SaveWeights(request), Outcome::Saved { path, size }) => {
                let body = json!({"type": kind.name(), "path": path});
                let (ttl_seconds, user_metadata) = (request.ttl_seconds, metadata(request.user_metadata.as_ref()));
                let saved = Saved { path, size, ttl_seconds, user_metadata, ephemeral: false };
                Self { saved: Some(saved), ..Self::json(&body) }
            }
            (Operation::SaveWeightsExternal(request), Outcome::Saved { path, size }) => {
                let body = json!({"path": path, "size_bytes": size});
                let ttl_seconds = request.ttl_seconds;
                let saved = Saved { path, size, ttl_seconds, user_metadata: None, ephemeral: false };
                Self { saved: Some(saved), ..Self::json(&body) }
            }
            (Operation::SaveWeightsForSampler(request), Outcome::Saved { path, size }) => {
                let number = request.sampling_session_seq_id;
                let sampler = number.map(|number| SamplerId { session: request.model_id.session.clone(), number });
                let body = match &sampler {
                    None => json!({"type": kind.name(), "path": path}),
                    Some(sampler) => json!({"type": kind.name(), "path": null, "sampling_session_id": sampler}),
                };
                let (ttl_seconds, user_metadata) = (request.ttl_seconds, metadata(request.user_metadata.as_ref()));
                let saved =
                    Saved { path: path.clone(), size, ttl_seconds, user_metadata, ephemeral: sampler.is_some() };
                Self { sampler: sampler.zip(Some(path)), saved: Some(saved), ..Self::json(&body) }
            }
            (Operation::LoadWeights(request), Outcome::Loaded) => {
                let model = request.creates().or_else(|| request.model_id.clone());
                Self::json(&json!({"type": kind.name(), "path": request.path, "model_id": model}))
            }
            (Operation::Sample(_), Outcome::Sampled(sampled)) => {
                let bytes = sampled.message().encode_to_vec();
                Self { kind: ReplyKind::Sample, bytes, sampler: None, saved: None }
            }
            _ => return None,
        })
    }
}

impl Losses {
    /// The message of the wire: one record for each run of examples that have as many targets a token.
    pub fn message(&self) -> proto::ForwardBackwardOutput {
        let runs = self.logprobs.chunk_by(|one, other| one.targets == other.targets);
        let record = |run: &[TargetLogprobs]| {
            let mut data = Vec::new();
            let mut offsets = vec![0];
            for datum in run {
                data.extend(float_bytes(&datum.values));
                offsets.push(data.len() as i64);
            }
            let trailing_shape = run.iter().take(1).filter(|datum| datum.targets > 0).map(|d| i64::from(d.targets));
            let tensor = proto::BatchedTensor {
                data,
                offsets: long_bytes(offsets),
                dtype: proto::DType::Float32 as i32,
                trailing_shape: trailing_shape.collect(),
            };
            proto::ArrayRecord {
                type_tag: "ArrayRecord".to_owned(),
                fields: BTreeMap::from([("logprobs".to_owned(), tensor)]),
                num_datums: run.len() as i64,
            }
        };
        proto::ForwardBackwardOutput {
            loss_fn_output_type: "ArrayRecord".to_owned(),
            loss_fn_outputs: runs.map(record).collect(),
            metrics: self.metrics.clone(),
        }
    }
}

impl Sampled {
    /// The message of the wire.
    pub fn message(&self) -> proto::SampleResponse {
        let sequences = self.sequences.iter().map(|sequence| proto::SampledSequence {
            stop_reason: sequence.stop as i32,
            tokens: token_bytes(&sequence.tokens),
            logprobs: Some(float_bytes(&sequence.logprobs)),
            topk_sampled_logprobs: None,
        });
        let prompt = self.prompt_logprobs.as_ref().map(|logprobs| {
            let numbers: Vec<f32> = logprobs.iter().map(|logprob| logprob.unwrap_or(f32::NAN)).collect();
            float_bytes(&numbers)
        });
        proto::SampleResponse {
            sequences: sequences.collect(),
            prompt_logprobs: prompt,
            prompt_cache_hit_tokens: self.cached_tokens as i32,
            ..proto::SampleResponse::default()
        }
    }
}

/// A [`proto::SampleResponse`] as JSON, for clients that do not take protobuf.
pub(crate) fn sample_json(bytes: &[u8]) -> Option<serde_json::Value> {
    let message = proto::SampleResponse::decode(bytes).ok()?;
    let sequence = |sequence: &proto::SampledSequence| {
        let reason = if sequence.stop_reason == StopReason::Length as i32 { "length" } else { "stop" };
        let logprobs = sequence.logprobs.as_deref().and_then(floats);
        Some(json!({
            "stop_reason": reason,
            "tokens": crate::tensor::tokens(&sequence.tokens).ok()?,
            "logprobs": logprobs,
        }))
    };
    let sequences = message.sequences.iter().map(sequence).collect::<Option<Vec<_>>>()?;
    // JSON has no NaN: where there is no number there is null.
    let prompt = message.prompt_logprobs.as_deref().and_then(floats);
    Some(json!({
        "type": "sample",
        "sequences": sequences,
        "prompt_logprobs": prompt,
        "prompt_cache_hit_tokens": message.prompt_cache_hit_tokens,
    }))
}
