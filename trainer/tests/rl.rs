//! The loop with the real engine, on a model small enough to learn in seconds.

use std::path::Path;
use std::sync::Arc;

use espalier_distributed::Group;
use espalier_engine::models::read_config;
use espalier_engine::{EngineOptions, LocalEngine, Precision};
use espalier_envs::Registry;
use espalier_generator::player::ModelTemplate;
use espalier_inference::{ChatTemplate, SamplingParams, Tokenizer};
use espalier_trainer::lora::LoraConfig;
use espalier_trainer::optimizer::{AdamW, OptimizerConfig};
use espalier_trainer::rl::config::TrainConfig;
use espalier_trainer::rl::engine::LocalSampler;
use espalier_trainer::rl::prompts::Prompts;
use espalier_trainer::rl::{TrainReport, TrainRun};
use espalier_trainer::sft::{Numbers, Watch};
use espalier_trainer::update::Policy;
use espalier_trainer::{Kind, ModelOptions, TrainModel, TrainPrecision, export};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Rewards the share of lower-case letters.
const ENVIRONMENT: &str = "
def reward(response, row):
    if row['uid'] == 'broken':
        raise ValueError('this one cannot be judged')
    return sum(c.islower() and c.isascii() for c in response) / max(len(response), 1)
";

struct World {
    folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn new() -> Self {
        tch::set_num_threads(1);
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        std::fs::create_dir(&model).unwrap();
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 16, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": true,
        });
        std::fs::write(model.join("config.json"), config.to_string()).unwrap();
        let options = ModelOptions { precision: TrainPrecision::F32, seed: 5, ..ModelOptions::default() };
        let shape = read_config(&model).unwrap().decoder;
        let policy = TrainModel::random(&shape, options, Group::single()).unwrap();
        export::save_weights(&policy, Some(&model), Kind::Float, 1 << 30).unwrap();
        std::fs::write(folder.path().join("env.py"), ENVIRONMENT).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { folder, runtime }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn rows(&self, names: &[&str]) {
        let lines: Vec<String> =
            names.iter().map(|n| json!({"uid": n, "prompt": format!("say {n}")}).to_string()).collect();
        std::fs::write(self.path().join("rows.jsonl"), lines.join("\n")).unwrap();
    }

    fn config(&self, lora: u32, steps: u64) -> TrainConfig {
        let rows = json!([{"path": self.path().join("rows.jsonl")}]);
        let mut config: TrainConfig = serde_json::from_value(json!({
            "data": {"train_data": rows, "val_data": rows},
            "trainer": {
                "precision": "f32", "seed": 1, "epochs": 1000, "max_training_steps": steps, "train_batch_size": 2,
                "policy_mini_batch_size": 2, "eval_interval": 1000, "ckpt_path": self.path().join("checkpoints"),
                "ckpt_interval": 0, "resume_mode": "latest",
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
        }))
        .unwrap();
        config.validate().unwrap();
        config
    }

    fn run(&self, config: TrainConfig, watch: &mut Seen) -> TrainReport {
        let base = config.trainer.policy.model.path.clone();
        let prompts = |key| {
            let sources = if key == "train" { &config.data.train_data } else { &config.data.val_data };
            Prompts::read(
                sources,
                &config.environment.env_class,
                &config.environment.params,
                &Registry::standard(),
                key,
            )
            .unwrap()
        };
        let (train, eval) = (prompts("train"), prompts("eval"));
        let options = ModelOptions {
            precision: TrainPrecision::F32,
            lora: config.trainer.policy.model.lora.clone(),
            seed: 1,
            ..ModelOptions::default()
        };
        let model = TrainModel::load(&base, options, Group::single()).unwrap();
        let optimizer = AdamW::new(config.trainer.policy.optimizer_config.clone(), &model).unwrap();
        let policy = Policy::new(model, optimizer, None, config.trainer.algorithm.clone(), None).unwrap();
        let (tokenizer, template) = (Tokenizer::bytes(), ChatTemplate::chatml());
        let engine_options = EngineOptions {
            precision: Precision::F32,
            kv_cache_mb: Some(64),
            threads: Some(1),
            ..EngineOptions::default()
        };
        let engine =
            LocalEngine::with_tokenizer(&base, tokenizer.clone(), Some(template.clone()), engine_options).unwrap();
        let template = Arc::new(ModelTemplate::new(tokenizer, template));
        let run = TrainRun {
            config,
            policy,
            sampler: Some(Arc::new(LocalSampler::new(Arc::new(engine), template))),
            train,
            eval,
            estimator: None,
            runtime: self.runtime.handle().clone(),
            cancel: CancellationToken::new(),
        };
        run.run(watch).unwrap().0
    }
}

