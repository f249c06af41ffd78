//! The keys of `trainer.algorithm`, and the rules between them.

use espalier_algorithms::config::{AlgorithmConfig, Context, TisRatioType};
use espalier_algorithms::{advantages, losses};
use serde_json::json;

fn config(value: serde_json::Value) -> AlgorithmConfig {
    serde_json::from_value(value).unwrap()
}

fn problems(value: serde_json::Value, context: &Context<'_>) -> Vec<String> {
    match config(value).validate(context) {
        Ok(_) => Vec::new(),
        Err(invalid) => invalid.problems.iter().map(ToString::to_string).collect(),
    }
}

/// Fails unless exactly one rule is broken, of this key, with these words.
#[track_caller]
fn assert_problem_in(context: &Context<'_>, value: serde_json::Value, key: &str, words: &str) {
    let found = problems(value, context);
    let [problem] = found.as_slice() else { panic!("expected one problem, found {found:#?}") };
    assert!(problem.starts_with(&format!("`trainer.algorithm.{key}`: ")), "{problem}");
    assert!(problem.contains(words), "{problem}");
}

#[track_caller]
fn assert_problem(value: serde_json::Value, key: &str, words: &str) {
    assert_problem_in(&Context::default(), value, key, words);
}

#[track_caller]
fn assert_warning(value: serde_json::Value, context: &Context<'_>, key: &str, words: &str) {
    let warnings = config(value).validate(context).unwrap();
    let [warning] = warnings.as_slice() else { panic!("expected one warning, found {warnings:#?}") };
    assert_eq!(warning.key, key);
    assert!(warning.message.contains(words), "{warning}");
}

#[test]
fn the_defaults_are_valid_and_those_that_are_documented() {
    let mut defaults = AlgorithmConfig::default();
    assert_eq!(defaults.validate(&Context::default()), Ok(vec![]));
    assert_eq!(
        serde_json::to_value(&defaults).unwrap(),
        json!({
            "advantage_estimator": "grpo", "grpo_norm_by_std": true, "advantage_batch_normalize": false,
            "gamma": 1.0, "lambd": 1.0, "tree_credit": "root", "row_weighting": "by_tree",
            "policy_loss_type": "regular", "loss_reduction": "token_mean", "count_masked_tokens": true,
            "eps_clip_low": 0.2, "eps_clip_high": 0.2, "clip_ratio_c": 3.0, "value_clip": 0.2,
            "value_head_prefix": "value_head",
            "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
            "cispo": {"cispo_eps_clip_low": 1.0, "cispo_eps_clip_high": 4.0, "anchor": "old"},
            "dppo": {"dppo_type": "binary_tv", "delta_low": 0.2, "delta_high": 0.2},
            "clip_cov": {"clip_ratio": 2e-4, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0},
            "kl_cov": {"kl_cov_frac": 0.2, "ppo_kl_coef": 1.0},
            "off_policy_correction": {
                "token_tis_ratio_clip_high": 2.0, "sequence_tis_ratio_clip_high": 5.0,
                "geo_mask_high": 1.01, "geo_mask_low": 0.99, "product_mask_high": 2.0, "product_mask_low": 0.5,
            },
            "kl_estimator_type": "k3", "use_kl_in_reward": false, "use_kl_loss": true, "kl_loss_coef": 0.001,
            "kl_ctrl": {"type": "fixed", "kl_target": 0.1, "horizon": 10000.0},
            "use_entropy_loss": false, "entropy_loss_coef": 0.01,
            "zero_variance_filter": false, "zero_variance_filter_tol": 1e-6,
            "dynamic_sampling": {"max_sample_batches": 30, "min_replace_ratio": 0.3},
        })
    );
}

#[test]
fn a_configuration_survives_the_way_to_text_and_back() {
    let full = config(json!({
        "advantage_estimator": "reinforce++", "policy_loss_type": "mine", "tree_credit": {"discounted": {"gamma": 0.5}},
        "row_weighting": "by_token", "temperature": 0.7, "max_seq_len": 4096, "overlong": {"buffer": 128},
        "dynamic_sampling": {"type": "replace"}, "off_policy_correction": {"tis_ratio_type": "sequence"},
    }));
    assert_eq!(config(serde_json::to_value(&full).unwrap()), full);
}

#[test]
fn unknown_keys_are_refused_at_every_level() {
    for value in [
        json!({"eps_clip": 0.2}),
        json!({"sapo": {"tau": 1.0}}),
        json!({"dynamic_sampling": {"kind": "filter"}}),
        json!({"off_policy_correction": {"geo_mask": 1.0}}),
        json!({"overlong": {"length": 1}}),
        json!({"tree_credit": {"discounted": {"gamma": 0.5, "lambda": 1}}}),
    ] {
        assert!(serde_json::from_value::<AlgorithmConfig>(value.clone()).is_err(), "{value}");
    }
}

