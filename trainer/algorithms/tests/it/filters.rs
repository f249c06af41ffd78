//! Groups without signal, dynamic sampling, overlong responses.

use espalier_algorithms::AlgorithmConfig;
use espalier_algorithms::advantages::AdvantageBatch;
use espalier_algorithms::config::OverlongConfig;
use espalier_algorithms::filters::dynamic_sampling::{
    DynamicSampler, PromptGroup, SamplerState, Sampling, SamplingError, TrainGroups,
};
use espalier_algorithms::filters::overlong::{filter_overlong, overlong_penalty, punish_overlong};
use espalier_algorithms::filters::{carries_signal, zero_variance_filter};
use espalier_algorithms::tree::TreeCredit;
use proptest::prelude::*;
use serde_json::json;

use crate::advantages::{Row, views};
use crate::batch::assert_close;

fn keep(rows: &[Row], credit: TreeCredit) -> (Vec<bool>, usize) {
    let found = zero_variance_filter(&AdvantageBatch::new(&views(rows)).unwrap(), credit, 1e-6);
    (found.keep, found.filtered_groups)
}

#[test]
fn graded_rewards_are_judged_by_their_differences() {
    assert!(!carries_signal(2, &[0.5, 0.5], 1e-6));
    assert!(carries_signal(2, &[0.4, 0.6], 1e-6));
    assert!(!carries_signal(2, &[0.25, 0.5], 0.25), "a difference must be larger than the tolerance");
    assert!(!carries_signal(3, &[0.1 + 0.2, 0.3, 0.3], 1e-6));
    assert!(carries_signal(1, &[0.5], 1e-6), "a single sample has nothing to differ from");
    assert!(!carries_signal(8, &[0.5], 1e-6), "the only one that did not fail has nothing to compare with");
    assert!(!carries_signal(8, &[], 1e-6));
}

#[test]
fn token_rewards_are_summed_before_they_are_compared() {
    let rows = [
        // The same total, differently spread: no signal.
        Row::new("a0", "a", &[0.5, 0.5]),
        Row::new("a1", "a", &[0.0, 0.0, 1.0]),
        Row::new("b0", "b", &[0.25]),
        Row::new("b1", "b", &[0.25, 0.25]),
    ];
    assert_eq!(keep(&rows, TreeCredit::Root), (vec![false, false, true, true], 1));
}

#[test]
fn steps_are_trajectories() {
    // Two steps each; the steps differ, the trajectories do not.
    let rows = ["t0", "t0", "t1", "t1"].map(|id| Row::new(id, "p", &[if id == "t0" { 1.0 } else { 0.5 }]));
    assert_eq!(keep(&rows, TreeCredit::Root), (vec![true; 4], 0));
    let rows = [("t0", 1.0), ("t0", 0.0), ("t1", 0.0), ("t1", 1.0)].map(|(id, reward)| Row::new(id, "p", &[reward]));
    assert_eq!(keep(&rows, TreeCredit::Root), (vec![false; 4], 1));
}

#[test]
fn failed_rollouts_make_no_signal() {
    let rows = [Row::new("a", "p", &[1.0]), Row::new("b", "p", &[1.0]), Row::new("c", "p", &[0.0]).failed()];
    assert_eq!(keep(&rows, TreeCredit::Root), (vec![false; 3], 1));
}

#[test]
fn a_root_takes_its_tree_along_unless_children_are_judged_for_themselves() {
    let rows = [
        Row::new("a", "p", &[1.0]),
        Row::new("b", "p", &[1.0]),
        Row::new("a/0", "of a", &[0.0]).child_of("a", 1),
        Row::new("a/1", "of a", &[1.0]).child_of("a", 1),
    ];
    assert_eq!(keep(&rows, TreeCredit::Root), (vec![false; 4], 1));
    assert_eq!(keep(&rows, TreeCredit::Own), (vec![false, false, true, true], 1));
}

fn sampler(kind: &str, max_sample_batches: u32, wanted: usize) -> DynamicSampler<u32> {
    let sampling = json!({"type": kind, "max_sample_batches": max_sample_batches});
    let config: AlgorithmConfig = serde_json::from_value(json!({"dynamic_sampling": sampling})).unwrap();
    DynamicSampler::new(&config, wanted, 11)
}

