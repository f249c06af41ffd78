//! `espalier rollout`: one task, once, with the tree shown.

use std::ffi::OsStr;
use std::sync::Arc;

use espalier_envs::{EnvError, EnvRow, Prepared, Registry};
use espalier_generator::output::{OutputOptions, RunWriter};
use espalier_generator::source::RowSource;
use espalier_generator::suite::{BuiltEngine, EngineSpec};
use espalier_generator::tree_view::{self, ViewOptions};
use espalier_generator::{Players, RolloutStop, Trajectory, TrajectoryId, TreeOptions, TreeTask, play_tree};
use espalier_inference::SamplingParams;
use serde_json::{Map, json};
use tokio_util::sync::CancellationToken;

use crate::arguments::RolloutArguments;
use crate::failure::Failure;
use crate::output::{out, outln};
use crate::{engines, interrupt, output, settings};

pub(crate) async fn run(arguments: RolloutArguments) -> Result<(), Failure> {
    let mut row = EnvRow::ask(arguments.prompt.clone());
    if let Some(truth) = &arguments.truth {
        row = row.with_truth(truth.clone());
    }
    if let Some(path) = &arguments.context {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))?;
        row = row.with_context(text);
    }
    let prepared = environment(&arguments, &row)?;
    let spec = engine_spec(&arguments.model, &arguments)?;
    let built = engine(&arguments.model, &spec).await.map_err(Failure::of_model)?;
    let mut players = Players::policy(built.player(&spec));
    if let Some(model) = &arguments.judge {
        // A judge is asked with a temperature of 0 and what the environment allows it to write, as in a suite.
        let judge = if *model == arguments.model {
            built.player(&spec)
        } else {
            let spec = EngineSpec { sampling: SamplingParams::default(), ..engine_spec(model, &arguments)? };
            engine(model, &spec).await.map_err(|failure| failure.within("`--judge`"))?.player(&spec)
        };
        players = players.with_judge(judge);
    }
    let mut options = TreeOptions::default();
    options.root.max_turns = arguments.max_turns;
    let task = TreeTask {
        id: TrajectoryId { instance_id: row.id.clone(), repetition_id: 0 },
        seed: arguments.seed,
        prompt: row.prompt.clone(),
        source: Arc::new(RowSource::new(prepared, row)),
    };
    let writer = arguments.out.as_ref().map(|folder| RunWriter::create(folder, OutputOptions::default()));
    let writer = writer.transpose()?;
    let cancel = CancellationToken::new();
    let stopper = tokio::spawn(interrupt::stop_and_keep(cancel.clone()));
    let tree = play_tree(task, players, options, &cancel).await;
    stopper.abort();
    if let Some(mut writer) = writer {
        writer.write(&tree).and_then(|()| writer.finish())?;
    }
    if arguments.json {
        for node in tree.nodes() {
            outln!("{}", serde_json::to_string(node).unwrap_or_default())?;
        }
    } else {
        let view = ViewOptions { colour: output::colour(), ..ViewOptions::default() };
        out!("{}", tree_view::tree(&tree, view))?;
    }
    if cancel.is_cancelled() {
        return Err(Failure::Interrupted("the tree shows how far it came".to_owned()));
    }
    ended(&tree.root)
}

/// Whether the rollout says something about the model; what failed otherwise.
fn ended(root: &Trajectory) -> Result<(), Failure> {
    let said = |what: &str| match &root.error {
        Some(error) => format!("{what}: {error}"),
        None => what.to_owned(),
    };
    match root.stop {
        RolloutStop::EngineError => Err(Failure::Engine(said("the engine failed"))),
        RolloutStop::EnvError => Err(Failure::Environment(said("the environment failed"))),
        _ => Ok(()),
    }
}

/// The environment, with its parameters read and the row looked at: what is missing is known before a model is loaded.
fn environment(arguments: &RolloutArguments, row: &EnvRow) -> Result<Prepared, Failure> {
    let mut params = settings::table_of("`--param`", &arguments.param)?;
    // A question without a truth is played for its own sake.
    if arguments.env == "rlm" && arguments.truth.is_none() && !params.contains_key("reward") {
        params.insert("reward".to_owned(), json!("non_empty"));
    }
    let prepared = Registry::standard().prepare(&arguments.env, &params).map_err(|error| match error {
        EnvError::Unknown { .. } => Failure::from(error).within("`--env`"),
        // Without a parameter nothing can be wrong with one: it is the file of an environment written in Python.
        _ if arguments.param.is_empty() => Failure::from(error).within("`--env`"),
        _ => Failure::from(error).within("`--param`"),
    })?;
    prepared.make(row).map_err(|error| lacking(arguments, row, error))?;
    Ok(prepared)
}

/// What an environment misses in the row, in terms of the command line.
fn lacking(arguments: &RolloutArguments, row: &EnvRow, error: EnvError) -> Failure {
    let env = &arguments.env;
    let EnvError::Invalid { key, reason, .. } = &error else { return error.into() };
    let reason = reason.replace(&format!(" in row `{}`", row.id), "");
    Failure::Configuration(match key.as_str() {
        "reward_spec.ground_truth" if arguments.truth.is_none() => {
            format!("`{env}` grades by the right answer, and there is none; say it with `--truth TEXT`")
        }
        "reward_spec.ground_truth" => format!("`--truth` {reason}"),
        "extra_info.context_text" if arguments.context.is_none() => {
            format!("`{env}` asks about a context, and there is none; name a file with `--context FILE`")
        }
        "extra_info.context_text" => format!("`--context` {reason}"),
        _ => return error.into(),
    })
}

/// How the model is sampled, and the endpoint where it is one.
fn engine_spec(model: &OsStr, arguments: &RolloutArguments) -> Result<EngineSpec, Failure> {
    let sampling = settings::table_of("`--sampling`", &arguments.sampling)?;
    let sampling = espalier_envs::params::read("--sampling", &sampling)?;
    let endpoint = model.to_str().and_then(|model| model.split_once('#'));
    let (kind, options) = match endpoint {
        Some((url, model)) => {
            ("openai", Map::from_iter([("base_url".into(), json!(url)), ("model".into(), json!(model))]))
        }
        // A folder need not be UTF-8, as options are: it is loaded from the argument.
        None => ("local", Map::new()),
    };
    Ok(EngineSpec { name: "model".to_owned(), kind: kind.to_owned(), options, sampling, plays: true })
}

#[cfg_attr(not(feature = "torch"), expect(unused_variables, reason = "only the local engine has a folder"))]
async fn engine(model: &OsStr, spec: &EngineSpec) -> Result<BuiltEngine, Failure> {
    #[cfg(feature = "torch")]
    if spec.kind == "local" {
        let folder = settings::model_folder(model);
        return engines::load(folder, espalier_engine::EngineOptions::default(), &spec.sampling).await;
    }
    engines::build(spec).await
}
