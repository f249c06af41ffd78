//! Sampling and training side by side: no group too old, none starved, nothing trained twice or lost.

mod common;

use std::collections::BTreeSet;

use common::world::{Seen, Slow, Stub, StubOptions, World};
use espalier_distributed::Group;
use espalier_generator::TreeOptions;
use espalier_generator::rollouts::{NoSink, RunOptions, run};
use espalier_inference::SamplingParams;
use espalier_trainer::checkpoint::CheckpointStore;
use espalier_trainer::lora::LoraConfig;
use espalier_trainer::rl::config::TrainConfig;
use espalier_trainer::rl::engine::{Sampler as _, publish};
use espalier_trainer::rl::mode::{Background, FullyAsyncSection, Mode};
use espalier_trainer::rl::prompts::Prompts;
use espalier_trainer::rl::staleness::{Admission, Position, Started};
use espalier_trainer::{ModelOptions, TrainModel, TrainPrecision};
use proptest::prelude::*;
use serde_json::json;
use tokio_util::sync::CancellationToken;

fn asynchronous(world: &World, steps: u64, staleness: u64) -> TrainConfig {
    // Without evaluations: the slow prompt waits for versions that do not come while one is played.
    let trainer = json!({
        "mode": "fully_async", "fully_async": {"max_staleness_steps": staleness},
        "eval_before_train": false, "eval_interval": 0,
    });
    world.config_with(0, steps, &trainer)
}

fn sync(world: &World, steps: u64) -> TrainConfig {
    world.config_with(0, steps, &json!({"eval_before_train": false, "eval_interval": 0}))
}

/// Numbers that do not depend on the clock and that both ways have.
fn comparable(seen: &Seen) -> Vec<(u64, Vec<(String, f64)>)> {
    let timed = |name: &str| name.starts_with("timing/") || name.starts_with("async/") || name.contains("time");
    let of = |numbers: &espalier_trainer::sft::Numbers| {
        numbers.iter().filter(|(name, _)| !timed(name)).map(|(name, value)| (name.clone(), *value)).collect()
    };
    seen.steps.iter().map(|(step, numbers)| (*step, of(numbers))).collect()
}

#[test]
fn without_staleness_a_run_is_bit_for_bit_a_synchronous_one() {
    let names = ["a", "b", "c", "d", "e"];
    let options = StubOptions { by_version: true, ..StubOptions::default() };
    let run = |asynchronously: bool| {
        let world = World::new();
        world.rows(&names);
        let config = if asynchronously { asynchronous(&world, 7, 0) } else { sync(&world, 7) };
        let mut seen = Seen::default();
        let (report, trained) = world.run_stub(config, Stub::new(options.clone()), &mut seen);
        assert!(report.finished);
        (trained.steps(), comparable(&seen))
    };
    let (rows, numbers) = run(false);
    let (other_rows, other_numbers) = run(true);
    assert_eq!(rows, other_rows);
    // Numbers hold NaN where a mean has nothing to count.
    assert_eq!(format!("{numbers:?}"), format!("{other_numbers:?}"));
    assert!(numbers.iter().any(|(_, numbers)| numbers.iter().any(|(n, v)| n == "policy/grad_norm" && *v > 0.0)));
}