/// Groups named by their place; `true` carries a signal.
fn batch(start: u32, signals: &[bool]) -> Vec<PromptGroup<u32>> {
    signals
        .iter()
        .zip(start..)
        .map(|(&signal, number)| PromptGroup {
            uid: format!("p{number}"),
            samples: 2,
            scores: vec![0.0, if signal { 1.0 } else { 0.0 }],
            payload: number,
        })
        .collect()
}

fn train(sampling: Sampling<u32>) -> TrainGroups<u32> {
    match sampling {
        Sampling::Train(groups) => groups,
        Sampling::SampleMore { kept, wanted } => panic!("{kept} of {wanted}"),
    }
}

fn uids(groups: &TrainGroups<u32>) -> Vec<&str> {
    groups.groups.iter().map(|group| group.uid.as_str()).collect()
}

#[test]
fn filter_collects_groups_with_a_signal_until_there_are_enough() {
    let mut sampler = sampler("filter", 30, 3);
    let first = sampler.push(batch(0, &[true, false, false])).unwrap();
    assert_eq!(first, Sampling::SampleMore { kept: 1, wanted: 3 });
    let groups = train(sampler.push(batch(3, &[true, true, true])).unwrap());
    assert_eq!(uids(&groups), ["p0", "p3", "p4"]);
    assert_eq!((groups.batches, groups.copies, groups.surplus), (2, 0, 1));
    // The next step starts from nothing.
    assert_eq!(sampler.push(batch(6, &[true])).unwrap(), Sampling::SampleMore { kept: 1, wanted: 3 });
}

#[test]
fn filter_goes_on_after_a_batch_without_any_signal() {
    let mut sampler = sampler("filter", 30, 2);
    assert_eq!(sampler.push(batch(0, &[false; 4])).unwrap(), Sampling::SampleMore { kept: 0, wanted: 2 });
    assert_eq!(sampler.push(vec![]).unwrap(), Sampling::SampleMore { kept: 0, wanted: 2 });
    assert_eq!(uids(&train(sampler.push(batch(4, &[true, true])).unwrap())), ["p4", "p5"]);
}

#[test]
fn sampling_ends_and_what_there_is_can_be_taken() {
    for kind in ["filter", "replace"] {
        let mut sampler = sampler(kind, 3, 4);
        for start in [0, 4] {
            assert!(matches!(sampler.push(batch(start, &[false; 4])).unwrap(), Sampling::SampleMore { .. }));
        }
        let error = sampler.push(batch(8, &[true, false, false, false])).unwrap_err();
        assert_eq!(error, SamplingError::Exhausted { batches: 3, kept: 1, wanted: 4 }, "{kind}");
        let left = sampler.take();
        assert_eq!(left.len(), usize::from(kind == "filter"));
        assert!(matches!(sampler.push(batch(0, &[false; 4])).unwrap(), Sampling::SampleMore { .. }));
    }
}

#[test]
fn a_prompt_that_comes_up_twice_stays_two_groups() {
    let mut sampler = sampler("filter", 30, 3);
    sampler.push(batch(0, &[true, true])).unwrap();
    let groups = train(sampler.push(batch(0, &[true, true])).unwrap());
    assert_eq!(uids(&groups), ["p0", "p1", "p0#2"]);
}

#[test]
fn replace_copies_groups_with_a_signal_under_fresh_names() {
    let groups = train(sampler("replace", 30, 4).push(batch(0, &[true, false, true, false])).unwrap());
    assert_eq!((groups.groups.len(), groups.copies), (4, 2));
    let mut names = uids(&groups);
    assert_eq!((names[0], names[2]), ("p0", "p2"));
    names.sort_unstable();
    // With enough of them each is copied once.
    assert_eq!(names, ["p0", "p0#2", "p2", "p2#2"]);
    for group in &groups.groups {
        assert_eq!(group.uid.split('#').next().unwrap(), format!("p{}", group.payload));
    }
}

#[test]
fn replace_copies_more_than_once_where_it_must() {
    let groups = train(sampler("replace", 30, 5).push(batch(0, &[false, true, false, true, false])).unwrap());
    assert_eq!(groups.copies, 3);
    assert!(groups.groups.iter().all(|group| group.payload == 1 || group.payload == 3));
    let mut names = uids(&groups);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 5);
}

