//! Adapters that are trained here, loaded by PEFT itself.
//!
//! The Python is that of `scripts/setup-engine-peer.sh`, made in the cache on first use; where that cannot be, the test says
//! so and passes.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Rows, fixture};
use espalier_distributed::Group;
use espalier_trainer::head::HeadOptions;
use espalier_trainer::lora::{LoraConfig, TargetModules};
use espalier_trainer::{ModelOptions, TrainModel, TrainPrecision, peft};
use serde::Deserialize;
use tch::{Kind, Tensor};

/// What `reference/check_peft.py` prints.
#[derive(Deserialize)]
struct Loaded {
    logits: Vec<Vec<Vec<f32>>>,
    parameters: i64,
    scaling: Vec<f64>,
}

/// A Python with PEFT.
fn python() -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/setup-engine-peer.sh");
    let output = Command::new("bash").arg(&script).output().map_err(|error| format!("bash: {error}"))?;
    if !output.status.success() {
        return Err(format!("{}: {}", script.display(), String::from_utf8_lossy(&output.stderr).trim_end()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().into())
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

fn load(python: &Path, base: &Path, adapter: &Path, ids: &[Vec<u32>]) -> Loaded {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/check_peft.py");
    let ids = serde_json::to_string(ids).unwrap();
    // The libtorch that this test runs on is not the one of that Python.
    let output =
        Command::new(python).arg(script).args([base, adapter]).arg(ids).env_remove("LD_LIBRARY_PATH").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A model with an adapter none of whose matrices is 0, as a new one's are.
fn adapted(base: &Path, lora: LoraConfig) -> TrainModel {
    let options = ModelOptions { precision: TrainPrecision::F32, lora, seed: 3, ..ModelOptions::default() };
    let mut model = TrainModel::load(base, options, Group::single()).unwrap();
    let mut seed = 0;
    model
        .set_trained(&mut |_, shape| {
            seed += 1;
            let elements: i64 = shape.iter().product();
            let values = Tensor::arange(elements, (Kind::Float, tch::Device::Cpu)) * 0.7 + f64::from(seed);
            Ok((values.sin() * 0.2).view(shape))
        })
        .unwrap();
    model
}

#[test]
fn peft_loads_an_adapter_that_is_written_and_says_the_same() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return skip(&why),
    };
    let list = |names: &[&str]| TargetModules::List(names.iter().map(|name| (*name).to_owned()).collect());
    let all = LoraConfig { rank: 4, alpha: 6.0, ..LoraConfig::default() };
    let cases = [
        ("llama", all.clone(), 1.5),
        ("llama", LoraConfig { target_modules: list(&["q_proj", "down_proj", "lm_head"]), ..all.clone() }, 1.5),
        ("qwen3", LoraConfig { use_rslora: true, exclude_modules: vec!["v_proj".to_owned()], ..all }, 3.0),
    ];
    let ids: Vec<Vec<u32>> = vec![vec![5, 6, 7, 40, 3, 3, 11], vec![8, 9]];
    for (base, lora, scaling) in cases {
        let what = format!("{base}, {lora:?}");
        let base = fixture("models").join(base);
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("adapter");
        let model = adapted(&base, lora);
        peft::save(&model, &folder, &base.display().to_string()).unwrap();
        let loaded = load(&python, &base, &folder, &ids);
        assert_eq!((loaded.parameters, loaded.scaling.as_slice()), (model.parameters().0, &[scaling][..]), "{what}");
        let rows = Rows { loss_mask: ids.iter().map(|row| vec![1; row.len()]).collect(), ids: ids.clone() };
        let (batch, _) = rows.packed();
        let ours = model.predict(&batch, HeadOptions::default()).unwrap().logprobs;
        let ours = Vec::<f64>::try_from(ours.to_kind(Kind::Double)).unwrap();
        let theirs = batch.rows.iter().flat_map(|&row| {
            ids[row][1..].iter().zip(&loaded.logits[row]).map(|(token, logits)| {
                let logprobs = Tensor::from_slice(logits).log_softmax(0, Kind::Double);
                logprobs.double_value(&[i64::from(*token)])
            })
        });
        let theirs: Vec<f64> = theirs.collect();
        assert_eq!(ours.len(), theirs.len(), "{what}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert!((ours - theirs).abs() < 1e-4, "{what}: {ours} here, {theirs} there");
        }
        // The adapter is no small thing: without it other numbers would come.
        let bare = model.predict_base(&batch, HeadOptions::default()).unwrap().logprobs;
        let bare = Vec::<f64>::try_from(bare.to_kind(Kind::Double)).unwrap();
        assert!(bare.iter().zip(&theirs).any(|(bare, theirs)| (bare - theirs).abs() > 0.01), "{what}");
    }
}
