//! The columns that a trainer takes.

use espalier_generator::episode::{LoopOptions, RowMode};
use espalier_generator::output::{ExportError, ExportOptions, ExportRows, GeneratorOutput};
use espalier_generator::{Tree, TreeOptions};

use crate::output::tree;
use crate::support::{done, observe, play, play_with, replies, steps};

const ROWS: ExportOptions = ExportOptions {
    rows: ExportRows::Rows,
    train_child_trajectories: false,
    zero_reward_on_non_stop: false,
    apply_overlong_filtering: false,
};

#[tokio::test]
async fn one_row_per_prompt_in_the_order_of_the_prompts() {
    let trees = [tree("2").await, tree("1").await];
    let output = GeneratorOutput::from_trees(&trees, ExportOptions::default()).unwrap();
    assert_eq!(output.validate(), Ok(vec![]));
    let ids: Vec<String> = output.trajectory_ids.iter().map(ToString::to_string).collect();
    assert_eq!(ids, ["2_0", "1_0"]);
    assert_eq!(output.stop_reasons, ["stop", "stop"]);
    assert_eq!(output.is_last_step, None);
    assert_eq!(output.rollout_logprobs.as_ref().unwrap()[0].len(), output.response_ids[0].len());
    assert_eq!(output.rewards[0].iter().sum::<f32>(), 1.5);
    assert_eq!(output.rollout_metrics["environment/turns_used"], 2.0);
}

#[tokio::test]
async fn childrens_rows_come_depth_first_before_their_root() {
    let options = ExportOptions { train_child_trajectories: true, ..ROWS };
    let output = GeneratorOutput::from_trees(&[tree("1").await, tree("2").await], options).unwrap();
    assert_eq!(output.validate(), Ok(vec![]));
    assert_eq!(output.rollout_ids, ["1_0/0", "1_0", "2_0/0", "2_0"]);
    assert_eq!(output.parent_rollout_ids[0].as_deref(), Some("1_0"));
    assert_eq!(output.is_last_step, Some(vec![false, true, false, true]));
    let ids: Vec<String> = output.trajectory_ids.iter().map(ToString::to_string).collect();
    assert_eq!(ids, ["1_0", "1_0", "2_0", "2_0"], "children carry their root's id");
}

#[tokio::test]
async fn children_need_a_layout_that_has_room_for_them() {
    let options = ExportOptions { train_child_trajectories: true, ..ExportOptions::default() };
    let error = GeneratorOutput::from_trees(&[tree("1").await], options).unwrap_err();
    assert_eq!(error, ExportError::Children);
    assert!(error.to_string().contains("rows = \"rows\""), "the error says what to do: {error}");
}

#[tokio::test]
async fn several_rows_do_not_fit_one_row_per_prompt() {
    let options = LoopOptions { rows: RowMode::StepWise, ..LoopOptions::default() };
    let tree = play(&replies(&["a", "b"]), steps(vec![observe("o", 0.0), done(1.0)]), options).await;
    let error = GeneratorOutput::from_trees(std::slice::from_ref(&tree), ExportOptions::default()).unwrap_err();
    assert_eq!(error, ExportError::Rows { rollout: "1_0".to_owned(), rows: 2 });
    let output = GeneratorOutput::from_trees(&[tree], ROWS).unwrap();
    assert_eq!(output.is_last_step, Some(vec![false, true]));
    assert!(output.env_metrics[0].is_empty() && !output.env_metrics[1].is_empty());
    assert_eq!(output.validate(), Ok(vec![]));
}

#[tokio::test]
async fn text_only_rollouts_are_refused_for_training() {
    let engine = std::sync::Arc::new(crate::support::Scripted::new(|_, _| crate::support::say("a")).text_only());
    let tree = play(&engine, steps(vec![done(1.0)]), LoopOptions::default()).await;
    let error = GeneratorOutput::from_trees(&[tree], ExportOptions::default()).unwrap_err();
    assert_eq!(error, ExportError::Text { rollout: "1_0".to_owned(), model: "scripted".to_owned() });
}

async fn overflown() -> Tree {
    let options = TreeOptions {
        root: LoopOptions { max_input_tokens: Some(60), ..LoopOptions::default() },
        ..TreeOptions::default()
    };
    play_with(&replies(&["a"]), steps(vec![observe(&"x".repeat(100), 0.5)]), options).await
}

#[tokio::test]
async fn overlong_filtering_clears_masks_and_leaves_rewards() {
    let trees = [overflown().await, tree("2").await];
    let options = ExportOptions { apply_overlong_filtering: true, ..ExportOptions::default() };
    let output = GeneratorOutput::from_trees(&trees, options).unwrap();
    assert_eq!(output.loss_masks[0], [0, 0]);
    assert_eq!(output.rewards[0], [0.0, 0.5]);
    assert!(output.loss_masks[1].contains(&1));
    assert_eq!(output.rollout_metrics["generate/min_assistant_tokens"], 2.0, "metrics are those before the filter");
}

#[tokio::test]
async fn rewards_of_what_did_not_stop_by_itself_can_be_zeroed() {
    let options = ExportOptions { zero_reward_on_non_stop: true, ..ExportOptions::default() };
    let output = GeneratorOutput::from_trees(&[overflown().await], options).unwrap();
    assert_eq!(output.rewards[0], [0.0, 0.0]);
    assert_eq!(output.loss_masks[0], [1, 1]);
    assert_eq!(output.stop_reasons, ["length"]);
}

#[tokio::test]
async fn a_batch_without_anything_to_train_on_is_a_warning() {
    let options = ExportOptions { apply_overlong_filtering: true, ..ExportOptions::default() };
    let output = GeneratorOutput::from_trees(&[overflown().await], options).unwrap();
    assert_eq!(output.validate().unwrap().len(), 1);
}

#[tokio::test]
async fn columns_that_disagree_are_found() {
    let mut output = GeneratorOutput::from_trees(&[tree("1").await], ROWS).unwrap();
    output.rewards[0].pop();
    assert!(matches!(output.validate(), Err(ExportError::RowLength { column: "rewards", row: 0, .. })));
    let mut output = GeneratorOutput::from_trees(&[tree("1").await], ROWS).unwrap();
    output.stop_reasons.clear();
    assert!(matches!(output.validate(), Err(ExportError::Length { column: "stop_reasons", .. })));
    let mut output = GeneratorOutput::from_trees(&[tree("1").await], ROWS).unwrap();
    output.is_last_step = Some(vec![false]);
    assert!(matches!(output.validate(), Err(ExportError::Order { row: 0, .. })));
    assert_eq!(GeneratorOutput::from_trees(&[], ROWS), Err(ExportError::Empty));
}