#[test]
fn every_broken_rule_is_reported_at_once() {
    let found = problems(json!({"gamma": 1.5, "use_kl_in_reward": true, "max_seq_len": 0}), &Context::default());
    assert_eq!(found.len(), 3, "{found:#?}");
}

#[test]
fn kl_is_in_the_reward_or_in_the_loss() {
    assert_problem(json!({"use_kl_in_reward": true}), "use_kl_in_reward", "excludes `use_kl_loss`");
    assert_eq!(problems(json!({"use_kl_in_reward": true, "use_kl_loss": false}), &Context::default()), [""; 0]);
}

#[test]
fn gae_needs_a_critic() {
    let gae = json!({"advantage_estimator": "gae"});
    assert_problem(gae.clone(), "advantage_estimator", "trainer.critic.model.path");
    assert_eq!(problems(gae, &Context { has_critic: true, ..Context::default() }), [""; 0]);
}

#[test]
fn step_wise_rows_refuse_estimators_that_follow_rewards() {
    let context = Context { step_wise: true, has_critic: true, ..Context::default() };
    for name in ["gae", "reinforce++"] {
        assert_problem_in(&context, json!({"advantage_estimator": name}), "advantage_estimator", name);
    }
    for name in ["grpo", "rloo", "maxrl"] {
        assert_eq!(problems(json!({"advantage_estimator": name}), &context), [""; 0]);
    }
}

#[test]
fn seq_mean_token_sum_norm_needs_its_length() {
    let value = json!({"loss_reduction": "seq_mean_token_sum_norm"});
    assert_problem(value, "max_seq_len", "seq_mean_token_sum_norm");
    let value = json!({"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 8});
    assert_eq!(problems(value, &Context::default()), [""; 0]);
}

#[test]
fn off_policy_correction_is_refused_by_losses_without_a_place_for_it() {
    for loss in ["clip_cov", "kl_cov", "cross_entropy", "importance_sampling"] {
        let value = json!({"policy_loss_type": loss, "off_policy_correction": {"tis_ratio_type": "token"}});
        assert_problem(value, "off_policy_correction", loss);
    }
}

#[test]
fn cispo_against_the_sampler_refuses_truncated_importance_sampling_only() {
    let cispo = |correction| json!({"policy_loss_type": "cispo", "cispo": {"anchor": "rollout"}, "off_policy_correction": correction});
    let value = cispo(json!({"tis_ratio_type": "token"}));
    assert_problem(value, "off_policy_correction.tis_ratio_type", "already weighs against the sampler");
    assert_eq!(problems(cispo(json!({"sequence_mask_metric": "geometric"})), &Context::default()), [""; 0]);
}

#[test]
fn whatever_reads_rollout_logprobs_needs_them() {
    let context = Context { rollout_logprobs: false, ..Context::default() };
    let words = "generator.sampling_params.logprobs";
    assert_problem_in(&context, json!({"policy_loss_type": "rollout_is"}), "policy_loss_type", words);
    let cispo = json!({"policy_loss_type": "cispo", "cispo": {"anchor": "rollout"}});
    assert_problem_in(&context, cispo, "policy_loss_type", words);
    // Thresholds alone count as well.
    let outlier = json!({"off_policy_correction": {"outlier_token_is_threshold_high": 10.0}});
    assert_problem_in(&context, outlier, "off_policy_correction", words);
}

#[test]
fn the_token_mask_needs_both_bounds() {
    let key = "off_policy_correction.token_mask_is_threshold_high";
    assert_problem(json!({"off_policy_correction": {"token_mask_is_threshold_low": 0.5}}), key, "both bounds");
}

#[test]
fn names_that_nobody_registered_are_refused_with_those_that_exist() {
    assert_problem(json!({"policy_loss_type": "reguler"}), "policy_loss_type", "built in: regular, dual_clip");
    assert_problem(json!({"advantage_estimator": "mine"}), "advantage_estimator", "registered: none");
    let context = Context { custom_estimators: &["mine"], custom_losses: &["other"], ..Context::default() };
    assert_eq!(problems(json!({"advantage_estimator": "mine", "policy_loss_type": "other"}), &context), [""; 0]);
    assert_problem_in(&context, json!({"policy_loss_type": "mine"}), "policy_loss_type", "registered: other");
}

#[test]
fn numbers_out_of_range_are_named() {
    for (value, key) in [
        (json!({"gamma": -0.1}), "gamma"),
        (json!({"lambd": 1.1}), "lambd"),
        (json!({"eps_clip_low": 1.5}), "eps_clip_low"),
        (json!({"clip_ratio_c": 1.0}), "clip_ratio_c"),
        (json!({"value_clip": 0.0}), "value_clip"),
        (json!({"temperature": 0.0}), "temperature"),
        (json!({"kl_loss_coef": -1.0}), "kl_loss_coef"),
        (json!({"kl_ctrl": {"horizon": 0.0}}), "kl_ctrl.horizon"),
        (json!({"sapo": {"tau_neg": 0.0}}), "sapo.tau_neg"),
        (json!({"clip_cov": {"clip_cov_lb": 6.0}}), "clip_cov.clip_cov_lb"),
        (json!({"kl_cov": {"kl_cov_frac": 1.5}}), "kl_cov.kl_cov_frac"),
        (json!({"zero_variance_filter_tol": -1.0}), "zero_variance_filter_tol"),
        (json!({"dynamic_sampling": {"max_sample_batches": 0}}), "dynamic_sampling.max_sample_batches"),
        (json!({"dynamic_sampling": {"min_replace_ratio": 2.0}}), "dynamic_sampling.min_replace_ratio"),
        (json!({"overlong": {"buffer": 0}}), "overlong.buffer"),
        (json!({"tree_credit": {"discounted": {"gamma": 1.5}}}), "tree_credit.discounted.gamma"),
        (json!({"off_policy_correction": {"geo_mask_low": 2.0}}), "off_policy_correction.geo_mask_low"),
    ] {
        assert_problem(value, key, "");
    }
    let mut not_a_number = AlgorithmConfig { gamma: f64::NAN, ..AlgorithmConfig::default() };
    assert!(not_a_number.validate(&Context::default()).is_err());
}

#[test]
fn deprecated_keys_are_rewritten_with_a_warning_once() {
    let mut old = config(json!({"use_tis": true, "tis_imp_ratio_cap": 3.0}));
    let warnings = old.validate(&Context::default()).unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].message.contains("token_tis_ratio_clip_high = 3"), "{}", warnings[0]);
    assert_eq!(old.off_policy_correction.tis_ratio_type, Some(TisRatioType::Token));
    assert_eq!(old.off_policy_correction.token_tis_ratio_clip_high, 3.0);
    assert_eq!(old.validate(&Context::default()), Ok(vec![]));
    // The old default of the cap is no cap.
    let mut old = config(json!({"use_tis": true, "tis_imp_ratio_cap": -1.0}));
    old.validate(&Context::default()).unwrap();
    assert_eq!(old.off_policy_correction.token_tis_ratio_clip_high, 2.0);
    assert_warning(json!({"use_tis": false}), &Context::default(), "use_tis", "remove it");
    assert_warning(json!({"tis_imp_ratio_cap": 2.0}), &Context::default(), "tis_imp_ratio_cap", "no effect");
    let value = json!({"use_tis": true, "off_policy_correction": {"tis_ratio_type": "sequence"}});
    assert_problem(value, "use_tis", "means token ratios");
    // A rewritten key is bound by the rules of what it became.
    assert_problem(json!({"use_tis": true, "policy_loss_type": "kl_cov"}), "off_policy_correction", "kl_cov");
}

