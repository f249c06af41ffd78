//! Dynamic sampling beside training: only groups with a signal train, whichever mode plays them.

mod common;

use std::sync::Arc;

use common::world::{Seen, Stub, StubOptions, Trained, World};
use espalier_distributed::Group;
use espalier_trainer::rl::rows::RolloutRow;
use serde_json::{Value, json};

/// Half of the prompts never carry a signal.
const NAMES: [&str; 6] = ["a", "flat b", "c", "flat d", "e", "flat f"];

fn stub() -> Stub {
    Stub::new(StubOptions { flat: Some("flat"), ..StubOptions::default() })
}

fn settings(mode: &str, staleness: u64, sampling: &Value) -> Value {
    json!({
        "mode": mode, "fully_async": {"max_staleness_steps": staleness},
        "eval_before_train": false, "eval_interval": 0, "algorithm": {"dynamic_sampling": sampling},
    })
}

fn world(names: &[&str]) -> World {
    let world = World::new();
    world.rows(names);
    world
}

/// The tokens of each group of two, one group after the other, in the order in which they train.
fn groups(trained: &Trained) -> Vec<Vec<Vec<u32>>> {
    let tokens = |rows: &[RolloutRow]| rows.iter().map(|row| row.row.response_ids().to_vec()).collect();
    trained.steps().iter().flat_map(|rows| rows.chunks(8).map(tokens).collect::<Vec<_>>()).collect()
}

/// The first groups of the stream that carry a signal, from a run that trains on all.
fn with_signal(count: usize) -> Vec<Vec<Vec<u32>>> {
    let world = world(&NAMES);
    let (_, trained) = world.run_stub(
        world.config_with(0, 2 * count as u64, &settings("sync", 0, &json!({}))),
        stub(),
        &mut Seen::default(),
    );
    let mut all = groups(&trained);
    all.retain(|group| group.iter().any(|response| *response != group[0]));
    assert!(all.len() >= count);
    all.truncate(count);
    all
}

fn sorted(mut groups: Vec<Vec<Vec<u32>>>) -> Vec<Vec<Vec<u32>>> {
    groups.sort_unstable();
    groups
}

#[test]
fn groups_without_a_signal_are_dropped_and_the_next_ones_of_the_stream_train() {
    let steps = 6;
    let expected = with_signal(2 * steps as usize);
    for (mode, staleness) in [("one_step_off", 1), ("fully_async", 0), ("fully_async", 2)] {
        let world = world(&NAMES);
        let mut seen = Seen::default();
        let config = world.config_with(0, steps, &settings(mode, staleness, &json!({"type": "filter"})));
        let (report, trained) = world.run_stub(config, stub(), &mut seen);
        assert!(report.finished, "{mode}");
        // With room for staleness a step takes what is ready.
        assert_eq!(sorted(groups(&trained)), sorted(expected.clone()), "{mode}, {staleness}");
        if mode == "one_step_off" {
            assert_eq!(groups(&trained), expected);
        }
        let ages = seen.figure("async/staleness_max");
        assert!(ages.iter().all(|age| *age <= staleness as f64), "{mode}: {ages:?}");
        // Every group that was dropped stands in some step's figures, which are those of `sync`.
        let (dropped, kept) = (seen.figure("async/num_groups_dropped"), seen.figure("async/keep_rate"));
        let batches = seen.figure("dynamic_sampling/batches");
        assert!(dropped.iter().sum::<f64>() >= 4.0, "{mode}: {dropped:?}");
        for step in 0..steps as usize {
            assert_eq!(kept[step], 2.0 / (2.0 + dropped[step]), "{mode}, step {step}");
            assert_eq!(batches[step], 1.0 + (dropped[step] / 2.0).ceil(), "{mode}, step {step}");
        }
    }
}

#[test]
fn a_run_without_any_signal_ends_in_the_same_error_in_every_mode() {
    for kind in ["filter", "replace"] {
        let fail = |mode: &str| {
            let world = world(&["flat a", "flat b", "flat c"]);
            let sampling = json!({"type": kind, "max_sample_batches": 3});
            let config = world.config_with(0, 4, &settings(mode, 2, &sampling));
            let run = world.parts(config, Some(Arc::new(stub())), Group::single());
            run.run(&mut Seen::default()).err().unwrap().to_string()
        };
        let expected = fail("sync");
        assert!(expected.contains("3 batches gave 0 of 2 groups"), "{expected}");
        assert!(expected.contains("max_sample_batches"), "{expected}");
        for mode in ["one_step_off", "fully_async"] {
            assert_eq!(fail(mode), expected, "{kind}, {mode}");
        }
    }
}

#[test]
fn a_step_that_may_sample_no_second_batch_fails_on_the_first_group_without_a_signal() {
    let fails = |mode: &str| {
        let world = world(&["a", "flat b"]);
        let sampling = json!({"type": "filter", "max_sample_batches": 1});
        let config = world.config_with(0, 1, &settings(mode, 0, &sampling));
        let run = world.parts(config, Some(Arc::new(stub())), Group::single());
        run.run(&mut Seen::default()).err().unwrap().to_string()
    };
    let expected = fails("sync");
    assert!(expected.contains("1 batches gave 1 of 2 groups"), "{expected}");
    assert_eq!(fails("fully_async"), expected);
}

#[test]
fn a_stopped_run_goes_on_with_nothing_twice_and_nothing_lost() {
    let steps = 6;
    let expected = sorted(with_signal(2 * steps as usize));
    for (mode, staleness) in [("one_step_off", 1), ("fully_async", 2)] {
        let world = world(&NAMES);
        let config = || world.config_with(0, steps, &settings(mode, staleness, &json!({"type": "filter"})));
        let mut first = Seen { stop_after: Some(3), ..Seen::default() };
        let (report, before) = world.run_stub(config(), stub(), &mut first);
        assert_eq!((report.steps, report.finished), (3, false), "{mode}");
        let (report, after) = world.run_stub(config(), stub(), &mut Seen::default());
        assert_eq!((report.steps, report.finished), (6, true), "{mode}");
        let both = groups(&before).into_iter().chain(groups(&after)).collect();
        assert_eq!(sorted(both), expected, "{mode}");
    }
}

#[test]
fn copies_take_the_place_of_groups_without_a_signal_as_in_a_synchronous_run() {
    let run = |mode: &str| {
        let world = world(&NAMES);
        // More than half of a batch must carry a signal, so some batches are dropped whole.
        let sampling = json!({"type": "replace", "min_replace_ratio": 0.4});
        let mut seen = Seen::default();
        let (report, trained) =
            world.run_stub(world.config_with(0, 6, &settings(mode, 0, &sampling)), stub(), &mut seen);
        assert!(report.finished, "{mode}");
        (trained.steps(), seen.figure("dynamic_sampling/batches"))
    };
    let (rows, batches) = run("sync");
    assert!(rows.iter().flatten().all(|row| !row.prompt.contains("flat")));
    assert!(batches.iter().any(|batches| *batches > 1.0), "{batches:?}");
    assert_eq!(run("fully_async"), (rows, batches));
}
