//! `espalier sft`, `train` and `export` as a user meets them, on a model of two layers that knows 96 tokens.
#![cfg(feature = "torch")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const TEMPLATE: &str = "{% for message in messages %}{{ message['content'] }}b{% endfor %}";

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(arguments).current_dir(folder).env("NO_COLOR", "1").env_remove("ESPALIER_LOG").stdin(Stdio::null());
    command
}

fn espalier(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().expect("the command starts")
}

/// Runs a command that must end with this code; gives what it said on stderr, then on stdout.
fn ends(folder: &Path, code: i32, arguments: &[&str]) -> (String, String) {
    let output = espalier(folder, arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    (said, text(&output.stdout))
}

/// A model folder: a fixture's weights, and letters as tokens from `first` on.
fn model(folder: &Path, first: char) {
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer/tests/fixtures/models/llama");
    std::fs::create_dir(folder).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(weights.join(name), folder.join(name)).unwrap();
    }
    let letters: Vec<String> =
        (0..48_u32).map(|i| format!("\"{}\": {i}", char::from_u32(first as u32 + i).unwrap())).collect();
    let tokenizer = format!(
        r#"{{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": null, "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}}"#,
        letters.join(", ")
    );
    std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
    let config = format!(r#"{{"eos_token": "{first}", "chat_template": "{TEMPLATE}"}}"#);
    std::fs::write(folder.join("tokenizer_config.json"), config).unwrap();
}

fn row(tokens: &str, weights: &str) -> String {
    format!("{{\"input_ids\": [{tokens}], \"weights\": [{weights}]}}\n")
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    model(&folder.path().join("model"), 'a');
    std::fs::write(folder.path().join("rows.jsonl"), row("1, 2, 3, 4", "0, 1, 1, 1").repeat(4)).unwrap();
    folder
}

/// `sft` on the folder's rows, two steps, with these settings besides.
fn sft<'a>(settings: &[&'a str]) -> Vec<&'a str> {
    let usual =
        ["sft", "--model", "model", "--data", "rows.jsonl", "precision=f32", "disable_cache=true", "batch_size=2"];
    [&usual[..], settings].concat()
}

#[test]
fn a_run_that_would_keep_nothing_is_refused() {
    let folder = folder();
    let (said, _) = ends(folder.path(), 2, &sft(&[]));
    assert!(said.contains("`ckpt_path`, `export_path`") && said.contains("kept nowhere"), "{said}");
}

#[test]
fn the_same_run_twice_is_refused_before_it_trains() {
    let folder = folder();
    ends(folder.path(), 0, &sft(&["ckpt_path=out"]));
    let (said, _) = ends(folder.path(), 6, &sft(&["ckpt_path=out"]));
    let both = said.contains("`resume_from = \"latest\"`") && said.contains("choose another folder");
    assert!(said.contains("`out`: it holds checkpoints (`global_step_2`)") && both, "{said}");
    assert!(!said.contains("step 1"), "{said}");
    let (_, shown) = ends(folder.path(), 0, &sft(&["ckpt_path=out", "resume_from=latest"]));
    assert_eq!(shown, "nothing left to do: all 2 steps were done before\n");
}

#[test]
fn an_export_that_is_there_is_refused_before_it_trains() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("out")).unwrap();
    let (said, _) = ends(folder.path(), 6, &sft(&["export_path=out"]));
    assert!(said.contains("`out`: it exists already") && said.contains("`export_path`"), "{said}");
    assert!(!said.contains("step 1"), "{said}");
}

#[test]
fn rows_that_cannot_be_learned_are_named_with_file_and_line() {
    let folder = folder();
    let good = row("1, 2, 3", "0, 1, 1");
    for (bad, expected) in [
        (row("1, 2, 999999", "0, 1, 1"), "token 2 is 999999, the model knows tokens below 96"),
        (row("1, 2, 3", "0, 1, -1"), "column `weights`: expected 0 or more, entry 2 is -1"),
    ] {
        std::fs::write(folder.path().join("rows.jsonl"), format!("{good}{bad}")).unwrap();
        let (said, _) = ends(folder.path(), 3, &sft(&["ckpt_path=out"]));
        assert!(said.contains("`rows.jsonl`") && said.contains("2: ") && said.contains(expected), "{said}");
    }
}

