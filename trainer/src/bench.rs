//! What training costs, as figures that a command can print. `benches/train_peer.py` measures a step of it beside
//! transformers and peft.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use espalier_distributed::Group;
use espalier_engine::models::read_config;
use espalier_engine::{EngineOptions, LocalEngine};
use espalier_envs::Registry;
use espalier_generator::player::ModelTemplate;
use espalier_generator::{Player, Players};
use espalier_inference::scripted::ScriptedEngine;
use espalier_inference::{ChatTemplate, SamplingParams, Tokenizer};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::error::TrainError;
use crate::head::HeadOptions;
use crate::lora::LoraConfig;
use crate::model::{ModelOptions, TrainModel, TrainPrecision};
use crate::optimizer::{AdamW, OptimizerConfig};
use crate::packing::{MicroBatch, PackRow, plan};
use crate::rl::TrainRun;
use crate::rl::config::TrainConfig;
use crate::rl::engine::{LocalSampler, Sampler, Weights};
use crate::rl::prompts::Prompts;
use crate::sft::examples::Example;
use crate::sft::{self, Numbers, Watch};
use crate::update::Policy;

/// Rows of the packing figure, their lengths, and how many tokens go through the model at once.
const ROWS: usize = 16;
const SHORTEST: f64 = 64.0;
const LONGEST: f64 = 640.0;
const MICRO_BATCH: usize = 2048;

fn lora() -> LoraConfig {
    LoraConfig { rank: 16, ..LoraConfig::default() }
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Rows whose lengths are log-uniform, the same in every run.
fn ragged_rows(vocab: i64) -> Vec<Vec<u32>> {
    let mut draw = ChaCha8Rng::seed_from_u64(0);
    (0..ROWS)
        .map(|_| {
            let length = (SHORTEST * (LONGEST / SHORTEST).powf(draw.random())) as usize;
            (0..length).map(|_| draw.random_range(0..vocab as u32)).collect()
        })
        .collect()
}

/// Lays rows out as a micro-batch.
type Lay = fn(&[PackRow<'_>], &[usize]) -> Result<MicroBatch, tch::TchError>;

/// How much longer the forward and backward passes over a batch of ragged rows take when they are padded to the longest
/// than when they are packed: LoRA, bfloat16, micro-batches of as many tokens. Both take turns, `rounds` times after one
/// that warms up; the median of the ratios.
pub fn packing_speedup(folder: &Path, rounds: usize) -> Result<f64, TrainError> {
    let options = ModelOptions { lora: lora(), ..ModelOptions::default() };
    let mut model = TrainModel::load(folder, options, Group::single())?;
    let rows = ragged_rows(model.config().vocab);
    let rows: Vec<PackRow<'_>> = rows.iter().map(|tokens| PackRow { tokens, predict_from: 1 }).collect();
    let lengths: Vec<usize> = rows.iter().map(|row| row.tokens.len()).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let ways: [(Lay, Vec<usize>); 2] =
        [(MicroBatch::packed, lengths.clone()), (MicroBatch::padded, vec![longest; rows.len()])];
    let mut ratios = Vec::new();
    for round in 0..=rounds {
        let mut seconds = [0.0; 2];
        for ((lay, lengths), seconds) in ways.iter().zip(&mut seconds) {
            let begun = Instant::now();
            for chosen in plan(lengths, MICRO_BATCH, 1).into_iter().flatten() {
                let batch = lay(&rows, &chosen)?;
                let weights = Tensor::f_full([batch.predictions()], -1.0, (Kind::Float, tch::Device::Cpu))?;
                model.forward_backward_weighted(&batch, HeadOptions::default(), &weights)?;
            }
            model.zero_gradients();
            *seconds = begun.elapsed().as_secs_f64();
        }
        if round > 0 {
            ratios.push(seconds[1] / seconds[0]);
        }
    }
    Ok(middle(ratios))
}

/// What `watch` is told, step by step.
#[derive(Default)]
struct Steps {
    numbers: Vec<Numbers>,
    /// Resident memory after each step, MiB.
    resident: Vec<f64>,
}

impl Watch for Steps {
    fn log(&mut self, _step: u64, numbers: &Numbers) {
        self.numbers.push(numbers.clone());
        self.resident.push(resident_mb().unwrap_or(f64::NAN));
    }
}

/// Resident memory of this process, MiB.
fn resident_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kilobytes.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}

/// GRPO with LoRA on short sums.
fn sums(steps: u64, changes: Value) -> Result<TrainConfig, TrainError> {
    let mut config = json!({
        "data": {"train_data": [{"builtin": "reasoning/chain_sum", "params": {"rows": 256, "level": 1}}]},
        "trainer": {
            "max_training_steps": steps, "epochs": 1000, "train_batch_size": 4, "policy_mini_batch_size": 4,
            "eval_before_train": false, "eval_interval": 0,
            "policy": {"model": {"path": "bench", "lora": {"rank": 16}}, "optimizer_config": {"lr": 1e-5}},
            "algorithm": {"use_kl_loss": false},
        },
        "generator": {
            "n_samples_per_prompt": 8, "sampling_params": {"max_tokens": 32}, "rollout": {"max_turns": 1},
        },
        "environment": {"env_class": "reasoning/chain_sum"},
    });
    merge(&mut config, changes);
    serde_json::from_value(config).map_err(|error| TrainError::Config {
        key: "bench".to_owned(),
        expected: "a configuration of `espalier train`".to_owned(),
        found: error.to_string(),
    })
}

fn merge(to: &mut Value, from: Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (key, value) in from {
                merge(to.entry(key).or_insert(Value::Null), value);
            }
        }
        (to, from) => *to = from,
    }
}

