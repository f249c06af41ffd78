//! Offline runs of Weights & Biases.

use std::path::Path;

use espalier_trackers::protobuf::Fields;
use espalier_trackers::{RunSpec, Tracker, Wandb};

use crate::support::{numbers, offline, records, rows, spec, steps};

/// A run of steps, which ends well.
fn run(spec: &RunSpec, steps: std::ops::RangeInclusive<u64>) -> String {
    let mut tracker = Wandb::open(spec).unwrap();
    for step in steps {
        tracker.log(step, &numbers(&[("policy/loss", step as f64)])).unwrap();
    }
    tracker.finish(0).unwrap();
    tracker.run_id().to_owned()
}

fn at(directory: &Path) -> RunSpec {
    spec(directory, &["wandb"])
}

#[test]
fn a_run_lies_where_the_official_client_looks_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut tracker =
        Wandb::open(&RunSpec { config: serde_json::json!({"lr": 1e-6, "a b": [1, "x"]}), ..at(directory.path()) })
            .unwrap();
    tracker.log(0, &numbers(&[("x", 0.5), ("bad", f64::NAN)])).unwrap();
    tracker.log(1, &numbers(&[("x", 0.25)])).unwrap();
    tracker.finish(0).unwrap();
    let id = tracker.run_id();
    assert!(id.len() == 8 && id.chars().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase()), "{id}");
    let folder = tracker.folder();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let stamp = name.strip_prefix("offline-run-").unwrap().strip_suffix(&format!("-{id}")).unwrap();
    assert!(stamp.len() == 15 && stamp.as_bytes()[8] == b'_', "{name}");
    assert!(folder.join(format!("run-{id}.wandb")).is_file());
    assert_eq!(std::fs::read_link(directory.path().join("wandb/latest-run")).unwrap().to_str(), Some(name));
    let config = std::fs::read_to_string(folder.join("files/config.yaml")).unwrap();
    assert_eq!(config, "\"lr\":\n    value: 1e-6\n\"a b\":\n    value: [1,\"x\"]\n");
    let summary = std::fs::read_to_string(folder.join("files/wandb-summary.json")).unwrap();
    assert!(summary.contains("\"x\": 0.25") && summary.contains("\"bad\": NaN"), "{summary}");
}

#[test]
fn rows_keep_names_and_write_what_is_not_finite_as_the_official_client_does() {
    let directory = tempfile::tempdir().unwrap();
    let mut tracker = Wandb::open(&at(directory.path())).unwrap();
    let values =
        [("a.b/c", 0.1), ("inf", f64::INFINITY), ("nan", f64::NAN), ("ninf", f64::NEG_INFINITY), ("_step", 3.0)];
    tracker.log(5, &numbers(&values)).unwrap();
    tracker.text(6, "samples/train", "one\n\"two\"").unwrap();
    let rows = rows(&offline(directory.path(), 0));
    let row = |index: usize| -> Vec<(&str, &str)> {
        let (_, row) = &rows[index];
        row.iter()
            .filter(|(name, _)| !["_runtime", "_timestamp"].contains(&name.as_str()))
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect()
    };
    let expected = [("a.b/c", "0.1"), ("inf", "Infinity"), ("nan", "NaN"), ("ninf", "-Infinity"), ("_step", "5")];
    assert_eq!((rows[0].0, row(0)), (5, expected.to_vec()));
    assert_eq!((rows[1].0, row(1)), (6, vec![("samples/train", "\"one\\n\\\"two\\\"\""), ("_step", "6")]));
}

#[test]
fn a_run_that_ended_says_how_and_one_that_was_killed_does_not() {
    let exit = |path: &Path| records(path).iter().find_map(|record| Fields::bytes(record, 18).map(<[u8]>::to_vec));
    let directory = tempfile::tempdir().unwrap();
    let mut tracker = Wandb::open(&at(directory.path())).unwrap();
    tracker.log(1, &numbers(&[("x", 1.0)])).unwrap();
    assert_eq!(exit(&offline(directory.path(), 0)), None);
    tracker.finish(3).unwrap();
    assert_eq!(Fields::int(&exit(&offline(directory.path(), 0)).unwrap(), 1), Some(3));
}

