//! Checkpoints: the same next step, at any number of processes, whole or not there.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::fixture;
use espalier_distributed::Group;
use espalier_trainer::checkpoint::{Checkpoint, CheckpointStore};
use espalier_trainer::lora::LoraConfig;
use espalier_trainer::model::Visit;
use espalier_trainer::optimizer::{AdamW, OptimizerConfig};
use espalier_trainer::sft;
use espalier_trainer::sft::config::Resume;
use espalier_trainer::sft::examples::Example;
use espalier_trainer::{ModelOptions, TrainModel, TrainPrecision};
use serde_json::json;
use tch::Tensor;

fn example(step: u32) -> Example {
    let tokens: Vec<u32> = (0..12).map(|i| (i * 7 + step * 13) % 96).collect();
    let weights = (0..12).map(|i| f32::from(u8::from(i > 3))).collect();
    Example { tokens, weights }
}

fn lora(dropout: f64) -> LoraConfig {
    LoraConfig { rank: 4, dropout, ..LoraConfig::default() }
}

fn fresh(lora: &LoraConfig, precision: TrainPrecision, group: Group) -> (TrainModel, AdamW) {
    let options = ModelOptions { precision, lora: lora.clone(), gradient_checkpointing: false, seed: 1 };
    let model = TrainModel::load(&fixture("models/llama"), options, group).unwrap();
    let config = OptimizerConfig { lr: 1e-2, num_warmup_steps: 3, ..OptimizerConfig::default() };
    let adam = AdamW::new(config, &model).unwrap();
    (model, adam)
}

fn steps(model: &mut TrainModel, adam: &mut AdamW, range: std::ops::Range<u32>) -> Vec<f64> {
    range
        .map(|step| {
            let own = example(step);
            sft::step(model, adam, &[&own], 64, 10).unwrap().0
        })
        .collect()
}

fn parameters(model: &TrainModel) -> BTreeMap<String, Tensor> {
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
fn a_resumed_run_takes_bit_for_bit_the_same_next_steps() {
    for (lora, precision) in [
        (LoraConfig::default(), TrainPrecision::F32),
        (lora(0.3), TrainPrecision::F32),
        (lora(0.0), TrainPrecision::Bf16),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(folder.path(), None);
        let (mut model, mut adam) = fresh(&lora, precision, Group::single());
        steps(&mut model, &mut adam, 0..4);
        store.save(4, &model, &adam, &json!({"position": 4}), "base").unwrap();
        let losses = steps(&mut model, &mut adam, 4..8);

        let (mut again, mut adam) = fresh(&lora, precision, Group::single());
        let checkpoint = store.latest().unwrap().unwrap();
        assert_eq!((checkpoint.step(), &checkpoint.state()["position"]), (4, &json!(4)));
        checkpoint.restore(&mut again, &mut adam).unwrap();
        assert_eq!(steps(&mut again, &mut adam, 4..8), losses);
        for (name, value) in parameters(&model) {
            assert!(value.equal(&parameters(&again)[&name]), "{name}");
        }
    }
}

#[test]
fn what_two_processes_saved_three_resume() {
    tch::set_num_threads(1);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let world = |n: usize, work: fn(Group, &Path) -> Vec<f64>| -> Vec<f64> {
        let threads: Vec<_> = Group::threads(n)
            .unwrap()
            .into_iter()
            .map(|group| {
                let root = root.clone();
                std::thread::spawn(move || work(group, &root))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).next_back().unwrap()
    };
    world(2, |group, root| {
        let (mut model, mut adam) = fresh(&LoraConfig::default(), TrainPrecision::F64, group);
        let losses = steps(&mut model, &mut adam, 0..3);
        CheckpointStore::new(root, None).save(3, &model, &adam, &json!(null), "base").unwrap();
        losses
    });
    let resumed = world(3, |group, root| {
        let (mut model, mut adam) = fresh(&LoraConfig::default(), TrainPrecision::F64, group);
        CheckpointStore::new(root, None).latest().unwrap().unwrap().restore(&mut model, &mut adam).unwrap();
        steps(&mut model, &mut adam, 3..6)
    });
    let (mut model, mut adam) = fresh(&LoraConfig::default(), TrainPrecision::F64, Group::single());
    let whole = steps(&mut model, &mut adam, 0..6);
    for (a, b) in resumed.iter().zip(&whole[3..]) {
        assert!((a - b).abs() < 1e-9, "{resumed:?}, {whole:?}");
    }
}

#[test]
fn the_newest_few_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::new(folder.path(), Some(2));
    let (model, adam) = fresh(&lora(0.0), TrainPrecision::F32, Group::single());
    for step in 1..=4 {
        store.save(step, &model, &adam, &json!(null), "base").unwrap();
    }
    let there: Vec<bool> = (1..=4).map(|step| store.path(step).exists()).collect();
    assert_eq!(there, [false, false, true, true]);
    let latest = std::fs::read_to_string(folder.path().join("latest_ckpt_global_step.txt")).unwrap();
    assert_eq!(latest, "4");
}

#[test]
fn what_was_saved_last_is_the_latest_and_stays_whatever_lies_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let (model, adam) = fresh(&lora(0.0), TrainPrecision::F32, Group::single());
    let save = |step: u64| {
        let store = CheckpointStore::new(folder.path(), Some(2));
        store.save(step, &model, &adam, &json!(null), "base").unwrap();
        store
    };
    save(10);
    save(20);
    // Another run's, begun later.
    let store = save(3);
    assert_eq!(store.latest().unwrap().unwrap().step(), 3);
    assert_eq!(store.steps().unwrap(), [3, 10, 20]);
    // Without the file that names it, the latest step counts.
    std::fs::remove_file(folder.path().join("latest_ckpt_global_step.txt")).unwrap();
    assert_eq!(store.latest().unwrap().unwrap().step(), 20);
}

