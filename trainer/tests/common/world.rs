//! A world small enough to learn in seconds: a tiny model, an environment, and samplers for the loop.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use espalier_distributed::Group;
use espalier_engine::models::read_config;
use espalier_engine::{EngineOptions, LocalEngine, Precision};
use espalier_envs::Registry;
use espalier_generator::player::ModelTemplate;
use espalier_generator::{Player, Players, seed};
use espalier_inference::engine::LogprobKind;
use espalier_inference::{
    ChatTemplate, EngineError, EngineInfo, Fidelity, GenerateRequest, Generation, InferenceEngine, Prompt,
    SamplingParams, StopReason, Tokenizer, Usage,
};
use espalier_trainer::critic::Critic;
use espalier_trainer::optimizer::AdamW;
use espalier_trainer::rl::callbacks::{Callback, Control};
use espalier_trainer::rl::config::TrainConfig;
use espalier_trainer::rl::engine::{LocalSampler, Sampler, Weights};
use espalier_trainer::rl::prompts::Prompts;
use espalier_trainer::rl::rows::RolloutRow;
use espalier_trainer::rl::{TrainReport, TrainRun};
use espalier_trainer::sft::{Numbers, Watch};
use espalier_trainer::update::{Policy, needs_critic, needs_reference};
use espalier_trainer::{Kind, ModelOptions, TrainError, TrainModel, TrainPrecision, export};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Rewards the share of lower-case letters.
const ENVIRONMENT: &str = "
def reward(response, row):
    if row['uid'] == 'broken':
        raise ValueError('this one cannot be judged')
    return sum(c.islower() and c.isascii() for c in response) / max(len(response), 1)
";

