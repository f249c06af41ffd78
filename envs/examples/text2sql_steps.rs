//! Plays recorded text2sql episodes again and again and counts steps: one half of `benches/sql_peer.py`.
//!
//! usage: `text2sql_steps EPISODES.jsonl DATABASES ROUNDS`; prints `STEPS SECONDS`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use espalier_datasets::{Prompt, Row};
use espalier_envs::{Action, EnvContext, EnvRow, NoServices, Registry};
use espalier_inference::StopReason;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().ok_or_else(|| format!("{what} is missing"));
    let text = std::fs::read_to_string(next("EPISODES.jsonl")?)?;
    let root = next("DATABASES")?;
    let rounds: u32 = next("ROUNDS")?.parse()?;

    let params = json!({"db_path": root, "compat": "skyrl"}).as_object().cloned().unwrap_or_default();
    let kind = Registry::standard().prepare("text2sql", &params)?;
    let mut episodes = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let episode: Value = serde_json::from_str(line)?;
        let columns: Map<String, Value> = episode["row"].as_object().cloned().unwrap_or_default();
        let turns = columns.get("max_turns").and_then(Value::as_u64).unwrap_or(5) as u32;
        let actions: Vec<String> = episode["turns"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|turn| turn["action"].as_str().map(str::to_owned))
            .collect();
        let row = Row { id: number.to_string(), env: None, prompt: Prompt::Text("?".to_owned()), columns };
        episodes.push((EnvRow::from_row(row)?, turns, actions));
    }

    let mut steps = 0_u64;
    let began = Instant::now();
    for _ in 0..rounds {
        for (row, max_turns, actions) in &episodes {
            let mut env = kind.make(row)?;
            let context = EnvContext {
                services: Arc::new(NoServices),
                seed: 0,
                deadline: tokio::time::Instant::now() + Duration::from_mins(10),
                cancel: CancellationToken::new(),
                max_turns: *max_turns,
                depth: 0,
            };
            env.init(row.prompt.clone(), context).await?;
            for text in actions {
                let action = Action { text: text.clone(), tokens: Vec::new(), stop: StopReason::EndOfTurn };
                env.step(action).await?;
                steps += 1;
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    #[expect(clippy::print_stdout, reason = "what it measured is its output")]
    {
        println!("{steps} {seconds:.6}");
    }
    Ok(())
}
