//! Requests that create, train, save and load models. All but the first carry the model's `seq_id`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::session::check_metadata;
use super::{Checked, within};
use crate::ids::{IdError, ModelId, SessionId};
use crate::path::{CheckpointKind, CheckpointName, TinkerPath};

/// What the names of checkpoints begin with that nobody named.
const EPHEMERAL: &str = "ephemeral-";
/// Largest rank of an adapter.
const MOST_RANK: u32 = 1024;
/// Shortest and longest life of a checkpoint, seconds: an hour and ten years.
const LIVES: std::ops::RangeInclusive<u64> = 3600..=315_360_000;

/// Body of `create_model`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateModel {
    /// Whose.
    pub session_id: SessionId,
    /// Which of its models.
    pub model_seq_id: u32,
    /// What it starts from.
    pub base_model: String,
    /// For people.
    #[serde(default)]
    pub user_metadata: Option<Map<String, Value>>,
    /// Its adapter.
    #[serde(default)]
    pub lora_config: LoraConfig,
    /// Its optimiser.
    #[serde(default)]
    pub optimizer_config: OptimizerConfig,
}

impl CreateModel {
    /// The model's name.
    pub fn model_id(&self) -> ModelId {
        ModelId { session: self.session_id.clone(), number: self.model_seq_id }
    }
}

/// An adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// Its rank, a power of two.
    #[serde(default = "rank")]
    pub rank: u32,
    /// What its first weights follow from; anything where absent.
    #[serde(default)]
    pub seed: Option<i64>,
    /// The output layer has one.
    #[serde(default = "yes")]
    pub train_unembed: bool,
    /// The feed-forward layers have one.
    #[serde(default = "yes")]
    pub train_mlp: bool,
    /// The attention has one.
    #[serde(default = "yes")]
    pub train_attn: bool,
}

fn rank() -> u32 {
    32
}

fn yes() -> bool {
    true
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self { rank: rank(), seed: None, train_unembed: true, train_mlp: true, train_attn: true }
    }
}

/// An optimiser.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OptimizerConfig {
    /// AdamW.
    #[default]
    Adamw,
    /// Dimuon.
    Dimuon {
        /// Which.
        #[serde(default)]
        version: u32,
    },
}

impl Checked for CreateModel {
    fn check(&self) -> Result<(), String> {
        let LoraConfig { rank, train_unembed, train_mlp, train_attn, .. } = self.lora_config;
        let sound = rank.is_power_of_two() && rank <= MOST_RANK;
        within("lora_config.rank", "a power of two from 1 to 1024", sound, rank)?;
        if !(train_unembed || train_mlp || train_attn) {
            return Err(
                "`lora_config`: expected at least one of `train_mlp`, `train_attn`, `train_unembed` to be true, got \
                        none"
                    .to_owned(),
            );
        }
        if self.base_model.is_empty() {
            return Err("`base_model`: expected a model's name, got an empty one".to_owned());
        }
        check_metadata(self.user_metadata.as_ref())
    }
}

/// Body of `optim_step`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimStep {
    /// Which model.
    pub model_id: ModelId,
    /// Its place in the model's order.
    pub seq_id: i64,
    /// Parameters of AdamW...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adam_params: Option<AdamParams>,
    /// ...or of another optimiser.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_params: Option<Value>,
}

/// Parameters of AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdamParams {
    /// Step size.
    pub learning_rate: f64,
    /// Decay of the first moments.
    pub beta1: f64,
    /// Decay of the second moments.
    pub beta2: f64,
    /// Added to the root of the second moments.
    pub eps: f64,
    /// Decoupled decay.
    pub weight_decay: f64,
    /// Largest norm of all gradients together; 0 is none.
    pub grad_clip_norm: f64,
}

impl Default for AdamParams {
    fn default() -> Self {
        Self { learning_rate: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-12, weight_decay: 0.0, grad_clip_norm: 0.0 }
    }
}