pub(crate) struct World {
    folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl World {
    pub(crate) fn new() -> Self {
        tch::set_num_threads(1);
        let folder = tempfile::tempdir().unwrap();
        let world = Self {
            runtime: tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
            folder,
        };
        world.model("model", 5);
        std::fs::write(world.path().join("env.py"), ENVIRONMENT).unwrap();
        world
    }

    /// A folder with a tiny model of random weights.
    pub(crate) fn model(&self, name: &str, seed: u64) {
        let model = self.path().join(name);
        std::fs::create_dir(&model).unwrap();
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 16, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": true,
        });
        std::fs::write(model.join("config.json"), config.to_string()).unwrap();
        let options = ModelOptions { precision: TrainPrecision::F32, seed, ..ModelOptions::default() };
        let shape = read_config(&model).unwrap().decoder;
        let policy = TrainModel::random(&shape, options, Group::single()).unwrap();
        export::save_weights(&policy, Some(&model), Kind::Float, 1 << 30).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        self.runtime.handle()
    }

    pub(crate) fn rows(&self, names: &[&str]) {
        let lines: Vec<String> =
            names.iter().map(|n| json!({"uid": n, "prompt": format!("say {n}")}).to_string()).collect();
        std::fs::write(self.path().join("rows.jsonl"), lines.join("\n")).unwrap();
    }

    pub(crate) fn config(&self, lora: u32, steps: u64) -> TrainConfig {
        self.config_with(lora, steps, &json!({}))
    }

    /// The usual settings with some of `trainer` replaced.
    pub(crate) fn config_with(&self, lora: u32, steps: u64, trainer: &Value) -> TrainConfig {
        let rows = json!([{"path": self.path().join("rows.jsonl")}]);
        let mut table = json!({
            "data": {"train_data": rows, "val_data": rows},
            "trainer": {
                "precision": "f32", "seed": 1, "epochs": 1000, "max_training_steps": steps, "train_batch_size": 2,
                "policy_mini_batch_size": 2, "critic_mini_batch_size": 2, "eval_interval": 1000,
                "ckpt_path": self.path().join("checkpoints"), "ckpt_interval": 0, "resume_mode": "latest",
                "policy": {
                    "model": {"path": self.path().join("model"), "lora": {
                        "rank": lora, "alpha": 16.0, "target_modules": ["all-linear", "lm_head"],
                    }},
                    "optimizer_config": {"lr": if lora > 0 { 0.03 } else { 0.01 }},
                },
                "algorithm": {"use_kl_loss": false},
            },
            "generator": {
                "n_samples_per_prompt": 8, "sampling_params": {"max_tokens": 12, "ignore_eos": true},
                "eval_sampling_params": {"max_tokens": 12, "ignore_eos": true}, "eval_n_samples_per_prompt": 8,
                "rollout": {"max_turns": 1, "engine_retries": 0}, "kv_cache_mb": 64,
            },
            "environment": {"env_class": format!("python:{}", self.path().join("env.py").display())},
        });
        overlay(&mut table["trainer"], trainer);
        let mut config: TrainConfig = serde_json::from_value(table).unwrap();
        config.validate().unwrap();
        config
    }

    /// The local engine, with the policy's base.
    pub(crate) fn engine(&self) -> Arc<LocalSampler> {
        let (tokenizer, template) = (Tokenizer::bytes(), ChatTemplate::chatml());
        let options = EngineOptions {
            precision: Precision::F32,
            kv_cache_mb: Some(64),
            threads: Some(1),
            ..EngineOptions::default()
        };
        let base = self.path().join("model");
        let engine = LocalEngine::with_tokenizer(&base, tokenizer.clone(), Some(template.clone()), options).unwrap();
        Arc::new(LocalSampler::new(Arc::new(engine), Arc::new(ModelTemplate::new(tokenizer, template))))
    }

    /// What a run needs, for one process of a group.
    pub(crate) fn parts(&self, config: TrainConfig, sampler: Option<Arc<dyn Sampler>>, group: Group) -> TrainRun {
        let t = &config.trainer;
        let prompts = |key| {
            let sources = if key == "train" { &config.data.train_data } else { &config.data.val_data };
            let env = &config.environment;
            Prompts::read(sources, &env.env_class, &env.params, &Registry::standard(), key).unwrap()
        };
        let (train, eval) = (prompts("train"), prompts("eval"));
        let options = ModelOptions {
            precision: TrainPrecision::F32,
            lora: t.policy.model.lora.clone(),
            seed: 1,
            ..ModelOptions::default()
        };
        let base = &t.policy.model.path;
        let model = TrainModel::load(base, options.clone(), group).unwrap();
        let frozen = |path: &Path| TrainModel::load_frozen(path, options.clone(), model.shared_group()).unwrap();
        let reference = (needs_reference(&t.algorithm) && model.targets().is_none()).then(|| frozen(base));
        let teacher = t.algorithm.distillation.map(|_| frozen(&t.teacher.model.path));
        let critic = needs_critic(&t.algorithm).then(|| {
            let options = ModelOptions { lora: t.critic.model.lora.clone(), ..options.clone() };
            let prefix = &t.algorithm.value_head_prefix;
            let model = TrainModel::load_critic(&t.critic.model.path, options, prefix, model.shared_group()).unwrap();
            let optimizer = AdamW::new(t.critic.optimizer_config.clone(), &model).unwrap();
            Critic::new(model, optimizer, &t.algorithm).unwrap()
        });
        let optimizer = AdamW::new(t.policy.optimizer_config.clone(), &model).unwrap();
        let policy = Policy::new(model, optimizer, reference, t.algorithm.clone(), None).unwrap();
        let run = TrainRun::new(config, policy, sampler, train, self.runtime.handle().clone());
        TrainRun { critic, teacher, eval, ..run }
    }

    /// Runs with the local engine.
    pub(crate) fn run(&self, config: TrainConfig, watch: &mut Seen) -> TrainReport {
        self.parts(config, Some(self.engine()), Group::single()).run(watch).unwrap().0
    }

    /// Runs with a stub, with what was trained on.
    pub(crate) fn run_stub(&self, config: TrainConfig, stub: Stub, watch: &mut Seen) -> (TrainReport, Trained) {
        let (report, trained, _) = self.run_stub_with(config, stub, watch, None);
        (report, trained)
    }

    /// The same, cancelled from within after a step.
    pub(crate) fn run_stub_with(
        &self,
        config: TrainConfig,
        stub: Stub,
        watch: &mut Seen,
        cancel_after: Option<u64>,
    ) -> (TrainReport, Trained, Policy) {
        let trained = Trained::default();
        let mut run = self.parts(config, Some(Arc::new(stub)), Group::single());
        run.callbacks.push(Box::new(trained.clone()));
        if let Some(step) = cancel_after {
            run.callbacks.push(Box::new(CancelAfter { step, cancel: run.cancel.clone() }));
        }
        let (report, policy) = run.run(watch).unwrap();
        (report, trained, policy)
    }
}

