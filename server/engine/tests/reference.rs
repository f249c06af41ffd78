//! A session of every loss, number by number beside PyTorch and peft, while other users train and sample.
//!
//! The Python is that of `scripts/setup-engine-peer.sh`, made in the cache on first use; where that cannot be, the test says
//! so and passes.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Client, backend, datum, sample, tokens};
use espalier_tinker::operation::Kind;
use espalier_tinker::{Backend, datum::Datum};
use espalier_trainer::files::SafetensorsReader;
use futures::future::join;
use serde_json::{Value, json};

/// A Python with torch, transformers and peft.
fn python() -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/setup-engine-peer.sh");
    let output = Command::new("bash").arg(&script).output().map_err(|error| format!("bash: {error}"))?;
    if !output.status.success() {
        return Err(format!("{}: {}", script.display(), String::from_utf8_lossy(&output.stderr).trim_end()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().into())
}

/// A number in (-1, 1) that follows from where it stands.
fn value(step: u32, row: u32, at: usize) -> f32 {
    let mixed = (u64::from(step) * 7919 + u64::from(row) * 104_729 + at as u64 * 1_299_709) % 1009;
    mixed as f32 / 504.5 - 1.0
}

const LOSSES: [(&str, &[(&str, f64)]); 8] = [
    ("cross_entropy", &[]),
    ("importance_sampling", &[]),
    ("ppo", &[]),
    ("ppo", &[("clip_low_threshold", 0.95), ("clip_high_threshold", 1.02)]),
    ("cispo", &[]),
    ("cispo", &[("clip_low_threshold", 0.9), ("clip_high_threshold", 1.1)]),
    ("dro", &[("beta", 0.3)]),
    ("gspo", &[]),
];

const COLUMNS: [&str; 6] =
    ["weights", "logprobs", "advantages", "sequence_ratio_mask", "clip_low_threshold", "clip_high_threshold"];

/// Examples for a loss. The sampler's log-probabilities lie about those of a model that knows nothing.
fn data(loss: &str, step: u32) -> Vec<Datum> {
    (0..3)
        .map(|row| {
            let text = tokens(step * 3 + row, 6 + 2 * row);
            let column = |of: &dyn Fn(usize) -> f32| -> Vec<f32> { (0..text.len() - 1).map(of).collect() };
            let uniform = -(common::VOCAB as f32).ln();
            let mut columns = Vec::new();
            if loss == "cross_entropy" || row == 1 {
                columns.push(("weights", column(&|at| 0.5 + value(step + 50, row, at).abs())));
            }
            if loss != "cross_entropy" {
                columns.push(("logprobs", column(&|at| uniform + 0.3 * value(step, row, at))));
                columns.push(("advantages", column(&|at| 2.0 * value(step + 20, row, at))));
            }
            if loss == "gspo" {
                columns.push(("sequence_ratio_mask", column(&|at| f32::from(u8::from(at > 1)))));
            }
            if loss == "ppo" && row == 2 {
                columns.push(("clip_low_threshold", column(&|at| 0.7 + 0.1 * value(step + 30, row, at))));
                columns.push(("clip_high_threshold", column(&|at| 1.3 + 0.1 * value(step + 40, row, at))));
            }
            datum(&text, &columns)
        })
        .collect()
}

fn json_of(datum: &Datum) -> Value {
    let espalier_tinker::datum::Piece::Tokens(tokens) = &datum.input[0] else { unreachable!("text") };
    let mut row = json!({"tokens": tokens});
    for name in COLUMNS.into_iter().chain(["target_tokens"]) {
        let Some(tensor) = datum.loss_inputs.get(name) else { continue };
        let key = if name == "target_tokens" { "targets" } else { name };
        row[key] = match &tensor.numbers {
            espalier_tinker::tensor::Numbers::F32(numbers) => json!(numbers),
            espalier_tinker::tensor::Numbers::I64(numbers) => json!(numbers),
        };
    }
    row
}

/// Others who train and sample until it is over.
async fn others(backend: &dyn Backend, over: &AtomicBool) {
    let mut clients = Vec::new();
    for number in 1..=8 {
        clients.push(Client::create(backend, number, json!({"rank": 1 << (number % 4), "seed": number})).await);
    }
    let mut round = 0;
    while !over.load(Ordering::Relaxed) {
        for client in &mut clients {
            client.train(vec![datum(&tokens(client.model + round, 9), &[])]).await;
            client.step(json!({"learning_rate": 0.01, "weight_decay": 0.3})).await.unwrap();
        }
        let name = format!("round-{round}");
        let path = clients[0].save(Kind::SaveWeightsForSampler, &name).await.unwrap();
        sample(backend, Some(&path), &tokens(round, 6), json!({})).await.unwrap();
        round += 1;
    }
    assert!(round > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_gives_what_pytorch_gives_while_others_train_and_sample() {
    let python = match tokio::task::spawn_blocking(python).await.unwrap() {
        Ok(python) => python,
        Err(why) => {
            #[expect(clippy::print_stderr, reason = "a skipped test says so")]
            {
                eprintln!("skipped: {why}");
            }
            return;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let adam = |step: u32| {
        json!({"learning_rate": 0.003 + 0.001 * f64::from(step % 3), "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
               "weight_decay": 0.1 * f64::from(step % 2), "grad_clip_norm": if step % 4 == 3 { 0.5 } else { 0.0 }})
    };
    let over = AtomicBool::new(false);
    let mut steps = Vec::new();
    let (mut found, mut norms, mut start, mut end) = (Vec::new(), Vec::new(), PathBuf::new(), PathBuf::new());
    let session = async {
        let mut client = Client::create(&backend, 0, json!({"rank": 4, "seed": 7})).await;
        let path = client.save(Kind::SaveWeightsForSampler, "start").await.unwrap();
        start = backend.checkpoint_folder(&path).unwrap();
        for step in 0..10 {
            let mut passes = Vec::new();
            for part in 0..2 {
                let (loss, config) = LOSSES[(step as usize * 2 + part) % LOSSES.len()];
                let data = data(loss, step);
                let rows: Vec<Value> = data.iter().map(json_of).collect();
                let given: serde_json::Map<String, Value> =
                    config.iter().map(|(name, number)| ((*name).to_owned(), json!(number))).collect();
                passes.push(json!({"loss": loss, "config": given, "data": rows}));
                found.push(client.pass(data, loss, config, false).await.unwrap());
            }
            norms.push(client.step(adam(step)).await.unwrap()["grad_norm:mean"]);
            steps.push(json!({"passes": passes, "adam": adam(step)}));
        }
        let path = client.save(Kind::SaveWeightsForSampler, "end").await.unwrap();
        end = backend.checkpoint_folder(&path).unwrap();
        over.store(true, Ordering::Relaxed);
    };
    join(session, others(&backend, &over)).await;

    let file = folder.path().join("session.json");
    std::fs::write(&file, json!({"steps": steps}).to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference.py");
    // The libtorch that this test runs on is not the one of that Python.
    let mut command = Command::new(python);
    command.arg(script).args([&folder.path().join("model"), &start, &file]).env_remove("LD_LIBRARY_PATH");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: Value = serde_json::from_slice(&output.stdout).unwrap();

    let near = |a: f64, b: f64, what: &str| assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{what}: {a} is not {b}");
    for (number, (ours, theirs)) in found.iter().zip(theirs["passes"].as_array().unwrap()).enumerate() {
        let name = LOSSES[number % LOSSES.len()].0;
        near(ours.metrics["loss:sum"], theirs["loss"].as_f64().unwrap(), &format!("loss {number}, {name}"));
        let logprobs = ours.logprobs.iter().flat_map(|datum| &datum.values);
        for (a, b) in logprobs.zip(theirs["logprobs"].as_array().unwrap()) {
            near(f64::from(*a), b.as_f64().unwrap(), &format!("log-probability of pass {number}, {name}"));
        }
    }
    // The norms of all gradients together.
    for (step, (a, b)) in norms.iter().zip(theirs["norms"].as_array().unwrap()).enumerate() {
        let b = b.as_f64().unwrap();
        assert!((a - b).abs() <= 1e-4 * b, "gradient of step {step}: {a} is not {b}");
    }
    // The weights: within 1e-6 + 0.1 lr steps for 99.9 % of all numbers.
    let ours = SafetensorsReader::open(&end.join("adapter_model.safetensors")).unwrap();
    let theirs = SafetensorsReader::open(&start.join("end.safetensors")).unwrap();
    let (mut all, mut far) = (0usize, 0usize);
    for name in ours.names() {
        let shape = ours.shape(&name).unwrap();
        let difference = ours.get(&name, &shape).unwrap() - theirs.get(&name, &shape).unwrap();
        let beyond = difference.abs().gt(1e-6 + 0.1 * 0.005 * 10.0).sum(tch::Kind::Int64).int64_value(&[]);
        all += difference.numel();
        far += beyond as usize;
    }
    assert_eq!(ours.names().len(), theirs.names().len());
    assert!(all > 1000 && far * 1000 <= all, "{far} of {all} weights differ");
}