#[test]
fn a_checkpoint_whose_writer_was_killed_before_it_could_name_it_is_the_latest() {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::new(folder.path(), None);
    let (model, adam) = fresh(&lora(0.0), TrainPrecision::F32, Group::single());
    store.save(1, &model, &adam, &json!(null), "base").unwrap();
    let latest = folder.path().join("latest_ckpt_global_step.txt");
    let written = std::fs::metadata(&latest).unwrap().modified().unwrap();
    store.save(2, &model, &adam, &json!(null), "base").unwrap();
    std::fs::write(&latest, "1").unwrap();
    std::fs::File::options().write(true).open(&latest).unwrap().set_modified(written).unwrap();
    assert_eq!(store.latest().unwrap().unwrap().step(), 2);
}

#[test]
fn checkpoints_that_a_run_would_meet_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::new(folder.path(), None);
    let (model, adam) = fresh(&lora(0.0), TrainPrecision::F32, Group::single());
    for step in [1, 2, 3] {
        store.save(step, &model, &adam, &json!(null), "base").unwrap();
    }
    let refused = |resume: Resume| resume.open(Some(&store), "resume_from").err().unwrap().to_string();
    let error = refused(Resume::None);
    assert!(
        error.contains("(`global_step_1` to `global_step_3`)") && error.contains("resume_from = \"latest\""),
        "{error}"
    );
    let error = refused(Resume::Path(store.path(2)));
    assert!(error.contains("later steps (`global_step_3`) than step 2"), "{error}");
    assert_eq!(Resume::Latest.open(Some(&store), "resume_from").unwrap().unwrap().step(), 3);
}

#[test]
fn one_process_at_a_time_trains_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::new(folder.path().join("new"), None);
    let lock = store.lock().unwrap();
    let error = store.lock().unwrap_err().to_string();
    assert!(error.contains("another process trains here"), "{error}");
    drop(lock);
    store.lock().unwrap();
}

#[test]
fn an_adapter_is_refused_on_another_base_and_an_old_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::new(folder.path(), None);
    let (model, adam) = fresh(&lora(0.0), TrainPrecision::F32, Group::single());
    let path = store.save(1, &model, &adam, &json!(null), "base").unwrap();
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(fixture("models/llama/config.json"), other.join("config.json")).unwrap();
    let mut weights = std::fs::read(fixture("models/llama/model.safetensors")).unwrap();
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    weights[8 + header] ^= 1;
    std::fs::write(other.join("model.safetensors"), weights).unwrap();
    let options =
        ModelOptions { precision: TrainPrecision::F32, lora: lora(0.0), gradient_checkpointing: false, seed: 1 };
    let mut other = TrainModel::load(&other, options, Group::single()).unwrap();
    let error = store.latest().unwrap().unwrap().restore_weights(&mut other).unwrap_err().to_string();
    assert!(error.contains("belongs to another base model"), "{error}");
    // As versions before this one wrote it.
    let manifest = path.join("manifest.json");
    let mut old: serde_json::Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    assert!(old.as_object_mut().unwrap().remove("base").is_some());
    std::fs::write(&manifest, old.to_string()).unwrap();
    store.latest().unwrap().unwrap().restore_weights(&mut other).unwrap();
}