fn run(
    config: TrainConfig,
    model: TrainModel,
    sampler: Arc<dyn Sampler>,
    runtime: tokio::runtime::Handle,
) -> Result<Steps, TrainError> {
    let optimizer = AdamW::new(config.trainer.policy.optimizer_config.clone(), &model)?;
    let policy = Policy::new(model, optimizer, None, config.trainer.algorithm.clone(), None)?;
    let env = &config.environment;
    let registry = Registry::standard();
    let train = Prompts::read(&config.data.train_data, &env.env_class, &env.params, &registry, "data.train_data")?;
    let run = TrainRun::new(config, policy, Some(sampler), train, runtime);
    let mut steps = Steps::default();
    run.run(&mut steps)?;
    Ok(steps)
}

/// Percent of a step of reinforcement in which neither the engine nor the model works: rollouts around the engine,
/// grading, advantages, losses, and the new weights' way into the engine. The real engine and a model folder; the median of
/// `steps` steps after one that warms up.
pub fn rl_overhead_percent(folder: &Path, steps: u64, runtime: tokio::runtime::Handle) -> Result<f64, TrainError> {
    let config = sums(steps + 1, json!({}))?;
    let options = ModelOptions { lora: config.trainer.policy.model.lora.clone(), ..ModelOptions::default() };
    let model = TrainModel::load(folder, options, Group::single())?;
    let engine = LocalEngine::load(folder, EngineOptions::default())?;
    let template = engine.template().cloned().ok_or_else(|| TrainError::File {
        path: folder.to_owned(),
        reason: "expected a chat template in the model's folder, found none".to_owned(),
    })?;
    let template = Arc::new(ModelTemplate::new(engine.tokenizer().clone(), template));
    let sampler = Arc::new(LocalSampler::new(Arc::new(engine), template));
    let steps = run(config, model, sampler, runtime)?;
    let share = |numbers: &Numbers| 100.0 * numbers["timing/overhead"] / numbers["timing/step"];
    Ok(middle(steps.numbers.iter().skip(1).map(share).collect()))
}

/// Says the same few things whatever it is asked, and forgets the weights that it is sent.
struct Script(ScriptedEngine);

impl Sampler for Script {
    fn players(&self, sampling: SamplingParams) -> Players {
        let template = Arc::new(ModelTemplate::new(Tokenizer::bytes(), ChatTemplate::chatml()));
        Players::policy(Player { engine: Arc::new(self.0.clone()), template: Some(template), sampling, trained: true })
    }

    fn publish(&self, _weights: Weights, _version: u64) -> Result<(), TrainError> {
        Ok(())
    }
}

/// A model of two small layers over bytes.
fn tiny(options: ModelOptions, group: Group) -> Result<TrainModel, TrainError> {
    let folder = std::env::temp_dir().join(format!("espalier-bench-{}-{}", std::process::id(), group.rank()));
    std::fs::create_dir_all(&folder).map_err(TrainError::io("create", &folder))?;
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": true,
    });
    let path = folder.join("config.json");
    std::fs::write(&path, config.to_string()).map_err(TrainError::io("write", &path))?;
    let shape = read_config(&folder);
    // Only its numbers are needed.
    let _ = std::fs::remove_dir_all(&folder);
    TrainModel::random(&shape?.decoder, options, group)
}

/// MiB by which resident memory grows over 100 steps of reinforcement, by least squares over `steps` steps after as many
/// that warm up: a tiny model, and an engine that says what it is told to.
pub fn rl_growth_mb(steps: u64, runtime: tokio::runtime::Handle) -> Result<f64, TrainError> {
    let config = sums(2 * steps, json!({"trainer": {"precision": "f32"}}))?;
    let options = ModelOptions {
        precision: TrainPrecision::F32,
        lora: config.trainer.policy.model.lora.clone(),
        ..ModelOptions::default()
    };
    let replies = ["Answer: 7", "Answer: 12", "I add them up. Answer: 3", "I do not know.", "Answer: -1"];
    let script = Script(ScriptedEngine::replies(replies).cycle().build());
    let seen = run(config, tiny(options, Group::single())?, Arc::new(script), runtime)?;
    let measured = &seen.resident[steps as usize..];
    let centre = (measured.len() - 1) as f64 / 2.0;
    let mean = measured.iter().sum::<f64>() / measured.len() as f64;
    let offsets = measured.iter().enumerate().map(|(i, mb)| (i as f64 - centre, mb - mean));
    let (along, squares) = offsets.fold((0.0, 0.0), |(a, s), (x, y)| (a + x * y, s + x * x));
    Ok(100.0 * along / squares)
}

/// Bytes of parameters, gradients and moments that the fullest of `world` processes holds, times `world`, over what one
/// process alone holds; all weights trained.
pub fn shard_excess(world: usize) -> Result<f64, TrainError> {
    let held = |group: Group| -> Result<usize, TrainError> {
        let mut model = tiny(ModelOptions { precision: TrainPrecision::F32, ..ModelOptions::default() }, group)?;
        let mut adam = AdamW::new(OptimizerConfig::default(), &model)?;
        let example = Example { tokens: (0..64).collect(), weights: vec![1.0; 64] };
        sft::accumulate(&mut model, &[&example], 64)?;
        let bytes = model.resident_bytes();
        adam.step(&mut model, 1)?;
        Ok(bytes + adam.resident_bytes())
    };
    let alone = held(Group::single())?;
    let ranks: Vec<_> =
        Group::threads(world)?.into_iter().map(|group| std::thread::spawn(move || held(group))).collect();
    let mut most = 0;
    for rank in ranks {
        let bytes = rank.join().map_err(|_| TrainError::Sampling { reason: "a rank of the bench is gone".to_owned() });
        most = most.max(bytes??);
    }
    Ok((most * world) as f64 / alone as f64)
}
