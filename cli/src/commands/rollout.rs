//! `espalier rollout`: one task, once, with the tree shown.

use std::sync::Arc;

use espalier_envs::{EnvRow, Registry};
use espalier_generator::output::{OutputOptions, RunWriter};
use espalier_generator::source::RowSource;
use espalier_generator::suite::{EngineFactory as _, EngineSpec};
use espalier_generator::tree_view::{self, ViewOptions};
use espalier_generator::{Players, TrajectoryId, TreeOptions, TreeTask, play_tree};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::eval;
use crate::arguments::RolloutArguments;
use crate::engines::Engines;
use crate::failure::Failure;
use crate::settings;

pub(crate) async fn run(arguments: RolloutArguments) -> Result<(), Failure> {
    let mut row = EnvRow::ask(arguments.prompt.clone());
    if let Some(truth) = &arguments.truth {
        row = row.with_truth(truth.clone());
    }
    if let Some(path) = &arguments.context {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))?;
        row = row.with_context(text);
    }
    let params = settings::table_of("`--param`", &arguments.param)?;
    let usage = |error: espalier_envs::EnvError| Failure::Usage {
        what: "the environment".to_owned(),
        expected: format!("what `espalier data env {}` describes", arguments.env),
        got: error.to_string(),
    };
    let prepared = Registry::standard().prepare(&arguments.env, &params).map_err(usage)?;
    prepared.make(&row).map_err(usage)?;

    let spec = engine_spec(&arguments)?;
    let built = Engines.make(&spec).await.map_err(eval::failure)?;
    let mut options = TreeOptions::default();
    options.root.max_turns = arguments.max_turns;
    let task = TreeTask {
        id: TrajectoryId { instance_id: row.id.clone(), repetition_id: 0 },
        seed: arguments.seed,
        prompt: row.prompt.clone(),
        source: Arc::new(RowSource::new(prepared, row)),
    };
    let writer = match &arguments.out {
        Some(folder) => Some(
            RunWriter::create(folder, OutputOptions::default())
                .map_err(|error| Failure::Internal(error.to_string()))?,
        ),
        None => None,
    };
    let cancel = CancellationToken::new();
    let stopper = tokio::spawn(eval::stop_on_interrupt(cancel.clone()));
    let tree = play_tree(task, Players::policy(built.player(&spec)), options, &cancel).await;
    stopper.abort();
    if let Some(mut writer) = writer {
        writer.write(&tree).and_then(|()| writer.finish()).map_err(|error| Failure::Internal(error.to_string()))?;
    }
    if arguments.json {
        for node in tree.nodes() {
            anstream::println!("{}", serde_json::to_string(node).unwrap_or_default());
        }
    } else {
        let colour = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
        anstream::print!("{}", tree_view::tree(&tree, ViewOptions { colour, ..ViewOptions::default() }));
    }
    if cancel.is_cancelled() {
        return Err(Failure::Interrupted("the tree shows how far it came".to_owned()));
    }
    Ok(())
}

fn engine_spec(arguments: &RolloutArguments) -> Result<EngineSpec, Failure> {
    let sampling = settings::table_of("`--sampling`", &arguments.sampling)?;
    let sampling = espalier_envs::params::read("--sampling", &sampling).map_err(|error| Failure::Usage {
        what: "`--sampling`".to_owned(),
        expected: "sampling parameters".to_owned(),
        got: error.to_string(),
    })?;
    let (kind, options): (&str, Map<String, Value>) = match arguments.model.split_once('#') {
        Some((url, model)) => {
            ("openai", Map::from_iter([("base_url".into(), json!(url)), ("model".into(), json!(model))]))
        }
        None => ("local", Map::from_iter([("model".into(), json!(arguments.model))])),
    };
    Ok(EngineSpec { name: "model".to_owned(), kind: kind.to_owned(), options, sampling })
}