/// Replaces in a table what another one has.
fn overlay(table: &mut Value, with: &Value) {
    match (table, with) {
        (Value::Object(table), Value::Object(with)) => {
            for (key, value) in with {
                overlay(table.entry(key).or_insert(Value::Null), value);
            }
        }
        (table, with) => *table = with.clone(),
    }
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) steps: Vec<(u64, Numbers)>,
    pub(crate) stop_after: Option<u64>,
}

impl Watch for Seen {
    fn log(&mut self, step: u64, numbers: &Numbers) {
        self.steps.push((step, numbers.clone()));
    }

    fn stop(&mut self) -> bool {
        self.stop_after.is_some_and(|n| self.steps.last().is_some_and(|(step, _)| *step >= n))
    }
}

impl Seen {
    pub(crate) fn figure(&self, name: &str) -> Vec<f64> {
        self.steps.iter().filter_map(|(_, numbers)| numbers.get(name).copied()).collect()
    }
}

/// Keeps the rows of every step.
#[derive(Clone, Default)]
pub(crate) struct Trained(Arc<Mutex<Vec<Vec<RolloutRow>>>>);

impl Trained {
    pub(crate) fn steps(&self) -> Vec<Vec<RolloutRow>> {
        self.0.lock().unwrap().clone()
    }

    /// The tokens of every row of every step, sorted: which rollouts were trained on, whatever the order.
    pub(crate) fn responses(&self) -> Vec<Vec<u32>> {
        let mut all: Vec<Vec<u32>> = self.steps().iter().flatten().map(|row| row.row.response_ids().to_vec()).collect();
        all.sort_unstable();
        all
    }
}

impl Callback for Trained {
    fn on_rollouts(&mut self, _step: u64, rows: &[RolloutRow]) {
        self.0.lock().unwrap().push(rows.to_vec());
    }
}

struct CancelAfter {
    step: u64,
    cancel: CancellationToken,
}

impl Callback for CancelAfter {
    fn on_step_end(&mut self, step: u64, _numbers: &Numbers) -> Control {
        if step == self.step {
            self.cancel.cancel();
        }
        Control::default()
    }
}

/// A sampler whose tokens follow from the seed alone, or from seed and version: no weights, no noise.
pub(crate) struct Stub(Arc<StubEngine>);

struct StubEngine {
    info: EngineInfo,
    version: watch::Sender<u64>,
    options: StubOptions,
    /// The first version, and the requests that came since.
    begun: Mutex<(Option<u64>, u64)>,
    came: Condvar,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct StubOptions {
    /// Whether newer weights say something else.
    pub(crate) by_version: bool,
    /// Prompts that hold this word are slow.
    pub(crate) slow: Option<Slow>,
    /// Prompts that hold this word fail.
    pub(crate) failing: Option<String>,
    /// Prompts that hold this word are answered with the same letter every time.
    pub(crate) flat: Option<&'static str>,
}

/// Prompts that take as many versions as they may. So that this is exact, a version ends only after all requests that may
/// come under it have come.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    pub(crate) word: &'static str,
    /// Versions that they take; also the bound of the run.
    pub(crate) versions: u64,
    /// Steps of the run: they end before the last one.
    pub(crate) steps: u64,
}

