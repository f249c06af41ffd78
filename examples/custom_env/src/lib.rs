//! An environment of one's own: guess a number; the reward is higher the fewer guesses it took.
use std::sync::Arc;

use async_trait::async_trait;
use espalier_envs::{Action, Env, EnvContext, EnvError, EnvKind, EnvRow, EnvSpec, Metrics, ParamSpec, Step};
use espalier_inference::Message;
use serde::Deserialize;

/// The parameters; unknown ones are refused with the nearest name.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// The secret lies between 1 and this; 100 where it is left out.
    pub highest: Option<u64>,
}

const HIGHEST: ParamSpec =
    ParamSpec { name: "highest", kind: "number", default: "100", doc: "the secret lies between 1 and this" };

/// What is registered: `Registry::register(GuessKind)`.
pub struct GuessKind;

impl EnvKind for GuessKind {
    type Params = Params;
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: "guess".to_owned(),
            summary: "Guess a number.".to_owned(),
            params: vec![HIGHEST],
            columns: vec![],
        }
    }
    fn make(&self, params: &Arc<Params>, _row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        Ok(Box::new(Guess { highest: params.highest.unwrap_or(100).max(1), secret: 0, turns: 0, most: 1 }))
    }
}

struct Guess {
    highest: u64,
    secret: u64,
    turns: u32,
    most: u32,
}

#[async_trait]
impl Env for Guess {
    async fn init(&mut self, _prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        (self.secret, self.most) = (1 + context.seed % self.highest, context.max_turns);
        Ok(vec![Message::user(format!("I think of a number from 1 to {}. Guess it.", self.highest))])
    }
    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        self.turns += 1;
        let guess = action.text.split_whitespace().find_map(|word| word.parse::<u64>().ok());
        if guess == Some(self.secret) {
            return Ok(Step { reward: 1.0 / f64::from(self.turns), terminated: true, ..Step::default() });
        }
        let hint = guess.map_or("Say a number.", |guess| if guess < self.secret { "Higher." } else { "Lower." });
        Ok(Step { observations: vec![Message::user(hint)], truncated: self.turns >= self.most, ..Step::default() })
    }
    fn metrics(&self) -> Metrics {
        Metrics::from([("guesses".to_owned(), self.turns.into())])
    }
}