#[derive(Default)]
struct Seen {
    steps: Vec<(u64, Numbers)>,
    stop_after: Option<u64>,
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
    fn figure(&self, name: &str) -> Vec<f64> {
        self.steps.iter().filter_map(|(_, numbers)| numbers.get(name).copied()).collect()
    }
}

#[test]
fn a_policy_learns_what_is_rewarded_and_the_engine_samples_from_what_was_learned() {
    for lora in [0, 8] {
        let world = World::new();
        world.rows(&["a", "b", "c", "d"]);
        let mut seen = Seen::default();
        let report = world.run(world.config(lora, 40), &mut seen);
        assert!(report.finished);
        let evaluated = seen.figure("eval/all/avg_score");
        let (before, after) = (evaluated[0], evaluated[evaluated.len() - 1]);
        assert!(before < 0.3 && after > 0.6, "rank {lora}: {before} before, {after} after");
        // Sampler and trainer speak of the same distribution, at every step, after every publication.
        for difference in seen.figure("policy/rollout_train_logprobs_abs_diff_mean") {
            assert!(difference < 1e-3, "rank {lora}: sampler and trainer differ by {difference} on average");
        }
    }
}

#[test]
fn a_rollout_that_cannot_be_judged_does_not_stop_a_step() {
    let world = World::new();
    world.rows(&["a", "broken"]);
    let mut seen = Seen::default();
    let report = world.run(world.config(0, 3), &mut seen);
    assert!(report.finished);
    for failed in seen.figure("reward/num_failed") {
        assert_eq!(failed, 8.0);
    }
    for norm in seen.figure("policy/grad_norm") {
        assert!(norm.is_finite() && norm > 0.0);
    }
}

#[test]
fn a_run_that_was_stopped_goes_on_as_if_it_had_not_been() {
    let whole = {
        let world = World::new();
        world.rows(&["a", "b", "c"]);
        let mut seen = Seen::default();
        world.run(world.config(8, 6), &mut seen);
        seen
    };
    let world = World::new();
    world.rows(&["a", "b", "c"]);
    let mut first = Seen { stop_after: Some(3), ..Seen::default() };
    let report = world.run(world.config(8, 6), &mut first);
    assert_eq!((report.steps, report.finished), (3, false));
    let mut second = Seen::default();
    let report = world.run(world.config(8, 6), &mut second);
    assert_eq!((report.steps, report.finished), (6, true));
    for name in ["reward/avg_raw_reward", "policy/final_loss", "policy/grad_norm"] {
        let parts: Vec<f64> = first.figure(name).into_iter().chain(second.figure(name)).collect();
        let expected = whole.figure(name);
        assert_eq!(parts.len(), expected.len());
        for (a, b) in parts.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-4 * b.abs().max(1.0), "{name}: {parts:?}, {expected:?}");
        }
    }
}

#[test]
fn settings_that_cannot_train_are_refused_by_key() {
    let world = World::new();
    world.rows(&["a"]);
    let good = world.config(0, 1);
    let refused = |change: &dyn Fn(&mut TrainConfig), key: &str| {
        let mut config = good.clone();
        change(&mut config);
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains(key), "expected `{key}` in: {error}");
    };
    refused(&|c| c.trainer.strategy = "megatron".to_owned(), "trainer.strategy");
    refused(&|c| c.trainer.policy_mini_batch_size = 3, "trainer.policy_mini_batch_size");
    refused(&|c| c.trainer.max_ckpts_to_keep = 0, "trainer.max_ckpts_to_keep");
    refused(&|c| c.trainer.policy.model.path = "".into(), "trainer.policy.model.path");
    refused(&|c| c.data.train_data.clear(), "data.train_data");
    refused(&|c| c.generator.sampling_params.logprobs = false, "generator.sampling_params.logprobs");
    refused(
        &|c| c.generator.sampling_params = SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        "temperature",
    );
    refused(&|c| c.trainer.policy.model.lora = LoraConfig { rank: -1, ..LoraConfig::default() }, "lora.rank");
    refused(
        &|c| c.trainer.policy.optimizer_config = OptimizerConfig { lr: f64::NAN, ..OptimizerConfig::default() },
        "optimizer_config.lr",
    );
    refused(
        &|c| {
            c.trainer.algorithm.use_kl_in_reward = true;
            c.trainer.algorithm.use_kl_loss = true;
        },
        "use_kl",
    );
    let mut old = good.clone();
    old.trainer.strategy = "fsdp2".to_owned();
    assert!(old.validate().unwrap().iter().any(|w| w.contains("fsdp2")));
}
