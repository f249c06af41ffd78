//! Rollouts of the teacher, as a run that `espalier sft` reads.

use std::path::Path;
use std::sync::Arc;

use espalier_datasets::Source;
use espalier_envs::builtin::Builtin;
use espalier_envs::{EnvRow, Registry};
use espalier_generator::output::{OutputOptions, RunWriter};
use espalier_generator::player::ModelTemplate;
use espalier_generator::rollouts::{RolloutJob, RunOptions, run};
use espalier_generator::source::RowSource;
use espalier_generator::{LoopOptions, Player, Players, TrajectoryId, Tree, TreeLimits, TreeOptions, TreeTask, seed};
use espalier_inference::{ChatTemplate, SamplingParams, ScriptedEngine, Tokenizer};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::model::WINDOW;
use crate::{Failure, environment, teacher};

/// Plays `rows` questions, every third one without copies, and writes the run.
pub async fn write(model: &Path, folder: &Path, rows: u64, run_seed: u64) -> Result<Vec<Tree>, Failure> {
    let tokenizer = Tokenizer::from_dir(model)?;
    let template = ChatTemplate::from_dir(model)?;
    let engine = ScriptedEngine::function(move |request| teacher::reply(request, run_seed))
        .vocabulary(tokenizer.clone(), template.clone())
        .context_tokens(WINDOW as u32)
        .build();
    let players = Players::policy(Player {
        engine: Arc::new(engine),
        template: Some(Arc::new(ModelTemplate::new(tokenizer, template))),
        sampling: SamplingParams { max_tokens: 128, ..SamplingParams::default() },
        trained: true,
    });
    let registry = Registry::standard();
    let with = registry.prepare("rlm", &environment())?;
    let mut alone = environment();
    alone.insert("children".to_owned(), Value::Bool(false));
    let without = registry.prepare("rlm", &alone)?;
    let source: Source = serde_json::from_value(json!({
        "builtin": "long_topics", "params": {"rows": rows, "size": 2048, "seed": 1000 + run_seed},
    }))?;
    let mut jobs = Vec::new();
    for (place, row) in source.rows(&Builtin)?.enumerate() {
        let row = EnvRow::from_row(row?)?;
        let prepared = if place % 3 == 2 { &without } else { &with };
        jobs.push(RolloutJob {
            task: TreeTask {
                id: TrajectoryId { instance_id: row.id.clone(), repetition_id: 0 },
                seed: seed::derive(run_seed, &row.id),
                prompt: row.prompt.clone(),
                source: Arc::new(RowSource::new(prepared.clone(), row)),
            },
            players: players.clone(),
            options: TreeOptions {
                limits: TreeLimits { depth: 1, children: 64, ..TreeLimits::default() },
                root: LoopOptions { max_turns: 4, ..LoopOptions::default() },
                child: None,
            },
        });
    }
    let writer = RunWriter::create(folder, OutputOptions { parquet: false, ..OutputOptions::default() })?;
    let done = run(jobs, RunOptions::default(), writer, &CancellationToken::new()).await?;
    done.sink.finish()?;
    Ok(done.trees.into_iter().flatten().collect())
}
