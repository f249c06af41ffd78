//! Forward and backward passes against PyTorch with transformers and peft: `tests/reference/make_fixtures.py`.

mod common;

use common::{Rows, close, distance, expected, fixture};
use espalier_distributed::Group;
use espalier_trainer::head::{Entropy, HeadOptions};
use espalier_trainer::lora::LoraConfig;
use espalier_trainer::packing::{MicroBatch, PackRow};
use espalier_trainer::{ModelOptions, TrainModel, TrainPrecision, peft};
use tch::{Kind, Tensor};

const FAMILIES: [&str; 6] = ["llama", "llama_tied", "llama_yarn", "llama_linear", "qwen2", "qwen3"];
const ADAPTERS: [&str; 5] = ["llama_all_linear", "llama_qv", "llama_lm_head", "qwen3_all_linear", "qwen3_qv_rslora"];

fn options(lora: LoraConfig, gradient_checkpointing: bool) -> ModelOptions {
    ModelOptions { precision: TrainPrecision::F32, lora, gradient_checkpointing, seed: 0 }
}

fn family(name: &str, checkpointing: bool) -> TrainModel {
    let folder = fixture(&format!("models/{name}"));
    TrainModel::load(&folder, options(LoraConfig::default(), checkpointing), Group::single()).unwrap()
}

fn adapted(case: &str, checkpointing: bool) -> TrainModel {
    let folder = fixture(&format!("lora/{case}"));
    let base = fixture(if case.starts_with("llama") { "models/llama" } else { "models/qwen3" });
    let lora = peft::read_config(&folder).unwrap();
    let mut model = TrainModel::load(&base, options(lora, checkpointing), Group::single()).unwrap();
    peft::load(&folder, &mut model).unwrap();
    model
}

/// Mean over masked tokens of -log p, and its gradients.
fn loss(model: &mut TrainModel, batch: &MicroBatch, mask: &Tensor, head: HeadOptions) -> f64 {
    let count = mask.sum(Kind::Double).double_value(&[]);
    model.forward_backward(batch, head, &mut |p| Ok(-(&p.logprobs * mask).sum(None) / count)).unwrap()
}

/// Logits differ by a constant from log-probabilities: each token's log-probability under the reference's logits.
fn reference_logprobs(tensors: &espalier_trainer::files::SafetensorsReader, rows: &Rows) -> Vec<Tensor> {
    let row = |(i, ids): (usize, &Vec<u32>)| {
        let logits = tensors.get(&format!("logits.{i}"), &[ids.len() as i64, 96]).unwrap();
        let next: Vec<i64> = ids[1..].iter().map(|t| i64::from(*t)).collect();
        let next = Tensor::from_slice(&next).unsqueeze(1);
        logits.narrow(0, 0, ids.len() as i64 - 1).log_softmax(-1, None).gather(1, &next, false).squeeze_dim(1)
    };
    rows.ids.iter().enumerate().map(row).collect()
}

fn check_logprobs(model: &TrainModel, batch: &MicroBatch, expected: &[Tensor], what: &str) {
    let found = model.predict(batch, HeadOptions::default()).unwrap().logprobs;
    for (place, row) in batch.rows.iter().enumerate() {
        let (from, to) = (batch.offsets[place], batch.offsets[place + 1]);
        let difference = (found.narrow(0, from, to - from) - &expected[*row]).abs().max().double_value(&[]);
        assert!(difference < 1e-4, "{what}, row {row}: log-probabilities differ by {difference}");
    }
}

#[test]
fn every_family_computes_what_transformers_computes() {
    for name in FAMILIES {
        for checkpointing in [false, true] {
            let (values, tensors) = expected(&format!("models/{name}"));
            let rows = Rows::read(&values);
            let (batch, mask) = rows.packed();
            let mut model = family(name, checkpointing);
            check_logprobs(&model, &batch, &reference_logprobs(&tensors, &rows), name);
            let found = loss(&mut model, &batch, &mask, HeadOptions::default());
            close(name, found, values["loss"].as_f64().unwrap(), 1e-4);
            close(name, model.gradient_norm().unwrap(), values["grad_norm"].as_f64().unwrap(), 1e-4);
            let gradients = model.gradients().unwrap();
            assert!(!gradients.is_empty());
            for (parameter, gradient) in &gradients {
                let expected = tensors.get(&format!("grad.{parameter}"), &gradient.size()).unwrap();
                let far = distance(gradient, &expected);
                assert!(far < 1e-4, "{name}, checkpointing {checkpointing}, `{parameter}`: gradient off by {far}");
            }
        }
    }
}

