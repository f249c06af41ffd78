//! Optimiser steps against PyTorch's.

mod common;

use std::collections::BTreeMap;

use common::{Rows, close, distance, expected, fixture};
use espalier_algorithms::config::AlgorithmConfig;
use espalier_algorithms::tree::RowWeighting;
use espalier_distributed::Group;
use espalier_trainer::files::SafetensorsReader;
use espalier_trainer::head::HeadOptions;
use espalier_trainer::lora::LoraConfig;
use espalier_trainer::model::Visit;
use espalier_trainer::optimizer::{AdamW, OptimizerConfig, ParameterGroup, Schedule, Update};
use espalier_trainer::sft;
use espalier_trainer::sft::examples::Example;
use espalier_trainer::update::{Policy, UpdateOptions, UpdateRow};
use espalier_trainer::{ModelOptions, TrainModel, TrainPrecision, peft};
use serde_json::Value;
use tch::Tensor;

fn optimizer(values: &Value) -> OptimizerConfig {
    let o = &values["optimizer"];
    let number = |v: &Value| v.as_f64().unwrap();
    OptimizerConfig {
        lr: number(&o["lr"]),
        adam_betas: [number(&o["betas"][0]), number(&o["betas"][1])],
        eps: number(&o["eps"]),
        weight_decay: number(&o["weight_decay"]),
        max_grad_norm: values["max_grad_norm"].as_f64().unwrap_or(0.0),
        ..OptimizerConfig::default()
    }
}

