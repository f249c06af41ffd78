//! What `espalier train` reads: the keys of SkyRL's configuration where the thing is the same.

use std::path::PathBuf;

use espalier_algorithms::config::{AdvantageEstimatorKind, AlgorithmConfig, Context};
use espalier_algorithms::tree::TreeCredit;
use espalier_datasets::Source;
use espalier_generator::{LoopOptions, RowMode, TreeLimits};
use espalier_inference::SamplingParams;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::mode::{self, FullyAsyncSection, Mode};
use crate::error::TrainError;
use crate::model::TrainPrecision;
use crate::optimizer::OptimizerConfig;
use crate::sft::config::{ModelSection, Resume};
use crate::update::{needs_critic, needs_reference};

/// `data`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSection {
    /// Prompts to train on.
    pub train_data: Vec<Source>,
    /// Prompts to evaluate on.
    pub val_data: Vec<Source>,
}

/// `trainer.policy`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySection {
    /// The model.
    pub model: ModelSection,
    /// Its optimiser.
    pub optimizer_config: OptimizerConfig,
}

/// `trainer.critic`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CriticSection {
    /// The model whose decoder says values; the policy's own path is a good one.
    pub model: ModelSection,
    /// Its optimiser; `lr` is 5e-6 where it is not set.
    #[serde(deserialize_with = "critic_optimizer")]
    pub optimizer_config: OptimizerConfig,
}

const CRITIC_LR: f64 = 5e-6;

impl Default for CriticSection {
    fn default() -> Self {
        let optimizer_config = OptimizerConfig { lr: CRITIC_LR, ..OptimizerConfig::default() };
        Self { model: ModelSection::default(), optimizer_config }
    }
}

/// A critic's learning rate has another default than a policy's.
fn critic_optimizer<'de, D: Deserializer<'de>>(from: D) -> Result<OptimizerConfig, D::Error> {
    let mut table = Map::deserialize(from)?;
    table.entry("lr").or_insert_with(|| Value::from(CRITIC_LR));
    serde_json::from_value(Value::Object(table)).map_err(D::Error::custom)
}

/// `trainer.teacher`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TeacherSection {
    /// The model, of the policy's tokenizer.
    pub model: ModelSection,
}

/// `trainer.ref`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReferenceSection {
    /// The model, of the policy's tokenizer; the policy's own path where it is empty.
    pub model: ModelSection,
}

/// `trainer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerSection {
    /// `fsdp`, the one strategy; `fsdp2` is another name for it.
    pub strategy: String,
    /// In which type the model computes.
    pub precision: TrainPrecision,
    /// Whether layers are computed again in the backward pass.
    pub gradient_checkpointing: bool,
    /// Seeds everything.
    pub seed: u64,
    /// Passes over the data.
    pub epochs: u64,
    /// Most steps.
    pub max_training_steps: Option<u64>,
    /// Prompts of a step.
    pub train_batch_size: usize,
    /// Whether sampling and training take turns: `sync`, `one_step_off`, `fully_async`.
    pub mode: Mode,
    /// Bounds of `one_step_off` and `fully_async`.
    pub fully_async: FullyAsyncSection,
    /// Prompts of an optimiser step.
    pub policy_mini_batch_size: usize,
    /// Prompts of an optimiser step of the critic.
    pub critic_mini_batch_size: usize,
    /// Passes over each batch.
    pub update_epochs_per_batch: u32,
    /// Tokens that go through the model at once.
    pub max_tokens_per_microbatch: usize,
    /// Steps between evaluations; 0 for none, before the first step neither.
    pub eval_interval: u64,
    /// Whether to evaluate before the first step.
    pub eval_before_train: bool,
    /// Whether what was said in evaluations is written to `{ckpt_path}/dumped_evals`.
    pub dump_eval_results: bool,
    /// Where checkpoints lie.
    pub ckpt_path: Option<PathBuf>,
    /// Steps between checkpoints; 0 for the last only.
    pub ckpt_interval: u64,
    /// How many stay; -1 for all.
    pub max_ckpts_to_keep: i64,
    /// `none`, `latest`, or a checkpoint folder.
    pub resume_mode: Resume,
    /// Where the trained model is written at the end.
    pub export_path: Option<PathBuf>,
    /// Where numbers go: a name or several of `console`, `jsonl`, `tensorboard`, `wandb`.
    pub logger: Value,
    /// Project, for trackers.
    pub project_name: String,
    /// Run, for trackers.
    pub run_name: String,
    /// The policy.
    pub policy: PolicySection,
    /// What says values, for `algorithm.advantage_estimator = "gae"`.
    pub critic: CriticSection,
    /// What the policy is to become like, for `algorithm.distillation`.
    pub teacher: TeacherSection,
    /// The reference of KL terms.
    #[serde(rename = "ref")]
    pub reference: ReferenceSection,
    /// The algorithm.
    pub algorithm: AlgorithmConfig,
}

