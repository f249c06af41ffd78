//! Several processes that share a model against one: the ranks are threads here, their collectives are torch's own.

mod common;

use std::collections::BTreeMap;

use common::{distance, fixture};
use espalier_distributed::Group;
use espalier_trainer::lora::LoraConfig;
use espalier_trainer::model::Visit;
use espalier_trainer::optimizer::{AdamW, OptimizerConfig};
use espalier_trainer::sft;
use espalier_trainer::sft::examples::Example;
use espalier_trainer::{ModelOptions, TrainModel, TrainPrecision};
use tch::Tensor;

const STEPS: u64 = 20;

/// Ragged rows: with some seeds a process has none in a step.
fn batch(step: u64) -> Vec<Example> {
    let mut state = step.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(7);
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let rows = 1 + draw(5);
    (0..rows)
        .map(|_| {
            let len = 3 + draw(20) as usize;
            let tokens: Vec<u32> = (0..len).map(|_| draw(96) as u32).collect();
            let mut weights: Vec<f32> = (0..len).map(|_| f32::from(u8::from(draw(3) > 0))).collect();
            weights[0] = 0.0;
            weights[len - 1] = 1.0;
            Example { tokens, weights }
        })
        .collect()
}

struct Outcome {
    losses: Vec<f64>,
    norms: Vec<f64>,
    gradients: BTreeMap<String, Tensor>,
    parameters: BTreeMap<String, Tensor>,
    resident: usize,
    moments: usize,
}

fn run(family: &str, lora: LoraConfig, precision: TrainPrecision, checkpointing: bool, group: Group) -> Outcome {
    let options = ModelOptions { precision, lora, gradient_checkpointing: checkpointing, seed: 3 };
    let mut model = TrainModel::load(&fixture(&format!("models/{family}")), options, group).unwrap();
    let config = OptimizerConfig { lr: 1e-3, weight_decay: 0.1, ..OptimizerConfig::default() };
    let mut adam = AdamW::new(config, &model).unwrap();
    let (mut losses, mut norms, mut gradients) = (Vec::new(), Vec::new(), BTreeMap::new());
    let mut resident = 0;
    for step in 0..STEPS {
        let examples = batch(step);
        let examples: Vec<&Example> = examples.iter().collect();
        losses.push(sft::accumulate(&mut model, &examples, 24).unwrap());
        if step == 0 {
            gradients = model.gradients().unwrap();
            resident = model.resident_bytes();
        }
        norms.push(adam.step(&mut model, STEPS).unwrap().grad_norm);
    }
    let mut parameters = BTreeMap::new();
    model
        .visit(Visit::Trained, &mut |name, value| {
            parameters.insert(name.to_owned(), value.copy());
            Ok(())
        })
        .unwrap();
    Outcome { losses, norms, gradients, parameters, resident, moments: adam.resident_bytes() }
}

fn lora() -> LoraConfig {
    LoraConfig { rank: 4, alpha: 8.0, ..LoraConfig::default() }
}

fn compare(family: &str, lora: &LoraConfig, precision: TrainPrecision, world: usize, tolerance: f64) {
    tch::set_num_threads(1);
    let alone = run(family, lora.clone(), precision, false, Group::single());
    let ranks: Vec<_> = Group::threads(world)
        .unwrap()
        .into_iter()
        .map(|group| {
            let (family, lora) = (family.to_owned(), lora.clone());
            std::thread::spawn(move || run(&family, lora, precision, true, group))
        })
        .collect();
    for (rank, thread) in ranks.into_iter().enumerate() {
        let shared = thread.join().unwrap();
        for (step, (a, b)) in shared.losses.iter().zip(&alone.losses).enumerate() {
            assert!(
                (a - b).abs() <= tolerance * b.abs(),
                "{family}, rank {rank} of {world}, step {step}: loss {a}, {b}"
            );
        }
        for (step, (a, b)) in shared.norms.iter().zip(&alone.norms).enumerate() {
            assert!((a - b).abs() <= 10.0 * tolerance * b.abs(), "rank {rank} of {world}, step {step}: norm {a}, {b}");
        }
        for (name, gradient) in &alone.gradients {
            let far = distance(&shared.gradients[name], gradient);
            assert!(far <= tolerance, "rank {rank} of {world}, `{name}`: gradient off by {far}");
        }
        if precision == TrainPrecision::F64 {
            for (name, value) in &alone.parameters {
                let far = distance(&shared.parameters[name], value);
                assert!(far <= tolerance, "rank {rank} of {world}, `{name}` after {STEPS} steps: off by {far}");
            }
        }
    }
}

#[test]
fn two_three_and_four_processes_train_what_one_trains_in_64_bits() {
    for world in [2, 3, 4] {
        compare("llama", &LoraConfig::default(), TrainPrecision::F64, world, 1e-9);
    }
    compare("qwen3", &LoraConfig::default(), TrainPrecision::F64, 2, 1e-9);
    compare("qwen2", &LoraConfig::default(), TrainPrecision::F64, 3, 1e-9);
}

#[test]
fn adapters_over_a_shared_base_train_as_in_one_process() {
    for world in [2, 3] {
        compare("llama", &lora(), TrainPrecision::F64, world, 1e-9);
    }
    let head = LoraConfig {
        target_modules: espalier_trainer::lora::TargetModules::List(vec!["v_proj".into(), "lm_head".into()]),
        ..lora()
    };
    compare("llama", &head, TrainPrecision::F64, 2, 1e-9);
}

#[test]
fn in_32_bits_losses_and_gradients_agree_to_a_ten_thousandth() {
    compare("llama", &LoraConfig::default(), TrainPrecision::F32, 2, 1e-4);
    compare("qwen3", &lora(), TrainPrecision::F32, 3, 1e-4);
}

#[test]
fn what_is_sharded_shrinks_with_the_number_of_processes() {
    tch::set_num_threads(1);
    let alone = run("llama", LoraConfig::default(), TrainPrecision::F32, true, Group::single());
    for world in [2, 4] {
        let ranks: Vec<_> = Group::threads(world)
            .unwrap()
            .into_iter()
            .map(|group| {
                std::thread::spawn(move || run("llama", LoraConfig::default(), TrainPrecision::F32, true, group))
            })
            .collect();
        for rank in ranks {
            let shared = rank.join().unwrap();
            // Shards are padded to whole blocks of 64 elements a unit.
            let share = |whole: usize| whole / world + 3 * 64 * 4 * 2;
            assert!(shared.resident <= share(alone.resident), "{} of {}", shared.resident, alone.resident);
            assert!(shared.moments <= share(alone.moments), "{} of {}", shared.moments, alone.moments);
        }
    }
}
