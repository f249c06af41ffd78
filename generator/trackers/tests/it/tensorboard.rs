//! Event files of TensorBoard.

use espalier_trackers::protobuf::{Field, Fields};
use espalier_trackers::tensorboard::tfrecord::{frame, masked_crc};
use espalier_trackers::{RunSpec, TensorBoard, Tracker};
use proptest::prelude::*;

use crate::support::{events, find, numbers, spec};

#[test]
fn checksums_are_masked_crc_32c() {
    // RFC 3720, B.4, masked; `123456789` has the check value 0xe3069283.
    let unmask = |masked: u32| masked.wrapping_sub(0xa282_ead8).rotate_left(15);
    assert_eq!(unmask(masked_crc(b"123456789")), 0xe306_9283);
    assert_eq!(unmask(masked_crc(&[0; 32])), 0x8a91_36aa);
    assert_eq!(unmask(masked_crc(&[0xff; 32])), 0x62a8_ab43);
    assert_eq!(unmask(masked_crc(&(0..32).collect::<Vec<u8>>())), 0x46dd_794e);
}

#[test]
fn a_file_is_named_as_tensorboard_expects_and_files_sort_by_their_starts() {
    let directory = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..5)
        .map(|_| TensorBoard::open(&spec(directory.path(), &["tensorboard"])).unwrap().path().to_owned())
        .collect();
    assert!(paths.is_sorted() && paths.windows(2).all(|pair| pair[0] != pair[1]), "{paths:?}");
    for path in &paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        let rest = name.strip_prefix("events.out.tfevents.").unwrap();
        assert!(rest.split('.').next().unwrap().len() == 10 && path.parent().unwrap().ends_with("tensorboard/first"));
    }
}

#[test]
fn a_run_is_one_folder_whatever_its_name() {
    for (name, folder) in [("a/../b", "a_.._b"), ("..", "run"), ("", "run"), ("x y", "x y")] {
        let directory = tempfile::tempdir().unwrap();
        let named = RunSpec { run_name: name.to_owned(), ..spec(directory.path(), &["tensorboard"]) };
        TensorBoard::open(&named).unwrap();
        assert!(directory.path().join("tensorboard").join(folder).is_dir(), "{name}");
    }
}

#[test]
fn scalars_keep_names_and_what_is_not_finite() {
    let directory = tempfile::tempdir().unwrap();
    let mut tracker = TensorBoard::open(&spec(directory.path(), &["tensorboard"])).unwrap();
    tracker.log(7, &numbers(&[("inf", f64::INFINITY), ("nan", f64::NAN), ("policy/loss", 0.5)])).unwrap();
    let events = events(&std::fs::read(tracker.path()).unwrap());
    assert_eq!(Fields::bytes(&events[0], 3), Some(&b"brain.Event:2"[..]));
    assert_eq!(Fields::int(&events[2], 2), Some(7));
    let values: Vec<(&[u8], f32)> = Fields::new(Fields::bytes(&events[2], 5).unwrap())
        .filter_map(|(_, value)| match value {
            Field::Bytes(value) => Some((Fields::bytes(value, 1)?, Fields::new(value).find_map(float)?)),
            _ => None,
        })
        .collect();
    assert_eq!(values[0], (&b"inf"[..], f32::INFINITY));
    assert!(values[1].0 == b"nan" && values[1].1.is_nan());
    assert_eq!(values[2], (&b"policy/loss"[..], 0.5));
}

fn float((_, value): (u32, Field<'_>)) -> Option<f32> {
    if let Field::Float(value) = value { Some(value) } else { None }
}

#[test]
fn a_file_says_from_which_step_on_earlier_files_do_not_count() {
    let directory = tempfile::tempdir().unwrap();
    let starts = [None, Some(5)].map(|resume| {
        let spec = RunSpec { resume, ..spec(directory.path(), &["tensorboard"]) };
        let file = TensorBoard::open(&spec).unwrap().path().to_owned();
        let start = events(&std::fs::read(file).unwrap())[1].clone();
        assert_eq!(Fields::bytes(&start, 7), Some(&[8, 1][..]), "`SessionLog.START`");
        Fields::int(&start, 2)
    });
    assert_eq!(starts, [None, Some(6)]);
    assert_eq!(find(&directory.path().join("tensorboard/first"), "tfevents").len(), 2);
}

proptest! {
    #[test]
    fn what_was_framed_is_read(records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 0..8)) {
        let bytes: Vec<u8> = records.iter().flat_map(|record| frame(record)).collect();
        prop_assert_eq!(events(&bytes), records);
    }
}
