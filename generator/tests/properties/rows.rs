//! Rows that grow turn by turn.

use espalier_generator::row::{Row, RowBuilder, Sampled};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Turn {
    sampled: Vec<u32>,
    given: Vec<u32>,
    reward: i8,
    trained: bool,
    version: u64,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = (
        prop::collection::vec(0_u32..1000, 0..6),
        prop::collection::vec(0_u32..1000, 0..6),
        -3_i8..4,
        any::<bool>(),
        0_u64..3,
    );
    let turn =
        turn.prop_map(|(sampled, given, reward, trained, version)| Turn { sampled, given, reward, trained, version });
    prop::collection::vec(turn, 0..8)
}

proptest! {
    #[test]
    fn merged_turns_keep_every_token_mask_reward_and_version(prompt in prop::collection::vec(0_u32..9, 0..4), turns in turns()) {
        let mut builder = RowBuilder::new(prompt.clone());
        let (mut tokens, mut mask, mut versions) = (Vec::<u32>::new(), Vec::<u8>::new(), Vec::new());
        let mut rewards: Vec<f32> = Vec::new();
        let mut end = 0;
        for turn in &turns {
            let logprobs = vec![-1.0; turn.sampled.len()];
            let runs = [(0, turn.version)];
            let sampled = Sampled { tokens: &turn.sampled, logprobs: &logprobs, versions: &runs, trained: turn.trained };
            let span = builder.push_sampled(sampled).unwrap();
            prop_assert_eq!(span, (tokens.len() as u32, (tokens.len() + turn.sampled.len()) as u32));
            tokens.extend(&turn.sampled);
            mask.extend(turn.sampled.iter().map(|_| u8::from(turn.trained)));
            versions.extend(turn.sampled.iter().map(|_| Some(turn.version)));
            rewards.resize(tokens.len(), 0.0);
            if !turn.sampled.is_empty() {
                end = tokens.len();
            }
            prop_assert_eq!(builder.add_reward(f32::from(turn.reward)), end > 0);
            if end > 0 {
                rewards[end - 1] += f32::from(turn.reward);
            }
            builder.push_given(&turn.given);
            tokens.extend(&turn.given);
            mask.extend(turn.given.iter().map(|_| 0));
            versions.extend(turn.given.iter().map(|_| None));
            rewards.resize(tokens.len(), 0.0);
        }
        let row = builder.finish();
        prop_assert_eq!(row.prompt_ids(), &prompt[..]);
        prop_assert_eq!(row.response_ids(), &tokens[..end]);
        prop_assert_eq!(row.mask(), &mask[..end]);
        prop_assert_eq!(row.rewards(), &rewards[..end]);
        let mut spread = vec![None; end];
        for run in row.versions() {
            spread[run.start as usize..(run.start + run.len) as usize].fill(Some(run.version));
        }
        prop_assert_eq!(spread, &versions[..end]);
        prop_assert_eq!(row.logprobs().is_some(), end > 0);
        // What the builder makes, the constructor accepts.
        prop_assert!(Row::new(row.parts().clone()).is_ok());
    }
}
