//! Suites from TOML to tables.

use std::path::Path;
use std::sync::Arc;

use espalier_envs::Registry;
use espalier_generator::metrics::rollout_metrics;
use espalier_generator::output::{TrajectoryReader, read_trees};
use espalier_generator::suite::compare::comparison_report;
use espalier_generator::suite::report::{cells, report, side_by_side};
use espalier_generator::suite::results::Scoring;
use espalier_generator::suite::{
    BuiltEngine, CellResult, EngineFactory, EngineSpec, Mode, StandardEngines, SuiteConfig, SuiteError, SuiteEvent,
    SuiteOptions, SuiteResult, SuiteRun, compare, run_suite,
};
use espalier_generator::{RolloutStop, Tree};
use espalier_inference::{EngineError, ScriptedEngine};
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
async fn a_task_is_played_by_every_engine_or_by_those_that_it_names() {
    let directory = tempfile::tempdir().unwrap();
    let more = |table: &mut toml::Table| {
        let engines = table["engine"].as_array_mut().unwrap();
        for (name, plays) in [("second", true), ("judge", false)] {
            let mut engine = engines[0].as_table().unwrap().clone();
            engine.insert("name".to_owned(), name.into());
            engine.insert("plays".to_owned(), plays.into());
            engines.push(engine.into());
        }
    };
    let bound = |names: &'static [&'static str]| {
        suite(directory.path(), |table| {
            more(table);
            let names = names.iter().map(|name| toml::Value::from(*name)).collect::<Vec<_>>();
            table["task"][1].as_table_mut().unwrap().insert("engines".to_owned(), names.into());
        })
    };
    let done = run(&bound(&["second"]).unwrap(), directory.path(), false).await.unwrap();
    let cells: Vec<_> = done.result.cells.iter().map(|cell| (cell.task.as_str(), cell.engine.as_str())).collect();
    assert_eq!(cells, [("sums", "says-42"), ("sums", "second"), ("needle", "second")]);
    for (names, said) in [
        (&["secnd"][..], "`task[1].engines` names no engine of this suite: `secnd`; did you mean `second`?"),
        (&["judge"], "`task[1].engines` names `judge`, which has `plays = false`"),
        (&["second", "second"], "`task[1].engines` names `second` twice"),
        (&[], "`task[1].engines` must name at least one engine"),
    ] {
        let error = bound(names).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[tokio::test]
async fn rewards_in_parts_pass_where_their_sum_is_one() {
    let directory = tempfile::tempdir().unwrap();
    // Two tries cost 0.2 / 7 each and leave the rest to the right answer: in 32 bits these are not 1 in every order.
    let script = "\"#### 1\"\n\"#### 2\"\n\"#### 42\"\n";
    for turns in 3..12 {
        let config = suite(directory.path(), |table| {
            let task = table["task"][0].as_table_mut().unwrap();
            task.insert("env".to_owned(), "gsm8k_multi_turn".into());
            let mut params = toml::Table::new();
            params.insert("max_turns".to_owned(), turns.into());
            task.insert("params".to_owned(), params.into());
            table["task"].as_array_mut().unwrap().truncate(1);
        })
        .unwrap();
        std::fs::write(directory.path().join("script.jsonl"), script).unwrap();
        let out = directory.path().join(turns.to_string());
        let options = SuiteOptions { directory: out, ..options(directory.path(), false) };
        let done = run_suite(&config, &StandardEngines, options, &CancellationToken::new()).await.unwrap();
        let cell = &done.result.cells[0];
        assert_eq!((cell.rewards["a"].as_slice(), cell.failed), (&[1.0_f32, 1.0][..], 0), "{turns} turns");
        assert!((cell.pass_at_k[&1] - 2.0 / 3.0).abs() < 1e-6, "{turns} turns: {:?}", cell.pass_at_k);
    }
}

#[test]
fn what_rounding_takes_off_a_reward_still_passes() {
    let scoring = Scoring { seed: 0, pass_k: vec![1], pass_reward: 1.0 };
    assert!(scoring.passes(1.0) && scoring.passes(0.999_999_9) && scoring.passes(2.0));
    assert!(!scoring.passes(0.9999) && !scoring.passes(0.0));
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
async fn a_resumed_suite_names_the_key_that_differs() {
    type Change = fn(&mut toml::Table);
    let calls: Change = |table| drop(table.insert("calls".to_owned(), "says-42".into()));
    let cases: [(&str, Change, Change); 4] = [
        ("`calls` differs", calls, |_| {}),
        ("`calls` differs", |_| {}, calls),
        ("`task[1].data.params.rows` differs", |_| {}, |table| table["task"][1]["data"]["params"]["rows"] = 3.into()),
        (
            "`engine[0].options.cycle` differs",
            |_| {},
            |table| {
                table["engine"][0]["options"].as_table_mut().unwrap().remove("cycle");
            },
        ),
    ];
    for (expected, first, then) in cases {
        let directory = tempfile::tempdir().unwrap();
        let config = suite(directory.path(), first).unwrap();
        run(&config, directory.path(), false).await.unwrap();
        let config = suite(directory.path(), then).unwrap();
        let error = run(&config, directory.path(), true).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{expected} in {error}");
    }
}

#[tokio::test]
async fn a_suite_is_not_resumed_over_files_that_changed() {
    let directory = tempfile::tempdir().unwrap();
    let config = suite(directory.path(), |_| {}).unwrap();
    run(&config, directory.path(), false).await.unwrap();
    for file in ["rows.jsonl", "script.jsonl"] {
        let path = directory.path().join(file);
        let before = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, before.replace("42", "43")).unwrap();
        let error = run(&config, directory.path(), true).await.unwrap_err().to_string();
        assert!(error.contains(&format!("`{}` held something else", path.display())), "{error}");
        std::fs::write(&path, before).unwrap();
    }
    run(&config, directory.path(), true).await.unwrap();
}

/// Makes the standard engines, or ones that fail: half of the sessions, once they are asked.
struct Outage {
    away: bool,
}

#[async_trait::async_trait]
impl EngineFactory for Outage {
    fn kinds(&self) -> Vec<&'static str> {
        StandardEngines.kinds()
    }

    async fn make(&self, spec: &EngineSpec) -> Result<BuiltEngine, SuiteError> {
        let mut built = StandardEngines.make(spec).await?;
        if self.away {
            let engine = ScriptedEngine::function(|request| {
                if request.seed % 2 == 0 {
                    return Ok("#### 42".into());
                }
                Err(EngineError::Failed { model: "away".to_owned(), reason: "nobody answers".to_owned() })
            });
            built.engine = Arc::new(engine.build());
        }
        Ok(built)
    }
}

