//! On-policy distillation: a student becomes like its teacher, token by token.

mod common;

use std::sync::Arc;

use common::close;
use common::world::{Seen, Stub, StubOptions, Trained, World};
use espalier_algorithms::config::AdvantageEstimatorKind;
use espalier_distributed::Group;
use espalier_trainer::head::HeadOptions;
use espalier_trainer::packing::{MicroBatch, PackRow};
use espalier_trainer::rl::config::TrainConfig;
use espalier_trainer::{Kind, ModelOptions, TrainModel, TrainPrecision, export};
use serde_json::json;

fn distilled(world: &World, lora: u32, steps: u64) -> TrainConfig {
    let trainer = json!({
        "teacher": {"model": {"path": world.path().join("teacher")}},
        "algorithm": {"advantage_estimator": "no_op", "distillation": {}},
    });
    world.config_with(lora, steps, &trainer)
}

#[test]
fn a_student_learns_what_its_teacher_knows_without_the_environments_rewards() {
    // The teacher is a policy that learned from rewards.
    let school = World::new();
    school.rows(&["a", "b", "c", "d"]);
    let run = school.parts(school.config(0, 40), Some(school.engine()), Group::single());
    let (_, teacher) = run.run(&mut Seen::default()).unwrap();
    let world = World::new();
    world.model("teacher", 6);
    export::save_weights(&teacher.model, Some(&world.path().join("teacher")), Kind::Float, 1 << 30).unwrap();
    world.rows(&["a", "b", "c", "d"]);
    let mut seen = Seen::default();
    let report = world.run(distilled(&world, 8, 40), &mut seen);
    assert!(report.finished);
    let divergence = seen.figure("distillation/reverse_kl_mean");
    assert!(divergence[39] < 0.3 * divergence[0], "{divergence:?}");
    let evaluated = seen.figure("eval/all/avg_score");
    assert!(evaluated[0] < 0.3 && evaluated[1] > 0.6, "{evaluated:?}");
    // What is logged as reward stays the environment's.
    assert!(seen.figure("reward/avg_raw_reward").iter().all(|reward| (0.0..=1.0).contains(reward)));
}

#[test]
fn a_tokens_reward_is_its_teachers_log_ratio_at_the_training_temperature() {
    let world = World::new();
    world.model("teacher", 11);
    world.rows(&["a", "b"]);
    let mut config = distilled(&world, 0, 1);
    config.generator.sampling_params.temperature = 0.5;
    let trained = Trained::default();
    let stub = Arc::new(Stub::new(StubOptions::default()));
    let mut run = world.parts(config, Some(stub), Group::single());
    run.callbacks.push(Box::new(trained.clone()));
    let mut seen = Seen::default();
    run.run(&mut seen).unwrap();
    let options = ModelOptions { precision: TrainPrecision::F64, ..ModelOptions::default() };
    let [student, teacher] = ["model", "teacher"]
        .map(|name| TrainModel::load(&world.path().join(name), options.clone(), Group::single()).unwrap());
    let (mut mean, mut rows) = (0.0, 0.0);
    for row in trained.steps().iter().flatten() {
        let tokens = [row.row.prompt_ids(), row.row.response_ids()].concat();
        let pack = [PackRow { tokens: &tokens, predict_from: row.row.prompt_ids().len() }];
        let batch = MicroBatch::packed(&pack, &[0]).unwrap();
        let head = HeadOptions { temperature: 0.5, ..HeadOptions::default() };
        let of = |model: &TrainModel| model.predict(&batch, head).unwrap().logprobs;
        mean += (of(&student) - of(&teacher)).mean(Kind::Double).double_value(&[]);
        rows += 1.0;
    }
    let found = seen.figure("distillation/reverse_kl_mean")[0];
    close("reverse KL", found, mean / rows, 1e-5);
    assert!(found.abs() > 1e-4, "{found}");
    // `no_op` gives each token its own reward: the mean advantage is the mean reward.
    close("advantage", seen.figure("loss/avg_raw_advantages")[0], -found, 1e-5);
}

#[test]
fn distillation_asks_for_a_teacher() {
    let world = World::new();
    world.rows(&["a"]);
    let mut config = distilled(&world, 0, 1);
    config.trainer.teacher.model.path = "".into();
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("trainer.teacher.model.path"), "{error}");
    let mut grouped = distilled(&world, 0, 1);
    grouped.trainer.algorithm.advantage_estimator = AdvantageEstimatorKind::default();
    assert!(grouped.validate().unwrap().iter().any(|warning| warning.contains("no_op")));
}