#[test]
fn a_wrong_key_of_a_data_set_is_named_with_the_right_one() {
    let folder = folder();
    let arguments =
        ["sft", "--model", "model", "ckpt_path=out", "train_datasets=[{path = \"rows.jsonl\", weigth = 0.7}]"];
    let (said, _) = ends(folder.path(), 2, &arguments);
    assert!(said.contains("weigth") && said.contains("did you mean `weight`?"), "{said}");
}

#[test]
fn a_filter_that_leaves_nothing_says_how_much_it_left_out_and_a_misspelt_one_is_refused() {
    let folder = folder();
    let suite = "name = \"suite\"\n[[engine]]\nname = \"script\"\nkind = \"scripted\"\n\
                 options = { script = \"script.jsonl\", cycle = true }\n[[task]]\nname = \"stories\"\nenv = \"gsm8k\"\n\
                 data = { builtin = \"stories\", params = { rows = 2 } }\n";
    std::fs::write(folder.path().join("suite.toml"), suite).unwrap();
    std::fs::write(folder.path().join("script.jsonl"), "\"#### 1\"\n").unwrap();
    ends(folder.path(), 0, &["eval", "--suite", "suite.toml", "--out", "run"]);
    // The trajectories lie in the folder of their task, mode and model.
    let mut cell = folder.path().join("run");
    while let Some(below) =
        std::fs::read_dir(&cell).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir())
    {
        cell = below;
    }
    let cell = cell.display().to_string();
    let filtered = |code: i32, filter: &str| {
        let run =
            ["sft", "--model", "model", "--data", &cell, "ckpt_path=out", "disable_cache=true", "--filter", filter];
        ends(folder.path(), code, &run).0
    };
    let said = filtered(3, "reward > 5");
    assert!(said.contains("found none (2 trajectories left out by `reward > 5`"), "{said}");
    let said = filtered(2, "not rewrd");
    assert!(said.contains("`rewrd` is no property of a trajectory; did you mean `reward`?"), "{said}");
    let said = filtered(2, "metrics.nothing > 1");
    assert!(said.contains("filter `metrics.nothing > 1`"), "{said}");
}

#[test]
fn an_evaluation_is_seen_on_the_console() {
    let folder = folder();
    let settings = ["export_path=out", "eval_datasets=[\"rows.jsonl\"]", "eval_before_train=true", "eval_interval=1"];
    let output = espalier(folder.path(), &sft(&settings));
    let all = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{all}");
    assert_eq!(all.matches("eval/rows/loss").count(), 3, "{all}");
}

#[test]
fn a_folder_of_checkpoints_is_no_checkpoint_but_names_those_that_it_holds() {
    let folder = folder();
    ends(folder.path(), 0, &sft(&["ckpt_path=out", "ckpt_interval=1"]));
    let (said, _) = ends(folder.path(), 3, &["export", "out", "--base", "model", "--out", "whole"]);
    assert!(said.contains("name one: `global_step_1`, `global_step_2`"), "{said}");
    std::fs::create_dir(folder.path().join("whole")).unwrap();
    let (said, _) = ends(folder.path(), 6, &["export", "out/global_step_2", "--base", "model", "--out", "whole"]);
    assert!(said.contains("`whole`: it exists already"), "{said}");
}