/// Requests of a step: two prompts, eight rollouts of each.
const REQUESTS: u64 = 16;

impl Stub {
    pub(crate) fn new(options: StubOptions) -> Self {
        let info = EngineInfo {
            model: "stub".to_owned(),
            fidelity: Fidelity::Tokens,
            context_tokens: Some(256),
            logprobs: LogprobKind::Raw,
        };
        let (version, begun, came) = (watch::channel(0).0, Mutex::default(), Condvar::new());
        Self(Arc::new(StubEngine { info, version, options, begun, came }))
    }
}

impl Sampler for Stub {
    fn players(&self, sampling: SamplingParams) -> Players {
        let template = Arc::new(ModelTemplate::new(Tokenizer::bytes(), ChatTemplate::chatml()));
        let engine: Arc<dyn InferenceEngine> = Arc::<StubEngine>::clone(&self.0);
        Players::policy(Player { engine, template: Some(template), sampling, trained: true })
    }

    fn publish(&self, _weights: Weights, version: u64) -> Result<(), TrainError> {
        let mut begun = self.0.begun.lock().unwrap();
        let last = *self.0.version.borrow();
        match (begun.0, &self.0.options.slow) {
            (Some(first), Some(slow)) => {
                let may_come = (slow.versions + 1 + last - first).min(slow.steps - first) * REQUESTS;
                let waited = self.0.came.wait_timeout_while(begun, Duration::from_mins(1), |begun| begun.1 < may_come);
                assert!(!waited.unwrap().1.timed_out(), "of {may_come} requests some did not come");
            }
            _ => begun.0 = Some(version),
        }
        self.0.version.send_replace(version);
        Ok(())
    }
}

#[async_trait]
impl InferenceEngine for StubEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Vec<Generation>, EngineError> {
        let Prompt::Tokens(prompt) = &request.prompt else { panic!("the loop sends tokens") };
        let text = Tokenizer::bytes().decode(prompt);
        let begun = *self.version.borrow();
        self.begun.lock().unwrap().1 += 1;
        self.came.notify_all();
        if self.options.failing.as_ref().is_some_and(|word| text.contains(word)) {
            return Err(EngineError::Failed { model: "stub".to_owned(), reason: "as it was told".to_owned() });
        }
        if let Some(slow) = self.options.slow.as_ref().filter(|slow| text.contains(slow.word)) {
            let until = (begun + slow.versions).min(slow.steps - 1);
            let mut version = self.version.subscribe();
            tokio::select! {
                ended = version.wait_for(|version| *version >= until) => drop(ended.unwrap()),
                () = request.cancel.cancelled() => return Err(EngineError::Cancelled),
            }
        }
        let ended = *self.version.borrow();
        let count = request.sampling.max_tokens;
        let by_version = if self.options.by_version { ended } else { 0 };
        let source = seed::nth(request.sampling.seed.unwrap_or_default(), by_version);
        // Letters of both cases, so that rewards differ.
        let letter = |i: u32| 65 + (seed::nth(source, u64::from(i)) % 58) as u32;
        let flat = self.options.flat.is_some_and(|word| text.contains(word));
        let tokens: Vec<u32> = (0..count).map(|i| if flat { 97 } else { letter(i) }).collect();
        let versions = if begun == ended { vec![(0, begun)] } else { vec![(0, begun), (count / 2, ended)] };
        Ok(vec![Generation {
            text: Tokenizer::bytes().decode(&tokens),
            logprobs: vec![-5.5; tokens.len()],
            tokens,
            stop: StopReason::MaxTokens,
            versions,
            fidelity: Fidelity::Tokens,
            usage: Usage { prompt_tokens: prompt.len() as u32, cached_tokens: 0, completion_tokens: count },
        }])
    }
}
