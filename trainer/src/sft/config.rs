//! What `espalier sft` reads: the keys of SkyRL's SFT configuration where the thing is the same.

use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::data::{DataSpec, Overlong, Sampler};
use super::examples::{Columns, TrainOnWhat};
use crate::checkpoint::{Checkpoint, CheckpointStore};
use crate::error::TrainError;
use crate::lora::LoraConfig;
use crate::model::TrainPrecision;
use crate::optimizer::OptimizerConfig;

/// Which model is trained, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSection {
    /// A model folder in the Hugging Face layout.
    pub path: PathBuf,
    /// Adapters; rank 0 trains all weights.
    pub lora: LoraConfig,
}

/// Where a run goes on from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Resume {
    /// From the beginning.
    #[default]
    None,
    /// From the checkpoint that was saved last, or the beginning where there is none.
    Latest,
    /// From this checkpoint folder.
    Path(PathBuf),
}

impl From<String> for Resume {
    fn from(text: String) -> Self {
        match text.as_str() {
            "" | "none" => Self::None,
            "latest" => Self::Latest,
            _ => Self::Path(text.into()),
        }
    }
}

impl From<Resume> for String {
    fn from(resume: Resume) -> Self {
        match resume {
            Resume::None => "none".to_owned(),
            Resume::Latest => "latest".to_owned(),
            Resume::Path(path) => path.to_string_lossy().into_owned(),
        }
    }
}

impl Resume {
    /// The checkpoint to go on from. A folder that holds checkpoints which the run would meet is refused: `key` is this
    /// setting's, for the message.
    pub fn open(&self, store: Option<&CheckpointStore>, key: &str) -> Result<Option<Checkpoint>, TrainError> {
        let found = match (self, store) {
            (Self::None, _) | (Self::Latest, None) => None,
            (Self::Latest, Some(store)) => store.latest()?,
            (Self::Path(path), _) => Some(Checkpoint::open(path)?),
        };
        if let Some(store) = store {
            store.expect_none_after(found.as_ref().map_or(0, Checkpoint::step), key)?;
        }
        Ok(found)
    }

    /// What can be said of [`Resume::open`] and of an export before anything is loaded: that the run does not write where
    /// something is, and that what is learned is kept somewhere. `prefix` is that of the keys.
    pub fn check_places(
        &self,
        ckpt_path: Option<&Path>,
        export_path: Option<&Path>,
        prefix: &str,
    ) -> Result<(), TrainError> {
        if ckpt_path.is_none() && export_path.is_none() {
            return Err(TrainError::Settings(format!(
                "`{prefix}ckpt_path`, `{prefix}export_path`: expected a folder for at least one of them, found neither: what is \
                 learned would be kept nowhere"
            )));
        }
        if let Some(path) = export_path.filter(|path| path.exists()) {
            let reason = format!("it exists already; remove it, or choose another `{prefix}export_path`");
            return Err(TrainError::Exists { path: path.to_owned(), reason });
        }
        if let (Self::None, Some(root)) = (self, ckpt_path) {
            let key = if prefix.is_empty() { "resume_from".to_owned() } else { format!("{prefix}resume_mode") };
            CheckpointStore::new(root, None).expect_none_after(0, &key)?;
        }
        Ok(())
    }
}

/// A data set by its path, or with settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DataEntry {
    /// A path.
    Path(PathBuf),
    /// With name, weight, filter.
    Spec(DataSpec),
}

/// By hand, so that what is wrong in a table is said of its key.
impl<'de> Deserialize<'de> for DataEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Value::deserialize(from)? {
            Value::String(path) => Ok(Self::Path(path.into())),
            table @ Value::Object(_) => serde_json::from_value(table).map(Self::Spec).map_err(D::Error::custom),
            other => Err(D::Error::custom(format!("expected a path or a table with `path`, found {other}"))),
        }
    }
}

impl DataEntry {
    /// As a source.
    pub fn spec(&self) -> DataSpec {
        match self {
            Self::Path(path) => DataSpec::new(path.clone()),
            Self::Spec(spec) => spec.clone(),
        }
    }
}

/// Settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SftConfig {
    /// The model.
    pub model: ModelSection,
    /// `fsdp`, the one strategy; `fsdp2` is another name for it.
    pub strategy: String,
    /// In which type the model computes.
    pub precision: TrainPrecision,
    /// Whether layers are computed again in the backward pass.
    pub gradient_checkpointing: bool,
    /// The optimiser.
    pub optimizer_config: OptimizerConfig,
    /// What is learned.
    pub train_datasets: Vec<DataEntry>,
    /// What is evaluated.
    pub eval_datasets: Vec<DataEntry>,
    /// Steps between evaluations; 0 for none but the one that `eval_before_train` asks for.
    pub eval_interval: u64,
    /// Whether to evaluate before the first step.
    pub eval_before_train: bool,
    /// Column of the chat messages.
    pub messages_key: String,
    /// Column of the tools.
    pub tools_key: String,
    /// Column of a system prompt.
    pub system_key: String,
    /// Keyword arguments of the chat template.
    pub chat_template_kwargs: Map<String, Value>,
    /// Which assistant turns are learned.
    pub train_on_what: TrainOnWhat,
    /// Longest row, tokens.
    pub max_length: usize,
    /// What happens to longer rows.
    pub overlong: Overlong,
    /// Optimiser steps; or `num_epochs`.
    pub num_steps: Option<u64>,
    /// Passes over the data; 1 if neither is given.
    pub num_epochs: Option<u64>,
    /// Rows of a step.
    pub batch_size: usize,
    /// Tokens that go through the model at once.
    pub max_tokens_per_microbatch: usize,
    /// How rows follow each other.
    pub sampler: Sampler,
    /// Seeds everything.
    pub seed: u64,
    /// Where checkpoints lie; none are written if absent.
    pub ckpt_path: Option<PathBuf>,
    /// Steps between checkpoints; 0 for the last only.
    pub ckpt_interval: u64,
    /// How many stay; -1 for all.
    pub max_ckpts_to_keep: i64,
    /// `none`, `latest`, or a checkpoint folder.
    pub resume_from: Resume,
    /// Where the trained model is written at the end: an adapter in PEFT's layout, or a whole model.
    pub export_path: Option<PathBuf>,
    /// Where tokenised sets are kept; `disable_cache` turns it off.
    pub cache_dir: Option<PathBuf>,
    /// Tokenises anew every time.
    pub disable_cache: bool,
    /// Where numbers go: a name or several of `console`, `jsonl`, `tensorboard`, `wandb`.
    pub logger: Value,
    /// Project, for trackers.
    pub project_name: String,
    /// Run, for trackers.
    pub run_name: String,
}