fn model(values: &Value) -> TrainModel {
    let base = fixture(values["base"].as_str().unwrap());
    let options = |lora| ModelOptions { precision: TrainPrecision::F32, lora, ..ModelOptions::default() };
    let Some(adapter) = values["adapter"].as_str() else {
        return TrainModel::load(&base, options(LoraConfig::default()), Group::single()).unwrap();
    };
    let folder = fixture(adapter);
    let mut model = TrainModel::load(&base, options(peft::read_config(&folder).unwrap()), Group::single()).unwrap();
    peft::load(&folder, &mut model).unwrap();
    model
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

#[test]
fn supervised_steps_are_pytorchs() {
    for case in ["sft", "sft_full"] {
        let (values, tensors) = if case == "sft" {
            let (values, tensors) = expected("steps/sft");
            (values, Some(tensors))
        } else {
            let text = std::fs::read_to_string(fixture("steps/sft_full/expected.json")).unwrap();
            (serde_json::from_str(&text).unwrap(), None)
        };
        let rows = Rows::read(&values);
        let examples: Vec<Example> = rows
            .ids
            .iter()
            .zip(&rows.loss_mask)
            .map(|(ids, mask)| Example { tokens: ids.clone(), weights: mask.iter().map(|m| f32::from(*m)).collect() })
            .collect();
        let examples: Vec<&Example> = examples.iter().collect();
        let mut model = model(&values);
        let mut adam = AdamW::new(optimizer(&values), &model).unwrap();
        for (i, step) in values["steps"].as_array().unwrap().iter().enumerate() {
            // Micro-batches of at most 20 tokens: there are two, and the numbers are the same.
            let loss = sft::accumulate(&mut model, &examples, 20).unwrap();
            if let Some(tensors) = tensors.as_ref().filter(|_| i == 0) {
                for (name, gradient) in &model.gradients().unwrap() {
                    let key = format!("grad.base_model.model.{name}");
                    assert!(distance(gradient, &tensors.get(&key, &gradient.size()).unwrap()) < 1e-4, "{name}");
                }
            }
            let report = adam.step(&mut model, 5).unwrap();
            close("loss", loss, step["loss"].as_f64().unwrap(), 1e-4);
            close("grad_norm", report.grad_norm, step["grad_norm"].as_f64().unwrap(), 1e-3);
            if let Some(tensors) = tensors.as_ref().filter(|_| i == 0) {
                for (name, value) in &trained(&model) {
                    let key = format!("after.base_model.model.{name}");
                    let expected = tensors.get(&key, &value.size()).unwrap();
                    assert!(distance(value, &expected) < 1e-4, "{name} after the step");
                }
            }
        }
    }
}

#[test]
fn schedules_are_transformers() {
    let text = std::fs::read_to_string(fixture("steps/schedules/expected.json")).unwrap();
    let values: Value = serde_json::from_str(&text).unwrap();
    let mut checked = 0;
    for case in values.as_array().unwrap() {
        let scheduler: Schedule = match case["name"].as_str().unwrap() {
            "constant_with_warmup" => Schedule::ConstantWithWarmup,
            "linear" => Schedule::Linear,
            "cosine" => Schedule::Cosine,
            other => panic!("{other}"),
        };
        let config = OptimizerConfig {
            lr: 1.0,
            scheduler,
            num_warmup_steps: case["warmup_steps"].as_u64().unwrap(),
            ..OptimizerConfig::default()
        };
        for (step, rate) in case["rates"].as_array().unwrap().iter().enumerate() {
            let found = config.lr_at(step as u64, case["total_steps"].as_u64().unwrap());
            close("rate", found, rate.as_f64().unwrap(), 1e-6);
            checked += 1;
        }
    }
    assert!(checked >= 60);
}

#[test]
fn the_update_is_torchs_adamw() {
    let (values, tensors) = expected("steps/adamw");
    let gradients = tensors.get("gradients", &[5, 6]).unwrap();
    for (i, case) in values["cases"].as_array().unwrap().iter().enumerate() {
        let config = optimizer(&serde_json::json!({"optimizer": case}));
        let mut parameters = tensors.get("initial", &[6]).unwrap();
        let (mut first, mut second) = (parameters.zeros_like(), parameters.zeros_like());
        let expected = tensors.get(&format!("parameters.{i}"), &[5, 6]).unwrap();
        for step in 0..5 {
            let update = Update::new(&config, config.lr, step as u64 + 1);
            let rule = (config.weight_decay, 1.0);
            let moments = (&mut first, &mut second);
            update.apply(&mut parameters, moments, &gradients.get(step), None, 1.0, rule).unwrap();
            assert!(distance(&parameters, &expected.get(step)) < 1e-6, "case {i}, step {step}");
        }
        for (name, moment) in [("exp_avg", &first), ("exp_avg_sq", &second)] {
            assert!(distance(moment, &tensors.get(&format!("{name}.{i}"), &[6]).unwrap()) < 1e-6, "case {i}, {name}");
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_leaves_the_step_out_and_is_counted() {
    let (values, _) = expected("models/llama");
    let (batch, _) = Rows::read(&values).packed();
    let options = ModelOptions { precision: TrainPrecision::F32, ..ModelOptions::default() };
    let mut model = TrainModel::load(&fixture("models/llama"), options, Group::single()).unwrap();
    let mut adam = AdamW::new(OptimizerConfig { lr: 0.1, ..OptimizerConfig::default() }, &model).unwrap();
    let before = trained(&model);
    // A finite loss whose gradient is not: sqrt at 0.
    model
        .forward_backward(&batch, HeadOptions::default(), &mut |p| {
            Ok((p.logprobs.sum(None) - p.logprobs.detach().sum(None)).sqrt())
        })
        .unwrap();
    let report = adam.step(&mut model, 1).unwrap();
    assert!(report.skipped && !report.grad_norm.is_finite());
    assert_eq!((adam.steps(), adam.skipped()), (0, 1));
    for (name, value) in &trained(&model) {
        assert!(value.equal(&before[name]), "{name} changed");
    }
    // The next step is as if nothing had happened.
    model.forward_backward(&batch, HeadOptions::default(), &mut |p| Ok(-p.logprobs.mean(None))).unwrap();
    let report = adam.step(&mut model, 1).unwrap();
    assert!(!report.skipped && report.grad_norm.is_finite());
    assert_eq!(adam.steps(), 1);
}

#[test]
fn parameter_groups_have_their_own_decay_and_rate() {
    let options = ModelOptions { precision: TrainPrecision::F32, ..ModelOptions::default() };
    let mut model = TrainModel::load(&fixture("models/llama"), options, Group::single()).unwrap();
    let (values, _) = expected("models/llama");
    let (batch, _) = Rows::read(&values).packed();
    let groups = vec![
        ParameterGroup { pattern: "norm".to_owned(), weight_decay: Some(0.0), lr_scale: 0.0 },
        ParameterGroup { pattern: "q_proj".to_owned(), weight_decay: Some(0.5), lr_scale: 0.0 },
    ];
    let config = OptimizerConfig { lr: 0.01, groups, ..OptimizerConfig::default() };
    let mut adam = AdamW::new(config, &model).unwrap();
    let before = trained(&model);
    model.forward_backward(&batch, HeadOptions::default(), &mut |p| Ok(-p.logprobs.mean(None))).unwrap();
    adam.step(&mut model, 1).unwrap();
    for (name, value) in &trained(&model) {
        let still = name.contains("norm") || name.contains("q_proj");
        assert_eq!(value.equal(&before[name]), still, "{name}");
    }
}

/// Rows of the reference's batch with GRPO's advantages, as the loop makes them.
fn grpo_rows(values: &Value, tensors: &SafetensorsReader) -> (Vec<UpdateRow>, Vec<Vec<f32>>) {
    let rows = Rows::read(values);
    let advantages = Vec::<f32>::try_from(tensors.get("advantages", &[4]).unwrap()).unwrap();
    let mut made = Vec::new();
    let mut old = Vec::new();
    for (i, ids) in rows.ids.iter().enumerate() {
        let start = rows.loss_mask[i].iter().position(|m| *m == 1).unwrap();
        let column = |name: &str| -> Vec<f32> {
            let all = tensors.get(&format!("{name}.{i}"), &[ids.len() as i64]).unwrap();
            Vec::<f32>::try_from(all).unwrap()[start..].to_vec()
        };
        let mask = rows.loss_mask[i][start..].to_vec();
        made.push(UpdateRow {
            tokens: ids.clone(),
            response_start: start,
            advantages: mask.iter().map(|m| advantages[i] * f32::from(*m)).collect(),
            mask,
            rollout_logprobs: Some(column("old_logprobs")),
            prompt: "prompt".to_owned(),
            tree: format!("tree {i}"),
        });
        old.push(column("old_logprobs"));
    }
    (made, old)
}

#[test]
fn policy_steps_are_pytorchs() {
    for case in ["grpo", "grpo_full"] {
        let (values, tensors) = expected(&format!("steps/{case}"));
        let (rows, old) = grpo_rows(&values, &tensors);
        let algorithm = AlgorithmConfig {
            use_kl_loss: true,
            kl_loss_coef: values["kl_coef"].as_f64().unwrap(),
            row_weighting: RowWeighting::ByToken,
            ..AlgorithmConfig::default()
        };
        let model = model(&values);
        let adam = AdamW::new(optimizer(&values), &model).unwrap();
        let reference = (case == "grpo_full").then(|| self::model(&values));
        let mut policy = Policy::new(model, adam, reference, algorithm, None).unwrap();
        let options = UpdateOptions {
            mini_batch_prompts: 0,
            epochs: 1,
            max_tokens: 24,
            total_steps: 5,
            temperature: 1.0,
            seed: 0,
        };
        let reference = policy.reference_logprobs(&rows, &options).unwrap();
        for (i, step) in values["steps"].as_array().unwrap().iter().enumerate() {
            let report = policy.update_from(&rows, &old, Some(&reference), &options).unwrap();
            let figure = |name: &str| report.metrics.value(name).unwrap();
            for (ours, theirs) in [
                ("policy/final_loss", "loss"),
                ("policy/policy_loss", "policy_loss"),
                ("policy/policy_kl", "kl"),
                ("policy/policy_entropy", "entropy"),
                ("policy/loss_metrics/clip_ratio", "clip_ratio"),
            ] {
                close(&format!("{case}, step {i}, {ours}"), figure(ours), step[theirs].as_f64().unwrap(), 2e-4);
            }
            let norm = step["grad_norm"].as_f64().unwrap();
            assert!((figure("policy/grad_norm") - norm).abs() < 2e-3 * norm, "{case}, step {i}: {norm}");
            if i == 0 && case == "grpo" {
                for (name, value) in &trained(&policy.model) {
                    let key = format!("after.base_model.model.{name}");
                    let expected = tensors.get(&key, &value.size()).unwrap();
                    assert!(distance(value, &expected) < 1e-4, "{name} after the step");
                }
            }
        }
    }
}
