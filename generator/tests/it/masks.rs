//! The mask examples of multi-turn conversations: what is sampled, what is given, where rewards sit.

use crate::support::{END, done, ids, observe, play, player, replies, steps, task, token_replies};
use espalier_envs::{History, Step};
use espalier_generator::episode::{LoopOptions, RowMode};
use espalier_generator::{Players, RolloutStop, TreeOptions, play_tree};
use espalier_inference::{Message, StopReason};
use tokio_util::sync::CancellationToken;

const PROMPT: &str = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
/// What follows a turn that ended itself: the template's newline belongs to nobody's sampling.
const BETWEEN: &str = "\n<|im_start|>user\nout<|im_end|>\n<|im_start|>assistant\n";

#[tokio::test]
async fn two_turns_make_one_row_of_output_observation_output() {
    let engine = replies(&["ab", "c"]);
    let tree = play(&engine, steps(vec![observe("out", 0.25), done(1.0)]), LoopOptions::default()).await;
    let [row] = &tree.root.rows[..] else { panic!("{:?}", tree.root.rows) };
    let (o1, x1, o2) = (ids("ab<|im_end|>"), ids(BETWEEN), ids("c<|im_end|>"));
    assert_eq!(row.prompt_ids(), ids(PROMPT));
    assert_eq!(row.response_ids(), [&o1[..], &x1, &o2].concat());
    let mask: Vec<u8> = [vec![1; o1.len()], vec![0; x1.len()], vec![1; o2.len()]].concat();
    assert_eq!(row.mask(), mask);
    let mut rewards = vec![0.0; row.len()];
    rewards[o1.len() - 1] = 0.25;
    rewards[row.len() - 1] = 1.0;
    assert_eq!(row.rewards(), rewards);
    let logprobs = row.logprobs().unwrap();
    assert!(logprobs[o1.len()..o1.len() + x1.len()].iter().all(|&logprob| logprob == 0.0));
    assert_eq!(logprobs[0], -f32::from(b'a') / 1000.0);
    assert_eq!(tree.root.stop, RolloutStop::Completed);
    assert_eq!(tree.root.reward, 1.25);
}

#[tokio::test]
async fn the_engine_is_sent_what_the_row_holds() {
    let engine = replies(&["ab", "c", "d"]);
    let tree =
        play(&engine, steps(vec![observe("x", 0.0), observe("y", 0.0), done(1.0)]), LoopOptions::default()).await;
    let row = &tree.root.rows[0];
    let all = [row.prompt_ids(), row.response_ids()].concat();
    let prompts = engine.prompts.lock().unwrap();
    for (turn, prompt) in tree.root.turns.iter().zip(prompts.iter()) {
        assert_eq!(prompt[..], all[..row.prompt_ids().len() + turn.start as usize]);
    }
}

#[tokio::test]
async fn bytes_of_one_character_that_were_sampled_apart_stay_apart() {
    let odd = vec![0xc3, 0xa9, END];
    let engine = token_replies(vec![odd.clone(), vec![120, END]]);
    let tree = play(&engine, steps(vec![observe("out", 0.0), done(0.0)]), LoopOptions::default()).await;
    assert_eq!(tree.root.rows[0].response_ids()[..3], odd);
    assert_eq!(tree.root.rows.len(), 1);
}

#[tokio::test]
async fn what_a_template_would_write_otherwise_starts_a_new_row() {
    // A special token in the middle of a turn: as text it is gone, so the next prompt cannot go on from it.
    let engine = token_replies(vec![vec![97, 257, 98, END], vec![120, END]]);
    let tree = play(&engine, steps(vec![observe("out", 0.5), done(1.0)]), LoopOptions::default()).await;
    let [first, second] = &tree.root.rows[..] else { panic!("{:?}", tree.root.rows) };
    assert_eq!(first.response_ids(), [97, 257, 98, END]);
    assert_eq!(first.rewards(), [0.0, 0.0, 0.0, 0.5]);
    assert_eq!(second.prompt_ids(), ids(&format!("{PROMPT}ab<|im_end|>{BETWEEN}")));
    assert_eq!(second.mask(), [1, 1]);
}