#[tokio::test]
async fn rollouts_that_failed_are_played_again_on_resume() {
    let directory = tempfile::tempdir().unwrap();
    let config = suite(directory.path(), |table| {
        table.insert("samples".to_owned(), 8.into());
        table["task"].as_array_mut().unwrap().truncate(1);
    });
    let config = config.unwrap();
    let cancel = CancellationToken::new();
    let first = run_suite(&config, &Outage { away: true }, options(directory.path(), false), &cancel).await.unwrap();
    let failed = first.result.cells[0].failed;
    assert!(failed > 0 && failed < 24, "{:?}", first.result.cells[0].stops);
    let second = run(&config, directory.path(), true).await.unwrap();
    let cell = &second.result.cells[0];
    assert_eq!((cell.rollouts, cell.failed), (24, 0), "{:?}", cell.stops);
    let kept = directory.path().join("out/sums/says-42/alone");
    let (trees, notes) = read_trees(&kept).unwrap();
    assert_eq!((trees.len(), notes), (24, vec![]));
    assert!(trees.iter().all(|tree| !tree.root.stop.is_failure()));
    for reader in [TrajectoryReader::open(&kept), TrajectoryReader::open_parts(&kept)] {
        assert_eq!(reader.unwrap().count(), 24, "no id twice");
    }
    let third = run(&config, directory.path(), true).await.unwrap();
    assert_eq!(third.result, second.result, "nothing is left to play");
}

#[tokio::test]
async fn means_leave_out_what_failed() {
    let whole = crate::output::tree("1").await;
    let mut failed = crate::output::tree("2").await;
    failed.root.stop = RolloutStop::EngineError;
    failed.root.turns.clear();
    failed.root.timings.total_us = 0;
    let scoring = Scoring { seed: 0, pass_k: vec![1], pass_reward: 1.0 };
    let of = |trees: &[Tree]| CellResult::new("task", "model", Mode::Alone, trees, &scoring, rollout_metrics(trees));
    let (one, both) = (of(std::slice::from_ref(&whole)), of(&[whole, failed.clone()]));
    assert_eq!((both.rollouts, both.failed, one.failed), (2, 1, 0));
    let means = |cell: &CellResult| {
        [cell.turns, cell.sub_calls, cell.children, cell.prompt_tokens, cell.sampled_tokens, cell.seconds]
    };
    assert_eq!(means(&both), means(&one));
    assert_eq!((both.metrics["stop/engine_error"], both.metrics["stop/completed"]), (0.5, 0.5));
    for (name, value) in one.metrics.iter().filter(|(name, _)| !name.starts_with("stop/")) {
        assert_eq!(both.metrics[name], *value, "{name}");
    }
    let none = of(&[failed]);
    assert!(none.score.is_none() && cells(&[none]).contains("| failed "));
}

#[tokio::test]
async fn a_suite_has_a_bounded_number_of_rows() {
    let directory = tempfile::tempdir().unwrap();
    let many: fn(&mut toml::Table) = |table| {
        table["task"][1]["env"] = "gsm8k".into();
        table["task"][1]["data"] = toml::Value::Table(toml::toml! {
            builtin = "stories"
            params = { rows = 99999999 }
        });
    };
    let config = suite(directory.path(), many).unwrap();
    let error = run(&config, directory.path(), false).await.unwrap_err().to_string();
    assert!(
        error.contains("task `needle`") && error.contains("at most 100000") && error.contains("`data.limit`"),
        "{error}"
    );
    let cancel = CancellationToken::new();
    cancel.cancel();
    let stopped = run_suite(&config, &StandardEngines, options(directory.path(), false), &cancel).await.unwrap();
    assert!(stopped.cancelled, "reading stops as well");
    let config = suite(directory.path(), |table| drop(table.insert("samples".to_owned(), 1_000_000.into()))).unwrap();
    let error = run(&config, directory.path(), false).await.unwrap_err().to_string();
    assert!(error.contains("3 rows x 1000000 samples are 3000000 rollouts"), "{error}");
}