impl Default for TrainerSection {
    fn default() -> Self {
        Self {
            strategy: "fsdp".to_owned(),
            precision: TrainPrecision::Bf16,
            gradient_checkpointing: false,
            seed: 42,
            epochs: 1,
            max_training_steps: None,
            train_batch_size: 32,
            mode: Mode::default(),
            fully_async: FullyAsyncSection::default(),
            policy_mini_batch_size: 32,
            critic_mini_batch_size: 32,
            update_epochs_per_batch: 1,
            max_tokens_per_microbatch: 4096,
            eval_interval: 5,
            eval_before_train: true,
            dump_eval_results: false,
            ckpt_path: None,
            ckpt_interval: 10,
            max_ckpts_to_keep: -1,
            resume_mode: Resume::None,
            export_path: None,
            logger: Value::String("console".to_owned()),
            project_name: "espalier".to_owned(),
            run_name: "train".to_owned(),
            policy: PolicySection::default(),
            critic: CriticSection::default(),
            teacher: TeacherSection::default(),
            reference: ReferenceSection::default(),
            algorithm: AlgorithmConfig::default(),
        }
    }
}

/// `generator`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GeneratorSection {
    /// Rollouts of each prompt.
    pub n_samples_per_prompt: u32,
    /// How tokens are drawn.
    pub sampling_params: SamplingParams,
    /// How tokens are drawn in evaluations; greedy with the same lengths and stops where absent.
    pub eval_sampling_params: Option<SamplingParams>,
    /// Rollouts of each prompt in evaluations.
    pub eval_n_samples_per_prompt: u32,
    /// Roots that are played at once.
    pub in_flight: usize,
    /// One row a turn instead of one for as long as history only grows.
    pub step_wise_trajectories: bool,
    /// Whether children of rollout trees train too.
    pub train_child_trajectories: bool,
    /// Rows of episodes cut off by a limit keep their reward and lose their mask.
    pub apply_overlong_filtering: bool,
    /// Episodes cut off by a limit lose their reward.
    pub zero_reward_on_non_stop: bool,
    /// How an episode is played.
    pub rollout: LoopOptions,
    /// What one tree may spend.
    pub limits: TreeLimits,
    /// Memory of the engine's KV cache, MiB.
    pub kv_cache_mb: Option<u64>,
    /// Most sequences decoded side by side.
    pub max_num_seqs: usize,
}

impl Default for GeneratorSection {
    fn default() -> Self {
        Self {
            n_samples_per_prompt: 5,
            sampling_params: SamplingParams::default(),
            eval_sampling_params: None,
            eval_n_samples_per_prompt: 1,
            in_flight: 64,
            step_wise_trajectories: false,
            train_child_trajectories: false,
            apply_overlong_filtering: false,
            zero_reward_on_non_stop: false,
            rollout: LoopOptions::default(),
            limits: TreeLimits::default(),
            kv_cache_mb: None,
            max_num_seqs: 64,
        }
    }
}

impl GeneratorSection {
    /// How an episode is played.
    pub fn loop_options(&self) -> LoopOptions {
        let rows = if self.step_wise_trajectories { RowMode::StepWise } else { self.rollout.rows };
        LoopOptions { rows, ..self.rollout.clone() }
    }

