//! All backends of a run as one tracker.

use std::sync::{Arc, Mutex};

use espalier_trackers::fan_out::LONGEST_TEXT;
use espalier_trackers::{Numbers, Tracker, TrackerError, Trackers};

use crate::support::{find, numbers, offline, spec, steps};

/// Remembers what it is told, and fails from a step on.
struct Told {
    steps: Arc<Mutex<Vec<String>>>,
    fails_from: u64,
}

impl Told {
    fn tell(&mut self, step: u64, what: String) -> Result<(), TrackerError> {
        self.steps.lock().unwrap().push(what);
        if step < self.fails_from {
            return Ok(());
        }
        Err(TrackerError::File { path: "told".into(), reason: "it is full".to_owned() })
    }
}

impl Tracker for Told {
    fn log(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackerError> {
        self.tell(step, format!("{step} {numbers:?}"))
    }

    fn text(&mut self, step: u64, name: &str, text: &str) -> Result<(), TrackerError> {
        self.tell(step, format!("{step} {name} {}", text.len()))
    }

    fn finish(&mut self, exit_code: i32) -> Result<(), TrackerError> {
        self.tell(0, format!("exit {exit_code}"))
    }
}

fn told(trackers: &mut Trackers, name: &str, fails_from: u64) -> Arc<Mutex<Vec<String>>> {
    let steps = Arc::default();
    trackers.add(name, Box::new(Told { steps: Arc::clone(&steps), fails_from }));
    steps
}

#[test]
fn a_backend_that_fails_is_dropped_and_the_others_go_on() {
    let mut trackers = Trackers::default();
    let failing = told(&mut trackers, "failing", 2);
    let good = told(&mut trackers, "good", u64::MAX);
    for step in 1..=3 {
        trackers.log(step, &numbers(&[("x", 0.5)])).unwrap();
    }
    trackers.finish(3).unwrap();
    assert_eq!(*failing.lock().unwrap(), ["1 {\"x\": 0.5}", "2 {\"x\": 0.5}"]);
    assert_eq!(*good.lock().unwrap(), ["1 {\"x\": 0.5}", "2 {\"x\": 0.5}", "3 {\"x\": 0.5}", "exit 3"]);
    let dropped: Vec<String> =
        trackers.dropped().iter().map(|dropped| format!("{}: {}", dropped.backend, dropped.error)).collect();
    assert_eq!(dropped, ["failing: `told`: it is full"]);
}

#[test]
fn a_backend_that_cannot_be_opened_is_dropped_and_the_others_go_on() {
    let directory = tempfile::tempdir().unwrap();
    // A file where folders are to be made.
    std::fs::write(directory.path().join("wandb"), "").unwrap();
    std::fs::write(directory.path().join("tensorboard"), "").unwrap();
    let mut trackers = Trackers::open(&spec(directory.path(), &["wandb", "tensorboard", "jsonl"])).unwrap();
    assert_eq!(trackers.active().collect::<Vec<_>>(), ["jsonl"]);
    assert_eq!(trackers.dropped().len(), 2);
    assert_eq!(trackers.run_id(), None);
    trackers.log(1, &numbers(&[("x", 0.5)])).unwrap();
    let path = directory.path().join("metrics.jsonl");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "{\"step\":1,\"x\":0.5}\n");
}

#[test]
fn a_full_disk_drops_only_what_writes_to_it() {
    let mut trackers = Trackers::default();
    let options = espalier_trackers::ConsoleOptions::default;
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    trackers.add("full", Box::new(espalier_trackers::Console::new(full, options())));
    let good = told(&mut trackers, "good", u64::MAX);
    for step in 1..=2 {
        trackers.log(step, &numbers(&[])).unwrap();
    }
    assert_eq!(good.lock().unwrap().len(), 2);
    assert!(trackers.dropped()[0].error.to_string().starts_with("`the console`: cannot write to it: "));
}

#[test]
fn every_backend_gets_every_step() {
    let directory = tempfile::tempdir().unwrap();
    let mut trackers = Trackers::open(&spec(directory.path(), &["wandb", "tensorboard", "jsonl"])).unwrap();
    for step in 1..=3 {
        trackers.log(step, &numbers(&[("policy/loss", 0.5)])).unwrap();
    }
    // Without `finish`: a run that is killed leaves as much.
    drop(trackers);
    assert_eq!(steps(&offline(directory.path(), 0)), [1, 2, 3]);
    let rows = std::fs::read_to_string(directory.path().join("metrics.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), 3);
    let files = find(&directory.path().join("tensorboard/first"), "tfevents");
    assert_eq!(crate::support::events(&std::fs::read(&files[0]).unwrap()).len(), 2 + 3);
}

#[test]
fn texts_are_bounded_at_a_whole_character() {
    let mut trackers = Trackers::default();
    let seen = told(&mut trackers, "seen", u64::MAX);
    trackers.text(1, "short", "abc").unwrap();
    trackers.text(1, "long", &format!("a{}", "é".repeat(LONGEST_TEXT))).unwrap();
    let kept = LONGEST_TEXT - 1;
    let more = format!("\n... {} more bytes", 2 * LONGEST_TEXT + 1 - kept);
    assert_eq!(*seen.lock().unwrap(), ["1 short 3".to_owned(), format!("1 long {}", kept + more.len())]);
}