impl Default for SftConfig {
    fn default() -> Self {
        let columns = Columns::default();
        Self {
            model: ModelSection::default(),
            strategy: "fsdp".to_owned(),
            precision: TrainPrecision::Bf16,
            gradient_checkpointing: false,
            optimizer_config: OptimizerConfig { lr: 1e-5, ..OptimizerConfig::default() },
            train_datasets: Vec::new(),
            eval_datasets: Vec::new(),
            eval_interval: 0,
            eval_before_train: false,
            messages_key: columns.messages,
            tools_key: columns.tools,
            system_key: columns.system,
            chat_template_kwargs: Map::new(),
            train_on_what: TrainOnWhat::default(),
            max_length: 2048,
            overlong: Overlong::Drop,
            num_steps: None,
            num_epochs: None,
            batch_size: 4,
            max_tokens_per_microbatch: 2048,
            sampler: Sampler::Random,
            seed: 42,
            ckpt_path: None,
            ckpt_interval: 0,
            max_ckpts_to_keep: -1,
            resume_from: Resume::None,
            export_path: None,
            cache_dir: None,
            disable_cache: false,
            logger: Value::String("console".to_owned()),
            project_name: "espalier".to_owned(),
            run_name: "sft".to_owned(),
        }
    }
}

impl SftConfig {
    /// Checks what the types cannot say. Returns warnings.
    pub fn validate(&self) -> Result<Vec<String>, TrainError> {
        let wrong = |key: &str, expected: &str, found: String| {
            Err(TrainError::Config { key: key.to_owned(), expected: expected.to_owned(), found })
        };
        let mut warnings = Vec::new();
        match self.strategy.as_str() {
            "fsdp" => {}
            "fsdp2" => warnings.push("`strategy`: `fsdp2` is another name for `fsdp`; write `fsdp`".to_owned()),
            other => return wrong("strategy", "`fsdp` (the only strategy; `fsdp2` is the same)", format!("`{other}`")),
        }
        if self.model.path.as_os_str().is_empty() {
            return wrong("model.path", "a model folder", "nothing".to_owned());
        }
        if self.train_datasets.is_empty() {
            return wrong("train_datasets", "at least one file or run folder", "none".to_owned());
        }
        if self.num_steps.is_some() && self.num_epochs.is_some() {
            return wrong("num_steps", "either `num_steps` or `num_epochs`; remove one", "both".to_owned());
        }
        for (key, value) in [
            ("batch_size", self.batch_size as u64),
            ("max_length", self.max_length as u64),
            ("max_tokens_per_microbatch", self.max_tokens_per_microbatch as u64),
            ("num_steps", self.num_steps.unwrap_or(1)),
            ("num_epochs", self.num_epochs.unwrap_or(1)),
        ] {
            if value == 0 {
                return wrong(key, "at least 1", "0".to_owned());
            }
        }
        if self.max_ckpts_to_keep == 0 || self.max_ckpts_to_keep < -1 {
            return wrong("max_ckpts_to_keep", "-1 (all) or at least 1", self.max_ckpts_to_keep.to_string());
        }
        if self.eval_interval > 0 && self.eval_datasets.is_empty() {
            return wrong("eval_datasets", "at least one set, as `eval_interval` is set", "none".to_owned());
        }
        if self.ckpt_interval > 0 && self.ckpt_path.is_none() {
            return wrong("ckpt_path", "a folder, as `ckpt_interval` is set", "nothing".to_owned());
        }
        if self.resume_from == Resume::Latest && self.ckpt_path.is_none() {
            return wrong("ckpt_path", "a folder, as `resume_from` is `latest`", "nothing".to_owned());
        }
        self.optimizer_config.validate("optimizer_config")?;
        self.model.lora.validate("model.lora")?;
        Ok(warnings)
    }

    /// Checks what lies on the disk where this run would write, and that it writes at all.
    pub fn check_places(&self) -> Result<(), TrainError> {
        self.resume_from.check_places(self.ckpt_path.as_deref(), self.export_path.as_deref(), "")
    }

    /// How many checkpoints stay.
    pub fn max_ckpts_to_keep(&self) -> Option<usize> {
        usize::try_from(self.max_ckpts_to_keep).ok()
    }

    /// Columns of the data.
    pub fn columns(&self) -> Columns {
        Columns { messages: self.messages_key.clone(), tools: self.tools_key.clone(), system: self.system_key.clone() }
    }
}
