//! The loop of reinforcement in two processes against one: the ranks are threads here, their collectives torch's own.

mod common;

use std::sync::Arc;

use common::world::{Seen, Stub, StubOptions, World};
use espalier_distributed::Group;
use espalier_trainer::rl::engine::Sampler;
use serde_json::{Value, json};

/// Runs a few steps in all processes of a job; the numbers that each of them saw.
fn run(groups: Vec<Group>, trainer: &Value) -> Vec<Seen> {
    let world = Arc::new(World::new());
    world.rows(&["a", "b", "c"]);
    world.model("other", 9);
    let mut trainer = trainer.clone();
    for section in ["critic", "teacher"] {
        trainer[section] = json!({"model": {"path": world.path().join("other")}});
    }
    let config = world.config_with(0, 4, &trainer);
    let threads: Vec<_> = groups
        .into_iter()
        .map(|group| {
            let (world, config) = (Arc::clone(&world), config.clone());
            std::thread::spawn(move || {
                let filtered = config.trainer.algorithm.dynamic_sampling.kind.is_some();
                let flat = filtered.then_some("say b");
                let options = StubOptions { by_version: true, flat, ..StubOptions::default() };
                let sampler = (group.rank() == 0).then(|| Arc::new(Stub::new(options)) as Arc<dyn Sampler>);
                let mut seen = Seen::default();
                let (report, _) = world.parts(config, sampler, group).run(&mut seen).unwrap();
                assert!(report.finished);
                seen
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Two processes see the numbers that one sees.
fn same(trainer: &Value, names: &[&str]) {
    let alone = run(vec![Group::single()], trainer).remove(0);
    for (rank, shared) in run(Group::threads(2).unwrap(), trainer).into_iter().enumerate() {
        for name in names {
            let (found, expected) = (shared.figure(name), alone.figure(name));
            assert_eq!((found.len(), expected.len()), (4, 4), "rank {rank}, `{name}`");
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-3 * b.abs().max(1e-3);
            assert!(found.iter().zip(&expected).all(close), "rank {rank}, `{name}`: {found:?}, {expected:?}");
        }
    }
}

#[test]
fn what_the_first_process_plays_in_the_background_trains_all() {
    let trainer = json!({"mode": "fully_async", "fully_async": {"max_staleness_steps": 0}});
    same(&trainer, &["policy/grad_norm", "policy/final_loss", "reward/avg_raw_reward", "async/staleness_max"]);
}

#[test]
fn what_the_first_process_drops_counts_as_used_for_all() {
    let trainer = json!({
        "mode": "fully_async", "fully_async": {"max_staleness_steps": 0},
        "algorithm": {"dynamic_sampling": {"type": "filter"}},
    });
    same(&trainer, &["policy/grad_norm", "async/num_groups_dropped", "dynamic_sampling/batches", "trainer/epoch"]);
}

#[test]
fn a_reference_is_shared_out_where_all_weights_train() {
    for term in ["use_kl_loss", "use_kl_in_reward"] {
        let mut algorithm = json!({"use_kl_loss": false, "kl_loss_coef": 0.1});
        algorithm[term] = json!(true);
        let names: &[&str] = if term == "use_kl_loss" {
            &["policy/grad_norm", "policy/policy_kl"]
        } else {
            &["policy/grad_norm", "loss/avg_kl"]
        };
        same(&json!({"algorithm": algorithm}), names);
    }
}

#[test]
fn a_critic_is_shared_out() {
    let trainer = json!({"algorithm": {"advantage_estimator": "gae"}});
    same(&trainer, &["critic/critic_loss", "critic/grad_norm", "critic/values_mean", "policy/grad_norm"]);
}

#[test]
fn a_teacher_is_shared_out() {
    let trainer = json!({"algorithm": {"advantage_estimator": "no_op", "distillation": {}}});
    same(&trainer, &["distillation/reverse_kl_mean", "policy/grad_norm"]);
}