#[test]
fn adapters_compute_what_peft_computes() {
    for case in ADAPTERS {
        for checkpointing in [false, true] {
            let (values, tensors) = expected(&format!("lora/{case}"));
            let rows = Rows::read(&values);
            let (batch, mask) = rows.packed();
            let mut model = adapted(case, checkpointing);
            assert_eq!(model.parameters().0, values["trainable"].as_i64().unwrap(), "{case}");
            check_logprobs(&model, &batch, &reference_logprobs(&tensors, &rows), case);
            let found = loss(&mut model, &batch, &mask, HeadOptions::default());
            close(case, found, values["loss"].as_f64().unwrap(), 1e-4);
            for (parameter, gradient) in &model.gradients().unwrap() {
                let name = format!("grad.base_model.model.{parameter}");
                let far = distance(gradient, &tensors.get(&name, &gradient.size()).unwrap());
                assert!(far < 1e-4, "{case}, checkpointing {checkpointing}, `{parameter}`: gradient off by {far}");
            }
        }
    }
}

#[test]
fn chunks_of_the_output_layer_and_what_is_kept_change_nothing() {
    let (values, _) = expected("models/llama_tied");
    let rows = Rows::read(&values);
    let (batch, mask) = rows.packed();
    let run = |head: HeadOptions| {
        let mut model = family("llama_tied", false);
        let found = model
            .forward_backward(&batch, head, &mut |p| {
                let entropy = p.entropy.as_ref().unwrap();
                Ok(-(&p.logprobs * &mask).sum(None) / 10.0 - (entropy * entropy * 0.1).sum(None))
            })
            .unwrap();
        (found, model.gradients().unwrap())
    };
    let whole = HeadOptions { temperature: 0.7, entropy: Entropy::Gradients, ..HeadOptions::default() };
    let (a, of_a) = run(whole);
    for head in
        [HeadOptions { keep_bytes: 0, ..whole }, HeadOptions { chunk_bytes: 96 * 4 * 5, keep_bytes: 0, ..whole }]
    {
        let (b, of_b) = run(head);
        close("loss", a, b, 1e-5);
        for (name, gradient) in &of_a {
            assert!(distance(gradient, &of_b[name]) < 1e-5, "{name}");
        }
    }
}

#[test]
fn one_loss_has_one_gradient_whether_logits_are_kept_computed_again_or_never_needed_again() {
    let row = 96 * 4;
    let plain = HeadOptions { temperature: 0.7, ..HeadOptions::default() };
    let values = HeadOptions { entropy: Entropy::Values, ..plain };
    let gradients = HeadOptions { entropy: Entropy::Gradients, ..plain };
    let small = |head: HeadOptions| HeadOptions { chunk_bytes: 5 * row, keep_bytes: 0, ..head };
    for case in ["llama_tied", "llama_lm_head", "llama_all_linear"] {
        let folder = if case == "llama_tied" { format!("models/{case}") } else { format!("lora/{case}") };
        let (batch, mask) = Rows::read(&expected(&folder).0).packed();
        let fresh = || if case == "llama_tied" { family(case, false) } else { adapted(case, false) };
        let weights = &mask * -0.1;
        let mut reference: Option<(f64, std::collections::BTreeMap<String, Tensor>)> = None;
        for (known, head) in [
            (false, gradients),
            (false, plain),
            (false, values),
            (false, small(plain)),
            (false, small(gradients)),
            (true, plain),
            (true, small(plain)),
            (true, values),
        ] {
            let mut model = fresh();
            let found = if known {
                model.forward_backward_weighted(&batch, head, &weights).unwrap()
            } else {
                model.forward_backward(&batch, head, &mut |p| Ok((&p.logprobs * &weights).sum(None))).unwrap()
            };
            let gradients = model.gradients().unwrap();
            let (loss, expected) = reference.get_or_insert((found, gradients));
            close(case, found, *loss, 1e-5);
            for (name, gradient) in &model.gradients().unwrap() {
                let far = distance(gradient, &expected[name]);
                assert!(far < 1e-5, "{case}, known {known}, {head:?}: `{name}` is off by {far}");
            }
        }
    }
}

