//! The data sets that the project generates.

use espalier_datasets::{Builtins, Prompt, Row, Source};
use espalier_envs::builtin::{self, Builtin};
use espalier_envs::graders::numeric;
use espalier_envs::long::{LongParams, LongTask, tasks, verify};
use espalier_envs::{EnvRow, stories};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn text_of(row: &Row) -> &str {
    row.columns["extra_info"]["context_text"].as_str().unwrap()
}

fn question_of(row: &Row) -> &str {
    match &row.prompt {
        Prompt::Text(text) => text,
        Prompt::Messages(_) => panic!("a generated question is one text"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_text_has_its_size_and_its_answer(seed in any::<u64>(), index in 0_u64..1000, size in 1024_usize..20_000) {
        let params = LongParams { seed, size, ..LongParams::default() };
        for task in LongTask::ALL {
            let row = tasks::row(task, &params, index);
            prop_assert_eq!(text_of(&row).chars().count(), size);
            let found = verify::answer(question_of(&row), text_of(&row));
            prop_assert_eq!(found.as_ref(), Ok(&row.columns["reward_spec"]["ground_truth"]), "{:?}", task);
            prop_assert_eq!(&row, &tasks::row(task, &params, index));
        }
    }

    #[test]
    fn the_needle_occurs_once(seed in any::<u64>(), distractors in 0_usize..20) {
        let params = LongParams { seed, distractors, size: 8192, ..LongParams::default() };
        let row = tasks::row(LongTask::Needle, &params, 0);
        let code = row.columns["reward_spec"]["ground_truth"].to_string();
        prop_assert_eq!(text_of(&row).matches(&code).count(), 1);
        prop_assert_eq!(text_of(&row).matches("The code of the ").count(), 1 + distractors);
    }
}

#[test]
fn the_largest_text_is_made() {
    let params = LongParams { size: tasks::MAX_SIZE, ..LongParams::default() };
    for task in LongTask::ALL {
        let row = tasks::row(task, &params, 0);
        assert_eq!(text_of(&row).len(), tasks::MAX_SIZE);
        assert_eq!(
            verify::answer(question_of(&row), text_of(&row)),
            Ok(row.columns["reward_spec"]["ground_truth"].clone())
        );
    }
}

#[test]
fn rows_of_a_data_set_differ_and_seeds_differ() {
    let text = |seed, index| {
        let row = tasks::row(LongTask::Needle, &LongParams { seed, ..LongParams::default() }, index);
        text_of(&row).to_owned()
    };
    assert_ne!(text(0, 0), text(0, 1));
    assert_ne!(text(0, 0), text(1, 0));
}

#[test]
fn a_row_is_the_same_on_every_machine() {
    let row = tasks::row(LongTask::Needle, &LongParams { size: 1024, ..LongParams::default() }, 0);
    insta::assert_snapshot!("needle_row", format!("{}\n\n{}", question_of(&row), text_of(&row)));
}

#[test]
fn sizes_are_taken_in_turn() {
    let params = json!({"rows": 4, "sizes": [1024, 2048]});
    let source = Source::builtin("long_count", params.as_object().cloned().unwrap());
    let sizes: Vec<usize> = source.rows(&Builtin).unwrap().map(|row| text_of(&row.unwrap()).len()).collect();
    assert_eq!(sizes, [1024, 2048, 1024, 2048]);
}

#[test]
fn every_data_set_is_listed_and_opens() {
    for name in Builtin.names() {
        let rows: Vec<_> = Builtin.open(&name, &Map::new()).unwrap().collect();
        assert_eq!(rows.len(), 16, "{name}");
        for row in rows {
            EnvRow::from_row(row.unwrap()).unwrap();
        }
    }
    assert_eq!(builtin::ALL.len(), Builtin.names().len());
}

#[test]
fn errors_name_the_data_set_and_the_parameter() {
    let error = |name: &str, params: Value| {
        let params = params.as_object().cloned().unwrap();
        Source::builtin(name, params).rows(&Builtin).err().unwrap().to_string()
    };
    assert_eq!(
        error("long_neddle", json!({})),
        "data source: `builtin` no data set `long_neddle`; did you mean `long_needle`?"
    );
    assert_eq!(
        error("long_count", json!({"sice": 1})),
        "data source: `params.sice` of `long_count` is no parameter; did you mean `size`?"
    );
    assert_eq!(
        error("long_count", json!({"size": 10})),
        "data source: `params.size` must be from 1024 to 16777216 characters, got 10"
    );
}

#[test]
fn stories_add_up() {
    for index in 0..500 {
        let row = stories::row(stories::StoryParams { rows: 1, seed: 3 }, index);
        let truth = row.columns["reward_spec"]["ground_truth"].as_str().unwrap();
        let solution = row.columns["extra_info"]["answer"].as_str().unwrap();
        for step in solution.lines().filter(|line| !line.starts_with("####")) {
            let (left, right) = step.split_once(" = ").unwrap();
            let parts: Vec<&str> = left.split(' ').collect();
            let (a, b): (i64, i64) = (parts[0].parse().unwrap(), parts[2].parse().unwrap());
            let value = match parts[1] {
                "*" => a * b,
                "+" => a + b,
                "-" => a - b,
                _ => a / b,
            };
            assert_eq!(value.to_string(), right, "{step}");
            assert!(value > 0 && (parts[1] != "/" || a % b == 0), "{step}");
        }
        assert_eq!(numeric::worked_answer(solution, false), numeric::parse(truth));
    }
}
