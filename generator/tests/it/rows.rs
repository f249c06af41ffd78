//! Rows cannot be made wrong.

use espalier_generator::row::{Row, RowBuilder, RowError, RowParts, Sampled, VersionRun};

fn parts() -> RowParts {
    RowParts {
        prompt_ids: vec![1, 2],
        response_ids: vec![3, 4, 5],
        mask: vec![1, 0, 1],
        logprobs: Some(vec![-0.5, 0.0, -1.0]),
        rewards: vec![0.0, 0.0, 1.0],
        versions: vec![VersionRun { start: 0, len: 1, version: 0 }, VersionRun { start: 2, len: 1, version: 1 }],
    }
}

#[test]
fn a_column_of_another_length_is_refused_by_name() {
    let short = RowParts { rewards: vec![0.0], ..parts() };
    assert_eq!(Row::new(short), Err(RowError::Length { column: "rewards", expected: 3, found: 1 }));
    let short = RowParts { mask: vec![], ..parts() };
    assert_eq!(Row::new(short), Err(RowError::Length { column: "mask", expected: 3, found: 0 }));
    let long = RowParts { logprobs: Some(vec![0.0; 4]), ..parts() };
    assert_eq!(Row::new(long), Err(RowError::Length { column: "logprobs", expected: 3, found: 4 }));
}

#[test]
fn a_reward_that_is_not_finite_is_refused() {
    let row = Row::new(RowParts { rewards: vec![0.0, f32::INFINITY, 0.0], ..parts() });
    assert!(matches!(row, Err(RowError::NotFinite { column: "rewards", index: 1, .. })), "{row:?}");
}

#[test]
fn version_runs_that_overlap_or_leave_the_response_are_refused() {
    for versions in [
        vec![VersionRun { start: 0, len: 2, version: 0 }, VersionRun { start: 1, len: 1, version: 1 }],
        vec![VersionRun { start: 2, len: 2, version: 0 }],
        vec![VersionRun { start: 0, len: 0, version: 0 }],
        vec![VersionRun { start: u32::MAX, len: u32::MAX, version: 0 }],
    ] {
        assert!(matches!(Row::new(RowParts { versions, ..parts() }), Err(RowError::Versions { .. })));
    }
}

#[test]
fn a_row_comes_back_from_json_only_if_it_is_one() {
    let row = Row::new(parts()).unwrap();
    let text = serde_json::to_string(&row).unwrap();
    assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
    let broken = text.replace("\"mask\":[1,0,1]", "\"mask\":[1,0]");
    let error = serde_json::from_str::<Row>(&broken).unwrap_err().to_string();
    assert!(error.contains("`mask` has 2 entries, the response has 3 tokens"), "{error}");
}

#[test]
fn log_probabilities_of_a_generation_must_match_its_tokens() {
    let mut builder = RowBuilder::new(vec![1]);
    let turn = Sampled { tokens: &[1, 2], logprobs: &[-1.0], versions: &[(0, 0)], trained: true };
    let error = builder.push_sampled(turn).unwrap_err();
    assert_eq!(error, RowError::Generation { column: "logprobs", tokens: 2, found: 1 });
}
