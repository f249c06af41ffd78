//! What the official clients of Weights & Biases and TensorBoard make of what was written.
//!
//! The Python that `ESPALIER_TEST_PYTHON` names is used, which has `wandb`, `tensorboard` and `numpy`. Without it,
//! environments are made in the cache, one with the last client of Weights & Biases that reads offline runs in Python
//! and one with a newer; where that cannot be, the tests say so and pass.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use espalier_trackers::{RunSpec, TensorBoard, Tracker, Trackers, Wandb};
use serde_json::{Value, json};

use crate::support::{find, numbers, offline, spec};

/// Environments: a name, and what is installed.
const CLIENTS: [(&str, &[&str]); 2] = [
    ("wandb-0.29.0-tensorboard-2.21.0", &["wandb==0.29.0", "tensorboard==2.21.0", "numpy"]),
    ("wandb-0.31.0", &["wandb==0.31.0"]),
];

/// Pythons with a client of Weights & Biases; the first has TensorBoard.
fn pythons() -> Vec<PathBuf> {
    if let Some(python) = std::env::var_os("ESPALIER_TEST_PYTHON") {
        return vec![python.into()];
    }
    let made = CLIENTS.iter().map(|(name, packages)| environment(name, packages)).collect::<Result<_, String>>();
    made.unwrap_or_else(|why| {
        skip(&why);
        Vec::new()
    })
}

/// The Python of an environment in the cache, made on first use.
fn environment(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let cache = std::env::var_os("ESPALIER_CACHE")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("XDG_CACHE_HOME").map(|cache| PathBuf::from(cache).join("espalier")))
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/espalier")))
        .ok_or("none of `ESPALIER_CACHE`, `XDG_CACHE_HOME` and `HOME` is set")?;
    let folder = cache.join("venvs").join(name);
    let (python, ready) = (folder.join("bin/python"), folder.join("ready"));
    let io = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(io)?;
    // Tests run at the same time: one makes it, the others wait.
    let lock = File::create(folder.join("lock")).map_err(io)?;
    lock.lock().map_err(io)?;
    if !ready.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let pip =
            ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "20", "--retries", "1"];
        run(Command::new(&python).args(pip).args(packages))?;
        std::fs::write(&ready, "").map_err(io)?;
    }
    Ok(python)
}

fn run(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(output.stdout) } else { Err(format!("{command:?}: {said}")) }
}

/// Runs `official.py`.
fn official(python: &Path, command: &str, paths: &[&Path]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/official.py");
    let output = run(Command::new(python).arg(script).arg(command).args(paths)).unwrap_or_else(|why| panic!("{why}"));
    serde_json::from_slice(&output).unwrap()
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(why: &str) {
    eprintln!("skipped: no official clients here: {why}");
}

/// The records of a type.
fn of_type<'a>(records: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    records.as_array().unwrap().iter().filter(move |record| record["type"] == kind)
}

/// A row without what changes from run to run.
fn timeless(row: &Value) -> Value {
    let mut row = row.clone();
    for name in ["_timestamp", "_runtime", "_wandb.runtime", "_wandb"] {
        row.as_object_mut().unwrap().remove(name);
    }
    row
}

/// Enough numbers that a row alone spans a block, every seventh row.
fn wide(step: u64) -> BTreeMap<String, f64> {
    let width = if step.is_multiple_of(7) { 1500 } else { 3 };
    let mut row = numbers(&[("policy/loss", step as f64 / 8.0), ("bad", f64::NAN), ("ninf", f64::NEG_INFINITY)]);
    row.extend((0..width).map(|index| (format!("environment/number_{index}"), step as f64 + f64::from(index))));
    row
}

/// What a reader makes of a row.
fn as_read(step: u64) -> Value {
    let mut row: serde_json::Map<String, Value> =
        wide(step).into_iter().map(|(name, value)| (name, json!(value))).collect();
    row.insert("bad".to_owned(), json!("NaN"));
    row.insert("ninf".to_owned(), json!("-Infinity"));
    row.insert("_step".to_owned(), json!(step));
    let mut row = Value::Object(row);
    whole(&mut row);
    row
}

/// Clients read whole numbers as integers or not, as they please: compares them as floats.
fn whole(value: &mut Value) {
    match value {
        Value::Object(members) => members.values_mut().for_each(whole),
        Value::Array(items) => items.iter_mut().for_each(whole),
        Value::Number(number) => *value = json!(number.as_f64().unwrap()),
        _ => {}
    }
}

fn floats(value: &Value) -> Value {
    let mut value = value.clone();
    whole(&mut value);
    value
}

fn config() -> Value {
    json!({"trainer": {"lr": 1e-6, "tags": ["x", "ü"]}, "seed": 7, "name": "quote \" and\nline"})
}