#[test]
fn values_that_cannot_be_followed_are_refused_by_key() {
    let cases = [
        ("limits.wall_s", "1e300"),
        ("limits.wall_s", "-5"),
        ("limits.wall_s", "0"),
        ("limits.wall_s", "nan"),
        ("limits.wall_s", "inf"),
        ("limits.tokens", "0"),
        ("limits.concurrent_calls", "0"),
        ("limits.repl_memory_mb", "1"),
        ("rollout.max_turns", "0"),
        ("rollout.max_input_tokens", "0"),
        ("rollout.engine_timeout_s", "0"),
        ("rollout.env_timeout_s", "1e300"),
        ("pass_k", "[1, 0]"),
        ("pass_reward", "nan"),
        ("in_flight", "0"),
        ("samples", "0"),
        ("output.part_trajectories", "0"),
        ("name", "\"\""),
        ("name", "\"../out\""),
        ("name", "\"/tmp/out\""),
        ("name", "\"a/b\""),
        ("name", "\".\""),
        ("engine[0].sampling.max_tokens", "0"),
        ("engine[0].sampling.temperature", "-1"),
        ("engine[0].sampling.temperature", "nan"),
        ("engine[0].sampling.top_p", "2"),
        ("engine[0].sampling.top_p", "0"),
        ("engine[0].sampling.min_p", "-0.5"),
        ("engine[0].sampling.stop", "[\"\"]"),
        ("task[1].limits.wall_s", "0"),
        ("task[1].rollout.max_turns", "0"),
        ("task[1].samples", "0"),
        ("task[1].data.limit", "0"),
    ];
    for (key, value) in cases {
        let directory = tempfile::tempdir().unwrap();
        let error = suite(directory.path(), |table| {
            let value: toml::Table = toml::from_str(&format!("it = {value}")).unwrap();
            let mut steps = key.split('.').rev().collect::<Vec<_>>();
            let mut place = table;
            while let Some(step) = steps.pop() {
                if steps.is_empty() {
                    place.insert(step.to_owned(), value["it"].clone());
                    break;
                }
                place = match step.split_once('[') {
                    Some((list, index)) => &mut place[list][index.trim_end_matches(']').parse::<usize>().unwrap()],
                    None => place.entry(step).or_insert_with(|| toml::Value::Table(toml::Table::new())),
                }
                .as_table_mut()
                .unwrap();
            }
        });
        let error = error.expect_err(&format!("{key} = {value}")).to_string();
        // Data says itself which of its keys is wrong.
        let (named, rest) =
            key.split_once(".data.").map_or((key, ""), |(_, rest)| (&key[..key.len() - rest.len() - 1], rest));
        assert!(error.contains(&format!("`{named}`")) && error.contains(rest), "{key} = {value}: {error}");
    }
    let directory = tempfile::tempdir().unwrap();
    let neither = suite(directory.path(), |table| {
        table.insert("output".to_owned(), toml::Value::Table(toml::toml! { jsonl = false parquet = false }));
    });
    let error = neither.unwrap_err().to_string();
    assert!(error.contains("`output.jsonl` and `parquet` are both false"), "{error}");
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
    let cases: [(&str, Change); 10] = [
        ("no kind of engine `scriptd`; did you mean `scripted`?", |table| {
            table["engine"][0]["kind"] = "scriptd".into();
        }),
        ("option `cycel`", |table| {
            table["engine"][0]["options"].as_table_mut().unwrap().insert("cycel".to_owned(), true.into());
        }),
        ("task `sums`: no environment `gsm8`", |table| table["task"][0]["env"] = "gsm8".into()),
        ("task `sums`: no environment `nope`", |table| {
            table["task"][0]["env"] = "nope".into();
            table["task"][0].as_table_mut().unwrap().insert("modes".to_owned(), vec!["repl"].into());
        }),
        ("`nope`", |table| {
            let task = table["task"][0].as_table_mut().unwrap();
            task.insert("modes".to_owned(), vec!["repl"].into());
            task.insert("params".to_owned(), toml::Value::Table(toml::toml! { nope = 1 }));
        }),
        ("`foo`", |table| {
            let task = table["task"][0].as_table_mut().unwrap();
            task.insert("rlm".to_owned(), toml::Value::Table(toml::toml! { foo = 1 }));
        }),
        ("holds no rows", |table| {
            let path = table["task"][0]["data"]["path"].as_str().unwrap().replace("rows", "empty");
            std::fs::write(&path, "").unwrap();
            table["task"][0]["data"]["path"] = path.into();
        }),
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