impl Checked for OptimStep {
    fn check(&self) -> Result<(), String> {
        check_seq(self.seq_id)?;
        let adam = match (self.adam_params, &self.optimizer_params) {
            (Some(adam), None) => adam,
            (None, Some(_)) => return Ok(()),
            _ => return Err("`adam_params`, `optimizer_params`: expected one of them".to_owned()),
        };
        for (name, number) in [
            ("learning_rate", adam.learning_rate),
            ("eps", adam.eps),
            ("weight_decay", adam.weight_decay),
            ("grad_clip_norm", adam.grad_clip_norm),
        ] {
            let sound = number >= 0.0 && number.is_finite();
            within(&format!("adam_params.{name}"), "a number from 0", sound, number)?;
        }
        for (name, number) in [("beta1", adam.beta1), ("beta2", adam.beta2)] {
            within(&format!("adam_params.{name}"), "a number from 0, below 1", (0.0..1.0).contains(&number), number)?;
        }
        Ok(())
    }
}

/// Places in a model's order are 32-bit and begin with 1: creating the model is 0.
pub(crate) fn check_seq(seq: i64) -> Result<(), String> {
    within("seq_id", "1 to 2147483647", (1..=i64::from(i32::MAX)).contains(&seq), seq)
}

fn check_name(path: &str) -> Result<(), String> {
    path.parse::<CheckpointName>().map(|_| ()).map_err(|error| format!("`path`: {error}"))
}

pub(crate) fn check_life(seconds: Option<u64>) -> Result<(), String> {
    let sound = seconds.is_none_or(|seconds| LIVES.contains(&seconds));
    within("ttl_seconds", "3600 (an hour) to 315360000 (ten years)", sound, seconds.unwrap_or(0))
}

/// Where a model's checkpoint of a name is.
fn checkpoint(model: &ModelId, kind: CheckpointKind, name: &str) -> Result<TinkerPath, IdError> {
    Ok(TinkerPath { model: model.clone(), kind, name: name.parse()? })
}

/// Body of `save_weights`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveWeights {
    /// Which model.
    pub model_id: ModelId,
    /// Its place in the model's order.
    pub seq_id: i64,
    /// The checkpoint's name.
    pub path: String,
    /// When it goes.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
    /// One of that name is replaced.
    #[serde(default)]
    pub overwrite: bool,
    /// For people.
    #[serde(default)]
    pub user_metadata: Option<Map<String, Value>>,
}

impl SaveWeights {
    /// Where the checkpoint is to be.
    pub fn checkpoint(&self) -> Result<TinkerPath, IdError> {
        checkpoint(&self.model_id, CheckpointKind::Training, &self.path)
    }
}

impl Checked for SaveWeights {
    fn check(&self) -> Result<(), String> {
        check_seq(self.seq_id)?;
        check_name(&self.path)?;
        check_life(self.ttl_seconds)?;
        check_metadata(self.user_metadata.as_ref())
    }
}

/// Body of `save_weights_for_sampler`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveWeightsForSampler {
    /// Which model.
    pub model_id: ModelId,
    /// Its place in the model's order.
    pub seq_id: i64,
    /// The checkpoint's name...
    #[serde(default)]
    pub path: Option<String>,
    /// ...or the number of the sampling session that samples from it.
    #[serde(default)]
    pub sampling_session_seq_id: Option<u32>,
    /// `snapshot`, or `inflight`: this or newer.
    #[serde(default)]
    pub kind: Option<String>,
    /// When it goes.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
    /// For people.
    #[serde(default)]
    pub user_metadata: Option<Map<String, Value>>,
}

impl SaveWeightsForSampler {
    /// Where the checkpoint is to be. One that has no name is called after its place.
    pub fn checkpoint(&self) -> Result<TinkerPath, IdError> {
        let placed = || format!("{EPHEMERAL}{}", self.seq_id);
        checkpoint(&self.model_id, CheckpointKind::Sampler, &self.path.clone().unwrap_or_else(placed))
    }
}