#[test]
fn entropy_and_temperature_have_the_gradients_of_their_formulas() {
    let (values, _) = expected("models/llama");
    let rows = Rows::read(&values);
    let (batch, _) = rows.packed();
    let head = HeadOptions { temperature: 1.7, entropy: Entropy::Gradients, ..HeadOptions::default() };
    let mut options = options(LoraConfig::default(), false);
    options.precision = TrainPrecision::F64;
    let mut model = TrainModel::load(&fixture("models/llama"), options, Group::single()).unwrap();
    let objective = |p: &espalier_trainer::head::Predictions| {
        (&p.logprobs * 0.3).sum(None) + (p.entropy.as_ref().unwrap() * 0.5).sum(None)
    };
    model.forward_backward(&batch, head, &mut |p| Ok(objective(p))).unwrap();
    let gradients = model.gradients().unwrap();
    // Central differences along a random direction of one parameter at a time.
    for name in
        ["model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"]
    {
        let gradient = &gradients[name];
        tch::manual_seed(7);
        let direction = gradient.randn_like();
        let moved = |by: f64| {
            let mut model = TrainModel::load(
                &fixture("models/llama"),
                ModelOptions { precision: TrainPrecision::F64, ..Default::default() },
                Group::single(),
            )
            .unwrap();
            let mut at = std::collections::BTreeMap::new();
            model
                .visit(espalier_trainer::model::Visit::Trained, &mut |n, v| {
                    at.insert(n.to_owned(), v.copy());
                    Ok(())
                })
                .unwrap();
            model
                .set_trained(&mut |n, _| Ok(if n == name { &at[n] + &direction * by } else { at[n].shallow_clone() }))
                .unwrap();
            objective(&model.predict(&batch, head).unwrap()).double_value(&[])
        };
        let step = 1e-5;
        let slope = (moved(step) - moved(-step)) / (2.0 * step);
        let expected = (gradient * &direction).sum(None).double_value(&[]);
        close(name, slope, expected, 1e-6);
    }
}

#[test]
fn packed_and_padded_rows_have_the_same_loss_and_gradients() {
    let (values, _) = expected("models/qwen3");
    let rows = Rows::read(&values);
    let mut results = Vec::new();
    for (batch, mask) in [rows.packed(), rows.padded()] {
        let mut model = family("qwen3", false);
        results.push((loss(&mut model, &batch, &mask, HeadOptions::default()), model.gradients().unwrap()));
    }
    close("loss", results[0].0, results[1].0, 1e-6);
    for (name, gradient) in &results[0].1 {
        assert!(distance(gradient, &results[1].1[name]) < 1e-5, "{name}");
    }
}

#[test]
fn micro_batches_add_up_to_the_whole_batch() {
    let (values, _) = expected("models/llama");
    let rows = Rows::read(&values);
    let pack: Vec<_> = rows.ids.iter().map(|tokens| PackRow { tokens, predict_from: 1 }).collect();
    let (batch, mask) = rows.packed();
    let mut whole = family("llama", false);
    let all = loss(&mut whole, &batch, &mask, HeadOptions::default());
    let count = mask.sum(Kind::Double).double_value(&[]);
    let mut parts = family("llama", true);
    let mut sum = 0.0;
    for row in 0..3 {
        let batch = MicroBatch::packed(&pack, &[row]).unwrap();
        sum +=
            parts.forward_backward(&batch, HeadOptions::default(), &mut |p| Ok(-p.logprobs.sum(None) / count)).unwrap();
    }
    close("loss", sum, all, 1e-6);
    let parts = parts.gradients().unwrap();
    for (name, gradient) in &whole.gradients().unwrap() {
        assert!(distance(&parts[name], gradient) < 1e-5, "{name}");
    }
}

#[test]
fn a_loss_that_is_not_a_number_names_its_row() {
    let (values, _) = expected("models/llama");
    let (batch, _) = Rows::read(&values).packed();
    let mut model = family("llama", false);
    model
        .set_trained(&mut |name, shape| {
            let ones = Tensor::ones(shape, (Kind::Float, tch::Device::Cpu));
            Ok(if name == "model.embed_tokens.weight" { ones * f64::NAN } else { ones })
        })
        .unwrap();
    let error = model
        .forward_backward(&batch, HeadOptions::default(), &mut |p| Ok(p.logprobs.sum(None)))
        .unwrap_err()
        .to_string();
    assert!(error.contains("row 0, response token 0"), "{error}");
}

#[test]
fn rows_that_do_not_fit_the_model_are_refused() {
    let model = family("llama", false);
    let long: Vec<u32> = vec![1; 65];
    let batch = MicroBatch::packed(&[PackRow { tokens: &long, predict_from: 1 }], &[0]).unwrap();
    let error = model.predict(&batch, HeadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("row 0: 65 tokens, the model's context has 64"), "{error}");
    let unknown = [1, 96, 2];
    let batch = MicroBatch::packed(&[PackRow { tokens: &unknown, predict_from: 1 }], &[0]).unwrap();
    let error = model.predict(&batch, HeadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("token 96") && error.contains("the vocabulary has 96"), "{error}");
}