#[test]
fn replace_drops_a_batch_with_too_few() {
    let mut sampler = sampler("replace", 30, 10);
    let mut signals = [false; 10];
    signals[..3].fill(true);
    assert_eq!(sampler.push(batch(0, &signals)).unwrap(), Sampling::SampleMore { kept: 3, wanted: 10 });
    signals[3] = true;
    let groups = train(sampler.push(batch(10, &signals)).unwrap());
    assert!(groups.groups.iter().all(|group| group.payload >= 10), "nothing of the dropped batch is left");
}

#[test]
fn without_dynamic_sampling_everything_trains() {
    let mut sampler = DynamicSampler::new(&AlgorithmConfig::default(), 4, 0);
    let groups = train(sampler.push(batch(0, &[false, false])).unwrap());
    assert_eq!(uids(&groups), ["p0", "p1"]);
}

#[test]
fn a_stored_sampler_goes_on_as_if_nothing_had_happened() {
    for kind in ["filter", "replace"] {
        let steps: [&[bool]; 4] =
            [&[true, false, false, false], &[true, true, false, false], &[false; 4], &[true, true, false, true]];
        let mut straight = sampler(kind, 30, 4);
        let mut resumed = sampler(kind, 30, 4);
        for (start, signals) in (0_u32..).step_by(4).zip(steps) {
            let expected = straight.push(batch(start, signals));
            let text = serde_json::to_string(resumed.state()).unwrap();
            resumed = sampler(kind, 30, 4);
            resumed.restore(serde_json::from_str::<SamplerState<u32>>(&text).unwrap());
            assert_eq!(resumed.push(batch(start, signals)), expected, "{kind}");
        }
    }
}

#[test]
fn a_response_that_was_cut_does_not_train() {
    let mut mask = [1, 0, 1];
    filter_overlong(&mut mask, true);
    assert_eq!(mask, [1, 0, 1]);
    filter_overlong(&mut mask, false);
    assert_eq!(mask, [0, 0, 0]);
}

#[test]
fn the_punishment_grows_over_the_buffer() {
    let config = OverlongConfig { buffer: 10, factor: 0.5 };
    let penalties: Vec<f64> =
        [0, 90, 91, 95, 100, 101, 500].map(|length| overlong_penalty(length, 100, &config)).to_vec();
    assert_close(&penalties, &[0.0, 0.0, -0.05, -0.25, -0.5, -0.5, -0.5], 1e-12);
    // A buffer longer than the limit punishes everything, and nothing overflows.
    assert_close(&[overlong_penalty(3, 5, &config)], &[-0.4], 1e-12);
}

#[test]
fn the_punishment_goes_to_the_last_token() {
    let config = OverlongConfig { buffer: 4, factor: 1.0 };
    let mut rewards = [0.0, 0.0, 1.0];
    assert_eq!(punish_overlong(&mut rewards, 4, &config), -0.75);
    assert_eq!(rewards, [0.0, 0.0, 0.25]);
    assert_eq!(punish_overlong(&mut [], 4, &config), 0.0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sampling_always_ends(
        kind in prop_oneof![Just("filter"), Just("replace")],
        batches in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 0..6), 12),
        wanted in 1_usize..9,
    ) {
        let mut sampler = sampler(kind, 4, wanted);
        let mut since = 0;
        for signals in batches {
            since += 1;
            match sampler.push(batch(0, &signals)) {
                Ok(Sampling::SampleMore { .. }) => prop_assert!(since < 4),
                Ok(Sampling::Train(groups)) => {
                    let names: std::collections::HashSet<_> = uids(&groups).into_iter().collect();
                    prop_assert_eq!(names.len(), groups.groups.len());
                    prop_assert!(groups.groups.iter().all(|group| carries_signal(2, &group.scores, 1e-6)));
                    prop_assert!(kind == "replace" || groups.groups.len() == wanted);
                    since = 0;
                }
                Err(SamplingError::Exhausted { batches, .. }) => {
                    prop_assert_eq!(batches, 4);
                    sampler.take();
                    since = 0;
                }
            }
        }
    }
}