#[test]
fn what_is_legal_but_odd_is_a_warning() {
    let one = Context { samples_per_prompt: 1, ..Context::default() };
    let plain = Context::default();
    assert_warning(json!({"policy_loss_type": "gspo"}), &plain, "loss_reduction", "sequence_mean");
    assert_warning(json!({"advantage_estimator": "rloo"}), &one, "advantage_estimator", "every advantage is 0");
    assert_warning(json!({"dynamic_sampling": {"type": "filter"}}), &one, "dynamic_sampling.type", "keeps all");
    assert_warning(json!({"kl_ctrl": {"type": "adaptive"}}), &plain, "kl_ctrl.type", "use_kl_in_reward");
}

#[test]
fn every_name_builds_what_it_names() {
    for name in ["grpo", "rloo", "maxrl", "reinforce++", "gae", "no_op"] {
        let estimator = advantages::built_in(&config(json!({"advantage_estimator": name}))).unwrap();
        assert_eq!(estimator.name(), name);
    }
    for name in [
        "regular",
        "dual_clip",
        "gspo",
        "sapo",
        "cispo",
        "rollout_is",
        "dppo",
        "clip_cov",
        "kl_cov",
        "cross_entropy",
        "importance_sampling",
    ] {
        let loss = losses::built_in(&config(json!({"policy_loss_type": name})), 0).unwrap();
        assert_eq!(loss.name(), name);
    }
    let custom = config(json!({"advantage_estimator": "mine", "policy_loss_type": "mine"}));
    assert!(advantages::built_in(&custom).is_none() && losses::built_in(&custom, 0).is_none());
}
