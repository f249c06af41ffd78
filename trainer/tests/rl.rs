//! The loop with the real engine, on a model small enough to learn in seconds.

mod common;

use common::world::{Seen, World};
use espalier_distributed::Group;
use espalier_inference::SamplingParams;
use espalier_trainer::lora::LoraConfig;
use espalier_trainer::optimizer::OptimizerConfig;
use espalier_trainer::rl::config::TrainConfig;
use espalier_trainer::sft::config::Resume;

#[test]
fn a_policy_learns_what_is_rewarded_and_the_engine_samples_from_what_was_learned() {
    for lora in [0, 8] {
        let world = World::new();
        world.rows(&["a", "b", "c", "d"]);
        let mut seen = Seen::default();
        let report = world.run(world.config(lora, 40), &mut seen);
        assert!(report.finished);
        let evaluated = seen.figure("eval/all/avg_score");
        let (before, after) = (evaluated[0], evaluated[evaluated.len() - 1]);
        assert!(before < 0.3 && after > 0.6, "rank {lora}: {before} before, {after} after");
        // Sampler and trainer speak of the same distribution, at every step, after every publication.
        for difference in seen.figure("policy/rollout_train_logprobs_abs_diff_mean") {
            assert!(difference < 1e-3, "rank {lora}: sampler and trainer differ by {difference} on average");
        }
    }
}

#[test]
fn a_rollout_that_cannot_be_judged_does_not_stop_a_step() {
    let world = World::new();
    world.rows(&["a", "broken"]);
    let mut seen = Seen::default();
    let report = world.run(world.config(0, 3), &mut seen);
    assert!(report.finished);
    for failed in seen.figure("reward/num_failed") {
        assert_eq!(failed, 8.0);
    }
    for norm in seen.figure("policy/grad_norm") {
        assert!(norm.is_finite() && norm > 0.0);
    }
}

#[test]
fn a_run_that_was_stopped_goes_on_as_if_it_had_not_been() {
    let whole = {
        let world = World::new();
        world.rows(&["a", "b", "c"]);
        let mut seen = Seen::default();
        world.run(world.config(8, 6), &mut seen);
        seen
    };
    let world = World::new();
    world.rows(&["a", "b", "c"]);
    let mut first = Seen { stop_after: Some(3), ..Seen::default() };
    let report = world.run(world.config(8, 6), &mut first);
    assert_eq!((report.steps, report.finished), (3, false));
    let mut second = Seen::default();
    let report = world.run(world.config(8, 6), &mut second);
    assert_eq!((report.steps, report.finished), (6, true));
    for name in ["reward/avg_raw_reward", "policy/final_loss", "policy/grad_norm"] {
        let parts: Vec<f64> = first.figure(name).into_iter().chain(second.figure(name)).collect();
        let expected = whole.figure(name);
        assert_eq!(parts.len(), expected.len());
        for (a, b) in parts.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-4 * b.abs().max(1.0), "{name}: {parts:?}, {expected:?}");
        }
    }
}

#[test]
fn a_run_that_starts_afresh_among_checkpoints_is_refused_before_anything_is_sampled() {
    let world = World::new();
    world.rows(&["a"]);
    world.run(world.config(8, 1), &mut Seen::default());
    let mut config = world.config(8, 2);
    config.trainer.resume_mode = Resume::None;
    let mut seen = Seen::default();
    let error = world.parts(config, Some(world.engine()), Group::single()).run(&mut seen).err().unwrap().to_string();
    assert!(error.contains("it holds checkpoints") && error.contains("trainer.resume_mode = \"latest\""), "{error}");
    assert!(seen.steps.is_empty());
}

#[test]
fn without_an_interval_nothing_is_evaluated() {
    let world = World::new();
    world.rows(&["a"]);
    let mut seen = Seen::default();
    let trainer = serde_json::json!({"eval_interval": 0, "eval_before_train": true});
    let report = world.run(world.config_with(8, 1, &trainer), &mut seen);
    assert_eq!((report.last_eval, report.taken), (None, 1));
    assert!(seen.figure("eval/all/avg_score").is_empty());
}

#[test]
fn settings_that_cannot_train_are_refused_by_key() {
    let world = World::new();
    world.rows(&["a"]);
    let good = world.config(0, 1);
    let refused = |change: &dyn Fn(&mut TrainConfig), key: &str| {
        let mut config = good.clone();
        change(&mut config);
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains(key), "expected `{key}` in: {error}");
    };
    refused(&|c| c.trainer.strategy = "megatron".to_owned(), "trainer.strategy");
    refused(&|c| c.trainer.policy_mini_batch_size = 3, "trainer.policy_mini_batch_size");
    refused(&|c| c.trainer.max_ckpts_to_keep = 0, "trainer.max_ckpts_to_keep");
    refused(&|c| c.trainer.policy.model.path = "".into(), "trainer.policy.model.path");
    refused(&|c| c.data.train_data.clear(), "data.train_data");
    refused(&|c| c.generator.sampling_params.logprobs = false, "generator.sampling_params.logprobs");
    refused(
        &|c| c.generator.sampling_params = SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        "temperature",
    );
    refused(&|c| c.trainer.policy.model.lora = LoraConfig { rank: -1, ..LoraConfig::default() }, "lora.rank");
    refused(
        &|c| c.trainer.policy.optimizer_config = OptimizerConfig { lr: f64::NAN, ..OptimizerConfig::default() },
        "optimizer_config.lr",
    );
    refused(
        &|c| {
            c.trainer.algorithm.use_kl_in_reward = true;
            c.trainer.algorithm.use_kl_loss = true;
        },
        "use_kl",
    );
    let mut old = good.clone();
    old.trainer.strategy = "fsdp2".to_owned();
    assert!(old.validate().unwrap().iter().any(|w| w.contains("fsdp2")));
}
