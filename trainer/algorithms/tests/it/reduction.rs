//! The weight of each token in the mini-batch's loss.

use espalier_algorithms::reduction::{LossReduction, Reduction, ReductionError, ReductionRow, token_scales};
use proptest::prelude::*;

use crate::batch::assert_close;

const ALL: [LossReduction; 4] = [
    LossReduction::TokenMean,
    LossReduction::SequenceMean,
    LossReduction::SeqMeanTokenSumNorm,
    LossReduction::PromptMean,
];

fn reduction(kind: LossReduction) -> Reduction {
    Reduction { kind, count_masked_tokens: true, max_seq_len: Some(8) }
}

fn row(prompt: &str, tokens: usize) -> ReductionRow<'_> {
    ReductionRow { prompt, tokens, kept_tokens: tokens, weight: 1.0 }
}

#[test]
fn scales_have_their_known_values() {
    let scales = |kind, second: &str| reduction(kind).row_scales(&[row("p", 2), row(second, 4)]).unwrap();
    assert_close(&scales(LossReduction::TokenMean, "q"), &[1.0 / 6.0; 2], 1e-12);
    assert_close(&scales(LossReduction::SequenceMean, "q"), &[1.0 / 4.0, 1.0 / 8.0], 1e-12);
    assert_close(&scales(LossReduction::SeqMeanTokenSumNorm, "q"), &[1.0 / 16.0; 2], 1e-12);
    assert_close(&scales(LossReduction::PromptMean, "q"), &[1.0 / 4.0, 1.0 / 8.0], 1e-12);
    assert_close(&scales(LossReduction::PromptMean, "p"), &[1.0 / 6.0; 2], 1e-12);
}

#[test]
fn dropped_tokens_stay_in_the_denominators_unless_told_otherwise() {
    let rows = [ReductionRow { kept_tokens: 1, ..row("p", 2) }, ReductionRow { kept_tokens: 0, ..row("q", 4) }];
    for (kind, counted, left) in [
        (LossReduction::TokenMean, 1.0 / 6.0, 1.0),
        (LossReduction::SequenceMean, 1.0 / 4.0, 1.0),
        (LossReduction::SeqMeanTokenSumNorm, 1.0 / 16.0, 1.0 / 8.0),
        (LossReduction::PromptMean, 1.0 / 4.0, 1.0),
    ] {
        let mut reduction = reduction(kind);
        assert_close(&reduction.row_scales(&rows).unwrap()[..1], &[counted], 1e-12);
        reduction.count_masked_tokens = false;
        assert_close(&reduction.row_scales(&rows).unwrap()[..1], &[left], 1e-12);
    }
}

#[test]
fn row_weights_shift_the_loss_and_keep_its_size() {
    // A tree of two rows beside a tree of one, all of the same length.
    let rows = [ReductionRow { weight: 0.5, ..row("p", 4) }, ReductionRow { weight: 0.5, ..row("p", 4) }, row("q", 4)];
    for kind in [LossReduction::TokenMean, LossReduction::SequenceMean, LossReduction::PromptMean] {
        assert_close(&reduction(kind).row_scales(&rows).unwrap(), &[1.0 / 16.0, 1.0 / 16.0, 1.0 / 8.0], 1e-12);
    }
}

#[test]
fn tokens_take_the_scale_of_their_row() {
    assert_eq!(token_scales(&[0.25, 0.5], &[2, 1]), [0.25, 0.25, 0.5]);
}

#[test]
fn what_cannot_be_scaled_is_named() {
    let missing = Reduction { max_seq_len: None, ..reduction(LossReduction::SeqMeanTokenSumNorm) };
    assert_eq!(missing.row_scales(&[row("p", 1)]), Err(ReductionError::MissingMaxSeqLen));
    let reduction = reduction(LossReduction::TokenMean);
    let grown = ReductionRow { kept_tokens: 3, ..row("p", 2) };
    assert_eq!(reduction.row_scales(&[grown]), Err(ReductionError::Kept { row: 0, tokens: 2, kept: 3 }));
    let negative = ReductionRow { weight: -1.0, ..row("p", 2) };
    assert_eq!(reduction.row_scales(&[negative]), Err(ReductionError::Weight { row: 0, weight: -1.0 }));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn scales_of_all_tokens_sum_to_one(
        rows in proptest::collection::vec((0_usize..4, 1_usize..9, 0.1_f64..2.0), 1..12),
        count_masked_tokens in any::<bool>(),
    ) {
        let names: Vec<String> = rows.iter().map(|row| row.0.to_string()).collect();
        let rows: Vec<ReductionRow<'_>> = names
            .iter()
            .zip(&rows)
            .map(|(prompt, &(_, tokens, weight))| ReductionRow { prompt, tokens, kept_tokens: tokens, weight })
            .collect();
        let sum = |kind| {
            let reduction = Reduction { kind, count_masked_tokens, max_seq_len: Some(8) };
            let scales = reduction.row_scales(&rows).unwrap();
            rows.iter().zip(scales).map(|(row, scale)| row.tokens as f64 * scale).sum::<f64>()
        };
        for kind in [LossReduction::TokenMean, LossReduction::SequenceMean, LossReduction::PromptMean] {
            prop_assert!((sum(kind) - 1.0).abs() < 1e-9, "{:?}: {}", kind, sum(kind));
        }
        let weight: f64 = rows.iter().map(|row| row.weight).sum();
        let mean_length = rows.iter().map(|row| row.weight * row.tokens as f64).sum::<f64>() / weight;
        prop_assert!((sum(LossReduction::SeqMeanTokenSumNorm) - mean_length / 8.0).abs() < 1e-9);
    }

    #[test]
    fn every_prompt_weighs_the_same_in_a_prompt_mean(
        rows in proptest::collection::vec((0_usize..4, 1_usize..9), 1..12),
    ) {
        let names: Vec<String> = rows.iter().map(|row| row.0.to_string()).collect();
        let rows: Vec<ReductionRow<'_>> = names.iter().zip(&rows).map(|(prompt, &(_, tokens))| row(prompt, tokens)).collect();
        let scales = reduction(LossReduction::PromptMean).row_scales(&rows).unwrap();
        let of = |prompt: &str| -> f64 {
            rows.iter().zip(&scales).filter(|(row, _)| row.prompt == prompt).map(|(row, scale)| row.tokens as f64 * scale).sum()
        };
        for name in &names {
            prop_assert!((of(name) - of(&names[0])).abs() < 1e-12);
        }
    }

    #[test]
    fn scales_are_finite_whatever_is_empty(rows in proptest::collection::vec((0_usize..3, 0_usize..3, 0_usize..2), 0..8)) {
        for kind in ALL {
            for count_masked_tokens in [true, false] {
                let rows: Vec<ReductionRow<'_>> = rows
                    .iter()
                    .map(|&(tokens, kept, weight)| ReductionRow {
                        prompt: "p", tokens, kept_tokens: kept.min(tokens), weight: weight as f64,
                    })
                    .collect();
                let reduction = Reduction { kind, count_masked_tokens, max_seq_len: Some(4) };
                let scales = reduction.row_scales(&rows).unwrap();
                prop_assert!(scales.iter().all(|scale| scale.is_finite() && *scale >= 0.0));
            }
        }
    }
}