#[test]
fn an_adapter_is_not_exported_over_another_base() {
    let folder = folder();
    ends(folder.path(), 0, &sft(&["ckpt_path=out", "model.lora.rank=2"]));
    model(&folder.path().join("other"), 'a');
    let weights = folder.path().join("other/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let (said, _) = ends(folder.path(), 3, &["export", "out/global_step_2", "--base", "other", "--out", "adapter"]);
    assert!(said.contains("belongs to another base model"), "{said}");
    ends(folder.path(), 0, &["export", "out/global_step_2", "--base", "model", "--out", "adapter"]);
}

#[test]
fn no_processes_are_none_to_train_with() {
    let folder = folder();
    let (said, _) = ends(folder.path(), 2, &sft(&["ckpt_path=out", "--nproc", "0"]));
    assert!(said.contains("--nproc"), "{said}");
}

#[test]
fn gradients_that_are_no_numbers_are_told_of_at_the_end() {
    let folder = folder();
    // A step this long leaves weights under which no gradient is finite.
    let (said, _) = ends(folder.path(), 0, &sft(&["ckpt_path=out", "optimizer_config.lr=1e30"]));
    assert!(said.contains("1 optimiser steps were left out"), "{said}");
}

#[test]
fn ctrl_c_lets_several_processes_save_and_ends_with_130_and_one_error() {
    let folder = folder();
    let settings = ["--nproc", "2", "ckpt_path=out", "num_steps=1000000", "max_length=64"];
    let mut running = command(folder.path(), &sft(&settings))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let first = lines.next().expect("a step is shown").unwrap();
    assert!(first.contains("step"), "{first}");
    // What is shown must not block the processes.
    let reader = std::thread::spawn(move || lines.map_while(Result::ok).count());
    let told = Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap();
    assert!(told.success());
    let mut said = String::new();
    running.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let status = running.wait().unwrap();
    reader.join().unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
    assert!(said.contains("stopped; the last checkpoint is kept"), "{said}");
    assert!(folder.path().join("out/latest_ckpt_global_step.txt").exists(), "{said}");
}

const CONFIG: &str = r#"
[data]
train_data = [{ builtin = "reasoning/chain_sum", params = { rows = 4, level = 1 } }]

[trainer]
precision = "f32"
train_batch_size = 2
policy_mini_batch_size = 2
eval_before_train = false
export_path = "out"

[trainer.policy.model]
path = "model"
lora = { rank = 2 }

[trainer.algorithm]
use_kl_loss = true

[generator]
rollout = { max_turns = 1 }

[environment]
env_class = "reasoning/chain_sum"
"#;

#[test]
fn a_reference_is_used_beside_adapters_and_must_have_the_policys_tokens() {
    let folder = folder();
    std::fs::write(folder.path().join("train.toml"), CONFIG).unwrap();
    let (said, _) = ends(folder.path(), 3, &["train", "--config", "train.toml", "trainer.ref.model.path=none/there"]);
    assert!(said.contains("none/there"), "{said}");
    model(&folder.path().join("other"), 'b');
    let (said, _) = ends(folder.path(), 2, &["train", "--config", "train.toml", "trainer.ref.model.path=other"]);
    assert!(said.contains("`trainer.ref.model.path`: expected a model of the policy's tokenizer"), "{said}");
}

#[test]
fn settings_of_reinforcement_that_cannot_work_are_refused_by_key() {
    let folder = folder();
    std::fs::write(folder.path().join("train.toml"), CONFIG).unwrap();
    let children = "generator.train_child_trajectories=true";
    for (settings, expected) in [
        (
            &["trainer.algorithm.advantage_estimator=no_op", children][..],
            "`trainer.algorithm.tree_credit`: expected `own`",
        ),
        (&["trainer.max_training_steps=0"], "`trainer.max_training_steps`: expected at least 1"),
        (&["trainer.algorithm.gamma=2"], "error: `trainer.algorithm.gamma`"),
        (&["generator.rollout.max_turns=0"], "error: `generator.rollout.max_turns` must be at least 1, got 0"),
        (&["trainer.algorithm.advantage_estimator=gae"], "trainer.critic.model.path"),
        (&["trainer.logger=nothing"], "`trainer.logger`"),
    ] {
        let (said, _) = ends(folder.path(), 2, &[&["train", "--config", "train.toml"], settings].concat());
        assert!(said.contains(expected) && !said.contains("critic_mini_batch_size"), "{expected} in {said}");
    }
}