#[test]
fn a_checkpoint_that_is_not_whole_is_refused_with_the_file_that_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::new(folder.path(), None);
    let (mut model, mut adam) = fresh(&lora(0.0), TrainPrecision::F32, Group::single());
    steps(&mut model, &mut adam, 0..1);
    let path = store.save(1, &model, &adam, &json!(null), "base").unwrap();
    let refused = |expected: &str| {
        let error = Checkpoint::open(&path).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let weights = path.join("policy/trained.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() - 1]).unwrap();
    refused("`policy/trained.safetensors`: expected");
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, &flipped).unwrap();
    refused("`policy/trained.safetensors`: expected");
    std::fs::remove_file(&weights).unwrap();
    refused("`policy/trained.safetensors` is missing");
    std::fs::remove_file(path.join("manifest.json")).unwrap();
    refused("half-written");
    std::fs::remove_dir_all(&path).unwrap();
    refused("found nothing of that name");
}

/// Where a test's other process finds the checkpoints.
const CHILD: &str = "ESPALIER_TEST_CHECKPOINTS";

#[test]
fn a_disk_that_is_full_leaves_the_checkpoint_before_whole() {
    let save = |root: &Path, step: u64| {
        let (mut model, mut adam) = fresh(&LoraConfig::default(), TrainPrecision::F32, Group::single());
        steps(&mut model, &mut adam, 0..1);
        CheckpointStore::new(root, Some(1)).save(step, &model, &adam, &json!(null), "base")
    };
    if let Some(root) = std::env::var_os(CHILD) {
        // This process cannot write files of more than 32 KiB, as if the disk ended there.
        let error = save(Path::new(&root), 2).unwrap_err().to_string();
        assert!(error.contains("cannot write") && error.contains("global_step_2.partial"), "{error}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 1).unwrap();
    let name = "a_disk_that_is_full_leaves_the_checkpoint_before_whole";
    let child = std::process::Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 32; exec \"$@\"", "bash"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    let names: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(!names.iter().any(|name| name.contains('2')), "{names:?}");
    let store = CheckpointStore::new(folder.path(), None);
    let (mut model, mut adam) = fresh(&LoraConfig::default(), TrainPrecision::F32, Group::single());
    let latest = store.latest().unwrap().unwrap();
    assert_eq!(latest.step(), 1);
    latest.restore(&mut model, &mut adam).unwrap();
}

#[test]
fn what_a_killed_writer_left_is_no_checkpoint_and_in_nobodys_way() {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::new(folder.path(), None);
    std::fs::create_dir_all(folder.path().join("global_step_5.partial/policy")).unwrap();
    assert!(store.latest().unwrap().is_none());
    let (model, adam) = fresh(&lora(0.0), TrainPrecision::F32, Group::single());
    store.save(5, &model, &adam, &json!(null), "base").unwrap();
    assert_eq!(store.latest().unwrap().unwrap().step(), 5);
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_one_before_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::new(folder.path(), Some(1));
    let (model, adam) = fresh(&lora(0.0), TrainPrecision::F32, Group::single());
    store.save(1, &model, &adam, &json!(null), "base").unwrap();
    // A file where the next checkpoint's working folder should be.
    std::fs::write(folder.path().join("global_step_2.partial"), "").unwrap();
    let error = store.save(2, &model, &adam, &json!(null), "base").unwrap_err().to_string();
    assert!(error.contains("global_step_2.partial"), "{error}");
    assert_eq!(store.latest().unwrap().unwrap().step(), 1);
}

#[test]
fn other_settings_than_those_saved_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = CheckpointStore::new(folder.path(), None);
    let (model, adam) = fresh(&lora(0.0), TrainPrecision::F32, Group::single());
    store.save(1, &model, &adam, &json!(null), "base").unwrap();
    let checkpoint = store.latest().unwrap().unwrap();
    let (mut full, mut adam) = fresh(&LoraConfig::default(), TrainPrecision::F32, Group::single());
    let error = checkpoint.restore(&mut full, &mut adam).unwrap_err().to_string();
    assert!(error.contains("model.embed_tokens.weight") && error.contains("no such tensor"), "{error}");
    let wide = LoraConfig { rank: 8, ..LoraConfig::default() };
    let (mut other, mut adam) = fresh(&wide, TrainPrecision::F32, Group::single());
    let error = checkpoint.restore(&mut other, &mut adam).unwrap_err().to_string();
    assert!(error.contains("`lora.rank`: its adapter was trained with 4, this run has 8"), "{error}");
    let loud = LoraConfig { alpha: 32.0, ..lora(0.0) };
    let (mut other, mut adam) = fresh(&loud, TrainPrecision::F32, Group::single());
    let error = checkpoint.restore(&mut other, &mut adam).unwrap_err().to_string();
    assert!(error.contains("`lora.alpha`: its adapter was trained with 16, this run has 32"), "{error}");
}
