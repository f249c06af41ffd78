//! `long/*`: an environment for each task, and what the sandbox makes of generated repositories.

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use espalier_envs::long::{LongParams, LongTask, tasks};
use espalier_envs::{EnvRow, make};
use espalier_sandbox::{ReplOptions, Sandbox};
use serde_json::{Map, Value};
use support::{alone, says};

fn row(task: LongTask, size: usize, index: u64) -> EnvRow {
    EnvRow::from_row(tasks::row(task, &LongParams { size, ..LongParams::default() }, index)).unwrap()
}

#[tokio::test]
async fn every_task_has_an_id_of_its_own() {
    for (task, id) in LongTask::ALL.into_iter().zip([
        "long/needle",
        "long/count",
        "long/pairs",
        "long/multi_needle",
        "long/user_pairs",
        "long/code",
        "long/topics",
    ]) {
        for index in 0..4 {
            let row = row(task, 4096, index);
            let truth = row.reward_spec["ground_truth"].to_string();
            for id in [id, "long"] {
                let mut env = make(id, &Map::new(), &row).unwrap();
                env.init(row.prompt.clone(), alone(1)).await.unwrap();
                assert_eq!(env.step(says(&format!("Answer: {truth}"))).await.unwrap().reward, 1.0, "{id} {truth}");
                let mut env = make(id, &Map::new(), &row).unwrap();
                env.init(row.prompt.clone(), alone(1)).await.unwrap();
                assert_eq!(env.step(says("Answer: -1")).await.unwrap().reward, 0.0);
            }
        }
    }
}

#[test]
fn a_row_of_another_task_is_refused() {
    let error = make("long/code", &Map::new(), &row(LongTask::Count, 1024, 0)).err().unwrap().to_string();
    assert_eq!(
        error,
        "`long/code`: `extra_info.task` must be `long_code` in row `long_count-0-1024-0`, got `long_count`; `long` \
         plays every task"
    );
}

/// The order of a list that is asked for as a set does not count, that of one that is not does.
#[tokio::test]
async fn lists_are_graded_in_the_order_that_was_asked_for() {
    for (task, wanted) in [(LongTask::MultiNeedle, 0.0), (LongTask::Code, 1.0), (LongTask::UserPairs, 1.0)] {
        let mut seen = 0;
        for index in 0..30 {
            let row = row(task, 16_384, index);
            let Some(items) = row.reward_spec["ground_truth"].as_array().filter(|items| items.len() > 1) else {
                continue;
            };
            seen += 1;
            let reversed: Value = items.iter().rev().cloned().collect();
            let mut env = make("long", &Map::new(), &row).unwrap();
            env.init(row.prompt.clone(), alone(1)).await.unwrap();
            assert_eq!(env.step(says(&format!("Answer: {reversed}"))).await.unwrap().reward, wanted, "{task:?}");
        }
        assert!(seen > 0, "{task:?}");
    }
}

#[tokio::test]
async fn the_sandbox_parses_every_module() {
    let sandbox = Sandbox::shared().unwrap();
    for (size, index) in [(1024, 0), (16_384, 1), (131_072, 2)] {
        let row = row(LongTask::Code, size, index);
        let context = row.context.clone().unwrap();
        let mut repl = sandbox.repl(ReplOptions { contexts: vec![context], ..ReplOptions::default() }).await.unwrap();
        let code = "import ast\nfiles = [file.split(' ===\\n', 1) for file in context[4:].split('\\n=== ')]\n\
                    trees = [ast.parse(source) for path, source in files]\n\
                    print(all(path.endswith('.py') for path, source in files), len(trees) > 1)";
        let done = repl.execute(code).await.unwrap();
        assert_eq!(done.stdout.text.trim(), "True True", "{:?}", done.stderr);
    }
}
