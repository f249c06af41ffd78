//! A JSON object a step.

use espalier_trackers::{Jsonl, Tracker};

use crate::support::numbers;

fn file(contents: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    std::fs::write(&path, contents).unwrap();
    (directory, path)
}

fn resumed(contents: &str, step: u64) -> String {
    let (_directory, path) = file(contents);
    let mut tracker = Jsonl::resume(&path, step).unwrap();
    tracker.log(step + 1, &numbers(&[("x", 0.5)])).unwrap();
    std::fs::read_to_string(&path).unwrap()
}

#[test]
fn a_row_keeps_names_and_makes_what_is_not_finite_null() {
    let (_directory, path) = file("");
    let mut tracker = Jsonl::open(&path).unwrap();
    tracker.log(1, &numbers(&[("a/x", 0.5), ("b/y", f64::NAN), ("step", 9.0), ("z", f64::INFINITY)])).unwrap();
    tracker.text(1, "samples/train", "one\n\"two\"").unwrap();
    tracker.finish(0).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let expected = "{\"step\":1,\"a/x\":0.5,\"b/y\":null,\"z\":null}\n\
                    {\"step\":1,\"samples/train\":\"one\\n\\\"two\\\"\"}\n";
    assert_eq!(text, expected);
}

#[test]
fn a_row_is_in_the_file_before_the_run_ends() {
    let (_directory, path) = file("");
    let mut tracker = Jsonl::open(&path).unwrap();
    tracker.log(1, &numbers(&[("x", 1.0)])).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"step\":1,\"x\":1.0}\n");
}

#[test]
fn a_fresh_run_appends_and_ends_a_line_that_was_torn() {
    let (_directory, path) = file("{\"step\":1}\n{\"st");
    Jsonl::open(&path).unwrap().log(1, &numbers(&[("x", 1.0)])).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"step\":1}\n{\"st\n{\"step\":1,\"x\":1.0}\n");
}

#[test]
fn a_resumed_run_cuts_off_later_steps() {
    let rows = "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"eval\":1}\n{\"step\":3}\n{\"step\":4}\n";
    let kept = "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"eval\":1}\n{\"step\":3,\"x\":0.5}\n";
    assert_eq!(resumed(rows, 2), kept);
}

#[test]
fn a_resumed_run_cuts_off_a_torn_line_and_keeps_what_is_no_row() {
    let next = "{\"step\":3,\"x\":0.5}\n";
    assert_eq!(resumed("{\"step\":2}\n{\"step\":2", 2), format!("{{\"step\":2}}\n{next}"));
    assert_eq!(resumed("oh\n{\"step\":2}\noh\n", 2), format!("oh\n{{\"step\":2}}\noh\n{next}"));
    assert_eq!(resumed("oh\n{\"step\":5}\noh\n", 2), format!("oh\n{next}"));
    assert_eq!(resumed("", 2), next);
}

#[test]
fn a_resumed_run_leaves_the_earlier_run_of_the_file_alone() {
    let rows = "{\"step\":1}\n{\"step\":9}\n{\"step\":1}\n{\"step\":2}\n";
    let kept = "{\"step\":1}\n{\"step\":9}\n{\"step\":1}\n{\"step\":2,\"x\":0.5}\n";
    assert_eq!(resumed(rows, 1), kept);
}