    /// How tokens are drawn in evaluations.
    pub fn eval_sampling(&self) -> SamplingParams {
        let greedy = || SamplingParams { temperature: 0.0, ..self.sampling_params.clone() };
        self.eval_sampling_params.clone().unwrap_or_else(greedy)
    }
}

/// `environment`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnvironmentSection {
    /// The environment of rows that name none.
    pub env_class: String,
    /// Its parameters.
    pub params: Map<String, Value>,
}

impl Default for EnvironmentSection {
    fn default() -> Self {
        Self { env_class: "gsm8k".to_owned(), params: Map::new() }
    }
}

/// Settings of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Prompts.
    pub data: DataSection,
    /// Training.
    pub trainer: TrainerSection,
    /// Rollouts.
    pub generator: GeneratorSection,
    /// What is played.
    pub environment: EnvironmentSection,
}

impl TrainConfig {
    /// Rewrites deprecated keys and checks what the types cannot say. Returns warnings.
    pub fn validate(&mut self) -> Result<Vec<String>, TrainError> {
        let wrong = |key: &str, expected: &str, found: String| {
            Err(TrainError::Config { key: key.to_owned(), expected: expected.to_owned(), found })
        };
        let mut warnings = Vec::new();
        let (t, g) = (&mut self.trainer, &self.generator);
        match t.strategy.as_str() {
            "fsdp" => {}
            "fsdp2" => warnings.push("`trainer.strategy`: `fsdp2` is another name for `fsdp`; write `fsdp`".to_owned()),
            other => {
                return wrong(
                    "trainer.strategy",
                    "`fsdp` (the only strategy; `fsdp2` is the same)",
                    format!("`{other}`"),
                );
            }
        }
        if t.policy.model.path.as_os_str().is_empty() {
            return wrong("trainer.policy.model.path", "a model folder", "nothing".to_owned());
        }
        if self.data.train_data.is_empty() {
            return wrong("data.train_data", "at least one source of prompts", "none".to_owned());
        }
        for (key, value) in [
            ("trainer.train_batch_size", t.train_batch_size as u64),
            ("trainer.policy_mini_batch_size", t.policy_mini_batch_size as u64),
            ("trainer.critic_mini_batch_size", t.critic_mini_batch_size as u64),
            ("trainer.max_tokens_per_microbatch", t.max_tokens_per_microbatch as u64),
            ("trainer.epochs", t.epochs),
            ("trainer.max_training_steps", t.max_training_steps.unwrap_or(1)),
            ("trainer.update_epochs_per_batch", u64::from(t.update_epochs_per_batch)),
            ("generator.n_samples_per_prompt", u64::from(g.n_samples_per_prompt)),
            ("generator.eval_n_samples_per_prompt", u64::from(g.eval_n_samples_per_prompt)),
            ("generator.in_flight", g.in_flight as u64),
            ("generator.max_num_seqs", g.max_num_seqs as u64),
        ] {
            if value == 0 {
                return wrong(key, "at least 1", "0".to_owned());
            }
        }
        if !t.train_batch_size.is_multiple_of(t.policy_mini_batch_size) {
            let expected = format!("a divisor of `trainer.train_batch_size` = {}", t.train_batch_size);
            return wrong("trainer.policy_mini_batch_size", &expected, t.policy_mini_batch_size.to_string());
        }
        let has_critic = !t.critic.model.path.as_os_str().is_empty();
        if needs_critic(&t.algorithm) && has_critic && !t.train_batch_size.is_multiple_of(t.critic_mini_batch_size) {
            let expected = format!("a divisor of `trainer.train_batch_size` = {}", t.train_batch_size);
            return wrong("trainer.critic_mini_batch_size", &expected, t.critic_mini_batch_size.to_string());
        }
        if t.dump_eval_results && t.ckpt_path.is_none() {
            return wrong(
                "trainer.ckpt_path",
                "a folder, as `trainer.dump_eval_results` is true",
                "nothing".to_owned(),
            );
        }
        if t.max_ckpts_to_keep == 0 || t.max_ckpts_to_keep < -1 {
            return wrong("trainer.max_ckpts_to_keep", "-1 (all) or at least 1", t.max_ckpts_to_keep.to_string());
        }
        if t.resume_mode == Resume::Latest && t.ckpt_path.is_none() {
            return wrong("trainer.ckpt_path", "a folder, as `trainer.resume_mode` is `latest`", "nothing".to_owned());
        }
        if !g.sampling_params.logprobs {
            return wrong(
                "generator.sampling_params.logprobs",
                "true: training compares with them",
                "false".to_owned(),
            );
        }
        if g.sampling_params.temperature == 0.0 {
            return wrong(
                "generator.sampling_params.temperature",
                "above 0: greedy rollouts of a prompt are all the same",
                "0".to_owned(),
            );
        }
        for (key, checked) in [
            ("generator.sampling_params", g.sampling_params.check()),
            ("generator.eval_sampling_params", g.eval_sampling().check()),
            ("generator.rollout", g.rollout.check()),
            ("generator.limits", g.limits.check()),
        ] {
            if let Err((name, found)) = checked {
                return Err(TrainError::Settings(format!("`{key}.{name}` {found}")));
            }
        }
        t.policy.optimizer_config.validate("trainer.policy.optimizer_config")?;
        t.policy.model.lora.validate("trainer.policy.model.lora")?;
        t.critic.optimizer_config.validate("trainer.critic.optimizer_config")?;
        t.critic.model.lora.validate("trainer.critic.model.lora")?;
        let set = |model: &ModelSection| !model.path.as_os_str().is_empty();
        let context = Context {
            has_critic: set(&t.critic.model),
            has_teacher: set(&t.teacher.model),
            step_wise: g.step_wise_trajectories,
            samples_per_prompt: g.n_samples_per_prompt,
            ..Context::default()
        };
        let found = t.algorithm.validate(&context).map_err(|e| TrainError::Settings(e.to_string()))?;
        warnings.extend(found.iter().map(ToString::to_string));
        let by_token =
            matches!(t.algorithm.advantage_estimator, AdvantageEstimatorKind::Gae | AdvantageEstimatorKind::NoOp);
        if by_token && g.train_child_trajectories && t.algorithm.tree_credit != TreeCredit::Own {
            return wrong(
                "trainer.algorithm.tree_credit",
                "`own`, as `generator.train_child_trajectories` is set and the estimator gives each token its own advantage, so \
                 that a root has no one advantage for its children",
                "another".to_owned(),
            );
        }
        if needs_reference(&t.algorithm) && t.reference.model.lora.rank > 0 {
            return wrong("trainer.ref.model.lora.rank", "0: a reference has no adapter of its own", "more".to_owned());
        }
        if t.algorithm.distillation.is_some() && t.teacher.model.lora.rank > 0 {
            return wrong(
                "trainer.teacher.model.lora.rank",
                "0: a teacher has no adapter of its own",
                "more".to_owned(),
            );
        }
        let TrainerSection { mode, fully_async, train_batch_size, algorithm, .. } = t;
        warnings.extend(mode::check(mode, fully_async, *train_batch_size, algorithm)?);
        Ok(warnings)
    }

    /// Checks what lies on the disk where this run would write, and that it writes at all.
    pub fn check_places(&self) -> Result<(), TrainError> {
        let t = &self.trainer;
        t.resume_mode.check_places(t.ckpt_path.as_deref(), t.export_path.as_deref(), "trainer.")
    }

    /// Where evaluations are written, where they are.
    pub fn dump_folder(&self) -> Option<PathBuf> {
        let t = &self.trainer;
        t.ckpt_path.as_ref().filter(|_| t.dump_eval_results).map(|root| root.join("dumped_evals"))
    }

    /// What logits are divided by in training.
    pub fn temperature(&self) -> f64 {
        let sampled = f64::from(self.generator.sampling_params.temperature);
        self.trainer.algorithm.temperature.unwrap_or(sampled)
    }
}
