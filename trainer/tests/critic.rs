//! The critic: values, gradients, the loss, and a policy that learns with it.

mod common;

use std::collections::BTreeMap;

use common::world::{Seen, Stub, StubOptions, World};
use common::{close, fixture};
use espalier_algorithms::config::AlgorithmConfig;
use espalier_algorithms::tree::RowWeighting;
use espalier_distributed::Group;
use espalier_trainer::critic::Critic;
use espalier_trainer::head::HeadOptions;
use espalier_trainer::lora::{LoraConfig, TargetModules};
use espalier_trainer::model::Visit;
use espalier_trainer::optimizer::{AdamW, OptimizerConfig};
use espalier_trainer::packing::{MicroBatch, PackRow};
use espalier_trainer::update::{UpdateOptions, UpdateRow};
use espalier_trainer::{ModelOptions, TrainModel, TrainPrecision};
use serde_json::json;
use tch::Tensor;

fn critic(lora: LoraConfig, precision: TrainPrecision, checkpointing: bool) -> TrainModel {
    let options = ModelOptions { precision, lora, gradient_checkpointing: checkpointing, seed: 4 };
    TrainModel::load_critic(&fixture("models/llama"), options, "value_head", Group::single()).unwrap()
}

fn trained(model: &TrainModel) -> BTreeMap<String, Tensor> {
    let mut all = BTreeMap::new();
    model
        .visit(Visit::Trained, &mut |name, value| {
            all.insert(name.to_owned(), value.copy());
            Ok(())
        })
        .unwrap();
    all
}

const ROWS: [&[u32]; 3] = [&[3, 14, 15, 92, 65, 35], &[2, 71, 82, 81], &[1, 41, 42, 13, 56]];

fn batch() -> MicroBatch {
    let rows = ROWS.map(|tokens| PackRow { tokens, predict_from: 2 });
    MicroBatch::packed(&rows, &[0, 1, 2]).unwrap()
}

/// A scalar of the values, different in each of them.
fn scalar(values: &Tensor) -> Tensor {
    let weights = Tensor::arange(values.size()[0], (values.kind(), values.device())) + 1.0;
    (values.square() * 0.5 * &weights + values).sum(None)
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let adapters = LoraConfig { rank: 2, ..LoraConfig::default() };
    for (lora, checkpointing) in [(LoraConfig::default(), false), (LoraConfig::default(), true), (adapters, false)] {
        let mut model = critic(lora, TrainPrecision::F64, checkpointing);
        // A new adapter adds nothing and has half of its gradients 0.
        let start: BTreeMap<String, Tensor> =
            trained(&model).into_iter().map(|(name, value)| (name, value + 0.01)).collect();
        model.set_trained(&mut |name, _| Ok(start[name].copy())).unwrap();
        let batch = batch();
        let value = model.value_backward(&batch, &mut |values| Ok(scalar(values))).unwrap();
        close("loss", value, scalar(&model.values(&batch).unwrap()).double_value(&[]), 1e-12);
        let gradients = model.gradients().unwrap();
        assert!(gradients.contains_key("value_head.weight"));
        for (number, (name, gradient)) in gradients.iter().enumerate() {
            // One entry of each tensor, another in each; of the embedding one that is used.
            let at = if name.contains("embed") { 14 * 32 + 3 } else { (number as i64 * 7) % gradient.numel() as i64 };
            let step = 1e-5;
            let moved = |by: f64| {
                let mut probe = critic(model.options().lora.clone(), TrainPrecision::F64, false);
                probe
                    .set_trained(&mut |other, _| {
                        let value = start[other].copy();
                        if other == name {
                            let _ = value.view([-1]).get(at).g_add_scalar_(by);
                        }
                        Ok(value)
                    })
                    .unwrap();
                scalar(&probe.values(&batch).unwrap()).double_value(&[])
            };
            let expected = (moved(step) - moved(-step)) / (2.0 * step);
            let found = gradient.view([-1]).double_value(&[at]);
            assert!((found - expected).abs() < 1e-6 * expected.abs().max(1.0), "{name}[{at}]: {found}, {expected}");
        }
    }
}

