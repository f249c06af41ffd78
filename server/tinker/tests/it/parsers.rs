//! Names, paths, tensors and messages: whatever comes, they are read or refused, and what is read is written alike.

use std::collections::BTreeMap;

use espalier_tinker::ids::{ModelId, SamplerId, SessionId};
use espalier_tinker::operation::{ForwardBackward, Kind, Payload};
use espalier_tinker::path::TinkerPath;
use espalier_tinker::{datum, proto, tensor};
use proptest::prelude::*;
use prost::Message as _;

fn session() -> impl Strategy<Value = String> {
    "[A-Za-z0-9_-]{1,64}"
}

proptest! {
    #[test]
    fn names_are_written_as_they_were_read(session in session(), number: u32) {
        let text = format!("{session}:train:{number}");
        prop_assert_eq!(text.parse::<ModelId>().unwrap().to_string(), text);
        let text = format!("{session}:sample:{number}");
        prop_assert_eq!(text.parse::<SamplerId>().unwrap().to_string(), text);
        prop_assert_eq!(session.parse::<SessionId>().unwrap().to_string(), session);
    }

    #[test]
    fn a_path_is_written_as_it_was_read(
        session in session(), number: u32, kind in "(sampler_|external_)?weights", name in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}",
    ) {
        let text = format!("tinker://{session}:train:{number}/{kind}/{name}");
        prop_assert_eq!(text.parse::<TinkerPath>().unwrap().to_string(), text);
    }

    /// Joined to a folder, the parts of whatever is read stay inside it.
    #[test]
    fn no_path_leads_out_of_a_folder(text in "(tinker:/{0,3})?[a-z:0./%\\\\ -]{0,40}") {
        let Ok(path) = text.parse::<TinkerPath>() else { return Ok(()) };
        for part in [path.model.to_string(), path.kind.segment().to_owned(), path.name.as_str().to_owned()] {
            let mut components = std::path::Path::new(&part).components();
            prop_assert!(matches!(components.next(), Some(std::path::Component::Normal(_))));
            prop_assert_eq!(components.next(), None);
        }
    }

    #[test]
    fn anything_is_a_name_or_an_error(text in "\\PC{0,80}") {
        let read = [text.parse::<SessionId>().map(|id| id.to_string()), text.parse::<ModelId>().map(|id| id.to_string()),
                     text.parse::<SamplerId>().map(|id| id.to_string()), text.parse::<TinkerPath>().map(|id| id.to_string())];
        for written in read.iter().flatten() {
            prop_assert_eq!(written, &text);
        }
    }

    #[test]
    fn any_bytes_are_a_batch_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = ForwardBackward::read(&bytes);
        let _ = proto::SampleResponse::decode(bytes.as_slice());
    }

    #[test]
    fn any_tensor_is_read_or_refused(
        dense in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
        parts in proptest::collection::vec(proptest::collection::vec(-1i64..5, 0..5), 3),
        dtype in 0i32..6,
        shape in proptest::collection::vec(prop_oneof![-1i64..5, Just(i64::MAX)], 0..4),
    ) {
        let data = dense.map_or_else(|| proto::TensorData::SparseCsr(proto::SparseCsr {
            values: tensor::long_bytes(parts[0].clone()),
            crow_indices: tensor::long_bytes(parts[1].clone()),
            col_indices: tensor::long_bytes(parts[2].clone()),
        }), proto::TensorData::Dense);
        let given = proto::Tensor { data: Some(data), dtype, shape };
        if let Ok(read) = tensor::Tensor::read(&given) {
            prop_assert!((1..=2).contains(&read.shape.len()));
            match read.sparsity {
                None => prop_assert_eq!(read.shape.iter().product::<usize>(), read.numbers.len()),
                Some(sparsity) => {
                    prop_assert_eq!(sparsity.rows.len(), read.shape[0] + 1);
                    prop_assert!(sparsity.columns.iter().all(|column| *column < read.shape[1]));
                }
            }
        }
    }

    /// Entries of protobuf maps may come in any order: it is the same request.
    #[test]
    fn the_order_of_a_map_changes_nothing(names in proptest::collection::btree_set("[a-z]{1,6}", 1..5)) {
        let config: BTreeMap<String, f64> = names.iter().cloned().zip([0.5, 1.5, 2.5, 3.5, 4.5]).collect();
        let tokens = tensor::token_bytes(&[1, 2]);
        let chunk = proto::Chunk { kind: Some(proto::ChunkKind::EncodedText(proto::EncodedTextChunk { tokens })) };
        let target = proto::Tensor {
            data: Some(proto::TensorData::Dense(tensor::long_bytes([3, 4]))), dtype: 2, shape: vec![2],
        };
        let datum = proto::Datum {
            model_input: vec![chunk], loss_fn_inputs: [("target_tokens".to_owned(), target)].into(), ..Default::default()
        };
        let request = proto::ForwardBackwardRequest {
            model_id: "s:train:0".to_owned(), seq_id: 1, data: vec![datum], loss_fn: "x".to_owned(), ..Default::default()
        };
        let whole = request.encode_to_vec();
        // Each entry as a message of its own: protobuf messages that follow each other are merged.
        let entry = |(name, number): (&String, &f64)| proto::ForwardBackwardRequest {
            loss_fn_config: [(name.clone(), *number)].into(), ..Default::default()
        }.encode_to_vec();
        let forward: Vec<u8> = whole.iter().copied().chain(config.iter().flat_map(entry)).collect();
        let backward: Vec<u8> = whole.iter().copied().chain(config.iter().rev().flat_map(entry)).collect();
        let [forward, backward] = [forward, backward].map(|bytes| Payload::read(Kind::ForwardBackward, &bytes).unwrap());
        prop_assert_eq!(forward, backward);
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for text in ["", "a/b", "..", "a b", "a:b", "é", &"x".repeat(65)] {
        assert!(text.parse::<SessionId>().is_err(), "{text}");
    }
    for text in [
        "s:train:",
        "s:train:01",
        "s:train:+1",
        "s:train:-1",
        "s:train:4294967296",
        "s:sample:0",
        ":train:0",
        "s:train:0:0",
    ] {
        assert!(text.parse::<ModelId>().is_err(), "{text}");
    }
    for text in [
        "s:train:0/weights/a",
        "tinker://s:train:0/weights/",
        "tinker://s:train:0/weights/..",
        "tinker://s:train:0/weights/.hidden",
        "tinker://s:train:0/weights/a/b",
        "tinker://s:train:0/other/a",
        "tinker://s:train:0//a",
        "tinker://../weights/a",
        "TINKER://s:train:0/weights/a",
    ] {
        assert!(text.parse::<TinkerPath>().is_err(), "{text}");
    }
    assert!(datum::read(&[]).is_err());
}