impl Checked for SaveWeightsForSampler {
    fn check(&self) -> Result<(), String> {
        check_seq(self.seq_id)?;
        match (&self.path, self.sampling_session_seq_id) {
            (Some(path), None) if path.starts_with(EPHEMERAL) => {
                return Err(format!("`path`: expected a name that does not begin with `{EPHEMERAL}`, got `{path}`"));
            }
            (Some(path), None) => check_name(path)?,
            (None, Some(_)) => {}
            _ => return Err("`path`, `sampling_session_seq_id`: expected one of them".to_owned()),
        }
        if let Some(kind) = self.kind.as_deref().filter(|kind| !["snapshot", "inflight"].contains(kind)) {
            return Err(format!("`kind`: expected `snapshot` or `inflight`, got `{kind}`"));
        }
        check_life(self.ttl_seconds)?;
        check_metadata(self.user_metadata.as_ref())
    }
}

/// Body of `save_weights_external`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveWeightsExternal {
    /// Which model.
    pub model_id: ModelId,
    /// Its place in the model's order.
    pub seq_id: i64,
    /// The checkpoint's name.
    pub path: String,
    /// When it goes.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
    /// Whose keys it is encrypted to.
    #[serde(default)]
    pub age_encryption_recipients: Option<Vec<String>>,
}

impl SaveWeightsExternal {
    /// Where the checkpoint is to be.
    pub fn checkpoint(&self) -> Result<TinkerPath, IdError> {
        checkpoint(&self.model_id, CheckpointKind::External, &self.path)
    }
}

impl Checked for SaveWeightsExternal {
    fn check(&self) -> Result<(), String> {
        check_seq(self.seq_id)?;
        check_name(&self.path)?;
        check_life(self.ttl_seconds)?;
        let recipients = self.age_encryption_recipients.as_ref().map_or(0, Vec::len);
        within("age_encryption_recipients", "none: encryption is not served", recipients == 0, recipients)
    }
}

/// Body of `load_weights`: into a model that is there, or into a new one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadWeights {
    /// The model that is there...
    #[serde(default)]
    pub model_id: Option<ModelId>,
    /// ...with its place in the model's order.
    #[serde(default)]
    pub seq_id: Option<i64>,
    /// Whose new model...
    #[serde(default)]
    pub session_id: Option<SessionId>,
    /// ...and which.
    #[serde(default)]
    pub model_seq_id: Option<u32>,
    /// The checkpoint.
    pub path: TinkerPath,
    /// Moments and step of the optimiser come along.
    #[serde(default)]
    pub optimizer: bool,
    /// What a new model starts from; the checkpoint knows it.
    #[serde(default)]
    pub base_model: Option<String>,
    /// For people.
    #[serde(default)]
    pub user_metadata: Option<Map<String, Value>>,
    /// The new model's optimiser.
    #[serde(default)]
    pub optimizer_config: Option<OptimizerConfig>,
}

impl LoadWeights {
    /// The new model's name, where one is made.
    pub fn creates(&self) -> Option<ModelId> {
        let (session, number) = self.session_id.clone().zip(self.model_seq_id)?;
        self.model_id.is_none().then_some(ModelId { session, number })
    }
}

impl Checked for LoadWeights {
    fn check(&self) -> Result<(), String> {
        match (&self.model_id, self.seq_id, &self.session_id, self.model_seq_id) {
            (Some(_), Some(seq), None, None) => check_seq(seq)?,
            (None, None, Some(_), Some(_)) => {}
            _ => {
                return Err(
                    "`model_id` and `seq_id`, or `session_id` and `model_seq_id`: expected one of the pairs".to_owned()
                );
            }
        }
        check_metadata(self.user_metadata.as_ref())
    }
}