#[test]
fn the_client_of_weights_and_biases_reads_every_row_the_config_and_the_summary() {
    for python in pythons() {
        let directory = tempfile::tempdir().unwrap();
        let tags = vec!["one".to_owned(), "two words".to_owned()];
        let mut trackers =
            Trackers::open(&RunSpec { config: config(), tags, ..spec(directory.path(), &["wandb"]) }).unwrap();
        for step in 0..40 {
            trackers.log(step, &wide(step)).unwrap();
        }
        trackers.text(40, "samples/train", "two\nlines").unwrap();
        trackers.finish(3).unwrap();
        let records = official(&python, "records", &[&offline(directory.path(), 0)]);
        let numbered = records.as_array().unwrap().iter().map(|record| record["num"].as_u64().unwrap());
        assert!(numbered.eq(1..=85), "header, run, 41 times history and summary, exit");
        let run = of_type(&records, "run").next().unwrap();
        assert_eq!((&run["project"], &run["display_name"]), (&json!("trees"), &json!("first")));
        assert_eq!((&run["tags"], floats(&run["config"])), (&json!(["one", "two words"]), floats(&config())));
        let mut rows: Vec<&Value> = of_type(&records, "history").collect();
        let text = rows.pop().unwrap();
        assert_eq!(timeless(&text["values"]), json!({"samples/train": "two\nlines", "_step": 40}));
        assert_eq!(rows.len(), 40);
        for (step, (row, summary)) in (0..).zip(rows.iter().zip(of_type(&records, "summary"))) {
            assert_eq!(row["step"], step);
            assert_eq!(floats(&timeless(&row["values"])), as_read(step));
            assert_eq!(floats(&timeless(&summary["values"])), as_read(step));
        }
        assert_eq!(of_type(&records, "exit").next().unwrap()["exit_code"], 3);
    }
}

#[test]
fn the_client_of_weights_and_biases_reads_a_killed_run_up_to_its_last_step() {
    for python in pythons() {
        let directory = tempfile::tempdir().unwrap();
        let mut tracker = Wandb::open(&spec(directory.path(), &["wandb"])).unwrap();
        for step in 0..9 {
            tracker.log(step, &wide(step)).unwrap();
        }
        drop(tracker);
        let records = official(&python, "records", &[&offline(directory.path(), 0)]);
        assert_eq!(of_type(&records, "history").count(), 9);
        assert_eq!(of_type(&records, "exit").count(), 0);
    }
}

#[test]
fn the_client_of_weights_and_biases_syncs_a_run_that_was_killed_and_resumed() {
    for python in pythons() {
        let directory = tempfile::tempdir().unwrap();
        let spec = RunSpec { config: config(), ..spec(directory.path(), &["wandb"]) };
        let mut killed = Wandb::open(&spec).unwrap();
        for step in 1..=9 {
            killed.log(step, &wide(step)).unwrap();
        }
        let id = killed.run_id().to_owned();
        drop(killed);
        let mut resumed = Wandb::open(&RunSpec { resume: Some(6), ..spec }).unwrap();
        for step in 7..=12 {
            resumed.log(step, &wide(step)).unwrap();
        }
        resumed.finish(0).unwrap();
        let folders = find(&directory.path().join("wandb"), "offline-run-");
        let runs = official(&python, "sync", &[&folders[0], &folders[1]]);
        let run = &runs[&id];
        assert_eq!(runs.as_object().unwrap().len(), 1, "{runs}");
        assert_eq!((&run["project"], &run["displayName"]), (&json!("trees"), &json!("first")));
        for (key, value) in config().as_object().unwrap() {
            assert_eq!(floats(&run["config"][key]["value"]), floats(value));
        }
        let rows: Vec<Value> = run["rows"].as_array().unwrap().iter().map(|row| floats(&timeless(row))).collect();
        assert_eq!(rows, (1..=12).map(as_read).collect::<Vec<_>>());
        assert_eq!(run["ends"], json!([1, 0]), "a file without an end is one of a run that failed");
        assert_eq!(run["summary"]["policy/loss"], 1.5);
    }
}

#[test]
fn tensorboard_reads_scalars_and_texts_and_forgets_what_a_resumed_run_logs_again() {
    let Some(python) = pythons().into_iter().next() else { return };
    let directory = tempfile::tempdir().unwrap();
    let spec = RunSpec { config: config(), tags: vec!["one".to_owned()], ..spec(directory.path(), &["tensorboard"]) };
    let mut killed = TensorBoard::open(&spec).unwrap();
    for step in 1..=9 {
        killed.log(step, &numbers(&[("policy/loss", 0.5), ("odd", f64::NAN), ("most", f64::INFINITY)])).unwrap();
    }
    drop(killed);
    let mut resumed = TensorBoard::open(&RunSpec { resume: Some(2), ..spec }).unwrap();
    resumed.log(3, &numbers(&[("policy/loss", 0.25)])).unwrap();
    resumed.text(3, "samples/train", "# Löwe").unwrap();
    resumed.finish(0).unwrap();
    let read = official(&python, "events", &[&directory.path().join("tensorboard/first")]);
    assert_eq!(read["scalars"]["policy/loss"], json!([[1, 0.5], [2, 0.5], [3, 0.25]]));
    assert_eq!(read["scalars"]["odd"], json!([[1, "NaN"], [2, "NaN"]]));
    assert_eq!(read["scalars"]["most"], json!([[1, "Infinity"], [2, "Infinity"]]));
    assert_eq!(read["server"], read["scalars"]);
    assert_eq!(read["texts"]["samples/train"], json!([[3, "# Löwe"]]));
    let shown = read["texts"]["config"][0][1].as_str().unwrap();
    let shown = shown.strip_prefix("```json\n").unwrap().strip_suffix("\n```").unwrap();
    assert_eq!(serde_json::from_str::<Value>(shown).unwrap(), config());
    assert_eq!(read["texts"]["tags"][0], json!([0, "one"]));
}
