//! Suites from TOML to tables.

use std::path::Path;

use espalier_envs::Registry;
use espalier_generator::suite::compare::comparison_report;
use espalier_generator::suite::report::{report, side_by_side};
use espalier_generator::suite::{
    Mode, StandardEngines, SuiteConfig, SuiteError, SuiteEvent, SuiteOptions, SuiteResult, SuiteRun, compare, run_suite,
};
use tokio_util::sync::CancellationToken;

/// A suite of GSM8K-like questions and a long context, played by a script that answers 42.
fn suite(directory: &Path, change: impl FnOnce(&mut toml::Table)) -> Result<SuiteConfig, SuiteError> {
    let script = directory.join("script.jsonl");
    std::fs::write(&script, "{\"text\": \"The answer is\\n#### 42\"}\n").unwrap();
    let text = format!(
        r#"
        name = "small"
        seed = 3
        samples = 2
        pass_k = [1, 2, 9]

        [[engine]]
        name = "says-42"
        kind = "scripted"
        options = {{ script = "{script}", cycle = true, context_tokens = 2000 }}

        [[task]]
        name = "sums"
        env = "gsm8k"
        data = {{ path = "{data}" }}

        [[task]]
        name = "needle"
        env = "long"
        data = {{ builtin = "long_needle", params = {{ rows = 2, size = 4096 }} }}
        "#,
        script = script.display(),
        data = directory.join("rows.jsonl").display(),
    );
    let rows: String = [("a", "42"), ("b", "41"), ("c", "42")]
        .map(|(id, truth)| {
            format!("{{\"uid\": \"{id}\", \"prompt\": [{{\"role\": \"user\", \"content\": \"How many?\"}}], \"reward_spec\": {{\"method\": \"rule\", \"ground_truth\": \"{truth}\"}}}}\n")
        })
        .concat();
    std::fs::write(directory.join("rows.jsonl"), rows).unwrap();
    let mut table: toml::Table = toml::from_str(&text).unwrap();
    change(&mut table);
    let path = directory.join("suite.toml");
    std::fs::write(&path, table.to_string()).unwrap();
    SuiteConfig::from_file(path)
}

fn options(directory: &Path, resume: bool) -> SuiteOptions {
    SuiteOptions { directory: directory.join("out"), resume, registry: Registry::standard(), events: None }
}

async fn run(config: &SuiteConfig, directory: &Path, resume: bool) -> Result<SuiteRun, SuiteError> {
    run_suite(config, &StandardEngines, options(directory, resume), &CancellationToken::new()).await
}

#[tokio::test]
async fn a_suite_gives_scores_costs_and_files() {
    let directory = tempfile::tempdir().unwrap();
    let config = suite(directory.path(), |_| {}).unwrap();
    let done = run(&config, directory.path(), false).await.unwrap();
    assert!(!done.cancelled);
    let [sums, needle] = &done.result.cells[..] else { panic!("{:?}", done.result) };
    assert_eq!((sums.rollouts, sums.failed, sums.mode), (6, 0, Mode::Alone), "{:?}", sums.stops);
    let score = sums.score.unwrap();
    assert!((score.mean - 2.0 / 3.0).abs() < 1e-6 && score.low <= score.mean && score.mean <= score.high, "{score:?}");
    assert!((sums.pass_at_k[&2] - 2.0 / 3.0).abs() < 1e-6);
    assert!(!sums.pass_at_k.contains_key(&9), "there are no nine samples");
    assert_eq!(sums.rewards["b"], [0.0, 0.0]);
    assert!(needle.never_fits(), "a text of 4096 bytes in a context of 2000: {:?}", needle.stops);
    let table = side_by_side(&done.result, "says-42");
    assert!(table.contains("does not fit") && table.contains("model alone"), "{table}");
    let stored = SuiteResult::from_path(directory.path().join("out")).unwrap();
    assert_eq!(stored.cells[0].rewards, sums.rewards);
    assert_eq!(stored.cells[1].stops, needle.stops);
    let written = std::fs::read_to_string(directory.path().join("out/report.md")).unwrap();
    assert_eq!(written, report(&done.result));
    assert!(directory.path().join("out/sums/says-42/alone/trajectories-00000.parquet").is_file());
}