#[test]
fn a_resumed_run_is_a_new_folder_of_the_same_id() {
    let directory = tempfile::tempdir().unwrap();
    let id = run(&at(directory.path()), 1..=5);
    let other = run(&RunSpec { run_name: "other".to_owned(), ..at(directory.path()) }, 1..=5);
    let resumed = run(&RunSpec { resume: Some(5), ..at(directory.path()) }, 6..=7);
    assert_eq!(resumed, id);
    assert_ne!(other, id);
    let path = offline(directory.path(), 2);
    assert_eq!(steps(&path), [6, 7]);
    let of_run = |path: &Path| Fields::int(Fields::bytes(&records(path)[1], 17).unwrap(), 24);
    assert_eq!((of_run(&path), of_run(&offline(directory.path(), 0))), (Some(1), None), "`RunRecord.resume`");
}

#[test]
fn a_resumed_run_takes_back_the_steps_that_it_will_log_again() {
    let directory = tempfile::tempdir().unwrap();
    run(&at(directory.path()), 1..=9);
    let first = offline(directory.path(), 0);
    run(&RunSpec { resume: Some(6), ..at(directory.path()) }, 7..=8);
    assert_eq!(steps(&first), [1, 2, 3, 4, 5, 6]);
    // The summary of the last row stays.
    assert!(Fields::bytes(records(&first).last().unwrap(), 3).is_some());
    run(&RunSpec { resume: Some(0), ..at(directory.path()) }, 1..=1);
    let all: Vec<_> = (0..3).map(|index| steps(&offline(directory.path(), index))).collect();
    assert_eq!(all, [vec![], vec![], vec![1]]);
}

#[test]
fn a_resumed_run_takes_back_a_record_that_was_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    run(&at(directory.path()), 1..=5);
    let first = offline(directory.path(), 0);
    let whole = std::fs::read(&first).unwrap();
    std::fs::write(&first, &whole[..whole.len() - 3]).unwrap();
    run(&RunSpec { resume: Some(5), ..at(directory.path()) }, 6..=6);
    let left = std::fs::read(&first).unwrap();
    assert!(whole.starts_with(&left) && left.len() < whole.len() - 3);
    assert_eq!(steps(&first), [1, 2, 3, 4, 5]);
}

#[test]
fn what_was_synced_is_left_alone() {
    for mark in ["synced", "syncstate"] {
        let directory = tempfile::tempdir().unwrap();
        run(&at(directory.path()), 1..=9);
        let first = offline(directory.path(), 0);
        std::fs::write(first.with_extension(format!("wandb.{mark}")), "").unwrap();
        run(&RunSpec { resume: Some(6), ..at(directory.path()) }, 7..=8);
        assert_eq!(steps(&first).len(), 9, "{mark}");
    }
}

#[test]
fn a_run_that_is_resumed_by_its_id_needs_no_earlier_folder() {
    let directory = tempfile::tempdir().unwrap();
    let id = run(&RunSpec { resume: Some(6), run_id: Some("abcd1234".to_owned()), ..at(directory.path()) }, 7..=8);
    assert_eq!(id, "abcd1234");
    let fresh = tempfile::tempdir().unwrap();
    assert_ne!(run(&RunSpec { resume: Some(6), ..at(fresh.path()) }, 7..=8), id);
}

#[test]
fn runs_that_start_within_a_second_have_folders_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let id = |_| run(&RunSpec { run_id: Some("same".to_owned()), ..at(directory.path()) }, 1..=1);
    assert!((0..3).map(id).all(|id| id == "same"));
    assert_eq!(crate::support::find(&directory.path().join("wandb"), "offline-run-").len(), 3);
}

#[test]
fn damaged_files_of_other_runs_do_not_hinder_a_resumed_one() {
    let directory = tempfile::tempdir().unwrap();
    let id = run(&at(directory.path()), 1..=5);
    for (name, contents) in [("20990101_000000-bad1", &b"no"[..]), ("20990101_000001-bad2", b":W&B\xe1\xbe\x00torn")] {
        let folder = directory.path().join("wandb").join(format!("offline-run-{name}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(format!("run-{}.wandb", &name[16..])), contents).unwrap();
    }
    assert_eq!(run(&RunSpec { resume: Some(5), ..at(directory.path()) }, 6..=6), id);
}