#[test]
fn a_value_is_the_hidden_state_before_its_token_times_the_head() {
    // With the difference of two rows of the output layer as its head, a value is a difference of log-probabilities.
    let options = || ModelOptions { precision: TrainPrecision::F64, ..ModelOptions::default() };
    let policy = TrainModel::load(&fixture("models/llama"), options(), Group::single()).unwrap();
    let (one, other) = (17_u32, 40_u32);
    let mut output = None;
    let mut embedding = None;
    policy
        .visit(Visit::All, &mut |name, value| {
            match name {
                "lm_head.weight" => output = Some(value.copy()),
                "model.embed_tokens.weight" => embedding = Some(value.copy()),
                _ => {}
            }
            Ok(())
        })
        .unwrap();
    let output = output.or(embedding).unwrap();
    let head = (output.get(i64::from(one)) - output.get(i64::from(other))).unsqueeze(0);
    let mut model = critic(LoraConfig::default(), TrainPrecision::F64, false);
    let weights = trained(&model);
    model
        .set_trained(&mut |name, _| Ok(if name == "value_head.weight" { head.copy() } else { weights[name].copy() }))
        .unwrap();
    let prefix = [5, 9, 77];
    let rows: Vec<Vec<u32>> = [one, other].iter().map(|last| [&prefix[..], &[*last]].concat()).collect();
    let pack: Vec<PackRow<'_>> = rows.iter().map(|tokens| PackRow { tokens, predict_from: 3 }).collect();
    let batch = MicroBatch::packed(&pack, &[0, 1]).unwrap();
    let logprobs = policy.predict(&batch, HeadOptions::default()).unwrap().logprobs;
    let expected = logprobs.double_value(&[0]) - logprobs.double_value(&[1]);
    let values = model.values(&batch).unwrap();
    for place in [0, 1] {
        close("value", values.double_value(&[place]), expected, 1e-9);
    }
}

fn rows() -> Vec<UpdateRow> {
    let row = |i: usize, mask: &[u8]| UpdateRow {
        tokens: ROWS[i].to_vec(),
        response_start: 2,
        mask: mask.to_vec(),
        advantages: vec![0.0; mask.len()],
        prompt: format!("prompt {}", i % 2),
        tree: format!("tree {i}"),
        ..UpdateRow::default()
    };
    vec![row(0, &[1, 0, 1, 1]), row(1, &[1, 1]), row(2, &[0, 0, 1])]
}

#[test]
fn the_loss_is_the_clipped_one_averaged_over_tokens_then_rows() {
    let model = critic(LoraConfig::default(), TrainPrecision::F64, false);
    let adam = AdamW::new(OptimizerConfig { lr: 0.05, ..OptimizerConfig::default() }, &model).unwrap();
    let algorithm = AlgorithmConfig { row_weighting: RowWeighting::ByToken, ..AlgorithmConfig::default() };
    let mut critic = Critic::new(model, adam, &algorithm).unwrap();
    // Micro-batches of at most eight tokens: there are several, and the numbers are those of one.
    let options =
        UpdateOptions { mini_batch_prompts: 0, epochs: 1, max_tokens: 8, total_steps: 9, temperature: 1.0, seed: 0 };
    let rows = rows();
    let returns = vec![vec![1.0, f32::MAX, -0.5, 0.3], vec![0.2, 0.9], vec![f32::MAX, f32::MAX, 2.0]];
    let old = critic.values(&rows, 64).unwrap();
    let expected = |values: &Vec<Vec<f32>>| {
        let mut clipped = 0.0;
        let mut total = 0.0;
        for (i, row) in rows.iter().enumerate() {
            let tokens: Vec<usize> = (0..row.mask.len()).filter(|t| row.mask[*t] == 1).collect();
            for t in &tokens {
                let (v, o, r) = (f64::from(values[i][*t]), f64::from(old[i][*t]), f64::from(returns[i][*t]));
                let plain = (v - r).powi(2);
                let bounded = (o + (v - o).clamp(-0.2, 0.2) - r).powi(2);
                total += 0.5 * plain.max(bounded) / tokens.len() as f64 / 3.0;
                clipped += f64::from(u8::from(bounded > plain)) / 6.0;
            }
        }
        (total, clipped)
    };
    let mut clipping = 0.0;
    for step in 0..4 {
        let (loss, clipped) = expected(&critic.values(&rows, 64).unwrap());
        let metrics = critic.update(&rows, &old, &returns, &options).unwrap();
        close(&format!("step {step}"), metrics.value("critic/critic_loss").unwrap(), loss, 1e-6);
        close(&format!("step {step}"), metrics.value("critic/values_clipfrac").unwrap(), clipped, 1e-9);
        clipping += clipped;
    }
    assert!(clipping > 0.0, "no step reached the clip");
}