#[tokio::test]
async fn a_finished_suite_is_resumed_without_playing() {
    let directory = tempfile::tempdir().unwrap();
    let config = suite(directory.path(), |_| {}).unwrap();
    let first = run(&config, directory.path(), false).await.unwrap();
    assert!(run(&config, directory.path(), false).await.is_err(), "without resume it is refused");
    let (send, mut receive) = tokio::sync::mpsc::channel(100);
    let options = SuiteOptions { events: Some(send), ..options(directory.path(), true) };
    let second = run_suite(&config, &StandardEngines, options, &CancellationToken::new()).await.unwrap();
    assert_eq!(second.result, first.result);
    let mut resumed = Vec::new();
    while let Some(event) = receive.recv().await {
        match event {
            SuiteEvent::Cell { rollouts, resumed: done, .. } => resumed.push((rollouts, done)),
            SuiteEvent::Rollout(progress) => panic!("nothing is played again: {progress:?}"),
            _ => {}
        }
    }
    assert_eq!(resumed, [(6, 6), (4, 4)]);
}

#[tokio::test]
async fn another_suite_is_not_resumed_into_the_same_directory() {
    let directory = tempfile::tempdir().unwrap();
    let config = suite(directory.path(), |_| {}).unwrap();
    run(&config, directory.path(), false).await.unwrap();
    let more = suite(directory.path(), |table| drop(table.insert("samples".to_owned(), 3.into()))).unwrap();
    let more = run(&more, directory.path(), true).await.unwrap();
    assert_eq!(more.result.cells[0].rollouts, 9, "more samples of the same suite are welcome");
    let other = suite(directory.path(), |table| drop(table.insert("seed".to_owned(), 4.into()))).unwrap();
    let error = run(&other, directory.path(), true).await.unwrap_err().to_string();
    assert!(error.contains("`seed` differs"), "{error}");
}

#[tokio::test]
async fn a_cancelled_suite_says_so_and_goes_on_later() {
    let directory = tempfile::tempdir().unwrap();
    let config = suite(directory.path(), |_| {}).unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let first = run_suite(&config, &StandardEngines, options(directory.path(), false), &cancel).await.unwrap();
    assert!(first.cancelled && first.result.cells.is_empty());
    let second = run(&config, directory.path(), true).await.unwrap();
    assert_eq!(second.result.cells.len(), 2);
}

#[tokio::test]
async fn two_results_are_compared_row_by_row() {
    let directory = tempfile::tempdir().unwrap();
    let config = suite(directory.path(), |_| {}).unwrap();
    let a = run(&config, directory.path(), false).await.unwrap().result;
    let mut b = a.clone();
    b.cells[0].engine = "other".to_owned();
    b.cells[1].engine = "other".to_owned();
    b.cells[0].rewards.insert("b".to_owned(), vec![1.0]);
    let comparisons = compare(&a, &b).unwrap();
    assert_eq!(comparisons[0].rows, 3);
    assert!((comparisons[0].difference.mean - 1.0 / 3.0).abs() < 1e-9);
    assert!(!comparisons[0].is_clear());
    assert!(comparison_report(&comparisons).contains("+0.333"));
    b.cells.clear();
    assert!(matches!(compare(&a, &b), Err(SuiteError::Nothing)));
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_name() {
    let directory = tempfile::tempdir().unwrap();
    let error = suite(directory.path(), |table| {
        table.insert("sampels".to_owned(), 3.into());
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("`sampels`") && error.contains("did you mean `samples`?"), "{error}");
    let error = suite(directory.path(), |table| {
        table["engine"][0].as_table_mut().unwrap().insert(
            "sampling".to_owned(),
            toml::Value::Table([("temprature".to_owned(), 1.into())].into_iter().collect()),
        );
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("engine[0].sampling.temprature") && error.contains("`temperature`"), "{error}");
}

#[tokio::test]
async fn what_is_wrong_is_found_before_anything_is_played() {
    type Change = fn(&mut toml::Table);
    let cases: [(&str, Change); 6] = [
        ("no kind of engine `scriptd`; did you mean `scripted`?", |table| {
            table["engine"][0]["kind"] = "scriptd".into();
        }),
        ("option `cycel`", |table| {
            table["engine"][0]["options"].as_table_mut().unwrap().insert("cycel".to_owned(), true.into());
        }),
        ("task `sums`: no environment `gsm8`", |table| table["task"][0]["env"] = "gsm8".into()),
        ("task `sums`", |table| table["task"][0]["data"]["path"] = "/nowhere/rows.jsonl".into()),
        ("task[1].name` is there twice", |table| table["task"][1]["name"] = "sums".into()),
        ("must consist of letters", |table| table["task"][1]["name"] = "../up".into()),
    ];
    for (expected, change) in cases {
        let directory = tempfile::tempdir().unwrap();
        let error = match suite(directory.path(), change) {
            Ok(config) => run(&config, directory.path(), false).await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains(expected), "{expected} in {error}");
        assert!(!directory.path().join("out").exists(), "nothing was written");
    }
}
