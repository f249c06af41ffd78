//! Rollouts with a scripted engine: what everything around the model costs.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use espalier_envs::{Action, Env, EnvContext, EnvError, Step};
use espalier_generator::output::{OutputOptions, RunWriter};
use espalier_generator::player::ModelTemplate;
use espalier_generator::rollouts::{RolloutJob, RunOptions, groups, run};
use espalier_generator::source::EnvSource;
use espalier_generator::{Player, Players, RolloutStop, TrajectoryId, TreeOptions, TreeTask};
use espalier_inference::scripted::ScriptedEngine;
use espalier_inference::{ChatTemplate, Message, SamplingParams, Tokenizer};
use tokio_util::sync::CancellationToken;

use super::figure::{Better, Figure, Report, median};
use crate::failure::Failure;
use crate::settings::model_folder;

const ROLLOUTS: u32 = 512;
const TURNS: u32 = 4;
const PROMPT_BYTES: usize = 1024;
const OBSERVATION_BYTES: usize = 200;
const REPLY: &str = "Let me look at the next part of it.\n```repl\nprint(len(context))\n```";
const FIGURE: &str = "rlm_turns_per_s";

pub(super) async fn measure(report: &mut Report, quick: bool) -> Result<(), Failure> {
    if !report.wants(FIGURE) {
        return Ok(());
    }
    // The tokenizer is part of what is measured: a real one.
    let folder = model_folder("smollm2-135m-instruct");
    let missing = |reason: String| Failure::Input { file: folder.display().to_string(), reason };
    let tokenizer = Tokenizer::from_dir(&folder).map_err(|error| missing(error.to_string()))?;
    let template = ChatTemplate::from_dir(&folder).map_err(|error| missing(error.to_string()))?;
    let mut rates = Vec::new();
    for _ in 0..if quick { 1 } else { 5 } {
        rates.push(turns_per_second(&tokenizer, &template).await?);
    }
    report.add(Figure { figure: FIGURE, value: median(rates), unit: "turns/s", must: 2000.0, better: Better::Higher })
}

async fn turns_per_second(tokenizer: &Tokenizer, template: &ChatTemplate) -> Result<f64, Failure> {
    let internal = |error: String| Failure::Internal(error);
    let engine = ScriptedEngine::replies([REPLY]).cycle().vocabulary(tokenizer.clone(), template.clone()).build();
    let player = Player {
        engine: Arc::new(engine),
        template: Some(Arc::new(ModelTemplate::new(tokenizer.clone(), template.clone()))),
        sampling: SamplingParams::default(),
        trained: true,
    };
    let task = TreeTask {
        id: TrajectoryId { instance_id: "bench".to_owned(), repetition_id: 0 },
        seed: 0,
        source: Arc::new(Echo),
        prompt: vec![Message::user(text(PROMPT_BYTES))],
    };
    let job = RolloutJob { task, players: Players::policy(player), options: TreeOptions::default() };
    let folder = std::env::temp_dir().join(format!("espalier-bench-{}", std::process::id()));
    let writer = RunWriter::create(&folder, OutputOptions::default()).map_err(|error| internal(error.to_string()))?;
    let options = RunOptions { in_flight: ROLLOUTS as usize, progress: None };
    let start = Instant::now();
    let played = run(groups([job], ROLLOUTS), options, writer, &CancellationToken::new())
        .await
        .map_err(|error| internal(error.to_string()))?;
    played.sink.finish().map_err(|error| internal(error.to_string()))?;
    let seconds = start.elapsed().as_secs_f64();
    // What it wrote was part of the work; nobody reads it.
    let _ = std::fs::remove_dir_all(&folder);
    let mut turns = 0;
    for tree in played.trees.iter().flatten() {
        if tree.root.stop != RolloutStop::Completed {
            return Err(internal(format!("a rollout ended as {}: {:?}", tree.root.stop, tree.root.error)));
        }
        turns += tree.root.turns.len();
    }
    Ok(turns as f64 / seconds)
}

fn text(bytes: usize) -> String {
    "The quick brown fox looks into the long context and counts its lines. ".chars().cycle().take(bytes).collect()
}

/// An environment that answers every turn with an observation of the same size.
struct Echo;

impl EnvSource for Echo {
    fn env_id(&self) -> &'static str {
        "bench"
    }

    fn root(&self) -> Result<Box<dyn Env>, EnvError> {
        Ok(Box::new(EchoEpisode { turn: 0 }))
    }
}

struct EchoEpisode {
    turn: u32,
}

#[async_trait]
impl Env for EchoEpisode {
    async fn init(&mut self, prompt: Vec<Message>, _context: EnvContext) -> Result<Vec<Message>, EnvError> {
        Ok(prompt)
    }

    async fn step(&mut self, _action: Action) -> Result<Step, EnvError> {
        self.turn += 1;
        let over = self.turn == TURNS;
        Ok(Step {
            observations: if over { Vec::new() } else { vec![Message::user(text(OBSERVATION_BYTES))] },
            reward: f64::from(u8::from(over)),
            terminated: over,
            ..Step::default()
        })
    }
}