#[test]
fn one_step_off_trains_on_the_batches_of_a_synchronous_run_one_version_later() {
    let run = |mode: &str| {
        let world = World::new();
        world.rows(&["a", "b", "c"]);
        let mut seen = Seen::default();
        let config = world.config_with(0, 6, &json!({"mode": mode}));
        let (_, trained) = world.run_stub(config, Stub::new(StubOptions::default()), &mut seen);
        let prompts: Vec<Vec<String>> = trained
            .steps()
            .iter()
            .map(|rows| {
                rows.iter().map(|row| row.row.response_ids().iter().map(ToString::to_string).collect()).collect()
            })
            .collect();
        (prompts, seen)
    };
    let (whole, _) = run("sync");
    let (overlapped, seen) = run("one_step_off");
    assert_eq!(whole, overlapped);
    assert_eq!(seen.figure("async/staleness_max"), [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn a_slow_prompt_is_overtaken_no_longer_than_the_bound_and_always_trains() {
    let (steps, staleness) = (8, 2);
    let world = World::new();
    world.rows(&["a", "b", "c", "slow"]);
    let slow = Some(Slow { word: "slow", versions: staleness, steps });
    let mut seen = Seen::default();
    let (report, trained) = world.run_stub(
        asynchronous(&world, steps, staleness),
        Stub::new(StubOptions { slow, ..StubOptions::default() }),
        &mut seen,
    );
    assert!(report.finished);
    let ages = seen.figure("async/staleness_max");
    assert!(ages.iter().all(|age| *age <= staleness as f64), "{ages:?}");
    assert_eq!(ages.iter().copied().fold(0.0, f64::max), staleness as f64, "the slow prompt is as old as it may be");
    // Tokens know the version that sampled them: the slow prompt's came later than their group began.
    let tokens = seen.figure("async/token_staleness_mean");
    let groups = seen.figure("async/staleness_mean");
    assert!(tokens.iter().zip(&groups).all(|(token, group)| token <= group), "{tokens:?}, {groups:?}");
    assert!(trained.steps().iter().flatten().any(|row| row.row.versions().len() == 2));
    // Sixteen groups: four passes over four prompts, the slow one among them each time.
    let slow = trained.steps().iter().flatten().filter(|row| row.prompt.starts_with("slow")).count();
    assert_eq!(slow, 4 * 8);
    assert_eq!(trained.responses(), whole(&["a", "b", "c", "slow"], steps));
}

/// What a synchronous run trains on.
fn whole(names: &[&str], steps: u64) -> Vec<Vec<u32>> {
    let world = World::new();
    world.rows(names);
    let (_, trained) = world.run_stub(sync(&world, steps), Stub::new(StubOptions::default()), &mut Seen::default());
    trained.responses()
}

#[test]
fn a_stopped_or_cancelled_run_goes_on_with_nothing_twice_and_nothing_lost() {
    let names = ["a", "b", "c", "d", "e"];
    let expected = whole(&names, 9);
    for cancelled in [false, true] {
        let world = World::new();
        world.rows(&names);
        let slow = Some(Slow { word: "say c", versions: 2, steps: 9 });
        let stub = || Stub::new(StubOptions { slow: slow.clone(), ..StubOptions::default() });
        let mut first = Seen { stop_after: (!cancelled).then_some(4), ..Seen::default() };
        let cancel_after = cancelled.then_some(4);
        let config = || asynchronous(&world, 9, 2);
        let (report, before, _) = world.run_stub_with(config(), stub(), &mut first, cancel_after);
        assert_eq!((report.steps, report.finished), (4, false));
        let kept = CheckpointStore::new(world.path().join("checkpoints"), None).latest().unwrap().unwrap();
        assert_eq!(kept.step(), 4);
        let mut second = Seen::default();
        let (report, after) = world.run_stub(config(), stub(), &mut second);
        assert_eq!((report.steps, report.finished), (9, true));
        let mut both = before.responses();
        both.extend(after.responses());
        both.sort_unstable();
        assert_eq!(both, expected, "cancelled: {cancelled}");
        assert!(second.figure("async/staleness_max").iter().all(|age| *age <= 2.0));
    }
}

#[test]
fn a_synchronous_run_goes_on_from_an_asynchronous_one_and_plays_what_was_in_flight() {
    let names = ["a", "b", "c", "d", "e"];
    let world = World::new();
    world.rows(&names);
    let slow = Some(Slow { word: "say b", versions: 2, steps: 5 });
    let stub = Stub::new(StubOptions { slow, ..StubOptions::default() });
    let mut first = Seen { stop_after: Some(2), ..Seen::default() };
    let (_, before) = world.run_stub(asynchronous(&world, 5, 2), stub, &mut first);
    let prompts = |steps: Vec<Vec<espalier_trainer::rl::rows::RolloutRow>>| -> Vec<String> {
        let mut all: Vec<String> = steps.iter().flatten().map(|row| row.prompt.clone()).collect();
        all.sort_unstable();
        all
    };
    let (report, after) = world.run_stub(sync(&world, 5), Stub::new(StubOptions::default()), &mut Seen::default());
    assert!(report.finished);
    let both = prompts(before.steps().into_iter().chain(after.steps()).collect());
    // Ten groups of eight: each prompt twice, whichever came first.
    let expected: Vec<String> = names.iter().flat_map(|name| std::iter::repeat_n((*name).to_owned(), 16)).collect();
    assert_eq!(both.iter().map(|p| p[..1].to_owned()).collect::<Vec<_>>(), expected);
}

#[test]
fn a_rollout_that_fails_does_not_stop_the_others() {
    for failing in ["engine", "environment"] {
        let world = World::new();
        world.rows(if failing == "engine" { &["a", "unlucky"] } else { &["a", "broken"] });
        let options = StubOptions { failing: Some("unlucky".to_owned()), ..StubOptions::default() };
        let mut seen = Seen::default();
        let (report, trained) = world.run_stub(asynchronous(&world, 5, 1), Stub::new(options), &mut seen);
        assert!(report.finished, "{failing}");
        let live: usize = trained.steps().iter().flatten().filter(|row| !row.failed).count();
        assert_eq!(live, 5 * 8, "{failing}");
    }
}

#[test]
fn a_policy_learns_in_both_modes() {
    for mode in ["one_step_off", "fully_async"] {
        let world = World::new();
        world.rows(&["a", "b", "c", "d"]);
        let correction = json!({"off_policy_correction": {"tis_ratio_type": "token"}});
        let trainer = json!({"mode": mode, "fully_async": {"max_staleness_steps": 2}, "algorithm": correction});
        let mut seen = Seen::default();
        let report = world.run(world.config_with(8, 40, &trainer), &mut seen);
        assert!(report.finished);
        let evaluated = seen.figure("eval/all/avg_score");
        let (before, after) = (evaluated[0], evaluated[evaluated.len() - 1]);
        assert!(before < 0.3 && after > 0.6, "{mode}: {before} before, {after} after");
        let most = if mode == "one_step_off" { 1.0 } else { 2.0 };
        assert!(seen.figure("async/staleness_max").iter().all(|age| *age <= most), "{mode}");
        assert!(seen.figure("reward/num_failed").iter().all(|failed| *failed == 0.0), "{mode}");
    }
}

#[test]
fn weights_change_under_running_requests_and_every_token_says_whose_it_is() {
    for lora in [0, 4] {
        let world = World::new();
        world.rows(&["a"]);
        let config = world.config(lora, 1);
        let options = ModelOptions {
            precision: TrainPrecision::F32,
            lora: LoraConfig { rank: i64::from(lora), ..LoraConfig::default() },
            ..ModelOptions::default()
        };
        let model = TrainModel::load(&world.path().join("model"), options, Group::single()).unwrap();
        let sampler = world.engine();
        publish(&model, Some(sampler.as_ref()), 7).unwrap();
        let env = &config.environment;
        let registry = espalier_envs::Registry::standard();
        let prompts = Prompts::read(&config.data.train_data, &env.env_class, &env.params, &registry, "rows").unwrap();
        let sampling = SamplingParams { max_tokens: 200, ignore_eos: true, ..SamplingParams::default() };
        let options = TreeOptions { root: config.generator.loop_options(), ..TreeOptions::default() };
        let jobs = prompts.jobs(&[0], 1, 0, true, &sampler.players(sampling), &options);
        let cancel = CancellationToken::new();
        let played = world
            .runtime()
            .spawn(async move { run(jobs, RunOptions::default(), NoSink, &cancel).await.map_err(|e| e.to_string()) });
        // New weights for as long as it plays.
        let mut version = 7;
        while !played.is_finished() {
            version += 1;
            publish(&model, Some(sampler.as_ref()), version).unwrap();
        }
        let mut result = world.runtime().block_on(played).unwrap().unwrap();
        let tree = result.trees.remove(0).unwrap();
        let row = &tree.root.rows[0];
        assert_eq!((tree.root.error.as_deref(), row.len()), (None, 200));
        let runs = row.versions();
        assert!(runs.len() > 1, "rank {lora}: {runs:?}");
        assert!(runs.windows(2).all(|pair| pair[0].version < pair[1].version), "{runs:?}");
        assert!(runs.iter().all(|run| (7..=version).contains(&run.version)), "{runs:?}");
        assert_eq!(runs.iter().map(|run| run.len).sum::<u32>(), 200);
    }
}

#[test]
fn a_step_tells_the_figures_of_skyrls_asynchronous_trainer() {
    for mode in ["one_step_off", "fully_async"] {
        let world = World::new();
        world.rows(&["a", "b", "c"]);
        let mut seen = Seen::default();
        let config = world.config_with(0, 4, &json!({"mode": mode, "eval_before_train": false, "eval_interval": 0}));
        world.run_stub(config, Stub::new(StubOptions::default()), &mut seen);
        for name in [
            "async/staleness_mean",
            "async/staleness_max",
            "async/staleness_min",
            "async/staleness_ratio",
            "async/staleness_violation_count",
            "async/gen_buffer_qsize_at_wait_start",
            "async/num_groups_dropped",
            "async/keep_rate",
            "generate/group_completion_time_mean",
            "generate/group_completion_time_p90",
            "generate/group_completion_time_max",
            "generate/intra_group_completion_time_std_mean",
            "generate/intra_group_completion_time_cv_mean",
            "timing/wait_for_generation_buffer",
        ] {
            let told = seen.figure(name);
            assert!(told.len() == 4 && told.iter().all(|value| value.is_finite()), "{mode}, `{name}`: {told:?}");
        }
        assert_eq!(seen.figure("async/staleness_violation_count"), [0.0; 4], "{mode}");
        assert_eq!(seen.figure("async/keep_rate"), [1.0; 4], "{mode}");
        // The share of groups that are older than the policy: none in the first step.
        let older = seen.figure("async/staleness_ratio");
        assert_eq!(older[0], 0.0, "{mode}");
        assert!(older[3] > 0.0, "{mode}: {older:?}");
    }
}

#[test]
fn settings_that_do_not_go_together_are_refused_by_key() {
    let world = World::new();
    world.rows(&["a"]);
    let refused = |trainer: serde_json::Value, key: &str| {
        let mut config = world.config(0, 1);
        let mut table = serde_json::to_value(&config.trainer).unwrap();
        for (name, value) in trainer.as_object().unwrap() {
            table[name] = value.clone();
        }
        config.trainer = serde_json::from_value(table).unwrap();
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains(key), "expected `{key}` in: {error}");
    };
    refused(
        json!({"mode": "fully_async", "fully_async": {"num_parallel_generation_workers": 99}}),
        "trainer.fully_async.num_parallel_generation_workers",
    );
    refused(json!({"mode": "one_step_off", "fully_async": {"enabled": true}}), "trainer.fully_async.enabled");
    // SkyRL's own switch, and what a stale batch without a correction is told.
    let mut config = world.config_with(0, 1, &json!({"fully_async": {"enabled": true}}));
    assert_eq!(config.trainer.mode, Mode::FullyAsync);
    assert!(config.validate().unwrap().iter().any(|warning| warning.contains("off_policy_correction")));
    let background = Background::new(Mode::FullyAsync, &FullyAsyncSection::default(), 2).unwrap();
    assert_eq!(background.workers, 10);
}

proptest! {
    /// Whatever order groups end in, and whichever of them are dropped: no step waits for ever, no group is too old, each
    /// trains once.
    #[test]
    fn the_bound_holds_for_every_order_of_endings(
        batch in 1_usize..4,
        max_staleness in 0_u64..4,
        workers in 1_usize..12,
        in_order: bool,
        order in prop::collection::vec(any::<u16>(), 200),
        dropping in prop::collection::vec(prop::bool::weighted(0.3), 50),
    ) {
        let admission = Admission { batch, max_staleness, in_order };
        let (mut running, mut finished): (Vec<Started>, Vec<Started>) = (Vec::new(), Vec::new());
        let (mut next, mut trained) = (0_u64, BTreeSet::new());
        let (mut endings, mut dropped) = (order.iter().cycle(), 0);
        for version in 0..12 {
            loop {
                while running.len() < workers && next < admission.limit(trained.len() as u64 + dropped) {
                    running.push(Started { version, place: next });
                    next += 1;
                }
                if let Some(chosen) = admission.choose(version, &finished, &running) {
                    prop_assert_eq!(chosen.len(), batch);
                    let places: Vec<u64> = chosen.iter().map(|i| finished[*i].place).collect();
                    prop_assert!(places.is_sorted());
                    for i in chosen {
                        prop_assert!(version - finished[i].version <= max_staleness);
                        prop_assert!(trained.insert(finished[i].place));
                    }
                    finished.retain(|group| !places.contains(&group.place));
                    break;
                }
                prop_assert!(!running.is_empty(), "nothing left to wait for");
                let place = usize::from(*endings.next().unwrap()) % running.len();
                let ended = running.swap_remove(place);
                if dropping[ended.place as usize % dropping.len()] && dropped < 200 {
                    dropped += 1;
                } else {
                    finished.push(ended);
                }
            }
        }
        if in_order && dropped == 0 {
            prop_assert_eq!(trained.last().copied(), Some(12 * batch as u64 - 1));
        }
    }

    /// A position tells exactly which places were used.
    #[test]
    fn a_position_knows_what_was_used(places in prop::collection::btree_set(0_u64..40, 0..40)) {
        let mut position = Position::default();
        let mut shuffled: Vec<u64> = places.iter().copied().collect();
        shuffled.reverse();
        position.take(shuffled);
        prop_assert_eq!(position.used(), places.len() as u64);
        let unused: Vec<u64> = (0..50).filter(|place| !places.contains(place)).collect();
        let next: Vec<u64> = position.upcoming().take_while(|place| *place < 50).collect();
        prop_assert_eq!(next, unused);
    }
}