#[test]
fn what_is_no_critic_is_refused() {
    let options = ModelOptions { precision: TrainPrecision::F32, ..ModelOptions::default() };
    let policy = TrainModel::load(&fixture("models/llama"), options.clone(), Group::single()).unwrap();
    let adam = AdamW::new(OptimizerConfig::default(), &policy).unwrap();
    assert!(policy.values(&batch()).is_err());
    let error = Critic::new(policy, adam, &AlgorithmConfig::default()).err().unwrap().to_string();
    assert!(error.contains("value head"), "{error}");
    let lora =
        LoraConfig { rank: 2, target_modules: TargetModules::List(vec!["lm_head".into()]), ..LoraConfig::default() };
    let options = ModelOptions { lora, ..options };
    let error = TrainModel::load_critic(&fixture("models/llama"), options, "value_head", Group::single());
    assert!(error.err().unwrap().to_string().contains("lora.target_modules"));
}

fn gae(world: &World, lora: u32, steps: u64) -> espalier_trainer::rl::config::TrainConfig {
    let critic = json!({"model": {"path": world.path().join("model")}, "optimizer_config": {"lr": 0.01}});
    world.config_with(lora, steps, &json!({"critic": critic, "algorithm": {"advantage_estimator": "gae"}}))
}

#[test]
fn a_policy_learns_with_a_critic() {
    let world = World::new();
    world.rows(&["a", "b", "c", "d"]);
    let mut seen = Seen::default();
    let report = world.run(gae(&world, 8, 40), &mut seen);
    assert!(report.finished);
    let evaluated = seen.figure("eval/all/avg_score");
    let (before, after) = (evaluated[0], evaluated[evaluated.len() - 1]);
    assert!(before < 0.3 && after > 0.6, "{before} before, {after} after");
    // A token is worth what the whole response will be: the critic comes to know it.
    let (rewards, values) = (seen.figure("reward/avg_raw_reward"), seen.figure("critic/values_mean"));
    let gap = |i: usize| (rewards[i] - values[i]).abs();
    assert!(gap(39) < 0.2, "rewards {rewards:?}, values {values:?}");
}

#[test]
fn a_stopped_run_goes_on_with_its_critic_bit_for_bit() {
    let figures = |seen: &Seen| -> Vec<f64> {
        let names = ["critic/critic_loss", "critic/grad_norm", "critic/values_mean", "policy/grad_norm"];
        names.iter().flat_map(|name| seen.figure(name)).collect()
    };
    let stub = || Stub::new(StubOptions { by_version: true, ..StubOptions::default() });
    let mut whole = Seen::default();
    let world = World::new();
    world.rows(&["a", "b", "c"]);
    world.run_stub(gae(&world, 0, 6), stub(), &mut whole);
    let world = World::new();
    world.rows(&["a", "b", "c"]);
    let mut seen = Seen { stop_after: Some(3), ..Seen::default() };
    world.run_stub(gae(&world, 0, 6), stub(), &mut seen);
    seen.stop_after = None;
    world.run_stub(gae(&world, 0, 6), stub(), &mut seen);
    assert_eq!(figures(&seen), figures(&whole));
    assert_eq!(figures(&whole).len(), 24);
    // A policy's checkpoint alone does not do for a run with a critic.
    let other = World::new();
    other.rows(&["a", "b", "c"]);
    other.run_stub(other.config(0, 1), stub(), &mut Seen::default());
    let run = other.parts(gae(&other, 0, 2), Some(std::sync::Arc::new(stub())), Group::single());
    let error = run.run(&mut Seen::default()).err().unwrap().to_string();
    assert!(error.contains("holds no critic"), "{error}");
}

#[test]
fn an_estimator_that_needs_a_critic_asks_for_one() {
    let world = World::new();
    world.rows(&["a"]);
    let mut config = gae(&world, 0, 1);
    assert_eq!(config.trainer.critic.optimizer_config.lr, 0.01);
    config.trainer.critic.model.path = "".into();
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("trainer.critic.model.path"), "{error}");
    let section: espalier_trainer::rl::config::CriticSection =
        serde_json::from_value(json!({"optimizer_config": {"weight_decay": 0.0}})).unwrap();
    assert_eq!(section.optimizer_config.lr, 5e-6);
}
