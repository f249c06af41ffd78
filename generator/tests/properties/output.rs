//! Whatever is written reads back the same.

use std::path::Path;

use espalier_generator::Tree;
use espalier_generator::output::{OutputOptions, RunWriter, TrajectoryReader, read_trees};
use espalier_generator::row::{Row, RowParts, VersionRun};
use espalier_generator::trajectory::{CallKind, CallRecord, RolloutStop, Timings, TokenUsage, Trajectory, Turn};
use espalier_inference::message::FunctionCall;
use espalier_inference::{Fidelity, Message, StopReason, ToolCall};
use proptest::prelude::*;

fn write(directory: &Path, options: OutputOptions, trees: &[Tree]) {
    let mut writer = RunWriter::create(directory, options).unwrap();
    for tree in trees {
        writer.write(tree).unwrap();
    }
    writer.finish().unwrap();
}

fn row() -> impl Strategy<Value = Row> {
    let token = (0_u32..300, 0_u8..2, -9.0_f32..0.0, -2.0_f32..2.0);
    (prop::collection::vec(0_u32..300, 0..4), prop::collection::vec(token, 0..6), any::<bool>()).prop_map(
        |(prompt_ids, tokens, logprobs)| {
            let versions = if tokens.is_empty() {
                vec![]
            } else {
                vec![VersionRun { start: 0, len: tokens.len() as u32, version: 1 << 60 }]
            };
            Row::new(RowParts {
                prompt_ids,
                response_ids: tokens.iter().map(|token| token.0).collect(),
                mask: tokens.iter().map(|token| token.1).collect(),
                logprobs: logprobs.then(|| tokens.iter().map(|token| token.2).collect()),
                rewards: tokens.iter().map(|token| token.3).collect(),
                versions,
            })
            .unwrap()
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    (".{0,8}", proptest::option::of(".{0,8}"), 0_usize..3).prop_map(|(text, extra, calls)| Message {
        reasoning_content: extra.clone(),
        tool_calls: vec![
            ToolCall {
                id: text.clone(),
                kind: "function".to_owned(),
                function: FunctionCall { name: "f".to_owned(), arguments: "{\"a\": 1}".to_owned() },
            };
            calls
        ],
        tool_call_id: extra.clone(),
        name: extra,
        ..Message::assistant(text)
    })
}

prop_compose! {
    fn trajectory()(
        rows in prop::collection::vec(row(), 0..3),
        messages in prop::collection::vec(message(), 0..4),
        stop in 0..RolloutStop::ALL.len(),
        text in ".{0,12}",
        maybe in proptest::option::of(".{0,12}"),
        reward in -5.0_f32..5.0,
        seed in 0_u64..u64::MAX,
        turns in 0_u32..3,
        calls in 0_u32..3,
    ) -> Trajectory {
        let metadata: serde_json::Map<_, _> = [(text.clone(), serde_json::json!([1, "x", {"y": null}]))].into_iter().collect();
        Trajectory {
            rollout_id: text.clone(), parent_id: None, root_id: text.clone(), depth: 0, child_index: None,
            instance_id: text.clone(), repetition_id: 3, env_id: "e".to_owned(), model: text.clone(), trained: turns > 0,
            fidelity: if rows.is_empty() { Fidelity::Text } else { Fidelity::Tokens },
            seed, stop: RolloutStop::ALL[stop], error: maybe.clone(), reward, answer: maybe.clone(), rows, messages,
            turns: (0..turns).map(|turn| Turn {
                row: (turn > 0).then_some(turn), start: 1, end: 2, message: turn, stop: StopReason::StopString, reward,
                prompt_tokens: 5, cached_tokens: 4, sampled_tokens: 3, llm_us: seed, env_us: 1, metadata: metadata.clone(),
            }).collect(),
            calls: (0..calls).map(|index| CallRecord {
                index, kind: if index == 1 { CallKind::Judge } else { CallKind::Query }, turn: 0, model: text.clone(), prompt: text.clone(), response: maybe.clone(), error: None,
                prompt_tokens: 1, sampled_tokens: 2, us: seed,
            }).collect(),
            env_metrics: metadata,
            timings: Timings { llm_us: 1, env_us: seed >> 16, total_us: 3 },
            usage: TokenUsage { prompt_tokens: 1, cached_tokens: 2, sampled_tokens: seed >> 24 },
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_trajectory_reads_back_the_same_from_jsonl_and_parquet(root in trajectory()) {
        let tree = Tree { root, descendants: vec![] };
        for (jsonl, parquet) in [(true, false), (false, true)] {
            let directory = tempfile::tempdir().unwrap();
            write(directory.path(), OutputOptions { jsonl, parquet, ..OutputOptions::default() }, std::slice::from_ref(&tree));
            let (read, _) = read_trees(directory.path()).unwrap();
            prop_assert_eq!(&read[..], std::slice::from_ref(&tree));
        }
    }

    #[test]
    fn any_bytes_are_a_trajectory_or_a_typed_error(bytes in prop::collection::vec(any::<u8>(), 0..200), parquet in any::<bool>()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(if parquet { "trajectories-00000.parquet" } else { "trajectories.jsonl" });
        let bytes = if parquet { [b"PAR1", &bytes[..], b"PAR1"].concat() } else { bytes };
        std::fs::write(&path, bytes).unwrap();
        if let Ok(reader) = TrajectoryReader::open(&path) {
            reader.for_each(drop);
        }
    }
}
