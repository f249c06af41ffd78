//! The bytes that the official clients write for the same messages (`tests/golden/make_golden.py`).

use std::time::Duration;

use espalier_trackers::tensorboard::{event, tfrecord};
use espalier_trackers::wandb::log::{LogReader, LogWriter};
use espalier_trackers::wandb::record::{Records, Run};
use sha2::{Digest as _, Sha256};

use crate::support::numbers;

#[test]
fn event_files_have_the_bytes_of_the_official_writer() {
    let wall = 1_796_096_085.25;
    let numbers = numbers(&[("bad", f64::NAN), ("most", f64::INFINITY), ("policy/loss", 0.03125), ("zero", 0.0)]);
    let events = [
        event::version(wall),
        event::start(wall, 4),
        event::scalars(wall, 300, &numbers),
        event::text(wall, 0, "samples/train", "Löwe"),
    ];
    let written: Vec<u8> = events.iter().flat_map(|event| tfrecord::frame(event)).collect();
    assert_eq!(written, include_bytes!("../golden/events.tfevents"));
}

#[test]
fn offline_runs_have_the_bytes_of_the_official_writer() {
    let mut records = Records::default();
    let run = Run {
        id: "abcd1234",
        project: "trees",
        name: "first",
        tags: &["a".to_owned(), "b".to_owned()],
        host: "here",
        config: &serde_json::json!({"lr": 1e-6, "model": {"layers": [1, 2]}}),
        started: Duration::new(1_796_096_085, 250_000_000),
        resumed: false,
    };
    let row = [("bad", "NaN"), ("most", "Infinity"), ("policy/loss", "0.03125"), ("_step", "0")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let seven = Duration::from_secs(7);
    let mut log = LogWriter::create(Vec::new()).unwrap();
    let all = [
        records.header(),
        records.run(&run),
        records.history(0, &row),
        records.summary(&row, seven),
        records.exit(3, seven),
    ];
    for record in all {
        log.append(&record).unwrap();
    }
    assert_eq!(log.into_inner(), include_bytes!("../golden/offline.wandb"));
}

#[test]
fn records_that_span_blocks_have_the_bytes_of_the_official_writer() {
    let room = 32_768 - 7 - 7;
    let sizes = [room - 15, 0, 1, room, 32_768 - 7, 3 * 32_768, 5, 32_768 - 20, 100_000, 0];
    let records = sizes.map(|size| (0..size).map(|i| ((i * 7 + size) % 251) as u8).collect::<Vec<u8>>());
    let mut log = LogWriter::create(Vec::new()).unwrap();
    for record in &records {
        log.append(record).unwrap();
    }
    let written = log.into_inner();
    let golden: serde_json::Value = serde_json::from_str(include_str!("../golden/spanning.json")).unwrap();
    assert_eq!(written.len() as u64, golden["bytes"].as_u64().unwrap());
    let digest: String = Sha256::digest(&written).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, golden["sha256"].as_str().unwrap());
    let mut log = LogReader::open(&written[..]).unwrap().unwrap();
    for record in &records {
        assert_eq!(log.entry().unwrap().unwrap().record, *record);
    }
    assert_eq!(log.entry().unwrap(), None);
}