#[tokio::test]
async fn a_stop_string_gets_its_missing_end_of_turn_with_mask_0() {
    let engine = replies(&["ab</s>junk", "c"]);
    let mut player = player(&engine);
    player.sampling.stop = vec!["</s>".to_owned()];
    let source = steps(vec![observe("out", 0.5), done(1.0)]);
    let cancel = CancellationToken::new();
    let tree = play_tree(task("1", "hi", source), Players::policy(player), TreeOptions::default(), &cancel).await;
    let row = &tree.root.rows[0];
    let sampled = ids("ab</s>");
    let end = sampled.len();
    assert_eq!(row.response_ids()[..end], sampled);
    assert_eq!(row.response_ids()[end], END);
    assert_eq!(row.mask()[..=end], [vec![1; end], vec![0]].concat());
    assert_eq!(row.logprobs().unwrap()[end], 0.0);
    assert_eq!(row.rewards()[end - 1], 0.5, "the reward sits at the last sampled token");
    assert_eq!(tree.root.turns[0].stop, StopReason::StopString);
}

#[tokio::test]
async fn a_turn_cut_at_max_tokens_gets_its_missing_end_of_turn_with_mask_0() {
    let engine = replies(&["abcdef", "c"]);
    let mut player = player(&engine);
    player.sampling.max_tokens = 3;
    let source = steps(vec![observe("out", 0.0), done(1.0)]);
    let cancel = CancellationToken::new();
    let tree = play_tree(task("1", "hi", source), Players::policy(player), TreeOptions::default(), &cancel).await;
    let row = &tree.root.rows[0];
    assert_eq!(row.response_ids()[..4], [97, 98, 99, END]);
    assert_eq!(row.mask()[..4], [1, 1, 1, 0]);
}

#[tokio::test]
async fn the_last_turn_cut_at_max_tokens_is_the_stop_reason() {
    let engine = replies(&["abcdef"]);
    let mut player = player(&engine);
    player.sampling.max_tokens = 3;
    let cancel = CancellationToken::new();
    let tree =
        play_tree(task("1", "hi", steps(vec![done(1.0)])), Players::policy(player), TreeOptions::default(), &cancel)
            .await;
    assert_eq!(tree.root.stop, RolloutStop::MaxTokens);
    assert_eq!(tree.root.rows[0].mask(), [1, 1, 1], "overlong filtering is an option, not a habit");
}

#[tokio::test]
async fn step_wise_rows_hold_one_turn_each() {
    let engine = replies(&["ab", "c"]);
    let options = LoopOptions { rows: RowMode::StepWise, ..LoopOptions::default() };
    let tree = play(&engine, steps(vec![observe("out", 0.25), done(1.0)]), options).await;
    let [first, second] = &tree.root.rows[..] else { panic!("{:?}", tree.root.rows) };
    assert_eq!(first.prompt_ids(), ids(PROMPT));
    assert_eq!(first.response_ids(), ids("ab<|im_end|>"));
    assert_eq!(first.rewards(), [0.0, 0.0, 0.25]);
    assert_eq!(second.prompt_ids(), ids(&format!("{PROMPT}ab<|im_end|>{BETWEEN}")));
    assert_eq!(second.mask(), [1, 1]);
    assert_eq!(second.rewards(), [0.0, 1.0]);
}

#[tokio::test]
async fn a_removed_message_starts_a_new_row() {
    let engine = replies(&["ab", "c"]);
    let removed =
        Step { history: History::Remove(0), observations: vec![Message::user("out")], reward: 0.5, ..Step::default() };
    let tree = play(&engine, steps(vec![removed, done(1.0)]), LoopOptions::default()).await;
    let [first, second] = &tree.root.rows[..] else { panic!("{:?}", tree.root.rows) };
    assert_eq!(first.rewards(), [0.0, 0.0, 0.5]);
    let prompt = "<|im_start|>assistant\nab<|im_end|>\n<|im_start|>user\nout<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(second.prompt_ids(), ids(prompt));
    assert_eq!(tree.root.turns[1].row, Some(1));
    assert_eq!(tree.root.messages.len(), 3);
    assert_eq!(tree.root.messages[tree.root.turns[0].message as usize].content, "ab");
}

#[tokio::test]
async fn a_frozen_player_samples_with_mask_0() {
    let engine = replies(&["ab"]);
    let cancel = CancellationToken::new();
    let frozen = player(&engine).frozen();
    let tree =
        play_tree(task("1", "hi", steps(vec![done(1.0)])), Players::policy(frozen), TreeOptions::default(), &cancel)
            .await;
    assert_eq!(tree.root.rows[0].mask(), [0, 0, 0]);
    assert!(!tree.root.trained);
}
